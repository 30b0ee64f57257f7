"""Which supervisors belong to the present run of a job: pure. A job's id is used again by its next run.

A launcher starts each rank of a run once. So whoever is new, lives, has a rank and knows no generation, while
nobody of the known run is left, begins the next one. Nothing of the old run is remembered then but what
must not fall or be lifted by a restart: the generation, and how often somebody may act.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from paceline.contracts.recovery import Role
from paceline.contracts.repair import ActionStatus, RepairKind, RepairState
from paceline.remediator.model import (
    NOT_COUNTED,
    Effect,
    JobRepair,
    Member,
    Policies,
    Reason,
    Seat,
    Step,
    World,
)
from paceline.remediator.moves import RECONNECT_S, end
from paceline.remediator.planning import newest, open_seats

SILENT_S = 180.0  # three times what an agent repeats its records after: its node is lost, or it is


@dataclass(frozen=True)
class Counted:
    """The job with the supervisors of its present run; `names` were counted in just now."""

    job: JobRepair
    members: tuple[Member, ...]
    names: tuple[str, ...] = ()
    effects: tuple[Effect, ...] = ()


def count_in(
    job: JobRepair, members: Sequence[Member], owned: AbstractSet[str], policies: Policies, now_s: float
) -> Counted:
    """Count new supervisors in, or begin the next run with them. `members` are those of the present run and
    those that no run has counted; of these only `owned` are looked at."""
    known = [each for each in members if each.run == job.run]
    new = [each for each in members if each.run == NOT_COUNTED and each.member in owned]
    seats = open_seats(job, World(tuple(known), policies, now_s))
    seated = {seat.member for seat in seats}
    standing = [each for each in known if each.role is Role.MEMBER or each.member in seated]
    first = [each for each in new if each.role is Role.MEMBER and each.lives and each.generation == 0]
    is_left = bool(seats) and all(has_ended(each, first, now_s) for each in standing)
    if first and (is_over(job) or is_left):
        return _begin(job, known, new, first, policies, now_s)
    joined = [each for each in new if _belongs(each, seats, standing)]
    kept = [each for each in (*known, *joined) if each.member in owned]
    return Counted(job, _by_name(kept), tuple(each.member for each in joined))


def is_over(job: JobRepair) -> bool:
    """Nothing of this run is repaired any more."""
    return job.over or (job.state is RepairState.FALLBACK and job.action is None)


def has_ended(member: Member, others: Sequence[Member], now_s: float) -> bool:
    """Its process is gone, or its supervisor left and has not come back, or its agent says no word of it
    while the agents of `others` repeat theirs."""
    if member.child_pid == 0:
        return True
    if member.left:
        return now_s - member.heard_s >= RECONNECT_S
    return any(other.told_s - max(member.told_s, other.registered_s) >= SILENT_S for other in others)


def _belongs(member: Member, seats: Sequence[Seat], standing: Sequence[Member]) -> bool:
    """Whoever wants a rank that somebody has, or is of a job of another size, waits until that one has
    ended: it is of the next run, or a late word of the one before."""
    if member.role is Role.STANDBY:
        return True
    sizes = {each.world_size for each in standing} - {0}
    is_of_its_size = not sizes or member.world_size in sizes | {0}
    return is_of_its_size and member.rank not in {seat.rank for seat in seats}


def _begin(
    job: JobRepair,
    known: Sequence[Member],
    new: Sequence[Member],
    first: Sequence[Member],
    policies: Policies,
    now_s: float,
) -> Counted:
    standbys = [m for m in known if m.role is Role.STANDBY and m.lives and not has_ended(m, first, now_s)]
    # Whoever died before it was counted is to be replaced; whoever has left as well is of no run.
    joined = [m for m in new if not m.left and (m.generation == 0 or m.role is Role.STANDBY)]
    old = World(tuple(known), policies, now_s)
    effects: tuple[Effect, ...] = ()
    generation = newest(job, old)
    if job.action is not None:
        step = _end_old(job, old)
        job, effects = step.job, step.effects
    began_s = min(each.registered_s for each in first)
    fresh = JobRepair(
        job.job, job.attempt, generation=generation, floor=generation, run=job.run + 1, began_s=began_s,
        resumed_s=began_s, acted=job.acted, failures=job.failures, failed_s=job.failed_s,
        incidents=job.incidents,
    )  # fmt: skip
    names = tuple(each.member for each in (*standbys, *joined))
    return Counted(fresh, _by_name([*standbys, *joined]), names, effects)


def _end_old(job: JobRepair, old: World) -> Step:
    action = job.action
    assert action is not None
    if not action.status.is_under_way:
        return end(job, action, ActionStatus.EXPIRED, Reason.NEW_RUN, RepairState.HEALTHY, old)
    gave_up = job.state is RepairState.FALLBACK
    has_stopped = gave_up and action.kind is RepairKind.FALLBACK and not any(m.lives for m in old.members)
    status = ActionStatus.SUCCEEDED if has_stopped else ActionStatus.FAILED
    reason = action.reason if gave_up else Reason.NEW_RUN
    return end(job, action, status, reason, RepairState.HEALTHY, old)


def _by_name(members: Sequence[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=lambda each: each.member))
