"""Whether an action may be carried out now without a person, and if not, why: the first reason that holds."""

from collections.abc import Sequence

from paceline.contracts.recovery import Support
from paceline.contracts.repair import ActionStatus, RepairKind, RepairLimits, RepairMode
from paceline.remediator.model import Action, JobRepair, Policy, Reason, Seat, World
from paceline.remediator.planning import least_support

HOUR_S = 3600.0


def guard(
    job: JobRepair, action: Action, policy: Policy, world: World, seats: Sequence[Seat]
) -> Reason | None:
    """None where it may go ahead. What a person has approved passes everything but the stop switch and a
    layout that is refused."""
    if policy.stopped:
        return Reason.STOP_SWITCH
    swaps = action.kind in (RepairKind.SWAP, RepairKind.PLANNED_SWAP, RepairKind.RETRY)
    support = least_support(seats, action.joiners, world)
    if swaps and support is Support.REFUSED:
        return Reason.REFUSED_LAYOUT
    if action.status is ActionStatus.APPROVED:
        return None
    if action.mode is RepairMode.OBSERVE:
        return Reason.OBSERVED_ONLY
    if action.mode is RepairMode.APPROVE:
        return Reason.NEEDS_APPROVAL
    if swaps and support is not Support.VERIFIED:
        return Reason.NOT_VERIFIED
    if len(action.leavers) > policy.limits.ranks_max:
        return Reason.BLAST_RADIUS
    if breaker_open(job, policy.limits, world.now_s):
        return Reason.CIRCUIT_BREAKER
    if len(recent(job.acted, HOUR_S, world.now_s)) >= policy.limits.per_hour_max:
        return Reason.RATE_LIMIT
    if needs_lease(action, world) and not all(
        found is not None and found.lease_s > 0 for found in map(world.get, action.leaver_names)
    ):
        return Reason.NOT_FENCED
    return None


def breaker_open(job: JobRepair, limits: RepairLimits, now_s: float) -> bool:
    """After several failures in a row nothing is tried for a while."""
    return job.failures >= limits.failures_max and now_s - job.failed_s < limits.breaker_s


def recent(times: Sequence[float], within_s: float, now_s: float) -> tuple[float, ...]:
    return tuple(at for at in times if now_s - at < within_s)


def needs_lease(action: Action, world: World) -> bool:
    """Whether nobody on the leavers' node can be told to kill them."""
    return action.kind is RepairKind.SWAP and bool(action.node) and not _all_gone(action, world)


def _all_gone(action: Action, world: World) -> bool:
    return all(
        name in action.fenced or ((found := world.get(name)) is not None and found.child_pid == 0)
        for name in action.leaver_names
    )
