"""Whether an action may be carried out now without a person, and if not, why: the first reason that holds."""

from collections.abc import Sequence

from paceline.contracts.recovery import Support
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairLimits, RepairMode
from paceline.remediator.model import Action, JobRepair, Policy, Reason, RepairEnd, Seat, World
from paceline.remediator.planning import least_support

HOUR_S = 3600.0
MODES = (RepairMode.OBSERVE, RepairMode.APPROVE, RepairMode.AUTO)  # most careful first


def mode_of(action: Action, world: World) -> RepairMode:
    """The most careful word: of the proposal, and of what the policies of all its causes say now."""
    modes = [world.policies.of(cause).mode for cause in causes_of(action)]
    return min((action.mode, *modes), key=MODES.index)


def causes_of(action: Action) -> set[RepairCause]:
    return {action.cause, *(ground.cause for ground in action.grounds)}


def guard(
    job: JobRepair, action: Action, policy: Policy, world: World, seats: Sequence[Seat]
) -> Reason | None:
    """None where it may go ahead. What a person has approved passes everything but the stop switch and a
    layout that is refused."""
    if not world.policies.may_act:
        return Reason.OBSERVED_ONLY  # nobody could sign an order, whatever was approved
    if any(world.policies.of(cause).stopped for cause in causes_of(action)):
        return Reason.STOP_SWITCH
    swaps = action.kind in (RepairKind.SWAP, RepairKind.PLANNED_SWAP, RepairKind.RETRY)
    support = least_support(seats, action.joiners, world)
    if swaps and support is Support.REFUSED:
        return Reason.REFUSED_LAYOUT
    if action.status is ActionStatus.APPROVED:
        return None
    mode = mode_of(action, world)
    if mode is RepairMode.OBSERVE:
        return Reason.OBSERVED_ONLY
    if mode is RepairMode.APPROVE:
        return Reason.NEEDS_APPROVAL
    if swaps and support is not Support.VERIFIED:
        return Reason.NOT_VERIFIED
    if len(action.leavers) > policy.limits.ranks_max:
        return Reason.BLAST_RADIUS
    if breaker_open(job, policy.limits, world.now_s):
        return Reason.CIRCUIT_BREAKER
    if fleet_breaker_open(world.fleet, policy.limits, world.now_s):
        return Reason.FLEET_BREAKER
    is_last = action.kind is RepairKind.FALLBACK and action.instead_of is None  # a page, and the job ends
    if not is_last and len(recent(job.acted, HOUR_S, world.now_s)) >= policy.limits.per_hour_max:
        return Reason.RATE_LIMIT
    if any(not _has_lease(name, world) for name in need_lease(action, world)):
        return Reason.NOT_FENCED
    return None


def breaker_open(job: JobRepair, limits: RepairLimits, now_s: float) -> bool:
    """After several failures in a row nothing is tried for a while."""
    return job.failures >= limits.failures_max and now_s - job.failed_s < limits.breaker_s


def fleet_breaker_open(fleet: Sequence[RepairEnd], limits: RepairLimits, now_s: float) -> bool:
    """Whether the repairs of so many different jobs have failed of late, and of no more have succeeded: what
    they share (a library, a fabric) is at fault, and the next repair would fail as well."""
    late = [end for end in fleet if now_s - end.at_s < limits.fleet_s]
    failed = {end.job for end in late if end.failed}
    return len(failed) >= max(limits.fleet_failures_max, len({end.job for end in late if not end.failed}))


def recent(times: Sequence[float], within_s: float, now_s: float) -> tuple[float, ...]:
    return tuple(at for at in times if now_s - at < within_s)


def need_lease(action: Action, world: World) -> list[str]:
    """Leavers that may still run, on a node where nobody can be told to kill them."""
    if action.kind is not RepairKind.SWAP:
        return []
    return [name for name in sorted(action.on_lost_nodes) if not _is_gone(name, action, world)]


def _has_lease(name: str, world: World) -> bool:
    found = world.get(name)
    return found is not None and found.lease_s > 0


def _is_gone(name: str, action: Action, world: World) -> bool:
    found = world.get(name)
    return name in action.fenced or (found is not None and found.child_pid == 0)
