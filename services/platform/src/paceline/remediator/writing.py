"""Carries a decision out: one event, one transaction. State, action, recovery, commands, audit, timeline
commit together or not at all; ids are derived, so that the same event again writes the same rows."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.commands import Command, sign
from paceline.contracts.events import EventType, EvidenceState, IncidentStatus, Severity
from paceline.contracts.ids import derived_id, format_ranks, parse_ranks
from paceline.contracts.recovery import Role, Support
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairMode, RepairState
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import COMMANDS
from paceline.remediator.machine import FAULTS, decide
from paceline.remediator.model import (
    Action,
    Capture,
    Closed,
    Event,
    Ground,
    JobRepair,
    Judged,
    LinkIncident,
    Member,
    Page,
    Policies,
    Policy,
    Reason,
    RepairEnd,
    SendOrder,
    Step,
    World,
)
from paceline.remediator.planning import command_id, current_seats
from paceline.remediator.policies import PolicyRow, read_policies
from paceline.remediator.runs import count_in
from paceline.store.actors import system
from paceline.store.base import JsonObject
from paceline.store.incident_changes import ChangeContext, record_change
from paceline.store.models.outbox import OutboxEvent
from paceline.store.models.repair import Recovery, RepairAction, RepairJob, RepairMember
from paceline.store.repair_changes import tell_action
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.repositories.repair import RepairRepository
from paceline.store.sequence import lock_name
from paceline.store.times import from_unix, to_unix

SOURCE = "remediator"
WAIT_S = 0.2  # what waits for time, a standby or evidence is looked at again so soon
IDLE_S = 2.0  # what waits for a person
SOON = (Reason.WAIT_SETTLED, Reason.WAIT_STANDBY, Reason.WAIT_EVIDENCE, Reason.PROPOSED, Reason.MERGED)
# Failures that say nothing of the repair: the job ended before its proof.
AT_ITS_END = (Reason.JOB_OVER, Reason.FINISHED_IN_ORDER, Reason.NEW_RUN)
ACTION_S_MAX = 3600.0  # from a proposal to its end, as far as the breaker of the cluster looks
_STATE: TypeAdapter[JobRepair] = TypeAdapter(JobRepair)


@dataclass(frozen=True)
class Context:
    """What is the same for all events of one service. Without a key nothing is ever done."""

    key: bytes | None = field(repr=False)
    policy: Policy
    console_url: str


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
    """Decide and write. The same event again decides to do nothing. `heard_s`: what was written to the topics
    before it has been read."""
    repairs = RepairRepository(session)
    attempt = await repairs.supervised_attempt(job, attempt)
    await lock_name(session, f"repair:{job}:{attempt}")
    row = await repairs.job(job, attempt)
    state = JobRepair(job, attempt) if row is None else _STATE.validate_python(row.data)
    rows = await repairs.members(job, attempt, state.run)
    policies = await _policies(repairs, job, context)
    owned = {each.member for each in of_owner(rows)}
    counted = count_in(state, [read_member(each) for each in rows], owned, policies, now_s)
    members = counted.members
    if row is None and not members and not _may_concern(event):
        return Step(state, (), Reason.UNKNOWN_MEMBER)
    if counted.names:
        await repairs.count_in(job, attempt, counted.names, counted.job.run)
    before, state = state, await _overlay(repairs, counted.job, members, policies)
    pending = await _evidence_pending(session, state, event)
    fleet = await _fleet(repairs, state, event, policies, now_s)
    step = decide(state, event, World(members, policies, now_s, pending, heard_s, fleet))
    step = replace(step, effects=(*counted.effects, *step.effects))
    if step.job != before or step.effects:
        await _write(session, row, step, members, now_s, context, traceparent)
    elif row is not None and row.due_at is not None:
        # Nothing has changed, and what waits is not due again at once: others have deadlines.
        due = due_s(step.job, now_s)
        await repairs.look_at(job, attempt, None if due is None else from_unix(due))
    return step


def _may_concern(event: Event) -> bool:
    """A job without supervisors is not repaired; what people are told about software is told all the same."""
    return type(event).__name__ == "Judged"


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


async def _overlay(
    repairs: RepairRepository, state: JobRepair, members: tuple[Member, ...], policies: Policies
) -> JobRepair:
    """What people have decided about the action since: the API writes it into the action's row."""
    action = state.action
    if action is None:
        row = await repairs.requested(state.job, state.attempt)
        found = None if row is None else requested_action(row, state, members, policies)
        return state if found is None else replace(state, action=found)
    row = await repairs.action(action.id, for_update=True)
    if row is None:
        return state
    status = ActionStatus(row.status)
    if action.status is ActionStatus.PROPOSED and status in (ActionStatus.APPROVED, ActionStatus.REJECTED):
        action = replace(action, status=status)
    return replace(state, action=replace(action, cancelled=row.cancel_requested))


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


def due_s(job: JobRepair, now_s: float) -> float | None:
    """When the job has to be looked at again, None while nothing is open."""
    action = job.action
    if action is None:
        return None
    if action.status.is_under_way:
        soon = action.lost_since_s or (job.later and job.state is RepairState.PREPARING)
        return now_s + WAIT_S if soon else max(action.deadline_s, now_s)
    waits = WAIT_S if action.reason in SOON or action.status is ActionStatus.APPROVED else IDLE_S
    return min(max(action.expires_s, now_s), now_s + waits)


async def _write(
    session: AsyncSession, row: RepairJob | None, step: Step, members: tuple[Member, ...], now_s: float,
    context: Context, traceparent: str,
) -> None:  # fmt: skip
    job, at = step.job, from_unix(now_s)
    repairs = RepairRepository(session)
    writer = _Writer(session, repairs, job, at, context, traceparent)
    if any(isinstance(effect, LinkIncident | Page) for effect in step.effects):
        # Their rows are locked before the sequence: the order of everybody who writes both.
        await IncidentRepository(session).lock_open_of_job(job.job)
    for effect in step.effects:
        if isinstance(effect, LinkIncident):  # before the action's row says the same
            await writer.link(effect)
    for effect in step.effects:
        if isinstance(effect, Closed | Capture):
            await writer.action(effect.action)
        if isinstance(effect, Closed):  # a capture goes on beside the recovery
            await writer.recovery(effect.action, job.state, over=True)
    if job.action is not None:
        await writer.action(job.action)
        await writer.recovery(job.action, job.state, over=False)
    nodes = {member.member: member.node for member in members}
    for effect in step.effects:
        if isinstance(effect, SendOrder):
            await writer.order(effect, nodes, now_s)
        elif isinstance(effect, Page):
            await writer.page(effect.message)
    due = due_s(job, now_s)
    await repairs.put_job(
        {
            "job": job.job, "attempt": job.attempt, "state": job.state.value, "generation": job.generation,
            "action_id": None if job.action is None else job.action.id,
            "due_at": None if due is None else from_unix(due),
            "data": _STATE.dump_python(job, mode="json"), "updated_at": at,
        }
    )  # fmt: skip


class _Writer:
    """Rows of one decision."""

    def __init__(
        self,
        session: AsyncSession,
        repairs: RepairRepository,
        job: JobRepair,
        at: datetime,
        context: Context,
        traceparent: str,
    ) -> None:
        self._session = session
        self._repairs = repairs
        self._job = job
        self._at = at
        self._context = context
        self._traceparent = traceparent

    async def action(self, action: Action) -> None:
        """The action's row; a change of its status goes to audit log, timeline and event stream."""
        row = await self._repairs.action(action.id, for_update=True)
        values = self._values(action)
        if row is None:
            row = RepairAction(
                id=action.id, job=self._job.job, attempt=self._job.attempt, requested_by="system",
                decided_by="", note="", cancel_requested=False, decided_at=None, version=0,
                created_at=from_unix(action.created_s), **values,
            )  # fmt: skip
            self._repairs.add(row)
            is_news = True
        else:
            is_news = (row.status, row.kind, row.ranks) != (values["status"], values["kind"], values["ranks"])
            values["incident_id"] = values["incident_id"] or row.incident_id
            for name, value in values.items():
                setattr(row, name, value)
        if not is_news:
            return
        row.version += 1
        await self._session.flush()
        await tell_action(self._session, row, system(SOURCE), self._at, self._context.console_url)

    def _values(self, action: Action) -> JsonObject:
        is_over = action.status.is_over
        dispatched_at = from_unix(action.dispatched_s) if action.dispatched_s else None
        return {
            "incident_id": action.incident or None, "kind": action.kind.value, "cause": action.cause.value,
            "status": action.status.value, "mode": action.mode.value, "reason": action.reason.value,
            "message": action.message[:4000], "generation": action.generation, "step": action.step,
            "ranks": format_ranks(sorted(seat.rank for seat in action.leavers)),
            "leavers": [seat.member for seat in action.leavers], "joiners": list(action.joiners),
            "replayed": action.replayed, "expires_at": from_unix(action.expires_s),
            "dispatched_at": dispatched_at, "ended_at": self._at if is_over else None, "updated_at": self._at,
        }  # fmt: skip

    async def recovery(self, action: Action, state: RepairState, *, over: bool) -> None:
        """The row of the generation that the action has open; an older one that was open has ended."""
        open_row = await self._repairs.under_way(self._job.job, self._job.attempt)
        if open_row is not None and (open_row.generation != action.generation or over):
            open_row.ended_at = self._at
            open_row.state = state.value if over else RepairState.FALLBACK.value
            open_row.reason = action.reason.value if over else "superseded"
            open_row.step, open_row.replayed = action.step, action.replayed
            await self._session.flush()
        if over or not action.generation:
            return
        row = await self._repairs.recovery(self._job.job, self._job.attempt, action.generation)
        if row is None:
            row = Recovery(
                id=derived_id("rcv", self._job.job, self._job.attempt, action.generation),
                action_id=action.id, job=self._job.job, attempt=self._job.attempt,
                generation=action.generation, started_at=self._at, ended_at=None,
            )  # fmt: skip
            self._repairs.add(row)
        row.attempt_no, row.state, row.store = action.attempt_no, state.value, action.store
        row.seats = [asdict(seat) for seat in action.seats]
        row.step, row.replayed, row.reason = action.step, action.replayed, action.reason.value
        await self._session.flush()

    async def order(self, order: SendOrder, nodes: dict[str, str], now_s: float) -> None:
        """One signed command for each node with somebody to tell."""
        if self._context.key is None:
            return
        action = self._job.action
        action_id = order.arguments.get("action", "") or (action.id if action is not None else "")
        by_node: dict[str, list[str]] = {}
        for name in order.members:
            if nodes.get(name):
                by_node.setdefault(nodes[name], []).append(name)
        for node, names in sorted(by_node.items()):
            pid, start = order.arguments.get("pid"), order.arguments.get("pid_start")
            name = command_id(action_id, order.kind, node, names, order.generation, order.attempt_no)
            command = Command(
                id=name, kind=order.kind,
                node=node, job=self._job.job, attempt=self._job.attempt, generation=order.generation,
                expires_unix_s=now_s + order.valid_s, pid=None if pid is None else int(pid),
                pid_start=None if start is None else int(start),
                arguments={**order.arguments, "attempt_no": str(order.attempt_no)} | targets(names),
            )  # fmt: skip
            await append_command(
                self._session, sign(command, self._context.key), order.arguments.get("incident") or None,
                self._at, self._traceparent,
            )  # fmt: skip

    async def link(self, link: LinkIncident) -> None:
        """The incident that the fault has become; what could page nobody before pages now."""
        row = await self._repairs.action(link.action, for_update=True)
        if row is None or row.incident_id == link.incident:
            return
        row.incident_id = link.incident
        row.version += 1
        await self._session.flush()
        await tell_action(self._session, row, system(SOURCE), self._at, self._context.console_url)
        current = self._job.action
        falls = self._job.state is RepairState.FALLBACK and current is not None and current.id == row.id
        if falls or row.kind == RepairKind.FALLBACK.value or row.status == ActionStatus.FAILED.value:
            await self.page(f"not repaired ({row.reason}): {row.message}", link.incident)

    async def page(self, message: str, incident_id: str = "") -> None:
        """Make the job's incident critical: its alert changes, and whoever routes it is called."""
        incidents = IncidentRepository(self._session)
        action = self._job.action
        wanted = incident_id or (action.incident if action is not None else "")
        incident = await incidents.get(wanted, for_update=True) if wanted else None
        if incident is None:
            found = [each for each in await incidents.lock_open_of_job(self._job.job)]
            incident = next((each for each in found if each.attempt == self._job.attempt), None)
        if incident is None or incident.status == IncidentStatus.RESOLVED.value:
            return
        incident.severity = Severity.CRITICAL.value
        parts = (incident.id, action.id if action is not None else "", message)
        context = ChangeContext(
            system(SOURCE), self._at, derived_id("evt", "page", *parts), self._context.console_url,
            self._traceparent,
        )  # fmt: skip
        if not await OutboxRepository(self._session).has(context.event_id):
            await record_change(self._session, incident, EventType.INCIDENT_UPDATED, message, context)


def targets(names: list[str]) -> dict[str, str]:
    """The argument of a command that names the supervisors whom the agent hands it to."""
    return {"targets": json.dumps(names)}


async def append_command(
    session: AsyncSession, command: Command, incident: str | None, at: datetime, traceparent: str
) -> None:
    """The outbox row of a signed command, once: its id is that of the command."""
    outbox = OutboxRepository(session)
    if await outbox.has(command.id):
        return
    await outbox.append(
        OutboxEvent(
            id=command.id, type=EventType.COMMAND.short, topic=COMMANDS.name, key=command.node,
            job=command.job, incident_id=incident, summary={}, payload=dump_json(command).decode(),
            traceparent=traceparent, created_at=at,
        )
    )  # fmt: skip
