"""From a fault to the job's proposal: a new one, or one ground more or less of the one that waits."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline.contracts.ids import derived_id
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairState
from paceline.remediator.guards import MODES, mode_of
from paceline.remediator.model import Action, Ground, JobRepair, Reason, Seat, Step, World
from paceline.remediator.moves import end
from paceline.remediator.planning import as_proposed

EXPLAINS = (RepairCause.PROCESS_EXIT, RepairCause.NODE_LOST, RepairCause.FROZEN)  # errors of their peers


@dataclass(frozen=True)
class Fault:
    """What a proposal is made from. `gone`: leavers whose end is proven already."""

    source: str
    cause: RepairCause
    kind: RepairKind
    leavers: tuple[Seat, ...]
    message: str
    not_before_s: float
    incident: str = ""
    node: str = ""
    gone: tuple[str, ...] = ()

    @property
    def grounds(self) -> tuple[Ground, ...]:
        names = tuple(seat.member for seat in self.leavers) or ("",)
        return tuple(
            Ground(
                name, self.cause, self.kind, self.not_before_s, self.message[:300], self.node, self.incident
            )
            for name in names
        )


def raise_fault(job: JobRepair, fault: Fault, world: World) -> Step:
    """A new proposal, or one more leaver of the one that waits."""
    action = job.action
    if action is None:
        return Step(replace(job, action=_propose(job, fault, world)), (), Reason.PROPOSED)
    if fault.cause in EXPLAINS and action.cause is RepairCause.TRANSIENT:
        job = replace(job, transients=job.transients[:-1])  # what its peers told of was no error that passes
    mode, other = mode_of(action, world), world.policies.of(fault.cause).mode
    if action.status is not ActionStatus.APPROVED and MODES.index(other) > MODES.index(mode):
        return _supersede(job, action, fault, world)  # what nobody may carry out holds nothing up
    is_more_careful = MODES.index(other) < MODES.index(mode) and fault.kind is not RepairKind.FALLBACK
    if is_more_careful and not names_of(fault) <= action.named:
        return Step(job, (), Reason.ALREADY_UNDER_WAY)  # nor does it stop what may be carried out
    is_unnamed = action.cause is RepairCause.TRANSIENT and as_proposed(action).kind is RepairKind.FALLBACK
    if is_unnamed and fault.kind is RepairKind.SWAP:
        return _supersede(job, action, fault, world)  # nobody was named, and now somebody is
    if fault.kind is RepairKind.SWAP and action.kind is RepairKind.PLANNED_SWAP:
        return _supersede(job, action, fault, world)  # a living member is never killed for another's death
    names = names_of(fault)
    if not names and action.leavers:
        return Step(job, (), Reason.DUPLICATE)  # a new generation is what that action brings anyway
    if fault.kind is RepairKind.PLANNED_SWAP and action.kind is not RepairKind.PLANNED_SWAP:
        return Step(job, (), Reason.ALREADY_UNDER_WAY)
    proposed = as_proposed(action)
    if names <= action.named and fault.kind is proposed.kind and fault.cause is action.cause:
        merged = replace(action, incident=action.incident or fault.incident)
        return Step(replace(job, action=merged), (), Reason.DUPLICATE)
    fresh = _propose(job, fault, world)
    leavers = (*action.leavers, *(seat for seat in fault.leavers if seat.member not in action.leaver_names))
    kept = tuple(one for one in action.grounds if one.member and one.member not in names)
    merged = replace(
        fresh,
        id=action.id, source=action.source, created_s=action.created_s, grounds=(*kept, *fault.grounds),
        incident=action.incident or fault.incident,
        kind=proposed.kind if proposed.kind is RepairKind.FALLBACK else fault.kind,
        mode=min(action.mode, fresh.mode, key=MODES.index),
        message=f"{fault.message}; {proposed.message}"[:1000], leavers=leavers,
        fenced=tuple(dict.fromkeys((*action.fenced, *fault.gone))),
    )  # fmt: skip
    return Step(replace(job, action=merged), (), Reason.MERGED)


def names_of(fault: Fault) -> set[str]:
    return {seat.member for seat in fault.leavers}


def _supersede(job: JobRepair, action: Action, fault: Fault, world: World) -> Step:
    """What waits gives way, and the new fault is proposed alone."""
    over = end(job, action, ActionStatus.EXPIRED, Reason.SUPERSEDED, RepairState.HEALTHY, world)
    return Step(replace(over.job, action=_propose(over.job, fault, world)), over.effects, Reason.PROPOSED)


def _propose(job: JobRepair, fault: Fault, world: World) -> Action:
    policy = world.policies.of(fault.cause)
    return Action(
        id=derived_id("act", job.job, job.attempt, fault.source), kind=fault.kind, cause=fault.cause,
        status=ActionStatus.PROPOSED, mode=policy.mode, reason=Reason.PROPOSED, message=fault.message,
        source=fault.source, created_s=world.now_s, expires_s=world.now_s + policy.limits.proposal_s,
        grounds=fault.grounds, incident=fault.incident, leavers=fault.leavers, fenced=fault.gone,
        requeue=fault.cause is not RepairCause.SOFTWARE,
    )  # fmt: skip


def withdraw(job: JobRepair, is_over: Callable[[Ground], bool], world: World) -> Step:
    """A fault has ended by itself: those that it named stay, and the action ends with its last ground."""
    action = job.action
    if action is None or action.status.is_under_way or not any(map(is_over, action.grounds)):
        return Step(job, (), Reason.NOTHING_DUE)
    grounds = tuple(ground for ground in action.grounds if not is_over(ground))
    if not grounds:
        return end(job, action, ActionStatus.EXPIRED, Reason.WENT_AWAY, RepairState.HEALTHY, world)
    names = {ground.member for ground in grounds}
    action = replace(
        as_proposed(action), grounds=grounds, cause=grounds[-1].cause, kind=grounds[-1].kind,
        incident=grounds[-1].incident,
        message="; ".join(ground.message for ground in reversed(grounds))[:1000],
        leavers=tuple(seat for seat in action.leavers if seat.member in names),
    )  # fmt: skip
    return Step(replace(job, action=action), (), Reason.WENT_AWAY)
