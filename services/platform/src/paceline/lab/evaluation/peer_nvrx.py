"""NVRx's Flight Recorder analyser (`nvidia-resiliency-ext`), which needs neither a GPU nor a model."""

import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "nvidia_resiliency_ext"
ANALYSER = f"{PACKAGE}.attribution.trace_analyzer.fr_attribution"
Named = tuple[tuple[int, ...], int, tuple[int, ...]]
"""All ranks named, number of sets, ranks of the first set."""
_RANKS = re.compile(r"^[0-9]+(,[0-9]+)*$")
_COLUMNS = 6


def why_no_nvrx() -> str:
    """Why it cannot be run, empty where it can."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        return "nvidia-resiliency-ext is not installed"
    file = Path(*ANALYSER.split(".")[1:]).with_suffix(".py")
    if not any((Path(place) / file).is_file() for place in places):
        return "this nvidia-resiliency-ext has no Flight Recorder analyser (0.7 has)"
    return ""


def has_nvrx() -> bool:
    """Whether this Python can run it."""
    return not why_no_nvrx()


def nvrx_command(folder: Path, pattern: str) -> list[str]:
    """Analyses the dumps of `folder`."""
    return [sys.executable, "-m", ANALYSER, "--fr-path", str(folder), "-p", pattern, "--emit-stdout"]


def read_nvrx(text: str) -> Named:
    """The missing ranks of its table: the last column, as NVRx itself reads it."""
    sets, in_table = list[set[int]](), False
    for line in text.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if "Missing Ranks" in line and "PGID" in columns[0]:
            in_table, sets = True, []  # the table comes on both streams
        elif in_table and len(columns) >= _COLUMNS and _RANKS.match(columns[-1]):
            sets.append({int(rank) for rank in columns[-1].split(",")})
    return named_sets(sets)


def named_sets(sets: Sequence[set[int]]) -> Named:
    """Their union, the number of different ones, and the first of them."""
    union, different = set[int]().union(*sets), {frozenset(each) for each in sets}
    return tuple(sorted(union)), len(different), tuple(sorted(sets[0])) if sets else ()
