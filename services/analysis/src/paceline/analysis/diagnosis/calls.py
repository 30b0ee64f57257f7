"""Calls of operations as NCCL's own log gives them (NCCL_DEBUG_SUBSYS=COLL): one list for each rank.

A communicator is a pointer in each process; lines of its init give the id that processes share, else the
n-th communicator of one size stands for the same one everywhere. Sends and receives share numbers and are
left out. opCount counts from 0 for each communicator.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from paceline.analysis.diagnosis.case import Case
from paceline.analysis.facts import CallSeen, Membership

_POINT = ("send", "recv", "send_recv")
_PROCESS = tuple[str, int | None, str]
Calls = dict[int, CallSeen]  # opCount: the call


@dataclass
class Called:
    """One communicator: the calls of each global rank."""

    name: str
    size: int
    ranks: dict[int, Calls] = field(default_factory=dict)

    @property
    def last(self) -> dict[int, int]:
        return {rank: max(calls) for rank, calls in self.ranks.items() if calls}


def read_calls(case: Case) -> list[Called]:
    """Communicators with calls of at least two ranks, in order of their first line."""
    ids = {
        (_process(fact), fact.group.description): fact.group.name
        for fact in case.of(Membership)
        if fact.group.name and fact.group.description
    }
    order: dict[tuple[_PROCESS, int], dict[str, int]] = defaultdict(dict)
    found: dict[str, Called] = {}
    for fact in case.of(CallSeen):
        work, pointer = fact.work, fact.group.description
        rank = case.rank_of(fact)
        if rank is None or work.sequence is None or not pointer or work.function in _POINT:
            continue
        process = _process(fact)
        seen = order[process, fact.group.size]
        number = seen.setdefault(pointer, len(seen))
        name = ids.get((process, pointer)) or f"of {fact.group.size} ranks" + (
            f" ({number})" if number else ""
        )
        called = found.setdefault(name, Called(name, fact.group.size))
        called.ranks.setdefault(rank, {}).setdefault(work.sequence, fact)
    return [called for called in found.values() if len(called.ranks) > 1]


def _process(fact: CallSeen | Membership) -> _PROCESS:
    return fact.speaker.host, fact.speaker.pid, fact.origin.file if fact.speaker.pid is None else ""
