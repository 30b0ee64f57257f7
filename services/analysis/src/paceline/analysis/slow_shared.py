"""Late ranks of several communicators that another communicator holds together.

Ranks of one tensor group run in step: where one of them is late all are, and every data-parallel
group then blames its own member of that tensor group. None of these is the cause by that alone; the
rounds of the tensor group, or own times, tell who is.
"""

from collections.abc import Sequence

import numpy as np

from paceline.analysis.evidence import JobEvidence
from paceline.analysis.slow_keys import SlowKey

_OF_GROUP_MIN = 0.5  # of the members of a communicator are late elsewhere
_ALIKE = 0.5  # of the lateness of the key in question


def held_together(evidence: JobEvidence, key: SlowKey, keys: Sequence[SlowKey]) -> int | None:
    """Smallest communicator whose members are late, each in a communicator of its own, as `key` has it.

    None where there is none, where its own rounds are slow too and say who is late in it, or where
    it has fewer rounds than `key` and thus cannot be what keeps its members in step.
    """
    late = {
        other.late_rank: other.comm
        for other in keys
        if other.lateness_us >= _ALIKE * key.lateness_us and other.late[other.late_rank] * 2 > other.rounds
    }
    if len(late) < 2 or late.get(key.late_rank) != key.comm:
        return None
    slow = {other.comm for other in keys}
    best: int | None = None
    for comm in np.unique(evidence.comm_of[evidence.member_rank == key.late_rank]).tolist():
        members = evidence.members(comm)
        size = len(members)
        blamed = {late[rank] for rank in members.tolist() if rank in late}
        enough = len(blamed) >= max(2, _OF_GROUP_MIN * size)
        if comm == key.comm or not enough or _rounds(evidence, comm) < _rounds(evidence, key.comm):
            continue
        if comm in slow:
            return None
        if best is None or size < len(evidence.members(best)):
            best = comm
    return best


def _rounds(evidence: JobEvidence, comm: int) -> int:
    part = slice(int(evidence.offsets[comm]), int(evidence.offsets[comm + 1]))
    return int(evidence.state["completed"][part].max())
