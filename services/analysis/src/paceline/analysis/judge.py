"""The order of judgement, as the list it is, and the verdict that comes out of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from paceline.analysis import (
    stage_agree,
    stage_ends,
    stage_enter,
    stage_hardware,
    stage_peers,
    stage_processes,
)
from paceline.analysis.evidence import Ints, JobEvidence
from paceline.analysis.findings import Finding, describe, plural
from paceline.analysis.policy import JudgePolicy
from paceline.analysis.situation import Situation, read_situation
from paceline.analysis.waits import Links
from paceline.contracts.codes import Source
from paceline.contracts.verdicts import (
    VICTIMS_MAX,
    Coverage,
    Root,
    RootKind,
    SlowLoss,
    SubReason,
    Verdict,
    VerdictClass,
)

Stage = Callable[[Situation], Finding | None]


def _enter_or_agree(situation: Situation) -> Finding | None:
    """H1 before H2, unless everybody who is idle took part in the round that disagrees."""
    enter = stage_enter.not_entered(situation)
    agree = stage_agree.mismatch(situation) or stage_peers.wrong_peer(situation)
    if enter is None or agree is None or enter.verdict_class is VerdictClass.NONE:
        return agree or enter
    if agree.sub_reason is SubReason.PEER_MISMATCH:
        return agree
    took_part = set(situation.taking_part(agree.op)) - {int(r) for r in situation.lacking(agree.op)}
    return agree if all(root.rank in took_part for root in enter.roots) else enter


def _mismatch_behind_death(situation: Situation) -> Finding | None:
    """A process that died inside a round whose members disagree: gloo aborts on a wrong size."""
    if not situation.processes.dead.any():
        return None
    agree = stage_agree.mismatch(situation)
    if agree is None:
        return None
    return agree if situation.processes.dead[situation.taking_part(agree.op)].any() else None


# The first stage that answers decides (docs/adr/0012-order-of-judgement.md). These find who is missing from
# a call or differs in it; `judge_later.STAGES` follow and are imported only where these say nothing.
STAGES: tuple[tuple[str, Stage], ...] = (
    ("ended", stage_ends.ended),
    ("suspended", stage_ends.suspended),
    ("traced", stage_ends.traced),
    ("hardware", stage_hardware.hardware),
    ("mismatch_behind_death", _mismatch_behind_death),
    ("dead", stage_processes.dead),
    ("frozen", stage_processes.frozen),
    ("ragged_end", stage_ends.ragged_end),
    ("enter_or_agree", _enter_or_agree),
)


@dataclass(frozen=True)
class Judgement:
    """A verdict, the stage and named reason behind it, and how long a better one may still come."""

    verdict: Verdict
    stage: str
    reason: str
    settle_s: float


def judge(evidence: JobEvidence, policy: JudgePolicy | None = None) -> Verdict:
    """The verdict on one job attempt; the same evidence gives the same verdict."""
    return explain(evidence, policy).verdict


def explain(evidence: JobEvidence, policy: JudgePolicy | None = None) -> Judgement:
    """As `judge`, with the stage that decided."""
    situation = read_situation(evidence, policy or JudgePolicy())
    for name, stage in _all_stages():
        finding = stage(situation)
        if finding is not None:
            finding = stage_hardware.with_remarks(situation, finding)
            return Judgement(_verdict(situation, finding), name, finding.reason, finding.settle_s)
    raise AssertionError("the last stage always answers")


def _all_stages() -> Iterator[tuple[str, Stage]]:
    yield from STAGES
    from paceline.analysis.judge_later import STAGES as LATER

    yield from LATER


def _verdict(situation: Situation, finding: Finding) -> Verdict:
    coverage = _coverage(situation)
    roots = {
        rank
        for root in finding.roots
        for rank in (root.ranks or ((root.rank, root.peer_rank) if _is_link(root) else (root.rank,)))
    }
    behind = situation.graph.behind
    holds = Links.join([situation.graph.holds, behind]) if len(behind.op) else situation.graph.holds
    inside = np.zeros(situation.evidence.world_size, np.bool_)
    inside[holds.rank[situation.stalled[holds.op]]] = True
    holders = np.flatnonzero(inside)
    waiting = holders if finding.waiting is None else np.array(finding.waiting, np.int64)
    victims = waiting[~np.isin(waiting, sorted(rank for rank in roots if rank is not None))]
    comms = _waiting_communicators(situation, np.flatnonzero(situation.stalled))
    is_incident = finding.verdict_class is not VerdictClass.NONE
    is_slow = finding.verdict_class.is_slow
    confidence = finding.confidence * _trust(situation, coverage) if is_incident else 1.0
    return Verdict(
        verdict_class=finding.verdict_class,
        sub_reason=finding.sub_reason,
        roots=finding.roots,
        victims=tuple(victims[:VICTIMS_MAX].tolist()) if is_incident else (),
        victims_count=len(victims) if is_incident else 0,
        operation=finding.operation or describe(situation, finding.op),
        owner=finding.owner,
        action=finding.action,
        confidence=round(confidence, 3),
        coverage=coverage,
        evidence=finding.evidence[: situation.policy.evidence_max],
        summary=_summary(finding, len(victims), comms),
        stalled_s=_age_s(situation, finding.op),
        communicators_waiting=comms,
        would_decide=finding.would_decide,
        loss=_loss(situation, finding) if is_slow else None,
    )


def _loss(situation: Situation, finding: Finding) -> SlowLoss:
    from paceline.analysis.cost import slow_loss

    return slow_loss(situation.evidence, finding.roots, situation.policy)


def _is_link(root: Root) -> bool:
    """A hang at a link: both ends only wait, and neither is a victim of somebody else."""
    return root.kind is RootKind.LINK


def _summary(finding: Finding, victims: int, comms: int) -> str:
    if finding.verdict_class is VerdictClass.NONE or victims == 0:
        return finding.statement
    wait = f"{plural(victims, 'rank')} {'waits' if victims == 1 else 'wait'}"
    if finding.verdict_class.is_slow:
        return f"{finding.statement}; {wait} for it"
    return f"{finding.statement}; {wait} on it through {plural(comms, 'communicator')}"


def _age_s(situation: Situation, op: int) -> float:
    ages = situation.graph.age_ms
    if op >= 0:
        return float(ages[op]) / 1000
    return float(ages[situation.stalled].max()) / 1000 if situation.stalled.any() else 0.0


def _waiting_communicators(situation: Situation, ops: Ints) -> int:
    graph = situation.graph
    pairs = ops[(ops >= graph.pair_base) & (ops < graph.host_base)] - graph.pair_base
    found = np.zeros(situation.evidence.communicators, np.bool_)
    found[ops[ops < graph.pair_base]] = True
    found[graph.pairs.comm[pairs]] = True
    return int(found.sum())


def _coverage(situation: Situation) -> Coverage:
    evidence, processes = situation.evidence, situation.processes
    seen = evidence.seen & ~processes.lost[evidence.member_rank]
    reporting = evidence.process_seen & ~processes.lost
    whole = np.ones(evidence.communicators, np.bool_)
    whole[evidence.comm_of[~seen]] = False
    sources = int(np.bitwise_or.reduce(evidence.column("sources")[seen])) if seen.any() else 0
    return Coverage(
        ranks_expected=evidence.world_size,
        ranks_reporting=int(reporting.sum()),
        communicators_expected=evidence.communicators,
        communicators_complete=int((whole & ~evidence.inferred).sum()),
        operations_dropped=int(evidence.processes["dropped"].sum()),
        sources=tuple(
            source.name.lower() for source in Source if source and source.value & sources and source.name
        ),
    )


def _trust(situation: Situation, coverage: Coverage) -> float:
    """How much of the finding's own confidence the coverage leaves: 1.0 where all was seen."""
    ratio = min(coverage.ratio, 1.0)
    whole = coverage.communicators_complete / max(coverage.communicators_expected, 1)
    return 0.7 + 0.2 * ratio + 0.1 * whole
