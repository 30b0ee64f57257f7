"""Carries a decision out: state, action, recovery, commands, audit, timeline commit together or not at all.
Ids are derived, so that the same decision again writes the same rows."""

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.commands import Command, sign
from paceline.contracts.events import EventType, IncidentStatus, Severity
from paceline.contracts.ids import derived_id, format_ranks
from paceline.contracts.repair import ActionStatus, RepairKind, RepairState
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import COMMANDS
from paceline.remediator.model import (
    Action,
    Capture,
    Closed,
    JobRepair,
    LinkIncident,
    Member,
    Page,
    Policy,
    Reason,
    SendOrder,
    Step,
)
from paceline.remediator.planning import command_id
from paceline.store.actors import system
from paceline.store.base import JsonObject
from paceline.store.incident_changes import ChangeContext, record_change
from paceline.store.models.outbox import OutboxEvent
from paceline.store.models.repair import Recovery, RepairAction
from paceline.store.repair_changes import tell_action
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.repositories.repair import RepairRepository
from paceline.store.times import from_unix

SOURCE = "remediator"
WAIT_S = 0.2  # what waits for time, a standby or evidence is looked at again so soon
IDLE_S = 2.0  # what waits for a person
SOON = (Reason.WAIT_SETTLED, Reason.WAIT_STANDBY, Reason.WAIT_EVIDENCE, Reason.PROPOSED, Reason.MERGED)
STATE: TypeAdapter[JobRepair] = TypeAdapter(JobRepair)


@dataclass(frozen=True)
class Context:
    """What is the same for all events of one service. Without a key nothing is ever done."""

    key: bytes | None = field(repr=False)
    policy: Policy
    console_url: str


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


async def write(
    session: AsyncSession, step: Step, members: tuple[Member, ...], now_s: float,
    context: Context, traceparent: str,
) -> None:  # fmt: skip
    """The rows of a decision; `members` are whom its orders are for."""
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
            "data": STATE.dump_python(job, mode="json"), "updated_at": at,
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
