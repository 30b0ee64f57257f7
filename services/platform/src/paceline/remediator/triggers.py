"""From what was seen to an action: pure. A fault that is under way, repaired or foreign makes none."""

from dataclasses import replace

from paceline.contracts.commands import CommandKind
from paceline.contracts.ids import derived_id
from paceline.contracts.recovery import Role
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairMode, RepairState
from paceline.remediator.model import (
    INCIDENTS_MAX,
    LATER_MAX,
    THAWED_MAX,
    TRANSIENTS_MAX,
    Action,
    Capture,
    JobRepair,
    Judged,
    LinkIncident,
    NodeLost,
    ProcessExit,
    ProcessStopped,
    Reason,
    Seat,
    SendOrder,
    Step,
    World,
)
from paceline.remediator.moves import given_up, is_not_begun, rebuild_without, roll_back
from paceline.remediator.planning import current_seats, is_complete, lost_seats, newest, open_seats
from paceline.remediator.proposals import Fault, raise_fault, withdraw

# SIGTERM and SIGINT, as a signal and as a shell or a handler turns them into a status.
TOLD_TO_STOP = (-15, -2, 143, 130)
SAME_ERROR_S = 10.0  # error exits of several members within it have one cause
REPAIRED_S = 600.0  # a verdict on what was repaired may come so much later
THAWED_S = 30.0  # a stop that has ended may be judged so much later
RELEASE_S = 60.0  # that an order to let go is valid


def process_exit(job: JobRepair, event: ProcessExit, world: World) -> Step:
    """A training process is gone: permanent, whatever it was."""
    if world.now_s - event.at_s > world.policies.of(RepairCause.PROCESS_EXIT).limits.event_s_max:
        return Step(job, (), Reason.STALE)
    seat = _seat_of(job, event, world)
    if isinstance(seat, Reason):
        return Step(job, (), seat)
    limits = world.policies.of(RepairCause.PROCESS_EXIT).limits
    action = job.action
    if event.code == 0 and job.state is not RepairState.FALLBACK:
        return _finished(job, seat, world)
    if action is not None and action.status.is_under_way:
        return _exit_under_way(job, action, seat, world)
    wait_s = limits.told_to_stop_s if event.code in TOLD_TO_STOP else 0.0
    if event.code is not None and event.code > 0 and not wait_s:
        wait_s = limits.error_s
        kept = [(at, name) for at, name in job.error_exits if world.now_s - at < SAME_ERROR_S]
        job = replace(job, error_exits=(*kept, (world.now_s, seat.member))[-TRANSIENTS_MAX:])
    fault = Fault(
        event.id, RepairCause.PROCESS_EXIT, RepairKind.SWAP, (seat,),
        f"rank {seat.rank} is gone: {_code_text(event.code)}", _after(wait_s, world), gone=(seat.member,),
    )  # fmt: skip
    if len({name for _, name in job.error_exits}) > 1 and event.code is not None and event.code > 0:
        words = f"{len(job.error_exits)} members ended with an error within {SAME_ERROR_S:g} s"
        fault = replace(fault, cause=RepairCause.SOFTWARE, kind=RepairKind.FALLBACK, message=words)
    return raise_fault(job, fault, world)


def _finished(job: JobRepair, seat: Seat, world: World) -> Step:
    """Its work is done. With the last one the standbys are let go: they would wait for ever."""
    job = replace(job, finished=tuple(dict.fromkeys((*job.finished, seat.member))))
    seats = open_seats(job, world)
    if not is_complete(seats) or not {each.member for each in seats} <= set(job.finished):
        return Step(job, (), Reason.FINISHED_IN_ORDER)
    return Step(replace(job, over=True), release(job, world), Reason.FINISHED_IN_ORDER)


def release(job: JobRepair, world: World) -> tuple[SendOrder, ...]:
    """Standbys, and supervisors whose training process is gone, may end; nobody is stopped."""
    done = set(job.finished)
    names = tuple(
        member.member
        for member in world.members
        if not member.left and (member.role is Role.STANDBY or not member.lives or member.member in done)
    )
    words = {"reason": "the job is over"}
    generation = newest(job, world)
    return (SendOrder(CommandKind.RELEASE, names, generation, 0, RELEASE_S, words),) if names else ()


def _seat_of(job: JobRepair, event: ProcessExit, world: World) -> Seat | Reason:
    """The seat whose process ended. A pid that nobody has any more belongs to the past."""
    for seat in open_seats(job, world):
        if event.member:
            if seat.member == event.member:
                same = event.pid_start in (None, seat.child_pid_start) or seat.child_pid == 0
                return seat if same else Reason.OTHER_PROCESS
        elif seat.rank == event.rank:
            found = world.get(seat.member)
            if found is not None and event.node and found.node != event.node:
                return Reason.FOREIGN
            pids = {seat.child_pid, found.child_pid if found is not None else 0} - {0}
            return seat if not pids or event.pid in pids else Reason.OTHER_PROCESS
    if job.action is not None:
        for seat in job.action.leavers:
            if event.member == seat.member and event.pid_start in (None, seat.child_pid_start):
                return seat
            if not event.member and (event.rank, event.pid) == (seat.rank, seat.child_pid):
                return seat
    return Reason.UNKNOWN_MEMBER


def _exit_under_way(job: JobRepair, action: Action, seat: Seat, world: World) -> Step:
    """It was to be fenced, or it is one more loss of the generation that is being built."""
    fenced = tuple(dict.fromkeys((*action.fenced, seat.member)))
    if job.state is RepairState.FALLBACK:
        action = replace(action, done=tuple(dict.fromkeys((*action.done, seat.member))))
        return given_up(replace(job, action=action), action, world, late=False)
    if is_not_begun(job, action, world):
        step = roll_back(job, action, world, Reason.ROLLED_BACK)
        if seat.member in action.joiners:
            return step  # it stood by, and the job goes on without it
        fault = Fault(
            f"{action.source}-died", RepairCause.PROCESS_EXIT, RepairKind.SWAP, (seat,),
            f"rank {seat.rank} ended while a replacement was prepared", 0.0, gone=(seat.member,),
        )  # fmt: skip
        then = raise_fault(step.job, fault, world)
        return replace(then, effects=(*step.effects, *then.effects))
    if seat.member in action.leaver_names:
        return Step(replace(job, action=replace(action, fenced=fenced)), (), Reason.NOTED)
    if job.state is RepairState.FENCING:
        action = replace(action, fenced=fenced, leavers=(*action.leavers, seat))
        return Step(replace(job, action=action), (), Reason.MERGED)
    return rebuild_without(job, action, [seat], world, (seat.member,))


def process_stopped(job: JobRepair, event: ProcessStopped, world: World) -> Step:
    """A stopped process is replaced like a dead one once it has stood for a while and its peers have not."""
    limits = world.policies.of(RepairCause.FROZEN).limits
    seats = _seats_of_both(job, world)
    seat = next((each for each in seats if each.rank == event.rank and each.child_pid == event.pid), None)
    if seat is None:
        return Step(job, (), Reason.OTHER_PROCESS)
    home = world.get(seat.member)
    if home is not None and event.node and home.node != event.node:
        return Step(job, (), Reason.FOREIGN)
    frozen = tuple(name for name in job.frozen if name != seat.member)
    later = tuple(one for one in job.later if not _is_stop_of(one, event))
    job = replace(job, later=later, frozen=frozen if event.resumed else (*frozen, seat.member))
    if event.resumed:
        job = replace(job, thawed=(*job.thawed, (seat.member, world.now_s))[-THAWED_MAX:])
        return withdraw(job, lambda one: one.cause is RepairCause.FROZEN and one.member == seat.member, world)
    if world.now_s - event.at_s > limits.event_s_max:
        return Step(job, (), Reason.STALE)
    if job.action is not None and job.action.status.is_under_way:
        return _keep(job, event)  # also beside what is prepared, until the stop has lasted
    fault = Fault(
        event.id, RepairCause.FROZEN, RepairKind.SWAP, (seat,), f"rank {seat.rank} was stopped by a signal",
        world.now_s + limits.frozen_s,
    )  # fmt: skip
    return raise_fault(job, fault, world)


def node_lost(job: JobRepair, event: NodeLost, world: World) -> Step:
    """An agent has fallen silent: its node is lost, or only its link is. The lease makes both the same."""
    limits = world.policies.of(RepairCause.NODE_LOST).limits
    if event.back:
        later = tuple(one for one in job.later if not (isinstance(one, NodeLost) and one.node == event.node))
        return withdraw(replace(job, later=later), lambda one: one.node == event.node, world)
    if world.now_s - event.at_s > limits.event_s_max:
        return Step(job, (), Reason.STALE)
    found = {member.member for member in world.members if member.node == event.node and not member.left}
    seats = tuple(seat for seat in _seats_of_both(job, world) if seat.member in found)
    action = job.action
    if not seats and action is not None and found & set(action.joiners) and is_preparing(job):
        return roll_back(job, action, world, Reason.ROLLED_BACK)  # it stood by: nobody needs it
    if not seats:
        return Step(job, (), Reason.UNKNOWN_MEMBER)
    if not is_free_for(job, RepairCause.NODE_LOST, world):
        return _keep(job, event)
    fault = Fault(
        event.id, RepairCause.NODE_LOST, RepairKind.SWAP, seats, f"node {event.node} has fallen silent",
        0.0, node=event.node,
    )  # fmt: skip
    return _raise_instead(job, fault, world)


def is_preparing(job: JobRepair) -> bool:
    """Whether a planned replacement is only prepared. Once the switch is ordered nobody can tell from here
    who has switched: reports may be on their way, and what comes then follows it."""
    return job.action is not None and job.action.status.is_under_way and job.state is RepairState.PREPARING


def is_free_for(job: JobRepair, cause: RepairCause, world: World) -> bool:
    """Whether a fault may be proposed now: nothing is under way, or only what gives way to it. What is only
    observed, or needs a person, ends nothing."""
    if job.action is None or not job.action.status.is_under_way:
        return True
    return is_preparing(job) and world.policies.of(cause).mode is RepairMode.AUTO


def _raise_instead(job: JobRepair, fault: Fault, world: World) -> Step:
    """Propose the fault, instead of a planned replacement that is only prepared."""
    if job.action is None or not is_preparing(job):
        return raise_fault(job, fault, world)
    step = roll_back(job, job.action, world, Reason.SUPERSEDED)
    then = raise_fault(step.job, fault, world)
    return replace(then, effects=(*step.effects, *then.effects))


def _trained_seats(job: JobRepair, world: World) -> tuple[Seat, ...]:
    """Who trains now: while a replacement is only prepared, its leaver and not its joiner."""
    return current_seats(job, world.members) if is_preparing(job) else open_seats(job, world)


def _seats_of_both(job: JobRepair, world: World) -> tuple[Seat, ...]:
    """Who trains, before or after a switch that is ordered."""
    leavers = () if job.action is None or is_preparing(job) else job.action.leavers
    return (*_trained_seats(job, world), *leavers)


def _keep(job: JobRepair, event: ProcessStopped | NodeLost) -> Step:
    """It is proposed once the action under way is over, unless it has ended by then."""
    return Step(replace(job, later=(*job.later, event)[-LATER_MAX:]), (), Reason.ALREADY_UNDER_WAY)


def _is_stop_of(one: ProcessStopped | NodeLost, event: ProcessStopped) -> bool:
    return isinstance(one, ProcessStopped) and (one.rank, one.pid) == (event.rank, event.pid)


def follow(step: Step, world: World) -> Step:
    """What came while an action was under way, once that is over or gives way to it."""
    job, effects = step.job, step.effects
    if not job.later:
        return step
    if job.action is not None:
        if not _has_lasted(job, world):
            return step
        over = roll_back(job, job.action, world, Reason.SUPERSEDED)
        job, effects = over.job, (*effects, *over.effects)
    kept, job = job.later, replace(job, later=())
    if job.over or job.state is RepairState.FALLBACK:
        return Step(job, effects, step.reason)
    for event in kept:
        if isinstance(event, ProcessStopped):
            then = process_stopped(job, replace(event, at_s=world.now_s), world)
        else:
            then = node_lost(job, replace(event, at_s=world.now_s), world)
        job, effects = then.job, (*effects, *then.effects)
    return Step(job, effects, step.reason)


def _has_lasted(job: JobRepair, world: World) -> bool:
    """Whether a stop has lasted so long that what is prepared gives way to its repair."""
    if not is_preparing(job) or not is_free_for(job, RepairCause.FROZEN, world):
        return False
    since_s = world.known_s - world.policies.of(RepairCause.FROZEN).limits.frozen_s
    return any(isinstance(one, ProcessStopped) and one.at_s <= since_s for one in job.later)


def judged(job: JobRepair, event: Judged, world: World) -> Step:
    """A verdict: it may be the first word of a fault, or a later one on what is under way or repaired."""
    if event.resolved:
        return _resolved(job, event, world)
    if event.cause is None:
        return Step(job, (), Reason.NOT_FOR_REPAIR)
    is_known = event.incident in job.incidents and not event.reopened
    others = (each for each in job.incidents if each != event.incident)
    known = replace(job, incidents=(*others, event.incident)[-INCIDENTS_MAX:])
    if event.cause is RepairCause.SOFTWARE:
        return Step(job, (), Reason.DUPLICATE) if is_known else _capture(known, event, world)
    seats = _blamed(job, event, world)
    action = job.action
    may_wait = event.cause in (RepairCause.SLOW, RepairCause.HARDWARE) or not is_preparing(job)
    if action is not None and may_wait and set(event.ranks) & {seat.rank for seat in action.leavers}:
        ranks = {seat.member for seat in action.leavers if seat.rank in event.ranks}
        grounds = tuple(
            replace(one, incident=event.incident) if one.member in ranks and not one.incident else one
            for one in action.grounds
        )
        linked = replace(action, incident=action.incident or event.incident, grounds=grounds)
        return Step(replace(known, action=linked), (LinkIncident(action.id, event.incident),), Reason.MERGED)
    last = job.last
    is_late = last is not None and world.now_s - last.at_s < REPAIRED_S and event.opened_s <= last.at_s + 60.0
    if last is not None and is_late and set(event.ranks) & set(last.ranks):
        return Step(known, (LinkIncident(last.action, event.incident),), Reason.ALREADY_REPAIRED)
    objection = Reason.DUPLICATE if is_known else _objection(job, event, seats, world)
    if objection is not None:
        return Step(job, (), objection)
    kind = RepairKind.PLANNED_SWAP if event.planned else RepairKind.SWAP
    if event.cause is RepairCause.HANG:
        kind, seats = RepairKind.RETRY, ()  # nothing says that a machine is at fault
    node = event.nodes[0] if event.nodes and event.cause is RepairCause.NODE_LOST else ""
    seen_stopped = {seat.member for seat in seats} <= set(job.frozen)
    is_guess = event.cause is RepairCause.FROZEN and not seen_stopped
    wait_s = world.policies.of(event.cause).limits.frozen_s if is_guess else 0.0
    fault = Fault(
        event.id, event.cause, kind, seats, event.message, _after(wait_s, world), incident=event.incident,
        node=node,
    )  # fmt: skip
    step = _raise_instead(known, fault, world)
    return Step(job, (), step.reason) if step.reason is Reason.ALREADY_UNDER_WAY else step


def _objection(job: JobRepair, event: Judged, seats: tuple[Seat, ...], world: World) -> Reason | None:
    """Why nothing follows from a verdict. It names ranks: what it saw before the newest generation had
    resumed, or before a stop had ended, is not said of the processes that have these ranks now."""
    if job.state is RepairState.FALLBACK:
        return Reason.JOB_OVER
    assert event.cause is not None
    limits = world.policies.of(event.cause).limits
    if world.now_s - event.at_s > limits.event_s_max or job.over:
        return Reason.STALE
    seen_s = event.at_s if event.reopened else event.opened_s
    if seen_s <= job.resumed_s:
        return Reason.ALREADY_REPAIRED
    if not seats:
        return Reason.UNKNOWN_MEMBER
    if (event.planned and is_preparing(job)) or not is_free_for(job, event.cause, world):
        return Reason.ALREADY_UNDER_WAY
    went_on = {name for name, at_s in job.thawed if seen_s <= at_s + THAWED_S} - set(job.frozen)
    if event.cause is RepairCause.FROZEN and {seat.member for seat in seats} <= went_on:
        return Reason.WENT_AWAY
    return None


def _resolved(job: JobRepair, event: Judged, world: World) -> Step:
    """Progress by itself takes back what only a verdict had asked for."""
    proven = (RepairCause.PROCESS_EXIT, RepairCause.NODE_LOST)
    return withdraw(job, lambda one: one.incident == event.incident and one.cause not in proven, world)


def _blamed(job: JobRepair, event: Judged, world: World) -> tuple[Seat, ...]:
    """Seats of the ranks and nodes that the verdict names as first cause."""
    on_nodes = {member.member for member in world.members if member.node in event.nodes}
    seats = _trained_seats(job, world)
    found = tuple(seat for seat in seats if seat.rank in event.ranks or seat.member in on_nodes)
    if event.cause is RepairCause.PROCESS_EXIT:
        gone = {seat.member for seat in lost_seats(found, world)} | {
            member.member for member in world.members if not member.lives
        }
        return tuple(seat for seat in found if seat.member in gone)
    return found


def _capture(job: JobRepair, event: Judged, world: World) -> Step:
    """Software: stacks from the nodes that are concerned, and somebody who owns the code; never a swap."""
    action = Action(
        id=derived_id("act", job.job, job.attempt, event.id), kind=RepairKind.STACK_CAPTURE,
        cause=RepairCause.SOFTWARE, status=ActionStatus.OBSERVING, mode=RepairMode.OBSERVE,
        reason=Reason.CAPTURE, message=event.message, source=event.id, created_s=world.now_s,
        expires_s=world.now_s, incident=event.incident,
    )  # fmt: skip
    return Step(job, (Capture(action),), Reason.CAPTURE)


def _after(wait_s: float, world: World) -> float:
    """When what is not waited for may be done: at once, whatever is still unread."""
    return world.now_s + wait_s if wait_s else 0.0


def _code_text(code: int | None) -> str:
    if code is None:
        return "its exit status is not known"
    return f"exit status {code}" if code >= 0 else f"signal {-code}"
