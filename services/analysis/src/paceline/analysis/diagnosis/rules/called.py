"""Calls that NCCL logs: the first one that differs, and the ranks that made fewer than all others."""

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.calls import Called, read_calls
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.agree import blames_of, odd_ones
from paceline.analysis.diagnosis.rules.finding import Finding, origins_of, rank_roots, ranks_text
from paceline.analysis.facts import ProgressSeen, SampleRow, Work, WorkTimeout
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    SubReason,
    VerdictClass,
)

_LEVEL_MIN = 2  # ranks that stand at the same call before another can be behind them


def differing_calls(case: Case) -> Finding | None:
    """The first number under which ranks of a communicator call different operations."""
    for called in read_calls(case):
        for number in sorted(set().union(*called.ranks.values())):
            facts = {rank: calls[number] for rank, calls in called.ranks.items() if number in calls}
            works = {rank: fact.work for rank, fact in facts.items()}
            if len({(w.function, w.count_in, w.dtype, w.root) for w in works.values()}) < 2:
                continue
            roots, how, confidence = odd_ones(works)
            others = {rank: work for rank, work in works.items() if rank not in roots}
            usual = Counter(work.function for work in (others or works).values()).most_common(1)[0][0]
            words = "; ".join(
                f"rank {rank} calls {work.function} of {work.count_in}" for rank, work in _shown(works, roots)
            )
            return Finding(
                reason="calls_differ",
                verdict_class=VerdictClass.H2,
                sub_reason=SubReason.OPERATION_MISMATCH,
                roots=blames_of(roots, bool(others), how),
                victims=tuple(sorted(others)),
                communicator=called.name,
                operation=Operation(called.name, called.name, usual, number, size=called.size),
                owner=Owner.USER_CODE,
                action=Action(
                    ActionKind.FIX_CODE,
                    ranks_text(roots or sorted(works)),
                    "make all ranks issue the same calls",
                ),
                confidence=confidence,
                grounds=(
                    Ground("calls", f"opCount {number:x}: {words}", origins_of(facts.values())),
                    Ground("who", how),
                ),
                summary=f"Calls differ for the first time at opCount {number:x} of {called.name}: {words}",
            )
    return None


def fewer_calls(case: Case) -> Finding | None:
    """All others stand at the same last call, and few have not made it."""
    goes_on = case.of(ProgressSeen) or any(row.kind == "steps" for row in case.of(SampleRow))
    if goes_on and not case.of(WorkTimeout):
        return None
    for called in read_calls(case):
        last = called.last
        top = max(last.values())
        level = [rank for rank, number in last.items() if number == top]
        low = [rank for rank, number in last.items() if number < top]
        if not low or len(level) < _LEVEL_MIN or len(low) * 2 > len(last):
            continue
        return _fewer(called, low, level, top)
    return None


def _fewer(called: Called, low: list[int], level: list[int], top: int) -> Finding:
    last = called.last
    first = min(last[rank] for rank in low) + 1
    waiting = called.ranks[level[0]].get(first) or called.ranks[level[0]][top]
    origins = origins_of(called.ranks[rank][last[rank]] for rank in [*low, *level])
    return Finding(
        reason="fewer_calls",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=rank_roots(low, f"last call {last[low[0]]:x}"),
        victims=tuple(sorted(level)),
        communicator=called.name,
        operation=Operation(called.name, called.name, waiting.work.function, first, size=called.size),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, ranks_text(low), "its stack: where it is instead"),
        confidence=0.7,
        grounds=(
            Ground(
                "calls",
                f"{ranks_text(low)} called up to opCount {last[low[0]]:x}, {ranks_text(level)} up to {top:x}",
                origins,
            ),
        ),
        summary=f"{ranks_text(low)} never called {waiting.work.function} {first:x} (hexadecimal, as NCCL "
        f"counts) of {called.name}, in which {ranks_text(level)} wait",
        would_decide=("the stacks of these ranks",),
    )


def _shown(works: Mapping[int, Work], roots: Sequence[int]) -> list[tuple[int, Work]]:
    ordered = sorted(works.items(), key=lambda item: (item[0] not in roots, item[0]))
    return ordered[:6]
