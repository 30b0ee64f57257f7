"""Events of a job, under its lock: what is known of it, the decision, and its rows, in one transaction."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.events import EvidenceState
from paceline.contracts.ids import parse_ranks
from paceline.contracts.recovery import Role, Support
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairMode
from paceline.remediator.machine import FAULTS, decide
from paceline.remediator.model import (
    Action,
    Event,
    Ground,
    JobRepair,
    Judged,
    Member,
    Policies,
    Reason,
    RepairEnd,
    Step,
    World,
)
from paceline.remediator.planning import current_seats
from paceline.remediator.policies import PolicyRow, read_policies
from paceline.remediator.runs import count_in
from paceline.remediator.writing import STATE, Context, due_s, write
from paceline.store.models.repair import RepairAction, RepairJob, RepairMember
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.repair import RepairRepository
from paceline.store.sequence import lock_name
from paceline.store.times import from_unix, to_unix

# Failures that say nothing of the repair: the job ended before its proof.
AT_ITS_END = (Reason.JOB_OVER, Reason.FINISHED_IN_ORDER, Reason.NEW_RUN)
DECIDED = (ActionStatus.APPROVED, ActionStatus.REJECTED)
ACTION_S_MAX = 3600.0  # from a proposal to its end, as far as the breaker of the cluster looks


async def apply(
    session: AsyncSession,
    job: str,
    attempt: str,
    event: Event,
    now_s: float,
    context: Context,
    traceparent: str,
    heard_s: float = math.inf,
) -> Step:
    """Decide about one event and write. `heard_s`: what was written to the topics before it has been read."""
    async with locked_job(session, job, attempt, context) as locked:
        return await locked.apply(event, now_s, traceparent, heard_s)


@asynccontextmanager
async def locked_job(
    session: AsyncSession, job: str, attempt: str, context: Context
) -> AsyncIterator["LockedJob"]:
    """The job under its lock until the transaction ends; on leaving, what is not written yet is."""
    repairs = RepairRepository(session)
    attempt = await repairs.supervised_attempt(job, attempt)
    await lock_name(session, f"repair:{job}:{attempt}")
    row = await repairs.job(job, attempt)
    state = JobRepair(job, attempt) if row is None else STATE.validate_python(row.data)
    locked = LockedJob(session, context, state, row, await _policies(repairs, job, context))
    yield locked
    await locked.keep()


class LockedJob:
    """The events of one job in one transaction. Supervisors and policies are read once in it: whoever
    registers a supervisor has the job looked at afterwards, and a policy holds from the next one on."""

    def __init__(
        self,
        session: AsyncSession,
        context: Context,
        state: JobRepair,
        row: RepairJob | None,
        policies: Policies,
    ) -> None:
        self._session = session
        self._repairs = RepairRepository(session)
        self._context = context
        self._state = state
        self._is_known = row is not None
        self._due_at = None if row is None else row.due_at
        self._policies = policies
        self._read: tuple[int, list[Member], set[str]] | None = None  # run, supervisors, those of the owner
        self._action: RepairAction | None = None  # the row of the action, locked
        self._unwritten: tuple[float, str] | None = None  # time and trace of the newest event

    async def apply(self, event: Event, now_s: float, traceparent: str, heard_s: float = math.inf) -> Step:
        """Decide and write. The same event again decides to do nothing."""
        before, policies = self._state, self._policies
        members, owned = await self._supervisors(before.run)
        counted = count_in(before, members, owned, policies, now_s)
        if not self._is_known and not counted.members and not _may_concern(event):
            return Step(before, (), Reason.UNKNOWN_MEMBER)
        if counted.names:
            await self._repairs.count_in(before.job, before.attempt, counted.names, counted.job.run)
            self._read = None
        state = await self._overlay(counted.job, counted.members)
        pending = await _evidence_pending(self._session, state, event)
        fleet = await _fleet(self._repairs, state, event, policies, now_s)
        step = decide(state, event, World(counted.members, policies, now_s, pending, heard_s, fleet))
        step = replace(step, effects=(*counted.effects, *step.effects))
        if step.effects or _told_of(step.job) != _told_of(before):
            await self.keep()
            await self._write(step, counted.members, now_s, traceparent)
        elif step.job != before:
            self._state, self._is_known, self._unwritten = step.job, True, (now_s, traceparent)
        elif self._due_at is not None and self._unwritten is None:
            # Nothing has changed, and what waits is not due again at once: others have deadlines.
            due = due_s(step.job, now_s)
            due_at = None if due is None else from_unix(due)
            if due_at != self._due_at:
                await self._repairs.look_at(before.job, before.attempt, due_at)
                self._due_at = due_at
        return step

    async def keep(self) -> None:
        """Write what has changed without anybody being told: once for several events."""
        if self._unwritten is not None:
            now_s, traceparent = self._unwritten
            await self._write(Step(self._state, (), Reason.NOTED), (), now_s, traceparent)

    async def _write(self, step: Step, members: tuple[Member, ...], now_s: float, traceparent: str) -> None:
        await write(self._session, step, members, now_s, self._context, traceparent)
        due = due_s(step.job, now_s)
        self._due_at = None if due is None else from_unix(due)
        self._state, self._is_known, self._unwritten = step.job, True, None

    async def _supervisors(self, run: int) -> tuple[list[Member], set[str]]:
        if self._read is None or self._read[0] != run:
            rows = await self._repairs.members(self._state.job, self._state.attempt, run)
            owned = {each.member for each in of_owner(rows)}
            self._read = run, [read_member(each) for each in rows], owned
        return self._read[1], self._read[2]

    async def _overlay(self, state: JobRepair, members: tuple[Member, ...]) -> JobRepair:
        """What people have decided about the action since: the API writes it into the action's row."""
        action = state.action
        if action is None:
            row = await self._repairs.requested(state.job, state.attempt)
            found = None if row is None else requested_action(row, state, members, self._policies)
            return state if found is None else replace(state, action=found)
        if self._action is None or self._action.id != action.id:
            self._action = await self._repairs.action(action.id, for_update=True)
        if self._action is None:
            return state
        status = ActionStatus(self._action.status)
        if action.status is ActionStatus.PROPOSED and status in DECIDED:
            action = replace(action, status=status)
        return replace(state, action=replace(action, cancelled=self._action.cancel_requested))


def _told_of(job: JobRepair) -> tuple[object, ...]:
    """What others are told of, or act on: a change of it is written at once."""
    action = job.action
    if action is None:
        return (job.state, job.generation, job.run, job.over)
    return (
        job.state, job.generation, job.run, job.over, action.id, action.status, action.kind, action.leavers,
        action.generation, action.attempt_no,
    )  # fmt: skip


def _may_concern(event: Event) -> bool:
    """A job without supervisors is not repaired; what people are told about software is told all the same."""
    return isinstance(event, Judged)


def of_owner(rows: Sequence[RepairMember]) -> list[RepairMember]:
    """Supervisors of the uid that was there first: whoever else uses the job's name gets neither a seat nor
    its state."""
    living = [row for row in rows if not row.left] or list(rows)
    first = min(living, key=lambda row: (row.registered_at, row.member), default=None)
    return [row for row in rows if first is not None and row.uid == first.uid]


def read_member(row: RepairMember) -> Member:
    return Member(
        member=row.member, node=row.node, role=Role(row.role), rank=row.rank, child_pid=row.child_pid,
        child_pid_start=row.child_pid_start, generation=row.generation, step=row.step, store=row.store,
        replica=row.replica, failure_domain=row.failure_domain, ready=row.ready,
        support=Support(row.support), lease_s=row.lease_s, left=row.left, world_size=row.world_size,
        run=row.run, registered_s=to_unix(row.registered_at), told_s=to_unix(row.told_at),
        heard_s=to_unix(row.updated_at),
    )  # fmt: skip


def requested_action(
    row: RepairAction, state: JobRepair, members: tuple[Member, ...], policies: Policies
) -> Action | None:
    """A planned replacement that a person has asked for; None while its rank has nobody."""
    ranks = set(parse_ranks(row.ranks))
    seats = tuple(seat for seat in current_seats(state, members) if seat.rank in ranks)
    if not seats:
        return None
    cause = RepairCause.REQUESTED
    return Action(
        id=row.id, kind=RepairKind.PLANNED_SWAP, cause=cause, status=ActionStatus(row.status),
        mode=policies.of(cause).mode, reason=Reason.PROPOSED, message=row.message, source=row.id,
        grounds=tuple(
            Ground(seat.member, cause, RepairKind.PLANNED_SWAP, 0.0, row.message[:300]) for seat in seats
        ),
        created_s=to_unix(row.created_at), expires_s=to_unix(row.expires_at), leavers=seats,
        cancelled=row.cancel_requested or to_unix(row.created_at) < state.began_s,  # asked of the run before
    )  # fmt: skip


async def _policies(repairs: RepairRepository, job: str, context: Context) -> Policies:
    rows = [
        PolicyRow(row.job, row.cause, row.mode, row.stopped, row.limits)
        for row in await repairs.policies_of(job)
    ]
    return read_policies(rows, job, context.policy, may_act=context.key is not None)


async def _evidence_pending(session: AsyncSession, state: JobRepair, event: Event) -> bool:
    """Nothing is killed while nodes still ship what they show: of the action's incidents, and of the verdict
    that makes the action only now."""
    wanted = {event.incident} if isinstance(event, Judged) else set()
    if state.action is not None:
        wanted |= {state.action.incident, *(ground.incident for ground in state.action.grounds)}
    incidents = IncidentRepository(session)
    for name in sorted(wanted - {""}):
        found = await incidents.get(name)
        if found is not None and found.evidence == EvidenceState.PENDING.value:
            return True
    return False


async def _fleet(
    repairs: RepairRepository, state: JobRepair, event: Event, policies: Policies, now_s: float
) -> tuple[RepairEnd, ...]:
    """How the repairs of all jobs have ended of late; asked where something may be dispatched by itself, so
    not for the many words of a healthy job."""
    action = state.action
    if action is None and not state.later and not isinstance(event, (*FAULTS, Judged)):
        return ()
    gives_way = action is None or not action.status.is_under_way or action.kind is RepairKind.PLANNED_SWAP
    automatic = [policy for policy in policies.all if policy.mode is RepairMode.AUTO]
    if not gives_way or not automatic:
        return ()
    since_s = now_s - max(policy.limits.fleet_s for policy in automatic) - ACTION_S_MAX
    ignored = [reason.value for reason in AT_ITS_END]
    return tuple(
        RepairEnd(job, to_unix(ended_at), status == ActionStatus.FAILED.value)
        for job, ended_at, status in await repairs.ended_since(from_unix(since_s), ignored)
        if ended_at is not None
    )
