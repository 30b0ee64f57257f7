"""The state machine of one job: (state, event, world) -> (state, orders, reason). Pure.

One recovery at a time; a generation is opened at most once and never falls; a replayed event changes
nothing; what did not prove itself does not count (docs/adr/0043-remediation.md).
"""

from collections.abc import Callable
from dataclasses import replace

from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.contracts.repair import ActionStatus, RepairKind, RepairState
from paceline.remediator.model import (
    HANDLED_MAX,
    Action,
    Event,
    JobOver,
    JobRepair,
    Judged,
    MemberError,
    NodeLost,
    OrderAnswer,
    PhaseDone,
    ProcessExit,
    ProcessStopped,
    Reason,
    Step,
    Tick,
    World,
)
from paceline.remediator.moves import (
    advance,
    fall_back,
    rebuild,
    rebuild_again,
    resume,
    roll_back,
    switch,
)
from paceline.remediator.transients import error
from paceline.remediator.triggers import (
    follow,
    judged,
    node_lost,
    process_exit,
    process_stopped,
    release,
)

LOST_PREFIX = "fallback:"  # of a result that says why another try cannot help
FAULTS = (ProcessExit, ProcessStopped, NodeLost, MemberError)
# Generation, try and sets make these idempotent, and a large job sends more of them than ids are kept.
REPORTS = (OrderAnswer, PhaseDone)
GROUP_PHASES = (
    RecoveryPhase.RENDEZVOUS,
    RecoveryPhase.PARAMETERS,
    RecoveryPhase.OPTIMIZER,
    RecoveryPhase.RESUME,
    RecoveryPhase.FIRST_STEP,
)


def decide(job: JobRepair, event: Event, world: World) -> Step:
    """What `event` does to the job, and whatever is due besides."""
    if isinstance(event, Tick):
        return _do_due(job, world)
    if event.id in job.handled:
        return Step(job, (), Reason.DUPLICATE)
    objection = _not_believed(job, event, world)
    if objection is not None:
        return Step(job, (), objection)
    is_over = job.over or (job.state is RepairState.FALLBACK and job.action is None)
    if is_over and isinstance(event, FAULTS):
        return Step(job, (), Reason.JOB_OVER)
    first = _HANDLERS[type(event)](job, event, world)
    if not isinstance(event, REPORTS):
        handled = (*first.job.handled, event.id)[-HANDLED_MAX:]
        first = replace(first, job=replace(first.job, handled=handled))
    then = _do_due(first.job, world)
    # What was done says more than what was seen; what still waits is said by the action itself.
    reason = then.reason if then.effects else first.reason
    return Step(then.job, (*first.effects, *then.effects), reason)


def _do_due(job: JobRepair, world: World) -> Step:
    """Whatever is due, and what follows it: a proposal that takes the place of another waits for no tick."""
    first = advance(job, world)
    then = follow(first, world)
    if then.job == first.job:
        return then
    last = advance(then.job, world)
    return Step(last.job, (*then.effects, *last.effects), last.reason if last.effects else then.reason)


def _not_believed(job: JobRepair, event: Event, world: World) -> Reason | None:
    """A member is spoken for by the node on which it is registered, and by no other. What names no process
    and is older than this run was said of the one before."""
    if isinstance(event, JobOver | NodeLost) and event.at_s < job.began_s:
        return Reason.STALE
    if not isinstance(event, ProcessExit | OrderAnswer | PhaseDone | MemberError) or not event.member:
        return None
    found = world.get(event.member)
    if found is None:
        return None if isinstance(event, ProcessExit) else Reason.UNKNOWN_MEMBER
    return Reason.FOREIGN if event.node and found.node != event.node else None


def _answered(job: JobRepair, event: OrderAnswer, world: World) -> Step:
    """A member's word on an order. Words on older generations change nothing."""
    action = job.action
    if action is None or not action.status.is_under_way:
        return Step(job, (), Reason.NOTHING_DUE)
    done = replace(action, done=tuple(dict.fromkeys((*action.done, event.member))))
    if job.state is RepairState.FENCING:
        return _fence_answered(job, action, event, world)
    if job.state is RepairState.FALLBACK:
        return Step(job, (), Reason.NOTED)  # a promise to stop is no end: exits and the registry say that
    if event.outcome is OrderOutcome.REFUSED and event.generation > action.generation:
        # It knows a newer generation than we do: open one above it.
        return rebuild(replace(job, generation=event.generation), action, world)
    if event.generation != action.generation:
        return Step(job, (), Reason.OLD_GENERATION)
    if event.outcome is OrderOutcome.DONE:
        if not _is_of_present_try(action, event):
            return Step(job, (), Reason.OLD_GENERATION)
        return _done(replace(job, action=done), done, world)
    is_called_off = action.kind is RepairKind.PLANNED_SWAP and event.outcome is OrderOutcome.REFUSED
    if job.state is RepairState.PREPARING or (is_called_off and not action.reached):
        return roll_back(job, action, world, Reason.ROLLED_BACK)
    if action.kind is RepairKind.PLANNED_SWAP and not action.reached:
        # Whether the others have switched is seen soon; where they have not, nothing has happened.
        until_s = world.now_s + world.policies.of(action.cause).limits.rebuild_s
        action = replace(action, deadline_s=min(action.deadline_s, until_s))
        return Step(replace(job, action=action), (), Reason.NOTED)
    if event.outcome is OrderOutcome.LOST or event.message.startswith(LOST_PREFIX):
        action = replace(action, message=f"{event.message}; {action.message}"[:1000])
        return fall_back(job, action, world, Reason.STATE_LOST)
    # Several members fail by one cause: the first answer of a try starts the next one.
    if _is_of_present_try(action, event):
        return rebuild_again(job, action, world)
    return Step(job, (), Reason.OLD_GENERATION)


def _is_of_present_try(action: Action, event: OrderAnswer) -> bool:
    """Commands carry their try in the text of their id (`writing.command_id`)."""
    return event.command.endswith(f"-{action.generation}-{action.attempt_no}")


def _fence_answered(job: JobRepair, action: Action, event: OrderAnswer, world: World) -> Step:
    """Only the answer to a fence of this action is a proof: the same member answers other orders as well.
    What failed or came too late is tried again at the deadline, or its exit is seen before."""
    if (event.member, event.command) not in action.fences:
        return Step(job, (), Reason.OLD_GENERATION)
    if event.outcome is OrderOutcome.DONE:
        fenced = tuple(dict.fromkeys((*action.fenced, event.member)))
        return Step(replace(job, action=replace(action, fenced=fenced)), (), Reason.NOTED)
    return Step(job, (), Reason.NOTED)


def _done(job: JobRepair, action: Action, world: World) -> Step:
    """One more member has carried the present order out."""
    if job.state is RepairState.PREPARING:
        wanted = {seat.member for seat in (*action.seats, *action.leavers)}
        if wanted <= set(action.done) and not action.cancelled:
            return switch(replace(job, state=RepairState.READY), action, world)
    elif action.status is ActionStatus.DISPATCHED:
        action = replace(action, status=ActionStatus.OBSERVING)
        return Step(replace(job, action=action), (), Reason.NOTED)
    return Step(job, (), Reason.NOTED)


def _phase(job: JobRepair, event: PhaseDone, world: World) -> Step:
    """A phase that a member has measured itself: the proof that orders did something."""
    action = job.action
    if action is None or not action.status.is_under_way or event.generation != action.generation:
        return Step(job, (), Reason.OLD_GENERATION)
    if 0 <= event.attempt_no < action.attempt_no:
        return Step(job, (), Reason.OLD_GENERATION)  # who met before the present try has to meet again
    if job.state not in (RepairState.REBUILDING, RepairState.RESTORING) or event.phase not in GROUP_PHASES:
        return Step(job, (), Reason.NOTED)
    wanted = {seat.member for seat in action.seats}
    if event.member not in wanted:
        return Step(job, (), Reason.UNKNOWN_MEMBER)
    reached = tuple(dict.fromkeys((*action.reached, event.member)))
    stepped = action.stepped
    if event.phase is RecoveryPhase.FIRST_STEP:
        job = _without_past_stops(job, action, event)
        stepped = tuple(dict.fromkeys((*stepped, event.member)))
    action = replace(
        action, status=ActionStatus.OBSERVING, reached=reached, stepped=stepped,
        step=max(action.step, event.step), replayed=max(action.replayed, event.replayed),
    )  # fmt: skip
    if wanted <= set(stepped):
        return resume(replace(job, action=action), action, world)
    if job.state is RepairState.REBUILDING and wanted <= set(reached):
        limits = world.policies.of(action.cause).limits
        action = replace(action, reason=Reason.RESTORING, deadline_s=world.now_s + limits.restore_s)
        return Step(replace(job, state=RepairState.RESTORING, action=action), (), Reason.RESTORING)
    return Step(replace(job, action=action), (), Reason.NOTED)


def _without_past_stops(job: JobRepair, action: Action, event: PhaseDone) -> JobRepair:
    """A member that has made a step since its stop goes on, also where the word on that was lost."""
    pids = {seat.child_pid for seat in action.seats if seat.member == event.member}
    later = tuple(
        one
        for one in job.later
        if not (isinstance(one, ProcessStopped) and one.pid in pids and one.at_s < event.at_s)
    )
    return replace(job, later=later)


def _over(job: JobRepair, event: JobOver, world: World) -> Step:
    """The job has ended or was cancelled: nothing of it is repaired any more."""
    if world.now_s - event.at_s > world.policies.default.limits.event_s_max:
        return Step(job, (), Reason.STALE)
    return Step(replace(job, over=True), () if job.over else release(job, world), Reason.JOB_OVER)


_HANDLERS: dict[type, Callable[..., Step]] = {
    ProcessExit: process_exit,
    ProcessStopped: process_stopped,
    NodeLost: node_lost,
    Judged: judged,
    MemberError: error,
    OrderAnswer: _answered,
    PhaseDone: _phase,
    JobOver: _over,
}
