"""An incident's bundle: the live verdict given again by the same engine, and what the files beside it add.

The class is that of the incident, so that page and command say the same word.
"""

from dataclasses import asdict, replace
from enum import Enum
from typing import Any

from paceline.analysis.adapters.incident import root_text
from paceline.analysis.bundles import load_judged
from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding
from paceline.analysis.diagnosis.rules.judged import blame
from paceline.analysis.facts import IncidentSeen, LiveEvidence, PublishedVerdict, StackSeen
from paceline.analysis.judge import Judgement, explain
from paceline.contracts.verdicts import Verdict, VerdictClass

STACKS_MAX = 4
FRAMES_SHOWN = 3
_UNDECIDED = (VerdictClass.INCONCLUSIVE, VerdictClass.NONE)


def judged_again(case: Case) -> Finding | None:
    """The verdict on the newest evidence of a bundle; None where there is none."""
    found = case.of(LiveEvidence)
    if not found:
        return None
    seen = next(iter(case.of(IncidentSeen)), None)
    published = {} if seen is None else {each.evidence_sha256: each for each in seen.published}
    order = list(published)
    newest = max(found, key=lambda fact: order.index(fact.sha256) if fact.sha256 in published else -1)
    judged = load_judged(newest.packed)
    judgement = explain(judged.evidence, judged.policy)
    verdict = judgement.verdict
    grounds = (
        *_compared(verdict, seen, published.get(newest.sha256), newest, whole=judged.is_whole),
        *(Ground(each.rule, each.statement, (newest.origin,), each.supports) for each in verdict.evidence),
    )
    return finding_of(case, judgement, grounds)


def finding_of(case: Case, judgement: Judgement, grounds: tuple[Ground, ...]) -> Finding:
    """What the engine says of live samples, in its own classes."""
    verdict = judgement.verdict
    operation = verdict.operation
    return Finding(
        reason=judgement.reason,
        verdict_class=verdict.verdict_class,
        sub_reason=verdict.sub_reason,
        roots=tuple(blame(case, root) for root in verdict.roots),
        victims=verdict.victims,
        communicator=operation.communicator_name if operation else "",
        operation=operation,
        owner=verdict.owner,
        action=verdict.action,
        confidence=verdict.confidence,
        grounds=grounds,
        summary=verdict.summary,
        would_decide=(verdict.would_decide,) if verdict.would_decide else (),
        coverage=verdict.coverage,
    )


def add_files(case: Case, live: Finding, files: Finding | None) -> Finding:
    """`live` with the stacks of those it blames, and with what the files beside it say themselves."""
    blamed = [root.rank for root in live.roots if root.rank is not None]
    stacks = [fact for fact in case.of(StackSeen) if fact.frames and case.rank_of(fact) in blamed]
    added = [
        Ground(
            "stack",
            f"rank {case.rank_of(fact)} stands in {' < '.join(fact.frames[:FRAMES_SHOWN])}",
            (fact.origin,),
        )
        for fact in stacks[:STACKS_MAX]
    ]
    if files is not None and files.verdict_class not in _UNDECIDED:
        origins = tuple(origin for ground in files.grounds for origin in ground.origins)
        statement = f"the files beside it say: {files.summary}"
        added.append(Ground("files", statement, origins, _fits(live, files)))
    return replace(live, grounds=(*live.grounds[:1], *added, *live.grounds[1:])) if added else live


def _fits(live: Finding, files: Finding) -> bool:
    """Whether they blame a rank or a node that the verdict blames, or none."""
    ranks = {rank for root in live.roots for rank in (root.rank, root.peer_rank, *root.ranks)} - {None}
    nodes = {root.node for root in live.roots if root.node}
    others = [root for root in files.roots if root.rank is not None or root.node or root.ranks]
    return not others or any(
        root.rank in ranks or root.node in nodes or ranks & set(root.ranks) for root in others
    )


def _compared(
    verdict: Verdict,
    seen: IncidentSeen | None,
    published: PublishedVerdict | None,
    fact: LiveEvidence,
    *,
    whole: bool,
) -> tuple[Ground, ...]:
    if seen is None or published is None:
        return (Ground("judged again", "judged again from the evidence of a live verdict", (fact.origin,)),)
    same = (verdict.verdict_class.value, verdict.sub_reason.value, roots_text(verdict)) == (
        published.verdict_class,
        published.sub_reason,
        published.roots,
    )
    where = f"revision {published.revision} of {seen.label}"
    if same:
        words = f"judged again from its evidence: as published in {where}"
    else:
        why = "another version of the rules" if whole else "rows that did not fit were left out"
        words = f"{where} was published as {published.verdict_class} {published.sub_reason}: {why}"
    if published.verdict_id != seen.verdict_id:
        words += "; no evidence was kept of the newest revision"
    return (Ground("judged again", words, (fact.origin,), same),)


def roots_text(verdict: Verdict) -> tuple[str, ...]:
    """The roots as the list of contents has them."""
    return tuple(
        root_text({name: _plain(value) for name, value in asdict(root).items()}) for root in verdict.roots
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
