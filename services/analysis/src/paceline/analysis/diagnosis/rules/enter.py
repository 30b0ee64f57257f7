"""A member that did not enter what the others wait in, by its counts; calls that some ranks make alone."""

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case, Standing
from paceline.analysis.diagnosis.rules.activity import words_of
from paceline.analysis.diagnosis.rules.agree import alone, is_alone
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_wait,
    operation_of,
    operation_text,
    origins_of,
    rank_roots,
    ranks_text,
    verb,
    waiters,
    waits_elsewhere,
)
from paceline.analysis.facts import (
    Fact,
    GlooFailure,
    PhaseKind,
    PhaseSeen,
    ProcessEnd,
    StackSeen,
)
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    RootKind,
    SubReason,
    VerdictClass,
)


def behind(case: Case) -> Finding | None:
    """Members whose own counts say that they have not entered the operation the others wait in."""
    wait = main_wait(case)
    if wait is None:
        return None
    group, standing = wait
    sequence = standing.waits_in
    if sequence is None:
        return None
    inside = waiters(case, group, sequence)
    lower = [
        s
        for s in case.standings(group)
        if s.enqueued is not None and s.enqueued < sequence and s.work is None
    ]
    if not inside or not lower:
        return None
    free = [s for s in lower if not waits_elsewhere(case, s.rank, group)]
    if not free:
        return _circle(case, group, inside, [s.rank for s in lower], sequence)
    lower = free
    ranks = [s.rank for s in lower]
    operation = operation_of(case, group, standing.work, sequence)
    ended = {rank for rank in ranks if _has_ended(case, rank)}
    if ended == set(ranks):
        return _extra_call(inside, ranks, operation, case)
    elsewhere = _elsewhere(case, set(ranks))
    if not elsewhere and is_alone(inside, lower, sequence):
        return alone(inside[0], lower, operation)
    return Finding(
        reason="behind",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=rank_roots(ranks, f"last enqueued {lower[0].enqueued}"),
        victims=tuple(s.rank for s in inside),
        communicator=operation.communicator_name if operation else group,
        operation=operation,
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CODE, ranks_text(ranks), "the ranks take different paths; a restart repeats it"
        ),
        confidence=0.9,
        grounds=(
            Ground(
                "counts",
                f"{ranks_text(ranks)}: last enqueued {', '.join(str(s.enqueued) for s in lower[:8])}; "
                f"{ranks_text([s.rank for s in inside])} entered {sequence}",
                tuple(origin for s in lower for origin in s.origins)[:64],
            ),
            *elsewhere,
        ),
        summary=f"{ranks_text(ranks)} never entered {operation_text(operation)}, in which "
        f"{ranks_text([s.rank for s in inside])} {verb([s.rank for s in inside], 'waits', 'wait')}"
        + (f"; {elsewhere[0].statement}" if elsewhere else ""),
    )


def _circle(case: Case, group: str, inside: list[Standing], lower: list[int], sequence: int) -> Finding:
    """Each side waits in a group that the other has not entered: the orders of their calls differ."""
    work = next((s.work for s in inside if s.work is not None), None)
    operation = operation_of(case, group, work, sequence)
    others = sorted({s.group for s in case.table.values() if s.rank in lower and s.work and s.group != group})
    names = [
        case.groups[name].description or name if name in case.groups else name for name in [group, *others]
    ]
    sides = sorted(([s.rank for s in inside], lower), key=len)
    few = sides[0] if len(sides[0]) < len(sides[1]) else [*sides[0], *sides[1]]
    return Finding(
        reason="circle",
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.ORDER_INVERSION,
        roots=(Blame(RootKind.GROUP, ranks=tuple(sorted(few)), why="their calls come in another order"),),
        communicator=operation.communicator_name if operation else group,
        operation=operation,
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, ranks_text(few), f"one order of calls on {' and '.join(names)}"),
        confidence=0.75,
        grounds=(
            Ground(
                "circle",
                f"{ranks_text([s.rank for s in inside])} wait on {names[0]}, {ranks_text(lower)} on "
                f"{names[-1]}",
                tuple(origin for s in inside for origin in s.origins)[:64],
            ),
        ),
        summary=f"A circle: {ranks_text([s.rank for s in inside])} wait in {operation_text(operation)} for "
        f"{ranks_text(lower)}, who wait on {names[-1]} for them",
    )


def extra_call(case: Case) -> Finding | None:
    """The ranks that wait are few, and every other one has ended its work normally."""
    wait = main_wait(case)
    if wait is None or wait[1].waits_in is None:
        return None
    group, standing = wait
    sequence = standing.waits_in or 0
    inside = waiters(case, group, sequence)
    waiting = {s.rank for s in inside}
    others = set(case.members(group) or case.ranks_named) - waiting
    if not inside or not others or not all(_has_ended(case, rank) for rank in others):
        return None
    return _extra_call(inside, sorted(others), operation_of(case, group, standing.work, sequence), case)


def _ended_early(waiting: list[int], ended: list[int], operation: Operation | None, case: Case) -> Finding:
    """Most ranks go on and a few have finished: those had less to do, such as fewer batches."""
    return Finding(
        reason="ended_early",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=rank_roots(ended, "had finished before the others"),
        victims=tuple(waiting),
        communicator=operation.communicator_name if operation else "",
        operation=operation,
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CODE, ranks_text(ended), "the same number of batches on every rank, or join()"
        ),
        confidence=0.8,
        grounds=tuple(Ground("ended", words_of(fact), (fact.origin,)) for fact in _ends(case, ended)[:4]),
        summary=f"{ranks_text(ended)} finished earlier than the others and never entered "
        f"{operation_text(operation)}, in which {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}",
    )


def _extra_call(
    inside: list[Standing], others: list[int], operation: Operation | None, case: Case
) -> Finding:
    ranks = [s.rank for s in inside]
    if len(ranks) > len(others):
        return _ended_early(ranks, others, operation, case)
    return Finding(
        reason="extra_call",
        verdict_class=VerdictClass.H2,
        sub_reason=SubReason.OPERATION_MISMATCH,
        roots=rank_roots(ranks, "one call more than its peers"),
        victims=(),
        communicator=operation.communicator_name if operation else "",
        operation=operation,
        phase="after the work was finished",
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.FIX_CODE, ranks_text(ranks), "a collective inside a branch that only these ranks take"
        ),
        confidence=0.85,
        grounds=(
            Ground(
                "counts",
                f"{ranks_text(ranks)} issued {operation_text(operation)}; {ranks_text(others)} never "
                "did and ended normally",
                tuple(o for s in inside for o in s.origins)[:64],
            ),
            *(Ground("ended", words_of(fact), (fact.origin,)) for fact in _ends(case, others)[:4]),
        ),
        summary=f"{ranks_text(ranks)} issued one collective more than its peers "
        f"({operation_text(operation)}); "
        f"{ranks_text(others)} had finished correctly",
    )


def _elsewhere(case: Case, ranks: set[int]) -> tuple[Ground, ...]:
    """Where the absent ranks are: in another backend, or in what their stacks show."""
    gloo = [f for f in case.of(GlooFailure) if case.rank_of(f) in ranks]
    stacks = [f for f in case.of(StackSeen) if case.rank_of(f) in ranks]
    grounds = []
    if gloo:
        held = sorted({rank for f in gloo if (rank := case.rank_of(f)) is not None})
        grounds.append(
            Ground(
                "other_backend",
                f"{ranks_text(held)} stood in a gloo operation that the others never enter",
                origins_of(gloo),
            )
        )
    if stacks and stacks[0].frames:
        grounds.append(Ground("stack", f"stack: {' < '.join(stacks[0].frames[:3])}", (stacks[0].origin,)))
    return tuple(grounds)


def _ends(case: Case, ranks: list[int]) -> list[Fact]:
    finished: list[Fact] = [
        f for f in case.of(PhaseSeen) if f.kind is PhaseKind.FINISHED and case.rank_of(f) in ranks
    ]
    return finished + [f for f in case.of(ProcessEnd) if f.clean and case.rank_of(f) in ranks]


def _has_ended(case: Case, rank: int) -> bool:
    return bool(_ends(case, [rank]))
