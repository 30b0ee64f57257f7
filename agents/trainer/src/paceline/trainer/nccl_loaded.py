"""The NCCL that this process has loaded, asked for its version: what the agent's RAS client goes by."""

import ctypes
import re
from collections.abc import Callable, Iterable
from itertools import islice

from paceline.trainer.nccl_found import version_of

MAPS = "/proc/self/maps"
LINES_MAX = 200_000  # a process has at most vm.max_map_count mappings, 65,530 by default
_LIBRARY = re.compile(r"(/\S*/lib([nr]ccl)\.so[.0-9]*)\n?$")

AskVersion = Callable[[str], int]


def loaded_version(maps: Iterable[str] | None = None, ask: AskVersion | None = None) -> dict[str, str]:
    """`{"nccl": "2.29.7"}`, `{"rccl": ...}`, or nothing where none is loaded or it does not answer.

    `maps`: lines of /proc/PID/maps; `ask` gives the code of `ncclGetVersion` of a library, 0 unknown.
    """
    try:
        found = _find(_own_maps() if maps is None else maps)
        code = (ask or _ask)(found[0]) if found else 0
    except (OSError, AttributeError, ValueError):
        return {}
    return {found[1]: ".".join(map(str, version_of(code)))} if found and code > 0 else {}


def _own_maps() -> list[str]:
    with open(MAPS, encoding="utf-8", errors="surrogateescape") as stream:
        return list(islice((line for line in stream if "ccl.so" in line), LINES_MAX))


def _find(lines: Iterable[str]) -> tuple[str, str] | None:
    """Path and family of the first; several copies of one NCCL in a process are an accident, not a choice."""
    for line in lines:
        found = _LIBRARY.search(line)
        if found:
            return found[1], found[2]
    return None


def _ask(path: str) -> int:
    """It is loaded already: no library is brought in, and no GPU is needed for this call."""
    library = ctypes.CDLL(path)
    code = ctypes.c_int(0)
    return code.value if library.ncclGetVersion(ctypes.byref(code)) == 0 else 0
