"""What is done about a job's action: pure moves from one state to the next, each with its orders.

`consider` looks at what waits, `proceed` at what is under way. A move that kills or rebuilds sets a
deadline; what passes it is tried again within a bound, or given up explicitly.
"""

from dataclasses import replace

from paceline.contracts.commands import CommandKind
from paceline.contracts.repair import (
    ActionStatus,
    RepairCause,
    RepairKind,
    RepairLimits,
    RepairState,
)
from paceline.remediator.guards import HOUR_S, guard, mode_of, recent
from paceline.remediator.model import (
    ACTED_MAX,
    Action,
    Closed,
    Effect,
    JobRepair,
    Page,
    Reason,
    Repaired,
    Seat,
    SendOrder,
    Step,
    World,
)
from paceline.remediator.planning import (
    Plan,
    as_proposed,
    best_step,
    command_id,
    is_proven_gone,
    lost_seats,
    may_come_back,
    members_text,
    newest,
    next_generation,
    on_cut_off_nodes,
    open_seats,
    plan_seats,
)

LOST_S = 0.5  # that the registry alone says so before it is believed
FALLBACK_REASONS = {  # of those that were proposed as such
    RepairCause.SOFTWARE: Reason.SAME_ERROR_ON_MANY,
    RepairCause.TRANSIENT: Reason.UNNAMED_TRANSIENTS,
}
RECONNECT_S = 6.0  # that a supervisor may take to connect again: its longest pause is 5 s


def advance(job: JobRepair, world: World) -> Step:
    """Whatever is due now."""
    action = job.action
    if action is None:
        return Step(job, (), Reason.NOTHING_DUE)
    if action.status in (ActionStatus.PROPOSED, ActionStatus.APPROVED):
        return consider(job, action, world)
    if action.status.is_under_way:
        return proceed(job, action, world)
    return close(job, action, RepairState.HEALTHY, world.now_s)  # somebody rejected it


def limits_of(action: Action, world: World) -> RepairLimits:
    return world.policies.of(action.cause).limits


# ---------------------------------------------------------------------- what waits


def consider(job: JobRepair, action: Action, world: World) -> Step:
    """Dispatch the action, let it wait with a reason, or let it end."""
    limits = limits_of(action, world)
    action = replace(action, mode=mode_of(action, world))
    if action.cancelled or job.over:
        reason = Reason.CANCELLED if action.cancelled else Reason.JOB_OVER
        return end(job, action, ActionStatus.EXPIRED, reason, RepairState.HEALTHY, world)
    if action.status is ActionStatus.PROPOSED and world.now_s >= action.expires_s:
        return end(job, action, ActionStatus.EXPIRED, Reason.EXPIRED, RepairState.HEALTHY, world)
    was, action = action, as_proposed(action)
    is_approved = was.status is ActionStatus.APPROVED
    if is_approved and action.kind is not was.kind:
        action = replace(action, status=ActionStatus.PROPOSED)  # unless it is given up again
    plan = plan_seats(job, world, action.named, same=action.kind is RepairKind.RETRY)
    if action.kind is not RepairKind.FALLBACK and isinstance(plan, Reason):
        if plan is Reason.WAIT_STANDBY and world.known_s < action.created_s + limits.standby_s:
            return waits(job, action, plan, RepairState.PREPARING)
        if plan in (Reason.MEMBERS_UNKNOWN, Reason.TOO_LARGE) or action.kind is not RepairKind.SWAP:
            return waits(job, action, plan, RepairState.HEALTHY)
        action = to_fallback(action, Reason.NO_STANDBY, "no standby is ready")
    if isinstance(plan, Plan) and action.kind in (RepairKind.SWAP, RepairKind.PLANNED_SWAP):
        action = replace(action, leavers=plan.leavers, joiners=plan.joiners)
    if action.kind in (RepairKind.SWAP, RepairKind.RETRY) and is_stuck(job, limits, world):
        words = f"{job.no_progress} recoveries without a new step"
        action = to_fallback(action, Reason.NO_PROGRESS, words, requeue=False)
    if is_approved:  # an approval that was for something else does not count
        same = action.kind is was.kind
        action = replace(action, status=ActionStatus.APPROVED if same else ActionStatus.PROPOSED)
    seats = plan.seats if isinstance(plan, Plan) else open_seats(job, world)
    found = guard(job, action, world.policies.of(action.cause), world, seats)
    if found is not None:
        return waits(job, action, found, RepairState.READY)
    silent = [
        seat for seat in action.leavers if seat.member not in action.named and may_come_back(seat, world)
    ]
    if silent and world.known_s < action.created_s + RECONNECT_S:
        return waits(job, action, Reason.WAIT_SETTLED, RepairState.READY)
    if world.known_s < action.not_before_s or is_paused(job, action, world):
        return waits(job, action, Reason.WAIT_SETTLED, RepairState.READY)
    kills = action.kind is RepairKind.SWAP and not all_fenced(action, world)
    if kills and world.evidence_pending and world.now_s < action.created_s + limits.evidence_s:
        return waits(job, action, Reason.WAIT_EVIDENCE, RepairState.READY)
    return dispatch(job, action, world, plan)


def waits(job: JobRepair, action: Action, reason: Reason, state: RepairState) -> Step:
    """Nothing is done; a proposal that nobody may carry out leaves the job where it is."""
    if reason is Reason.OBSERVED_ONLY:
        state = RepairState.HEALTHY
    return Step(replace(job, state=state, action=replace(action, reason=reason)), (), reason)


def to_fallback(action: Action, reason: Reason, message: str, *, requeue: bool = True) -> Action:
    """The same proposal, given up for as long as it cannot be carried out."""
    if action.kind is RepairKind.FALLBACK:
        return action
    return replace(
        action, kind=RepairKind.FALLBACK, reason=reason, requeue=requeue, joiners=(),
        instead_of=action.kind, plain=action.message, message=f"{message}; {action.message}",
    )  # fmt: skip


def is_stuck(job: JobRepair, limits: RepairLimits, world: World) -> bool:
    return job.no_progress >= limits.no_progress_max and best_step(world) <= job.best_step


def is_paused(job: JobRepair, action: Action, world: World) -> bool:
    """Most members stand still together: somebody has paused the job, and nobody is to be replaced."""
    seats = open_seats(job, world)
    frozen = [seat for seat in seats if seat.member in job.frozen and _has_its_process(seat, world)]
    return action.cause is RepairCause.FROZEN and 2 * len(frozen) > len(seats)


def _has_its_process(seat: Seat, world: World) -> bool:
    found = world.get(seat.member)
    return found is not None and found.lives and found.child_pid_start == seat.child_pid_start


def dispatch(job: JobRepair, action: Action, world: World, plan: Plan | Reason) -> Step:
    """The first orders of an action."""
    step = best_step(world)
    job = replace(
        job,
        acted=(*recent(job.acted, HOUR_S, world.now_s), world.now_s)[-ACTED_MAX:],
        no_progress=job.no_progress + 1 if step <= job.best_step else 0,
        best_step=max(step, job.best_step),
    )
    action = replace(action, status=ActionStatus.DISPATCHED, dispatched_s=world.now_s)
    if action.kind is RepairKind.FALLBACK or isinstance(plan, Reason):
        named = FALLBACK_REASONS.get(action.cause, action.reason)
        return fall_back(job, action, world, action.reason if action.instead_of is not None else named)
    if action.kind is RepairKind.PLANNED_SWAP:
        return prepare(job, action, world, plan)
    if action.kind is RepairKind.RETRY or all_fenced(action, world):
        return rebuild(job, action, world, plan)
    return fence(job, action, world)


# ---------------------------------------------------------------------- fence


def all_fenced(action: Action, world: World) -> bool:
    return not unfenced(action, world)


def unfenced(action: Action, world: World) -> list[Seat]:
    """Leavers whose process may still run, as far as anybody has proven."""
    left = []
    for seat in action.leavers:
        found = world.get(seat.member)
        is_gone = found is not None and found.child_pid == 0
        if seat.member not in action.fenced and not is_gone and seat.child_pid:
            left.append(seat)
    return left


def fence(job: JobRepair, action: Action, world: World) -> Step:
    """Kill what is left of the leavers: the named process and nobody who waits for it. Where nobody is on the
    node to do it, the end of their lease is waited for."""
    limits = limits_of(action, world)
    left = unfenced(action, world)
    effects: list[Effect] = []
    lost = action.on_lost_nodes
    leases = [found.lease_s for seat in left if seat.member in lost and (found := world.get(seat.member))]
    near = [seat for seat in left if seat.member not in lost]
    wait_s = max([*leases, *([limits.fence_s] if near else [])], default=0.0)
    fences = action.fences
    for seat in near:
        found = world.get(seat.member)
        node = found.node if found is not None else ""
        told = command_id(
            action.id, CommandKind.FENCE, node, [seat.member], newest(job, world), action.attempt_no
        )
        fences = (*fences, (seat.member, told))
        words = {"pid": str(seat.child_pid), "pid_start": str(seat.child_pid_start)}
        words["member"] = seat.member
        order = SendOrder(
            CommandKind.FENCE, (seat.member,), newest(job, world), action.attempt_no, limits.fence_s,
            words | why(action),
        )  # fmt: skip
        effects.append(order)
    action = replace(action, reason=Reason.FENCE, deadline_s=world.now_s + wait_s, fences=fences)
    return Step(replace(job, state=RepairState.FENCING, action=action), tuple(effects), Reason.FENCE)


def why(action: Action) -> dict[str, str]:
    return {"reason": action.cause.value, "incident": action.incident, "action": action.id}


# ---------------------------------------------------------------------- rebuild


def rebuild(job: JobRepair, action: Action, world: World, plan: Plan | None = None) -> Step:
    """Open the next generation with the seats that are left."""
    limits = limits_of(action, world)
    job = replace(job, action=action)
    if plan is None:
        found = plan_seats(job, world, action.leaver_names, same=action.kind is RepairKind.RETRY)
        since_s = action.wanting_s or world.now_s
        if found is Reason.WAIT_STANDBY and world.known_s < since_s + limits.standby_s:
            return _await_standby(job, action, since_s, limits)
        if isinstance(found, Reason):
            reason = Reason.NO_STANDBY if found is Reason.WAIT_STANDBY else found
            return fall_back(job, action, world, reason)
        gone = [seat for seat in found.leavers if seat.member not in action.leaver_names]
        if gone:  # lost since anybody looked, so nobody has ordered its end
            return rebuild_without(job, action, gone, world)
        plan = found
    if action.rebuilds >= limits.rebuilds_max:
        return fall_back(job, action, world, Reason.REBUILDS_EXHAUSTED)
    generation = next_generation(job, world)
    action = replace(
        action, generation=generation, attempt_no=0, rebuilds=action.rebuilds + 1, seats=plan.seats,
        joiners=tuple(dict.fromkeys((*action.joiners, *plan.joiners))), store=plan.store, wanting_s=0.0,
    )  # fmt: skip
    job = replace(job, generation=generation, finished=_without(job.finished, plan.joiners))
    return _order_rebuild(job, action, world, Reason.REBUILD)


def _without(finished: tuple[str, ...], joiners: tuple[str, ...]) -> tuple[str, ...]:
    """Whoever joins has not finished, also where an earlier process of its supervisor had."""
    return tuple(name for name in finished if name not in joiners)


def _await_standby(job: JobRepair, action: Action, since_s: float, limits: RepairLimits) -> Step:
    """Whoever leaves is fenced; the survivors wait for an order, and a standby is about to be ready."""
    action = replace(
        action, wanting_s=since_s, reason=Reason.WAIT_STANDBY, deadline_s=since_s + limits.standby_s
    )
    return Step(replace(job, state=RepairState.FENCING, action=action), (), Reason.WAIT_STANDBY)


def rebuild_again(job: JobRepair, action: Action, world: World) -> Step:
    """The same generation and another rendezvous, within a bound; then a fresh generation. After a switch
    that failed the one that was to leave may still run: it is fenced first."""
    if has_finished(job, action):
        return at_its_end(job, action, world)
    if action.kind is RepairKind.PLANNED_SWAP:
        return fence(job, replace(action, kind=RepairKind.SWAP), world)
    if action.attempt_no + 1 >= limits_of(action, world).tries_max:
        return rebuild(job, action, world)
    action = replace(action, attempt_no=action.attempt_no + 1)
    return _order_rebuild(job, action, world, Reason.REBUILD_AGAIN)


def _order_rebuild(job: JobRepair, action: Action, world: World, reason: Reason) -> Step:
    limits = limits_of(action, world)
    kinds = {RepairKind.RETRY: CommandKind.RETRY, RepairKind.PLANNED_SWAP: CommandKind.SWITCH}
    kind = kinds.get(action.kind, CommandKind.REBUILD)
    # Whoever leaves hears it as well: its supervisor would wait for an order, and then end the job.
    names = tuple(dict.fromkeys(seat.member for seat in (*action.seats, *action.leavers)))
    # A switch waits for the end of a step, of which nobody here knows how long it takes.
    valid_s = limits.prepare_s if kind is CommandKind.SWITCH else limits.rebuild_s
    order = SendOrder(kind, names, action.generation, action.attempt_no, valid_s, _group(action, world))
    action = replace(
        action, status=ActionStatus.DISPATCHED, reason=reason, done=(), reached=(), stepped=(),
        deadline_s=world.now_s + valid_s,
    )  # fmt: skip
    return Step(replace(job, state=RepairState.REBUILDING, action=action), (order,), reason)


def _group(action: Action, world: World) -> dict[str, str]:
    words = {"store": action.store, "members": members_text(action.seats, world)}
    if action.leavers:
        words["leavers"] = ",".join(str(seat.rank) for seat in action.leavers)
        words["leaver"], words["joiner"] = action.leavers[0].member, ",".join(action.joiners)
    return words | why(action)


# ---------------------------------------------------------------------- planned


def prepare(job: JobRepair, action: Action, world: World, plan: Plan) -> Step:
    """Everybody gets ready in the background while training goes on."""
    limits = limits_of(action, world)
    generation = next_generation(job, world)
    action = replace(
        action, generation=generation, seats=plan.seats, joiners=plan.joiners, store=plan.store,
        reason=Reason.PREPARED, deadline_s=world.now_s + limits.prepare_s, rebuilds=1, done=(),
    )  # fmt: skip
    leavers = tuple(seat.member for seat in action.leavers)
    names = tuple(seat.member for seat in action.seats)
    order = SendOrder(
        CommandKind.PREPARE, (*names, *leavers), generation, 0, limits.prepare_s, _group(action, world)
    )
    job = replace(job, generation=generation, state=RepairState.PREPARING, action=action)
    job = replace(job, finished=_without(job.finished, plan.joiners))
    return Step(job, (order,), Reason.PREPARED)


def switch(job: JobRepair, action: Action, world: World) -> Step:
    """Everybody is ready: the order to switch goes to those that stay, join and leave."""
    return _order_rebuild(job, action, world, Reason.SWITCH)


def is_not_begun(job: JobRepair, action: Action, world: World) -> bool:
    """A planned replacement of which nobody has switched, as far as anybody has said: all of them, the leaver
    too, train in the generation before."""
    if job.state is RepairState.PREPARING:
        return True
    if job.state is not RepairState.REBUILDING or action.kind is not RepairKind.PLANNED_SWAP:
        return False
    has_left = action.leaver_names & set(action.done)
    found = (world.get(seat.member) for seat in action.seats)
    has_entered = any(one is not None and one.generation >= action.generation for one in found)
    return not (action.reached or has_left or has_entered)


def roll_back(job: JobRepair, action: Action, world: World, reason: Reason) -> Step:
    """Forget what was prepared; training has gone on all the time."""
    names = tuple(dict.fromkeys(seat.member for seat in (*action.seats, *action.leavers)))
    cancel = SendOrder(CommandKind.CANCEL, names, action.generation, 0, 30.0, why(action))
    step = end(job, action, ActionStatus.ROLLED_BACK, reason, RepairState.HEALTHY, world)
    return replace(step, effects=(cancel, *step.effects))


# ---------------------------------------------------------------------- what is under way


def proceed(job: JobRepair, action: Action, world: World) -> Step:
    """Losses that the registry shows, a cancellation, and deadlines; time counts as far as it is known."""
    late = world.known_s >= action.deadline_s
    if job.state is RepairState.FALLBACK:
        return given_up(job, action, world, late=late)
    if job.state is RepairState.PREPARING:
        if action.cancelled or job.over:
            return roll_back(job, action, world, Reason.CANCELLED)
        return roll_back(job, action, world, Reason.EXPIRED) if late else Step(job, (), Reason.NOTHING_DUE)
    if job.over and (late or job.state is RepairState.FENCING):
        return end(job, action, ActionStatus.FAILED, Reason.JOB_OVER, RepairState.HEALTHY, world)
    if job.over:
        return Step(job, (), Reason.NOTHING_DUE)  # a short job ends before the proof of its repair is read
    if job.state is RepairState.FENCING:
        left = {seat.member for seat in unfenced(action, world)}
        if not left or (late and left <= action.on_lost_nodes):
            return rebuild(job, action, world)
        if late and action.attempt_no + 1 < limits_of(action, world).tries_max:
            return fence(job, replace(action, attempt_no=action.attempt_no + 1), world)
        if late:
            return fall_back(job, action, world, Reason.FENCE_FAILED)
        return Step(job, (), Reason.NOTHING_DUE)
    if has_finished(job, action):
        return at_its_end(job, action, world) if late else Step(job, (), Reason.NOTHING_DUE)
    lost = lost_seats(action.seats, world)
    if lost and not action.lost_since_s:
        # Its exit is on the way by another topic, and may say that it has finished.
        waiting = replace(job, action=replace(action, lost_since_s=world.now_s))
        return Step(waiting, (), Reason.NOTHING_DUE)
    if not lost and action.lost_since_s:
        action = replace(action, lost_since_s=0.0)
        job = replace(job, action=action)
    silent = [seat for seat in lost if not is_proven_gone(seat, world)]
    if lost and world.known_s - action.lost_since_s >= (RECONNECT_S if silent else LOST_S):
        if is_not_begun(job, action, world):  # who is lost is replaced by its own fault, and nobody else
            return roll_back(job, action, world, Reason.ROLLED_BACK)
        return rebuild_without(job, replace(action, lost_since_s=0.0), lost, world)
    if not late:
        return Step(job, (), Reason.NOTHING_DUE)
    if action.kind is RepairKind.PLANNED_SWAP and not action.reached:
        return roll_back(job, action, world, Reason.EXPIRED)  # nobody has switched, and the leaver is healthy
    # Stopped meanwhile, and that is why it has not come; most of them together are a job that is paused.
    cut_off = on_cut_off_nodes(job, action, world)
    missing = [
        seat
        for seat in action.seats
        if (seat.member in job.frozen or seat.member in cut_off) and seat.member not in action.reached
    ]
    if missing and 2 * len(missing) <= len(action.seats):
        grounds = tuple(cut_off[seat.member] for seat in missing if seat.member in cut_off)
        return rebuild_without(job, replace(action, grounds=(*action.grounds, *grounds)), missing, world)
    return rebuild_again(job, action, world)


def rebuild_without(
    job: JobRepair, action: Action, lost: list[Seat], world: World, proven: tuple[str, ...] = ()
) -> Step:
    """Somebody else was lost meanwhile: one more generation, after a fence where its end is not `proven`."""
    if has_finished(job, action):
        return at_its_end(job, action, world)
    known = action.leaver_names
    leavers = (*action.leavers, *(seat for seat in lost if seat.member not in known))
    gone = (seat.member for seat in lost if is_proven_gone(seat, world))
    fenced = tuple(dict.fromkeys((*action.fenced, *proven, *gone)))
    action = replace(action, leavers=leavers, fenced=fenced, kind=RepairKind.SWAP, lost_since_s=0.0)
    if all_fenced(action, world):
        return rebuild(job, action, world)
    return fence(job, replace(action, attempt_no=0), world)


def has_finished(job: JobRepair, action: Action) -> bool:
    """Whether a process of the present generation has ended with status 0: the others end as well now, and
    without it there is no group any more."""
    return any(seat.member in job.finished for seat in action.seats)


def at_its_end(job: JobRepair, action: Action, world: World) -> Step:
    """The job ended before the proof of its repair was there; nobody is stopped, nothing is built again."""
    if is_not_begun(job, action, world):
        return roll_back(job, action, world, Reason.FINISHED_IN_ORDER)
    return end(job, action, ActionStatus.FAILED, Reason.FINISHED_IN_ORDER, RepairState.HEALTHY, world)


def resume(job: JobRepair, action: Action, world: World) -> Step:
    """Every member has finished a step of the new generation: that is the proof."""
    best = max(job.best_step, action.step - 1)
    job = replace(job, seats=action.seats, seated=action.generation, failures=0, best_step=best)
    job = replace(job, resumed_s=world.now_s, frozen=())  # everybody has just made a step
    return end(job, action, ActionStatus.SUCCEEDED, Reason.RESUMED, RepairState.RESUMED, world)


def fall_back(job: JobRepair, action: Action, world: World, reason: Reason) -> Step:
    """Explicitly: stop what is left, say whether the scheduler may start it again, call a person."""
    limits = limits_of(action, world)
    names = tuple(member.member for member in world.members if not member.left)
    words = {"requeue": "1" if action.requeue else "0"} | why(action) | {"reason": reason.value}
    order = SendOrder(CommandKind.FALLBACK, names, newest(job, world), 0, limits.fallback_s, words)
    action = replace(
        action, status=ActionStatus.OBSERVING, reason=reason, done=(),
        deadline_s=world.now_s + limits.fallback_s,
    )  # fmt: skip
    then = "it may be started again from its checkpoint" if action.requeue else "do not start it as it is"
    page = Page(f"job {job.job} cannot be repaired ({reason.value}): {then}. {action.message}"[:1000])
    return Step(replace(job, state=RepairState.FALLBACK, action=action), (order, page), reason)


def given_up(job: JobRepair, action: Action, world: World, *, late: bool) -> Step:
    """A fallback that was the action itself has succeeded once everybody has stopped; as the end of another
    action it is that action's failure."""
    stopped = {member.member for member in world.members if not member.lives} | set(action.done)
    if not late and not stopped >= {member.member for member in world.members}:
        return Step(job, (), Reason.NOTHING_DUE)
    is_proven = not late and action.kind is RepairKind.FALLBACK
    status = ActionStatus.SUCCEEDED if is_proven else ActionStatus.FAILED
    return end(job, action, status, action.reason, RepairState.FALLBACK, world)


# ---------------------------------------------------------------------- the end


def end(
    job: JobRepair, action: Action, status: ActionStatus, reason: Reason, state: RepairState, world: World
) -> Step:
    """The action is over with `status`."""
    if status is ActionStatus.FAILED and reason is not Reason.FINISHED_IN_ORDER:
        job = replace(job, failures=job.failures + 1, failed_s=world.now_s)
    step = close(job, replace(action, status=status, reason=reason), state, world.now_s)
    return replace(step, reason=reason)


def close(job: JobRepair, action: Action, state: RepairState, now_s: float) -> Step:
    ranks = tuple(sorted(seat.rank for seat in action.leavers))
    is_told = action.status in (ActionStatus.SUCCEEDED, ActionStatus.FAILED, ActionStatus.REJECTED)
    last = Repaired(action.id, ranks, now_s) if is_told else job.last
    job = replace(job, state=state, action=None, last=last)
    return Step(job, (Closed(action),), Reason.CANCELLED)
