"""What the judge of the live system says: of Flight Recorder dumps, and of the table that logs give.

Its classes are brought to the six of the cases: a dead process is a member that did not enter, a circle of
orders is a disagreement, full queues are a stall inside.
"""

from collections.abc import Sequence

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.flight import read_flight
from paceline.analysis.diagnosis.flight_verdict import judge_flight
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of
from paceline.analysis.diagnosis.standings import standing_evidence
from paceline.analysis.facts import Fact, FlightDump, StackSeen
from paceline.analysis.judge import Judgement, explain
from paceline.contracts.verdicts import Role, Root, RootKind, SubReason, Verdict, VerdictClass

_SIX = {VerdictClass.DEAD_PROCESS: VerdictClass.H1, VerdictClass.DEADLOCK: VerdictClass.H2}
_OPEN = (VerdictClass.INCONCLUSIVE, VerdictClass.NONE)
_OF_TABLE = (VerdictClass.H1, VerdictClass.H2, VerdictClass.DEADLOCK)


def dumps(case: Case) -> Finding | None:
    """Flight Recorder dumps that decide."""
    judgement = _judge_dumps(case)
    if judgement is None or judgement.verdict.verdict_class in _OPEN:
        return None
    return _finding(case, judgement, case.of(FlightDump))


def dumps_undecided(case: Case) -> Finding | None:
    """Dumps that do not decide: what is seen, and what would."""
    judgement = _judge_dumps(case)
    if judgement is None or judgement.verdict.verdict_class is not VerdictClass.INCONCLUSIVE:
        return None
    return _finding(case, judgement, case.of(FlightDump))


def table(case: Case) -> Finding | None:
    """Groups whose members all speak: which of several waiting groups holds the others."""
    evidence = standing_evidence(case)
    if evidence is None:
        return None
    judgement = explain(evidence)
    if judgement.verdict.verdict_class not in _OF_TABLE:
        return None
    origins: list[Fact] = []
    return _finding(case, judgement, origins)


def class_of(verdict: Verdict) -> VerdictClass:
    """One of the six classes, NONE or INCONCLUSIVE."""
    if verdict.verdict_class is VerdictClass.DEADLOCK and verdict.sub_reason is SubReason.QUEUE_EXHAUSTION:
        return VerdictClass.H3
    if verdict.verdict_class is VerdictClass.INIT:
        return VerdictClass.H1 if any(root.rank is not None for root in verdict.roots) else VerdictClass.H3
    return _SIX.get(verdict.verdict_class, verdict.verdict_class)


def _judge_dumps(case: Case) -> Judgement | None:
    """Each backend has a recorder of its own: what one shows as idle, another may show as stuck."""
    recorders: dict[str, list[FlightDump]] = {}
    for dump in case.of(FlightDump):
        if len(dump.entries) or not recorders:
            recorders.setdefault(dump.backend, []).append(dump)
    if not recorders:
        return None
    found = [judge_flight(read_flight(dumps)) for _, dumps in sorted(recorders.items())]
    decided = [each for each in found if each.verdict.verdict_class not in _OPEN]
    stalled = [each for each in found if each.verdict.verdict_class is VerdictClass.INCONCLUSIVE]
    return min(decided or stalled or found, key=lambda each: len(each.verdict.roots))


def _finding(case: Case, judgement: Judgement, facts: Sequence[Fact]) -> Finding:
    verdict = judgement.verdict
    operation = verdict.operation
    roots = tuple(blame(case, root) for root in verdict.roots)
    if verdict.sub_reason is SubReason.ALL_RANKS_STUCK and all(root.rank is None for root in roots):
        roots = (Blame(RootKind.NONE, name="no rank differs", why="all entered alike"),)
    named = [root.rank for root in roots if root.rank is not None]
    stacks = [f for f in case.of(StackSeen) if case.rank_of(f) in named and f.frames]
    undecided = verdict.verdict_class is VerdictClass.INCONCLUSIVE
    return Finding(
        reason=judgement.reason,
        verdict_class=class_of(verdict),
        sub_reason=verdict.sub_reason,
        roots=() if undecided else roots,
        victims=verdict.victims,
        communicator=operation.communicator_name if operation else "",
        operation=operation,
        owner=verdict.owner,
        action=verdict.action,
        confidence=verdict.confidence,
        grounds=(
            *(Ground(e.rule, e.statement, origins_of(facts), e.supports) for e in verdict.evidence),
            *(Ground("stack", " < ".join(f.frames[:3]), (f.origin,)) for f in stacks[:4]),
        ),
        summary=verdict.summary + (f"; its stack: {stacks[0].frames[0]}" if stacks else ""),
        would_decide=(verdict.would_decide,) if verdict.would_decide else (),
    )


def blame(case: Case, root: Root) -> Blame:
    """A root of the judge, with the place that the files give its rank."""
    place = case.places.get(root.rank) if root.rank is not None else None
    return Blame(
        root.kind,
        rank=root.rank,
        node=root.node or (place.host if place else ""),
        gpu=str(root.gpu) if root.gpu is not None else "",
        peer_rank=root.peer_rank,
        name=root.name or "",
        ranks=root.ranks,
        role=root.role,
        why="no report" if root.role is Role.UNKNOWN else "",
    )
