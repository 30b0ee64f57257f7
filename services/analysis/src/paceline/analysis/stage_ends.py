"""Ends of jobs and people at work: reasons why waiting ranks are no incident."""

import numpy as np

from paceline.analysis.arrays import distinct
from paceline.analysis.findings import Finding, name_ranks, nothing
from paceline.analysis.situation import Situation


def ended(situation: Situation) -> Finding | None:
    """The whole job was cancelled, or has ended in order."""
    processes, evidence = situation.processes, situation.evidence
    if processes.cancelled:
        return nothing("cancelled", "the job was cancelled")
    dead, told = int(processes.dead.sum()), int(processes.told.sum())
    if told >= max(2, (evidence.world_size + 1) // 2) and told + int(processes.vanished.sum()) == dead:
        return nothing("cancelled", f"{told} of {evidence.world_size} ranks were told to stop")
    if evidence.job_state in ("finished", "ended") or (evidence.world_size and bool(processes.ended.all())):
        return nothing("finished", "every rank ended in order")
    return None


def suspended(situation: Situation) -> Finding | None:
    """All processes are stopped: somebody suspended the job."""
    processes = situation.processes
    alive = situation.evidence.process_seen & ~processes.ended & ~processes.dead & ~processes.lost
    if int(alive.sum()) > 1 and bool(processes.stopped[alive].all()):
        return nothing("suspended", "all processes of the job are stopped")
    return None


def traced(situation: Situation) -> Finding | None:
    """A debugger holds a process: whatever waits, waits for a person."""
    ranks = np.flatnonzero(situation.processes.traced)
    if len(ranks):
        return nothing("traced", f"a debugger or tracer holds {name_ranks(ranks)}")
    return None


def ragged_end(situation: Situation) -> Finding | None:
    """Some ranks ended in order and the others finish their tail.

    Only where every stalled operation waits for ended ranks or behind one that does, and not for
    longer than `ragged_patience_s`: a rank that ends early in the middle of a job is a real H1.
    """
    processes, lacks = situation.processes, situation.stalled_lacks
    if not processes.ended.any() or not situation.stalled.any():
        return None
    oldest_ms = int(situation.graph.age_ms[situation.stalled].max())
    if oldest_ms >= situation.policy.ragged_patience_s * 1000:
        return None
    if processes.ended[lacks.rank].any() and not len(situation.idle_lacks.rank):
        ranks = distinct(lacks.rank[processes.ended[lacks.rank]])
        return nothing("ragged_end", f"{name_ranks(ranks)} ended in order while others still finish")
    return None
