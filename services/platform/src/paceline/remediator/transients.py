"""Errors of processes that live: retried in place, twice; the third time who caused them is replaced. Pure.

Whoever has lost a peer says so, often before the peer says anything: such a word counts the error and never
names who said it (docs/adr/0043-remediation.md).
"""

from collections import Counter
from dataclasses import replace

from paceline.contracts.recovery import blames_a_peer
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairLimits, RepairState
from paceline.remediator.guards import MODES, mode_of, recent
from paceline.remediator.model import (
    TRANSIENTS_MAX,
    Action,
    JobRepair,
    MemberError,
    Reason,
    Seat,
    Step,
    World,
)
from paceline.remediator.moves import is_not_begun, roll_back
from paceline.remediator.planning import current_seats, lost_seats, open_seats
from paceline.remediator.proposals import Fault, raise_fault

UNNAMED_MAX = 3  # retries in place beyond the policy's, where nothing tells who causes them
WAITING = (ActionStatus.PROPOSED, ActionStatus.APPROVED)


def error(job: JobRepair, event: MemberError, world: World) -> Step:
    """An error of a living process: transient, twice within ten minutes; the third time it is permanent."""
    limits = world.policies.of(RepairCause.TRANSIENT).limits
    if world.now_s - event.at_s > limits.event_s_max:
        return Step(job, (), Reason.STALE)
    action, mode = job.action, world.policies.of(RepairCause.TRANSIENT).mode
    if action is not None and _breaks_planned(job, action, event, world):
        step = roll_back(job, action, world, Reason.ROLLED_BACK)  # its session has dropped what it prepared
        then = error(step.job, event, world)
        return replace(then, effects=(*step.effects, *then.effects))
    if action is not None and _breaks_recovery(job, action, event):
        # The exit of a peer may explain it; else the next try begins, and nobody waits for a deadline.
        action = replace(action, deadline_s=min(action.deadline_s, world.now_s + limits.error_s))
        return Step(replace(job, action=action), (), Reason.NOTED)
    is_idle = action is None or not action.status.is_under_way
    if event.generation < job.said_generation and not (is_idle and _lives_in(event, world)):
        return Step(job, (), Reason.OLD_GENERATION)
    is_careful = action is not None and MODES.index(mode) <= MODES.index(mode_of(action, world))
    joined = action if is_careful and _is_of_same(job, action, event, limits) else None
    if action is not None and joined is None and (action.status.is_under_way or is_careful):
        return Step(job, (), Reason.ALREADY_UNDER_WAY)
    seats = open_seats(job, world)
    if all(each.member != event.member for each in seats):
        return Step(job, (), Reason.UNKNOWN_MEMBER)
    if lost_seats(seats, world):
        return Step(job, (), Reason.NOTED)  # the loss of a peer explains it, and its exit is on the way
    if joined is not None:
        return _hear_another(job, joined, event, world)
    earlier = recent(job.transients, limits.transient_s, world.now_s)
    kept = max(TRANSIENTS_MAX, limits.transient_max + UNNAMED_MAX + 1)
    job = _accuse(replace(job, transients=(*earlier, world.now_s)[-kept:]), event, limits, world)
    return raise_fault(job, _fault(job, event, limits, world), world)


def _is_of_same(job: JobRepair, action: Action | None, event: MemberError, limits: RepairLimits) -> bool:
    """Whether it tells of the error that waits to be repaired."""
    if action is None:
        return False
    waits = action.cause is RepairCause.TRANSIENT and action.status in WAITING and not action.cancelled
    return waits and bool(job.transients) and event.at_s <= job.transients[-1] + limits.error_s


def _hear_another(job: JobRepair, action: Action, event: MemberError, world: World) -> Step:
    """One more member tells of it: this may be the word that names who caused it."""
    limits = world.policies.of(RepairCause.TRANSIENT).limits
    job = _accuse(job, event, limits, world)
    fault = _fault(job, event, limits, world)
    if action.leavers or not fault.leavers:
        return Step(job, (), Reason.ALREADY_UNDER_WAY)
    return raise_fault(job, fault, world)


def _accuse(job: JobRepair, event: MemberError, limits: RepairLimits, world: World) -> JobRepair:
    if blames_a_peer(event.message):
        return job
    kept = tuple(each for each in job.accused if world.now_s - each[0] < limits.transient_s)
    return replace(job, accused=(*kept, (world.now_s, event.member))[-TRANSIENTS_MAX:])


def _fault(job: JobRepair, event: MemberError, limits: RepairLimits, world: World) -> Fault:
    """The newest error as it stands: to be retried, or with whoever is to leave for it."""
    count, seats = len(job.transients), open_seats(job, world)
    words = f"transient {count} within {limits.transient_s:g} s"
    kind, leavers = RepairKind.RETRY, _cause(job, seats) if count > limits.transient_max else ()
    is_last = count > limits.transient_max + UNNAMED_MAX
    if is_last and not leavers:
        leavers = _most_accused(job, seats)
    if leavers:
        kind = RepairKind.SWAP
    elif is_last:
        kind, words = RepairKind.FALLBACK, f"{words}, nothing names who causes them"
    rank = next((seat.rank for seat in seats if seat.member == event.member), -1)
    text = f"rank {rank}: {event.message[:300]} ({words})"
    return Fault(event.id, RepairCause.TRANSIENT, kind, leavers, text, world.now_s + limits.error_s)


def _cause(job: JobRepair, seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
    """Whoever told first of something else than a peer. Who is silent may only be late: it proves nothing."""
    here = {seat.member for seat in seats}
    since_s = job.transients[-1]
    guilty = next((name for at_s, name in job.accused if at_s >= since_s and name in here), "")
    return tuple(seat for seat in seats if seat.member == guilty)


def _most_accused(job: JobRepair, seats: tuple[Seat, ...]) -> tuple[Seat, ...]:
    """Before the job is given up: who told so of several of the errors before."""
    here = {seat.member for seat in seats}
    counts = Counter(name for _, name in job.accused if name in here).most_common(1)
    guilty = next((name for name, times in counts if times > 1), "")
    return tuple(seat for seat in seats if seat.member == guilty)


def _lives_in(event: MemberError, world: World) -> bool:
    """Whether its generation is the one in which its member trains, although a newer one was opened: a
    planned replacement that was rolled back leaves everybody in the one before."""
    told = world.get(event.member)
    return told is not None and told.generation == event.generation


def _breaks_planned(job: JobRepair, action: Action, event: MemberError, world: World) -> bool:
    """Whether a planned replacement under way is of the generation whose error this is, and not begun."""
    if not (action.status.is_under_way and is_not_begun(job, action, world) and _lives_in(event, world)):
        return False
    return event.member in {seat.member for seat in current_seats(job, world.members)}


def _breaks_recovery(job: JobRepair, action: Action, event: MemberError) -> bool:
    """Whether a recovery cannot come to its first step any more: a member that has met the others in the
    present try says so. Who has not met yet speaks of an older try, or answers the order itself."""
    if job.state not in (RepairState.REBUILDING, RepairState.RESTORING):
        return False
    return event.generation == action.generation and event.member in action.reached
