"""Members that say nothing while the others give up: by silence, by a watchdog that stands still, in gloo."""

from paceline.analysis.diagnosis.answer import Ground
from paceline.analysis.diagnosis.case import DEFAULT_GROUP, Case, Standing, seconds_after
from paceline.analysis.diagnosis.rules.activity import last_phase, owner_of, words_of
from paceline.analysis.diagnosis.rules.finding import (
    Finding,
    main_operation,
    main_wait,
    operation_of,
    operation_text,
    origins_of,
    rank_roots,
    ranks_text,
    waits_elsewhere,
)
from paceline.analysis.facts import (
    GlooFailure,
    GlooKind,
    PhaseSeen,
    ProgressSeen,
    StackSeen,
    WatchdogStuck,
    WorkTimeout,
)
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Owner,
    SubReason,
    VerdictClass,
)

_UNHEARD_SHARE = 3  # waiting ranks for each one of which there is not even a log
_ABORT_SLACK_S = 2.0  # between the timeout and the last heartbeat of a watchdog that then aborts
_NUMBERING_MAX = 64  # operations that ranks of one group can be apart in what they give up on


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
    phase = last_phase(case, quiet)
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
        owner=owner_of(phase),
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
                (Ground("last_words", f"last line before they entered: {words_of(phase)}", (phase.origin,)),)
                if phase
                else ()
            ),
        ),
        summary=f"{ranks_text(sorted(quiet))} did not enter {operation_text(operation)}, in which all "
        "others wait" + (f"; it was still busy: {words_of(phase)}" if phase else ""),
        would_decide=("the silent rank's stack (py-spy) or flight recorder dump",),
    )


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


def gloo_late(case: Case) -> Finding | None:
    """A rank timed out in gloo; the peer that it closed the connection of was late."""
    timeouts = [f for f in case.of(GlooFailure) if f.kind is GlooKind.TIMEOUT]
    if not any(case.rank_of(f) is not None for f in timeouts):
        return None
    waited = {rank for f in timeouts if (rank := case.rank_of(f)) is not None}
    lost = {rank for f in case.of(GlooFailure) if (rank := case.rank_of(f)) is not None}
    if not set(case.ranks_named) <= lost:  # who lost a connection waited: the one that timed out closed it
        waited = lost
    heard = set(case.ranks_named)
    everybody = set(range(case.world_size or max(heard) + 1))
    late = everybody - waited
    if not late and not case.world_size and _lacks_one(len(waited)):
        late = {max(waited) + 1}
    few = (
        len(late) <= max(1, len(waited)) if case.world_size or late <= heard else len(late) * 3 <= len(waited)
    )
    if not late or not few:
        return None
    phase = last_phase(case, late)
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
            *((Ground("still_working", words_of(phase), (phase.origin,)),) if phase else ()),
        ),
        summary=f"{ranks_text(sorted(late))} came too late to a gloo operation in which "
        f"{ranks_text(sorted(waited))} waited"
        + (f"; it was still at work: {words_of(phase)}" if phase else ""),
    )


def _several_numberings(standings: list[Standing]) -> bool:
    """Old versions name no group: numbers that are far apart are those of several groups."""
    numbers = [s.work.sequence for s in standings if s.work is not None and s.work.sequence is not None]
    return bool(numbers) and max(numbers) - min(numbers) > _NUMBERING_MAX


def _stuck_later(case: Case, fact: WatchdogStuck) -> bool:
    """A watchdog that got stuck after operations had timed out hangs in the abort of its group."""
    gaps = [gap for timeout in case.of(WorkTimeout) if (gap := seconds_after(timeout, fact)) is not None]
    return bool(gaps) and max(gaps) >= fact.stuck_s - _ABORT_SLACK_S


def _lacks_one(count: int) -> int:
    """1 where a job of this size would lack one rank of a power of two: nobody starts seven of eight."""
    return int(count > 2 and (count + 1) & count == 0)
