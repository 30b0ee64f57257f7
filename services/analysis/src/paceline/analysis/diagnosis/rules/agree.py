"""Ranks that run different operations: fingerprint mismatches.

The rank that raises is not the guilty one. Of two sides nobody has the majority: where only the size
differs, the smaller one has left something out (no padding, a skipped branch, a short batch), which is
likely and not certain; where the operations differ, both are named.
"""

import re
from collections import Counter
from dataclasses import replace

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, Standing
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    operation_of,
    operation_text,
    origins_of,
    ranks_text,
)
from paceline.analysis.facts import NetworkFailure, NetworkKind, OperationMismatch, Side, Work
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)

_VOTED = 0.8  # confidence from which a majority has decided
_OTHERS_MIN = 2  # with two ranks nobody can say which of them is alone
_NUMBER = re.compile(r"\d+")
_UNEVEN = ("all_to_all", "gather", "scatter", "coalesced", "send", "recv")


def fingerprint(case: Case) -> Finding | None:
    """torch compared what ranks run and found them different."""
    reports = case.of(OperationMismatch)
    if not reports:
        return None
    first = min(reports, key=lambda report: _sequence(report))
    same = [report for report in reports if _sequence(report) == _sequence(first)]
    works = {_rank(case, report, side): side.work for report in same for side in report.sides}
    roots, how, confidence = odd_ones(works)
    sub_reason = _sub_reason(first)
    group = first.group.name
    work = works[roots[0]] if len(roots) == 1 else first.sides[0].work  # none: nobody is to be named
    others = {rank: work for rank, work in works.items() if rank not in roots}
    if others and len(roots) == 1:  # the operation is that in which the others stand
        work = others[min(others)]
    operation = operation_of(case, group, work)
    against = "; ".join(f"rank {rank} runs {_text(other)}" for rank, other in sorted(others.items())[:4])
    mine = "; ".join(f"rank {rank} runs {_text(works[rank])}" for rank in sorted(roots)[:4])
    who = ranks_text(sorted(roots)) if roots else "One part of the ranks"
    return Finding(
        reason="fingerprint_mismatch",
        verdict_class=VerdictClass.H2,
        sub_reason=sub_reason,
        roots=blames_of(roots, bool(others), how),
        victims=tuple(sorted(others)) if roots else (),
        communicator=(operation.communicator_name if operation else "") or "default_pg",
        operation=operation,
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, who if roots else "", "make all ranks issue the same operation"),
        confidence=confidence,
        grounds=(
            Ground("fingerprint", "; ".join(part for part in (mine, against) if part), origins_of(same)),
            Ground("who", how, ()),
        ),
        summary=f"{who} {'differ' if len(roots) > 1 else 'differs'} from the others at "
        f"sequence {work.sequence if work.sequence is not None else '(not said)'}: "
        + ", ".join(part for part in (mine, against) if part),
        would_decide=("the call stacks of both sides at that sequence",) if confidence < 0.8 else (),
    )


def watchdogs(case: Case) -> Finding | None:
    """Watchdogs of one group give up on the same sequence and name different operations or sizes.

    The same number is not the same operation: a barrier of one element and a gradient can share it.
    """
    found: dict[tuple[str, int], dict[int, Work]] = {}
    for (group, rank), standing in sorted(case.table.items()):
        if standing.work is not None and standing.work.sequence is not None:
            found.setdefault((group, standing.work.sequence), {})[rank] = standing.work
    for (group, sequence), works in sorted(found.items()):
        if len({_comparable(work) for work in works.values()}) < 2:
            continue
        roots, how, confidence = odd_ones({rank: _only_comparable(work) for rank, work in works.items()})
        if confidence < _VOTED and roots:  # the rest of the group stands elsewhere: its side is not known
            roots = sorted(works)
        others = {rank: work for rank, work in works.items() if rank not in roots}
        operation = operation_of(case, group, works[roots[0] if roots else min(works)], sequence)
        words = "; ".join(f"rank {rank} runs {_counted(work)}" for rank, work in sorted(works.items())[:6])
        origins = tuple(origin for rank in works for origin in case.table[group, rank].origins[:1])
        return Finding(
            reason="watchdogs_differ",
            verdict_class=VerdictClass.H2,
            sub_reason=SubReason.OPERATION_MISMATCH,
            roots=blames_of(roots, bool(others), how),
            victims=tuple(sorted(others)) if roots else (),
            communicator=operation.communicator_name if operation else group,
            operation=operation,
            owner=Owner.USER_CODE,
            action=Action(
                ActionKind.FIX_CODE,
                ranks_text(sorted(roots)) if roots else "",
                "make all ranks issue the same calls",
            ),
            confidence=confidence,
            grounds=(Ground("same_number", f"at sequence {sequence}: {words}", origins), Ground("who", how)),
            summary=f"Ranks run different operations under the same sequence {sequence}: {words}",
            would_decide=("flight recorder dumps: the first call that differs",),
        )
    return None


def size_refused(case: Case) -> Finding | None:
    """NCCL's own size check, or a socket that got another size than it waits for."""
    found = [f for f in case.of(NetworkFailure) if f.kind in (NetworkKind.TRUNCATED, NetworkKind.MISMATCH)]
    if not found:
        return None
    ranks = sorted({rank for fact in found if (rank := case.rank_of(fact)) is not None})
    return Finding(
        reason="size_refused",
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.SIZE_MISMATCH,
        roots=(Blame(RootKind.NONE, name="the rank that sends another size cannot be named from this line"),),
        victims=(),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, "", "flight recorder dumps of all ranks"),
        confidence=0.7,
        grounds=(Ground("size_check", found[0].text[:200], origins_of(found)),),
        summary="Two ranks disagree about the size of an operation (seen by "
        f"{ranks_text(ranks) if ranks else 'one rank'})",
        would_decide=("flight recorder dumps: who has which size",),
    )


def is_alone(inside: list[Standing], others: list[Standing], sequence: int) -> bool:
    """One rank is in a call of which two others or more, all level and idle, know nothing."""
    level = all(s.enqueued == s.completed == sequence - 1 for s in others)
    return len(inside) == 1 and len(others) >= _OTHERS_MIN and level


def alone(lone: Standing, others: list[Standing], operation: Operation | None) -> Finding:
    """As with dumps: the ranks that look absent are the usual ones, and the call is one too many."""
    rest = [s.rank for s in others]
    statement = (
        f"rank {lone.rank} alone called {operation_text(operation)}; {ranks_text(rest)} came as far as the "
        "call before it and have nothing outstanding"
    )
    return Finding(
        reason="alone_in_call",
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.OPERATION_MISMATCH,
        roots=(Blame(RootKind.RANK, rank=lone.rank, why="the only one in this call"),),
        victims=(),
        communicator=operation.communicator_name if operation else "",
        operation=operation,
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, f"rank {lone.rank}", "find the call that only this rank makes"),
        confidence=0.6,
        grounds=(Ground("alone", statement, tuple(lone.origins)[:64]),),
        summary=statement,
        would_decide=(f"stacks of {ranks_text(rest)}: whether they ended or stand outside a call",),
    )


def blames_of(roots: list[int], others: bool, how: str) -> tuple[Blame, ...]:
    """Who differs: ranks, a group where nobody else is known, nobody where the sides are of equal size."""
    if not roots:
        return (Blame(RootKind.NONE, name="sides of equal size", why=how),)
    if not others:
        return (Blame(RootKind.GROUP, ranks=tuple(sorted(roots)), why=how),)
    return tuple(Blame(RootKind.RANK, rank=rank, why=how) for rank in sorted(roots))


def odd_ones(works: dict[int, Work]) -> tuple[list[int], str, float]:
    """Who differs, why we think so, how sure."""
    count = Counter(_key(work) for work in works.values())
    (most, votes), *rest = count.most_common()
    if votes >= 2 and (not rest or votes > rest[0][1]):
        odd = [rank for rank, work in works.items() if _key(work) != most]
        return odd, f"{votes} ranks agree, the others differ", 0.9
    if len(works) > _OTHERS_MIN:
        return [], "no side has the majority", 0.5
    functions = {work.function for work in works.values()}
    sizes = {rank: _elements(work) for rank, work in works.items()}
    if (
        len(functions) == 1
        and all(size is not None for size in sizes.values())
        and len(set(sizes.values())) > 1
    ):
        small = min(sizes, key=lambda rank: sizes[rank] or 0)
        return [small], "the smaller side has left something out; of two ranks neither has the majority", 0.6
    return sorted(works), "two ranks differ and neither has the majority", 0.5


def _comparable(work: Work) -> tuple[str, int | None]:
    """What all ranks of a group have in common in one operation; sizes of some operations may differ."""
    return work.function, None if work.function in _UNEVEN else work.count_in


def _only_comparable(work: Work) -> Work:
    return replace(work, count_in=_comparable(work)[1], count_out=None)


def _counted(work: Work) -> str:
    return f"{work.function} of {work.count_in} elements" if work.count_in is not None else work.function


def _key(work: Work) -> tuple[str, str, str, str]:
    return work.function, work.shapes or str(work.count_in), work.dtype, work.reduce_op


def _elements(work: Work) -> int | None:
    if not work.shapes:
        return work.count_in
    product = 1
    for number in _NUMBER.findall(work.shapes)[:64]:
        product *= int(number[:18])
    return product


def _rank(case: Case, report: OperationMismatch, side: Side) -> int:
    rank = case.global_rank(report.group, side.rank)
    return side.rank if rank is None else rank


def _sequence(report: OperationMismatch) -> int:
    known = [side.work.sequence for side in report.sides if side.work.sequence is not None]
    return min(known, default=1 << 62)


def _sub_reason(report: OperationMismatch) -> SubReason:
    first, second = (side.work for side in report.sides)
    if first.function != second.function:
        return SubReason.OPERATION_MISMATCH
    if first.shapes != second.shapes:
        return SubReason.SIZE_MISMATCH
    return SubReason.DTYPE_MISMATCH if first.dtype != second.dtype else SubReason.OPERATION_MISMATCH


def _text(work: Work) -> str:
    return " ".join(part for part in (work.function or "an operation", work.dtype, work.shapes) if part)
