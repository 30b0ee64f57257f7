"""CPU time of a process and of everything it started, from `/proc`; `root` is injected for tests."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PROC = Path("/proc")
TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Tree:
    """`children_ms` is of those that live and of those that ended and were waited for, at any depth."""

    own_ms: int
    children_ms: int
    living: frozenset[int]  # pids below the process

    @property
    def total_ms(self) -> int:
        return self.own_ms + self.children_ms


@dataclass(frozen=True)
class Look:
    at_s: float  # monotonic
    tree: Tree


def read_tree(pid: int, root: Path = PROC) -> Tree:
    """ProcessLookupError where there is no such process: a reading of 0 would pass for a cost."""
    try:
        own_ms, children_ms = _times_ms(pid, root)
    except FileNotFoundError:
        raise ProcessLookupError(f"no process {pid}") from None
    living = set()
    for child in _children(pid, root):
        try:
            below = read_tree(child, root)
        except ProcessLookupError:
            continue  # it has ended since, and counts for whoever waits for it
        children_ms += below.total_ms
        living |= {child, *below.living}
    return Tree(own_ms, children_ms, frozenset(living))


def summarize(looks: Sequence[Look], cpus: int) -> dict[str, object]:
    """What a row of looks says, about one a second; the first one ends what was before."""
    first, last = looks[0], looks[-1]
    seconds = last.at_s - first.at_s
    steps = list(pairwise(looks))
    spent_ms = [after.tree.total_ms - before.tree.total_ms for before, after in steps]
    worst = max(range(len(spent_ms)), key=spent_ms.__getitem__)
    seen = frozenset[int]().union(*(look.tree.living for look in looks))
    cpu_s_per_s = (last.tree.total_ms - first.tree.total_ms) / 1000 / seconds
    children_ms = last.tree.children_ms - first.tree.children_ms
    return {
        "seconds": round(seconds, 2),
        "agent_cpu_s_per_s": round(cpu_s_per_s, 5),
        "agent_node_percent": round(100 * cpu_s_per_s / cpus, 3),
        "agent_children_cpu_s_per_s": round(children_ms / 1000 / seconds, 5),
        "agent_children_started": len(seen - first.tree.living),
        "agent_worst_second_ms": spent_ms[worst],
        "agent_worst_second_at_s": round(looks[worst].at_s - first.at_s, 1),
    }


def _times_ms(pid: int, root: Path) -> tuple[int, int]:
    """User and system time: its own, and of its children that were waited for."""
    try:
        text = (root / str(pid) / "stat").read_bytes()
    except ProcessLookupError as error:
        raise FileNotFoundError from error
    fields = text[text.rfind(b")") + 2 :].split()
    user, system, children_user, children_system = (int(field) * TICK_MS for field in fields[11:15])
    return user + system, children_user + children_system


def _children(pid: int, root: Path) -> list[int]:
    found: list[int] = []
    for path in (root / str(pid) / "task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has ended
    return found
