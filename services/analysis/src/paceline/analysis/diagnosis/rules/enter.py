"""A member that did not enter what the others wait in: by its counts, by a report of torch, by silence."""

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import DEFAULT_GROUP, Case, Standing, seconds_after
from paceline.analysis.diagnosis.rules.agree import alone, is_alone
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_operation,
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
    BarrierReport,
    DesyncReport,
    Fact,
    GlooFailure,
    GlooKind,
    PhaseKind,
    PhaseSeen,
    ProcessEnd,
    ProgressSeen,
    StackSeen,
    WatchdogStuck,
    WorkTimeout,
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

_ABORT_SLACK_S = 2.0  # between the timeout and the last heartbeat of a watchdog that then aborts
_NUMBERING_MAX = 64  # operations that ranks of one group can be apart in what they give up on


def desync_report(case: Case) -> Finding | None:
    """torch's own report; its numbers count from one and are not the watchdog's sequence."""
    reports = [report for report in case.of(DesyncReport) if report.lagging or report.never_joined]
    if not reports:
        return None
    report = min(reports, key=lambda found: found.finished if found.finished is not None else -1)
    lagging = sorted({*report.lagging, *report.never_joined})
    finished = report.finished
    where = f"collective #{finished + 1} of the desync report" if finished is not None else "any collective"
    communicator, operation = main_operation(case)
    return Finding(
        reason="desync_report",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=rank_roots(lagging, f"did not join {where}"),
        victims=tuple(sorted(_others(case, report, lagging))),
        communicator=communicator or "default_pg",
        operation=operation,
        phase=where,
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, ranks_text(lagging), "its stack: where it is instead"),
        confidence=0.85,
        grounds=(
            Ground(
                "desync",
                f"{ranks_text(lagging)} finished #{finished}, never joined the next",
                (report.origin,),
            ),
            Ground(
                "numbering",
                "the report's numbers are not the watchdog's sequence numbers",
                (report.origin,),
                supports=False,
            ),
        ),
        summary=f"{ranks_text(lagging)} never joined {where}; the others are ahead because they are "
        "queued, not because they differ",
    )


def barrier_report(case: Case) -> Finding | None:
    """A monitored barrier names who did not come. Where nearly all are missing, they are not the cause."""
    reports = [report for report in case.of(BarrierReport) if report.missing]
    if not reports:
        return None
    missing = sorted({rank for report in reports for rank in report.missing})
    highest = max([*missing, *case.ranks_named])
    world = max([case.world_size, highest + 1, *(r.expected or 0 for r in reports)])
    if len(missing) * 2 > max(world, 2):
        return None
    speakers = [rank for report in reports if (rank := case.rank_of(report)) is not None]
    phase = _last_phase(case, set(missing))
    return Finding(
        reason="barrier_report",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=rank_roots(missing, "did not reach the barrier"),
        victims=tuple(sorted(set(speakers) - set(missing))),
        communicator="gloo",
        phase="monitored barrier",
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, ranks_text(missing), "its stack: where it is instead"),
        confidence=0.85,
        grounds=(
            Ground("barrier", f"{ranks_text(missing)} did not reach the barrier", origins_of(reports)),
            *((Ground("still_working", _words(phase), (phase.origin,)),) if phase else ()),
        ),
        summary=f"{ranks_text(missing)} did not reach the barrier; the rank that reports it only waited",
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


def silent(case: Case) -> Finding | None:
    """Everybody complains but a few: those are where the wait begins, if their number is small."""
    wait = main_wait(case)
    if wait is None or not case.of(WorkTimeout):
        return None
    group, standing = wait
    sequence = standing.waits_in
    inside = {s.rank for s in case.standings(group) if s.work is not None}
    members = case.members(group)
    if not group and _several_numberings(case.standings(group)):
        return None
    highest = max(inside | set(case.ranks_named))
    spoken = {s.rank for s in case.standings(group)}
    quiet = (set(members) if members else set(range(highest + 1))) - spoken
    if not quiet and not members and group in ("", DEFAULT_GROUP) and _lacks_one(len(spoken)):
        quiet = {highest + 1}
    quiet = {rank for rank in quiet if not waits_elsewhere(case, rank, group)}
    operation = operation_of(case, group, standing.work, sequence)
    heard = quiet <= set(case.ranks_named)  # their logs are here and they do not complain
    if not quiet or len(quiet) > len(inside) or (len(quiet) == len(inside) and not heard):
        return None
    phase = _last_phase(case, quiet)
    return Finding(
        reason="silent",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.DELAYED_ENTER if phase else SubReason.MISSING_ENTER,
        roots=rank_roots(
            quiet, "the only one that does not complain" if len(quiet) == 1 else "does not complain"
        ),
        victims=tuple(sorted(inside)),
        communicator=(operation.communicator_name if operation else "") or group or "default_pg",
        operation=operation,
        phase=phase.text[:120]
        if isinstance(phase, PhaseSeen)
        else (phase.what if isinstance(phase, ProgressSeen) else ""),
        owner=_owner(phase),
        action=Action(
            ActionKind.COLLECT,
            ranks_text(sorted(quiet)),
            "its stack, and what it was doing when the others entered",
        ),
        confidence=0.75 if phase else 0.65,
        grounds=(
            Ground(
                "silence",
                f"{ranks_text(sorted(inside))} wait in {operation_text(operation)}; "
                f"{ranks_text(sorted(quiet))} says nothing",
                tuple(o for s in case.standings(group) for o in s.origins)[:64],
            ),
            *(
                (Ground("last_words", f"last line before they entered: {_words(phase)}", (phase.origin,)),)
                if phase
                else ()
            ),
        ),
        summary=f"{ranks_text(sorted(quiet))} did not enter {operation_text(operation)}, in which all "
        "others wait" + (f"; it was still busy: {_words(phase)}" if phase else ""),
        would_decide=("the silent rank's stack (py-spy) or flight recorder dump",),
    )


def _several_numberings(standings: list[Standing]) -> bool:
    """Old versions name no group: numbers that are far apart are those of several groups."""
    numbers = [s.work.sequence for s in standings if s.work is not None and s.work.sequence is not None]
    return bool(numbers) and max(numbers) - min(numbers) > _NUMBERING_MAX


def stuck_watchdog(case: Case) -> Finding | None:
    """The monitor found the watchdog of few ranks blocked: a lock, the GIL or the driver on those ranks."""
    facts = [fact for fact in case.of(WatchdogStuck) if not _stuck_later(case, fact)]
    stuck = sorted({rank for fact in facts if (rank := case.rank_of(fact)) is not None})
    known = max(case.world_size, len(case.ranks_named))
    if not stuck or len(stuck) * 2 > known:
        return None
    longest = max(fact.stuck_s for fact in facts)
    stacks = [f for f in case.of(StackSeen) if case.rank_of(f) in stuck and f.frames]
    communicator, operation = main_operation(case)
    return Finding(
        reason="stuck_watchdog",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.GIL_HELD,
        roots=rank_roots(stuck, "its watchdog stands still"),
        communicator=communicator,
        operation=operation,
        phase="inside a driver call, or behind a lock (GIL)",
        owner=Owner.UNKNOWN,
        action=Action(
            ActionKind.COLLECT, ranks_text(stuck), "native stacks (py-spy --native), kernel log of its node"
        ),
        confidence=0.6,
        grounds=(
            Ground("watchdog", f"watchdog of {ranks_text(stuck)} blocked for {longest} s", origins_of(facts)),
            *(Ground("stack", " < ".join(f.frames[:3]), (f.origin,)) for f in stacks[:4]),
        ),
        summary=f"{ranks_text(stuck)} stands still outside any collective: even its watchdog was blocked for "
        f"{longest} s (a lock, the GIL or the driver)",
        would_decide=("a native stack of that process", "the kernel log of its node"),
    )


def _stuck_later(case: Case, fact: WatchdogStuck) -> bool:
    """A watchdog that got stuck after operations had timed out hangs in the abort of its group."""
    gaps = [gap for timeout in case.of(WorkTimeout) if (gap := seconds_after(timeout, fact)) is not None]
    return bool(gaps) and max(gaps) >= fact.stuck_s - _ABORT_SLACK_S


def gloo_late(case: Case) -> Finding | None:
    """A rank timed out in gloo; the peer that it closed the connection of was late."""
    timeouts = [f for f in case.of(GlooFailure) if f.kind is GlooKind.TIMEOUT]
    waited = {rank for f in timeouts if (rank := case.rank_of(f)) is not None}
    if not waited:
        return None
    everybody = set(range(case.world_size)) if case.world_size else set(case.ranks_named)
    late = everybody - waited
    if not late or len(late) > max(1, len(waited)):
        return None
    phase = _last_phase(case, late)
    return Finding(
        reason="gloo_late",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.DELAYED_ENTER if phase else SubReason.MISSING_ENTER,
        roots=rank_roots(late, "did not arrive in time"),
        victims=tuple(sorted(waited)),
        communicator="gloo",
        phase="gloo barrier or collective",
        owner=Owner.HOST,
        action=Action(
            ActionKind.COLLECT,
            ranks_text(sorted(late)),
            "what it was busy with; raise the timeout if that is its work",
        ),
        confidence=0.75 if phase else 0.6,
        grounds=(
            Ground(
                "gloo_timeout", f"{ranks_text(sorted(waited))} waited until its timeout", origins_of(timeouts)
            ),
            *((Ground("still_working", _words(phase), (phase.origin,)),) if phase else ()),
        ),
        summary=f"{ranks_text(sorted(late))} came too late to a gloo operation in which "
        f"{ranks_text(sorted(waited))} waited"
        + (f"; it was still at work: {_words(phase)}" if phase else ""),
    )


def _lacks_one(count: int) -> int:
    """1 where a job of this size would lack one rank of a power of two: nobody starts seven of eight."""
    return int(count > 2 and (count + 1) & count == 0)


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
        grounds=tuple(Ground("ended", _words(fact), (fact.origin,)) for fact in _ends(case, ended)[:4]),
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
            *(Ground("ended", _words(fact), (fact.origin,)) for fact in _ends(case, others)[:4]),
        ),
        summary=f"{ranks_text(ranks)} issued one collective more than its peers "
        f"({operation_text(operation)}); "
        f"{ranks_text(others)} had finished correctly",
    )


def _others(case: Case, report: DesyncReport, lagging: list[int]) -> set[int]:
    highest = max([*lagging, *report.stuck, *case.ranks_named, case.world_size - 1])
    return set(range(highest + 1)) - set(lagging)


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


def _last_phase(case: Case, ranks: set[int]) -> PhaseSeen | ProgressSeen | None:
    """The last thing that was under way and whose end nobody reports, of these ranks or of nobody named."""
    found: PhaseSeen | ProgressSeen | None = None
    for fact in case.facts:
        if isinstance(fact, PhaseSeen | ProgressSeen) and case.rank_of(fact) in (*ranks, None):
            if isinstance(fact, PhaseSeen):
                found = None if fact.ended else fact
            elif fact.what and not fact.what.startswith("iteration") and fact.done != fact.total:
                found = fact
    return found


def _words(fact: Fact | None) -> str:
    if isinstance(fact, ProgressSeen):
        total = f"/{fact.total}" if fact.total is not None else ""
        return f"{fact.what} {fact.done}{total}".strip()
    text = str(getattr(fact, "text", ""))
    return text[:160] if text else (fact.kind.value if isinstance(fact, PhaseSeen) else "")


def _owner(phase: PhaseSeen | ProgressSeen | None) -> Owner:
    if isinstance(phase, PhaseSeen) and phase.kind is PhaseKind.CHECKPOINT:
        return Owner.STORAGE
    return Owner.USER_CODE
