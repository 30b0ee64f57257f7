"""Which NCCL the command will load, found without importing torch and without a GPU.

The interpreter of the command is asked in a child: for the metadata of its packages, and for what
`ncclGetVersion` answers. A library that hangs or dies there costs the child and some seconds.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ASK_S_MAX = 10.0
ANSWER_BYTES_MAX = 65_536
SHEBANG_BYTES_MAX = 512
CONF_BYTES_MAX = 65_536
SYSTEM_CONF = "/etc/nccl.conf"
SHM = "/dev/shm"  # noqa: S108
Version = tuple[int, int, int]

# Runs in any Python from 3.8 on; prints one line of JSON. Paths first that torch's wheels load from.
QUESTION = r"""
import ctypes, json, os
from importlib import metadata
def of(name):
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
torch = of("torch")
found = {"torch": torch.version if torch else "", "wheel": "", "wheel_version": "", "library": "", "code": 0}
paths = []
for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
    wheel = of(name)
    if wheel:
        found["wheel"], found["wheel_version"] = name, wheel.version
        paths.append(str(wheel.locate_file("nvidia/nccl/lib/libnccl.so.2")))
        break
if torch:
    paths.append(str(torch.locate_file("torch/lib/librccl.so")))
rocm = "rocm" in found["torch"]
cpu = found["torch"].endswith("+cpu") and not found["wheel"]
paths = [path for path in paths if os.path.exists(path)]
if not cpu:
    paths += ["librccl.so.1", "librccl.so"] if rocm else ["libnccl.so.2", "libnccl.so", "librccl.so.1"]
found["error"] = ""
for path in paths:
    try:
        library = ctypes.CDLL(path)
        code = ctypes.c_int(0)
        if library.ncclGetVersion(ctypes.byref(code)) == 0 and code.value > 0:
            found["library"], found["code"] = path, code.value
            break
    except (OSError, AttributeError) as error:
        if "/" in path and not found["error"]:
            found["error"] = str(error)[:200]
print("paceline " + json.dumps(found))
"""


class Family(str, Enum):
    """Whose library it is."""

    NCCL = "NCCL"
    RCCL = "RCCL"
    NONE = "none"
    UNKNOWN = "unknown"  # nobody could be asked


@dataclass(frozen=True)
class FoundNccl:
    """What was found; `version` is None where only the library's presence, or nothing, is known."""

    family: Family
    version: Version | None = None
    source: str = ""  # for people: where the version comes from
    torch: str = ""
    why: str = ""  # why it is not known


def find_nccl(
    program: str, environment: Mapping[str, str], *, question: str = QUESTION, limit_s: float = ASK_S_MAX
) -> FoundNccl:
    """Ask the interpreter that `program` will run in; never raises, waits at most `limit_s`."""
    python = interpreter_of(program) or sys.executable
    # With NCCL_DEBUG the library writes to stdout; our own switch has no business in the child.
    quiet = {key: text for key, text in environment.items() if key not in ("NCCL_DEBUG", "PACELINE")}
    try:
        done = subprocess.run(
            [python, "-c", question], env=quiet, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return FoundNccl(Family.UNKNOWN, why=f"no answer from {python} within {limit_s:g} s")
    except OSError as error:
        return FoundNccl(Family.UNKNOWN, why=f"{python} could not be started: {error.strerror}")
    return read_answer(done.stdout[:ANSWER_BYTES_MAX], done.returncode, python)


def read_answer(answer: bytes, status: int, python: str) -> FoundNccl:
    """What the child's answer means."""
    lines = [line for line in answer.decode("utf-8", "replace").splitlines() if line.startswith("paceline ")]
    try:
        found = json.loads(lines[-1].partition(" ")[2])
        torch, code = str(found["torch"]), int(found["code"])
        wheel, wheel_version, library = (str(found[key]) for key in ("wheel", "wheel_version", "library"))
        error = str(found["error"])
    except (IndexError, KeyError, TypeError, ValueError):
        return FoundNccl(Family.UNKNOWN, why=f"{python} ended with status {status} and no answer")
    family = Family.RCCL if "rccl" in Path(library).name or "rocm" in torch else Family.NCCL
    if code:
        source = wheel if wheel and "/nvidia/nccl/" in library else library
        return FoundNccl(family, version_of(code), source, torch)
    if wheel_version:
        return FoundNccl(Family.NCCL, parse_version(wheel_version), f"{wheel}, not loaded", torch, error)
    return FoundNccl(Family.NONE, torch=torch)


def version_of(code: int) -> Version:
    """22907 is 2.29.7; before 2.9 the minor number had one digit (2804 is 2.8.4)."""
    if code < 10_000:
        return code // 1000, code // 100 % 10, code % 100
    return code // 10_000, code // 100 % 100, code % 100


def parse_version(text: str) -> Version | None:
    """`2.27.5`, `2.27.5.1`; None for what has no three numbers."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def interpreter_of(program: str) -> str | None:
    """The Python that runs `program` (a Python, or a script such as torchrun); None for anything else."""
    path = shutil.which(program)
    if path is None:
        return None
    if re.fullmatch(r"python[0-9.]*", Path(path).name):
        return path
    try:
        with open(path, "rb") as stream:
            first = stream.readline(SHEBANG_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not re.fullmatch(r"python[0-9.]*", Path(words[0]).name):
        return None
    return shutil.which(words[0])


def read_conf(environment: Mapping[str, str], system: str = SYSTEM_CONF) -> dict[str, str]:
    """Variables of NCCL's own files, the user's before the machine's; what cannot be read says nothing."""
    home = environment.get("HOME", "")
    own = environment.get("NCCL_CONF_FILE") or (f"{home}/.nccl.conf" if home else "")
    found: dict[str, str] = {}
    for path in (own, system):
        for name, text in _lines_of(path):
            found.setdefault(name, text)
    return found


def _lines_of(path: str) -> Sequence[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(CONF_BYTES_MAX)
    except OSError:
        return ()
    pairs = (line.partition("=") for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [(name.strip(), value.strip()) for name, equals, value in pairs if equals]


def shm_bytes(path: str = SHM) -> int | None:
    """Size of the shared memory file system, None where there is none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize
