"""The version of the NCCL in this process, and that the registration names it."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from paceline.trainer.nccl_loaded import loaded_version

HEAD = "7f0000000000-7f0000001000 r-xp 00000000 08:01 12345                      "
NCCL = "/usr/lib/python3/site-packages/nvidia/nccl/lib/libnccl.so.2"


def answer(code: int) -> dict[str, str]:
    return loaded_version([f"{HEAD}/lib/libc.so.6\n", f"{HEAD}{NCCL}\n"], lambda path: code * (path == NCCL))


@pytest.mark.parametrize(
    ("code", "version"), [(22907, {"nccl": "2.29.7"}), (2804, {"nccl": "2.8.4"}), (0, {}), (-1, {})]
)
def test_version_is_what_the_library_answers(code: int, version: dict[str, str]) -> None:
    assert answer(code) == version


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[heap]\n",
        "/lib/libnccl-net.so\n",
        "/x/libpaceline-nccl-shim.so\n",
        "/tmp/libnccl.so.2 (deleted)\n",
    ],
)
def test_other_libraries_are_not_asked(line: str) -> None:
    assert loaded_version([HEAD + line], lambda _: 22907) == {}


def test_rccl_is_named_as_such() -> None:
    assert loaded_version([f"{HEAD}/opt/rocm/lib/librccl.so.1.0\n"], lambda _: 22707) == {"rccl": "2.27.7"}


def test_library_that_cannot_be_asked_is_not_announced() -> None:
    def refuse(path: str) -> int:
        raise OSError(path)

    assert loaded_version([f"{HEAD}{NCCL}\n"], refuse) == {}


HELLO = """
import ctypes, json, sys
ctypes.CDLL(sys.argv[1])
from paceline.trainer.surroundings import versions
print(json.dumps(versions("2.13.0")))
"""


def test_the_real_library_is_announced() -> None:
    """By what the torch hook registers, from which the agent's RAS client takes its version gate."""
    package = find_spec("nvidia")
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    found = [path for folder in folders for path in Path(folder).glob("nccl*/lib/libnccl.so.2")]
    if not found:
        pytest.skip("no wheel of NCCL here: torch without CUDA")
    done = subprocess.run([sys.executable, "-c", HELLO, found[0]], capture_output=True, text=True, check=True)
    announced = json.loads(done.stdout)
    assert announced["torch"] == "2.13.0"
    assert announced["nccl"].startswith("2.")
