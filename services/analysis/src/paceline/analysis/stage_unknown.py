"""What remains: nothing stands still, or the evidence does not decide."""

import numpy as np

from paceline.analysis.arrays import distinct
from paceline.analysis.findings import (
    NO_ACTION,
    Finding,
    name_ranks,
    note,
    nothing,
    phrase,
    rank_roots,
)
from paceline.analysis.situation import Situation
from paceline.analysis.unseen_ends import unreported_in_level
from paceline.contracts.verdicts import Action, ActionKind, Owner, Role, SubReason, VerdictClass


def calls_stopped(situation: Situation) -> Finding | None:
    """Everybody has made the same calls, nobody makes another, and no source shows completion."""
    level = situation.graph.collectives.level
    if situation.stalled.any() or not level.any():
        return None
    evidence = situation.evidence
    mine = level[evidence.comm_of] & evidence.seen
    age_ms = int(evidence.state["head_age_ms"][mine].min())
    missing = unreported_in_level(evidence, situation.processes, situation.graph)
    silent = distinct(evidence.member_rank[missing])
    comm = int(evidence.comm_of[missing][0]) if len(silent) else int(np.flatnonzero(level)[0])
    policy = situation.policy
    if age_ms < policy.backstop_s * 1000 or situation.processes.gated.any():
        return None
    who = f"; nothing is known of {name_ranks(silent)}" if len(silent) else ""
    candidates = silent if len(silent) <= policy.roots_max else silent[:0]
    return Finding(
        "calls_stopped",
        VerdictClass.INCONCLUSIVE,
        f"no rank has called anything in {evidence.comm_name(comm)} for {age_ms // 1000} s, and this source "
        f"does not show whether the last round is over{who}",
        SubReason.MISSING_EVIDENCE,
        rank_roots(evidence, candidates, policy.roots_max, Role.UNKNOWN),
        confidence=0.3,
        evidence=(
            note(
                "calls_stopped",
                "all ranks have entered the same rounds",
                threshold=f">= {policy.backstop_s:g} s",
                age_ms=age_ms,
            ),
        ),
        would_decide="a source that shows completion (kernel events of the NCCL profiler plugin), or stacks",
    )


def nothing_stalled(situation: Situation) -> Finding | None:
    """No operation has waited long enough."""
    if situation.stalled.any():
        return None
    return nothing("nothing_stalled", "no operation has waited long enough to be judged")


def inconclusive(situation: Situation) -> Finding:
    """Something stands still and what was seen does not say why; says what would decide."""
    evidence = situation.evidence
    stalled = np.flatnonzero(situation.stalled)
    unanswered = np.flatnonzero(situation.unanswered)
    op = situation.oldest(unanswered if len(unanswered) else stalled)
    silent = _silent(situation, unanswered)
    would = _would_decide(situation, silent)
    candidates = silent if 0 < len(silent) <= situation.policy.roots_max else np.zeros(0, np.int64)
    who = f"; nothing is known of {name_ranks(silent)}" if len(silent) else ""
    if len(silent) and situation.obscured[silent].all():
        who = f"; this source does not show what holds {name_ranks(silent)}"
    return Finding(
        "missing_evidence" if len(silent) else "undecided",
        VerdictClass.INCONCLUSIVE,
        f"{phrase(situation, op)} stands still{who}",
        SubReason.MISSING_EVIDENCE,
        rank_roots(evidence, candidates, situation.policy.roots_max, Role.UNKNOWN),
        op,
        Owner.UNKNOWN,
        NO_ACTION if len(silent) == 0 else Action(ActionKind.COLLECT, name_ranks(silent), would),
        0.3,
        (
            note(
                "coverage",
                f"{len(unanswered)} of {len(stalled)} stalled operations wait for ranks without a report",
                unanswered=len(unanswered),
                stalled=len(stalled),
                silent=len(silent),
            ),
        ),
        would_decide=would,
        settle_s=3.0,
    )


def _silent(
    situation: Situation, unanswered: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Unreported ranks that the unanswered operations wait for; the smallest set that all share."""
    common: set[int] | None = None
    union: set[int] = set()
    for op in unanswered:
        ranks = {int(rank) for rank in situation.blind(int(op))}
        if ranks:
            union |= ranks
            common = ranks if common is None else common & ranks
    doubtful = situation.stalled_lacks.rank[~situation.observed[situation.stalled_lacks.rank]]
    if not union:
        union = {int(rank) for rank in doubtful}
    return np.array(sorted(common or union), np.int64)


def _would_decide(situation: Situation, silent: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    if len(silent):
        nodes = sorted({situation.evidence.node(int(rank)) or "an unknown node" for rank in silent})
        return f"a sample of {name_ranks(silent)} ({', '.join(nodes[:4])})"
    if situation.graph.opaque[situation.stalled].any():
        return "the sender that a receive from any source waits for"
    return "another sample of the ranks that still move, or stacks of the waiting ones"
