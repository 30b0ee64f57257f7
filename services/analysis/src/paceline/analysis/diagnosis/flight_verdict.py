"""The verdict on Flight Recorder dumps: the judge's, and what the history adds to it.

Two things the judge does not see in an open round: a call that went wrong earlier and completed all the
same, and one rank that waits alone in a call that nobody else makes. In both the ranks that look absent are
the healthy ones.
"""

from dataclasses import replace

import numpy as np

from paceline.analysis.diagnosis.flight import FlightReport
from paceline.analysis.diagnosis.flight_history import Divergence
from paceline.analysis.evidence import JobEvidence
from paceline.analysis.findings import name_ranks, note, plural, rank_roots
from paceline.analysis.judge import Judgement, explain
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.ids import parse_communicator
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Evidence,
    Operation,
    Owner,
    SubReason,
    Verdict,
    VerdictClass,
)

SAMPLE_MIN = 4  # alike, of a group of which most dumps are missing
SAMPLE_RATIO = 4  # of those alike to those that differ
LONE_OTHERS_MIN = 2  # with two ranks nobody can say which of them is alone
_REVISED = (VerdictClass.H1, VerdictClass.H2, VerdictClass.INCONCLUSIVE, VerdictClass.DEADLOCK)


def judge_flight(report: FlightReport, policy: JudgePolicy | None = None) -> Judgement:
    """The verdict on one job's dumps, with the stage and reason that decided."""
    used = policy or JudgePolicy()
    base = explain(report.evidence, used)
    if base.verdict.verdict_class not in _REVISED:
        return base
    comm = _communicator(report.evidence, base.verdict)
    first = next(
        (each for each in report.divergences if report.names[each.group] == _name(report, comm)), None
    )
    if first is not None:
        return _with_history(report, base, comm, first, used)
    lone = alone_in_call(report.evidence, base)
    return base if lone is None else _alone(report.evidence, base, comm, lone, used)


def alone_in_call(evidence: JobEvidence, base: Judgement) -> int | None:
    """The one rank inside a call of which every other member, all seen, all idle and all level, knows
    nothing; None where the judge found another reason, or where they are too few."""
    verdict = base.verdict
    comm = _communicator(evidence, verdict)
    if verdict.verdict_class is not VerdictClass.H1 or base.reason != "not_entered" or comm < 0:
        return None
    part = slice(int(evidence.offsets[comm]), int(evidence.offsets[comm + 1]))
    ranks = evidence.member_rank[part]
    roots = {root.rank for root in verdict.roots}
    others = np.array([int(rank) in roots for rank in ranks], np.bool_)
    if int((~others).sum()) != 1 or int(others.sum()) < LONE_OTHERS_MIN or len(roots) != int(others.sum()):
        return None
    if not evidence.seen[part].all() or len(set(evidence.state["entered"][part][others].tolist())) != 1:
        return None
    return int(ranks[~others][0])


def _alone(evidence: JobEvidence, base: Judgement, comm: int, lone: int, policy: JudgePolicy) -> Judgement:
    others = [int(rank) for rank in evidence.members(comm) if int(rank) != lone]
    operation = base.verdict.operation
    call = (
        f"{operation.function} round {operation.round} of {operation.communicator_name}" if operation else ""
    )
    statement = (
        f"rank {lone} alone called {call}; {name_ranks(others)} made the same calls up to the one before and "
        f"have nothing outstanding"
    )
    verdict = replace(
        base.verdict,
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.OPERATION_MISMATCH,
        roots=rank_roots(evidence, [lone], policy.roots_max),
        victims=(),
        victims_count=0,
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, f"rank {lone}", "find the call that only this rank makes"),
        confidence=round(base.verdict.confidence * 0.7, 3),
        evidence=(
            note("alone", statement, threshold=f">= {LONE_OTHERS_MIN} others, all alike", others=len(others)),
            *base.verdict.evidence,
        ),
        summary=statement,
        would_decide=f"whether {name_ranks(others)} ended their program or stand somewhere outside a call",
    )
    return Judgement(verdict, "flight_history", "alone_in_call", base.settle_s)


def _with_history(
    report: FlightReport, base: Judgement, comm: int, first: Divergence, policy: JudgePolicy
) -> Judgement:
    """The judge's answer with the first divergence of the group that stands still."""
    said = divergence_note(report, first)
    verdict = base.verdict
    named = {root.rank for root in verdict.roots if root.rank is not None}
    odd = first.odd
    if verdict.sub_reason is SubReason.NO_MAJORITY and not odd:
        odd = likely_odd(first)
    if not odd or named == set(odd) or (first.odd and first.sequence == _round(verdict)):
        kept = replace(verdict, evidence=(said, *verdict.evidence)[: policy.evidence_max])
        return Judgement(kept, base.stage, base.reason, base.settle_s)
    call = first.sides[0].call
    waiting = tuple(rank for rank in (*verdict.victims, *named) if rank not in odd)
    victims = tuple(sorted({rank for rank in waiting if rank is not None}))
    changed = replace(
        verdict,
        verdict_class=VerdictClass.H2,
        sub_reason=_reason(first),
        roots=rank_roots(report.evidence, odd, policy.roots_max),
        victims=victims,
        victims_count=len(victims),
        operation=Operation(
            verdict.operation.communicator if verdict.operation else "",
            report.names[first.group],
            call.work.function,
            first.sequence,
            len(report.evidence.members(comm)),
            str(call),
        ),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, name_ranks(odd), "make every rank call the same operations"),
        confidence=0.85 if first.odd else 0.6,
        evidence=(said, *verdict.evidence)[: policy.evidence_max],
        summary=f"{said.statement}; what stands still now is a consequence",
        would_decide="" if first.odd else "dumps of the other members",
    )
    return Judgement(changed, "flight_history", "first_divergence", base.settle_s)


def likely_odd(first: Divergence) -> tuple[int, ...]:
    """Ranks that stand against most of a sample: dumps of some members, nearly all of them alike."""
    most = len(first.sides[0].ranks)
    few = tuple(sorted(rank for side in first.sides[1:] for rank in side.ranks))
    return few if most >= SAMPLE_MIN and most >= SAMPLE_RATIO * len(few) else ()


def divergence_note(report: FlightReport, first: Divergence) -> Evidence:
    """The divergence as a line of evidence."""
    name = report.names[first.group]
    words = "; ".join(f"{name_ranks(side.ranks)} called {side.call}" for side in first.sides[:4])
    slip = ""
    if first.slip:
        who = name_ranks(first.odd or first.sides[-1].ranks)
        more = "fewer" if first.slip < 0 else "more"
        slip = f": from there on {who} made {plural(abs(first.slip), 'call')} {more} than the others"
    over = " and it completed" if first.completed else ""
    return note(
        "first_divergence",
        f"the calls differ first in round {first.sequence} of {name}{over}: {words}{slip}",
        threshold="strict majority of all members; two ranks: no vote",
        sides=len(first.sides),
        slip=first.slip,
    )


def _reason(first: Divergence) -> SubReason:
    usual, odd = first.sides[0].call, first.sides[-1].call
    if usual.work.function != odd.work.function:
        return SubReason.OPERATION_MISMATCH
    return SubReason.DTYPE_MISMATCH if usual.work.dtype != odd.work.dtype else SubReason.SIZE_MISMATCH


def _round(verdict: Verdict) -> int:
    return verdict.operation.round if verdict.operation else 0


def _communicator(evidence: JobEvidence, verdict: Verdict) -> int:
    """Index of the communicator of the verdict's operation, -1 where it has none."""
    if verdict.operation is None or not verdict.operation.communicator:
        return -1
    wanted = np.array([parse_communicator(verdict.operation.communicator)], np.uint64)
    return int(evidence.index_of(wanted)[0])


def _name(report: FlightReport, comm: int) -> str:
    return report.evidence.comm_name(comm) if comm >= 0 else ""
