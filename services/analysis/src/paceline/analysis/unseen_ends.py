"""Where no source shows completion: who may be held without a sign of it.

An operation that all observed members have entered may be over or not. Where one of its members was
not reported, or is held by something else, it may be open and hold them all: none of them is idle.
"""

import numpy as np

from paceline.analysis.evidence import JobEvidence, Mask
from paceline.analysis.pairs import complete_pages, hidden_completion
from paceline.analysis.processes import Processes
from paceline.analysis.waits import WaitGraph

_PASSES_MAX = 64  # stages that a wait is followed through; a pipeline has fewer


def unseen_operations(evidence: JobEvidence, graph: WaitGraph) -> Mask:
    """Operations of communicators of which some member's source does not show completion."""
    mask = np.zeros(graph.ops, np.bool_)
    hidden = hidden_completion(evidence)
    if hidden.any():
        per_comm = np.logical_or.reduceat(hidden, evidence.offsets[:-1])
        mask[: evidence.communicators] = per_comm
        mask[graph.pair_base : graph.host_base] = per_comm[graph.pairs.comm]
    return mask


def obscured_ranks(evidence: JobEvidence, processes: Processes, graph: WaitGraph) -> Mask:
    """Ranks that an unreported rank may hold, directly or through others; none where all report.

    It begins with communicators that have an unreported member and of which all others stand level, and
    with who waits for an unreported rank alone; it goes on through everything that may be open.
    """
    rank, comm_of = evidence.member_rank, evidence.comm_of
    found = np.zeros(evidence.world_size, np.bool_)
    hidden = hidden_completion(evidence) & ~processes.lost[rank]
    if not hidden.any():
        return found
    starts = evidence.offsets[:-1]
    seen = evidence.seen & ~processes.lost[rank]
    known = seen | complete_pages(evidence, seen, processes.lost)[rank]
    partial = np.logical_or.reduceat(~known, starts) & graph.collectives.level
    found[rank[hidden & partial[comm_of] & (evidence.column("entered") > 0)]] = True
    unanswered = (graph.blind_count > 0) & (graph.lack_count == 0) & unseen_operations(evidence, graph)
    found[graph.holds.rank[unanswered[graph.holds.op]]] = True
    return _follow(evidence, graph, hidden, found) if found.any() else found


def _follow(evidence: JobEvidence, graph: WaitGraph, hidden: Mask, found: Mask) -> Mask:
    """`found`, with the ranks that share a level round or a pair with one of them, or lack one."""
    rank, comm_of = evidence.member_rank, evidence.comm_of
    level = hidden & graph.collectives.level[comm_of]
    rows = evidence.peers
    comm, local = evidence.index_of(rows["comm"]), rows["peer"].astype(np.int64)
    valid = (comm >= 0) & (local >= 0) & (local < np.diff(evidence.offsets)[comm])
    mine = rows["rank"].astype(np.int64)[valid]
    peer = rank[evidence.offsets[comm[valid]] + local[valid]]
    reached = found.copy()
    for _ in range(_PASSES_MAX):
        before = int(reached.sum())
        is_open = np.logical_or.reduceat(level & reached[rank], evidence.offsets[:-1])
        reached[rank[level & is_open[comm_of]]] = True
        reached[mine[reached[peer]]] = True
        lacking = np.bincount(graph.lacks.op, reached[graph.lacks.rank], graph.ops) > 0
        reached[graph.holds.rank[lacking[graph.holds.op]]] = True
        if int(reached.sum()) == before:
            break
    return reached
