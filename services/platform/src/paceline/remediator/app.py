"""The service: registry of supervisors, health, incidents and results in; signed commands out.

Each record is one transaction on the state machine of its job; reports of one poll share them. A timer
looks at what is due: deadlines, what people have decided, captures whose evidence has come.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from paceline.contracts.events import EventType, EvidenceState, IncidentEvent
from paceline.contracts.registry import HealthEvent, JobRecord
from paceline.contracts.repair import ActionStatus, MemberRecord
from paceline.contracts.schemas import ContractError
from paceline.contracts.topics import COMMAND_RESULTS, HEALTH, INCIDENTS, JOBS, Topic
from paceline.remediator.deciding import apply
from paceline.remediator.faults import judged_of
from paceline.remediator.hearing import Hearing
from paceline.remediator.model import Event, Step, Tick
from paceline.remediator.reading import (
    event_of_health,
    event_of_job,
    member_values,
)
from paceline.remediator.reports import ReportHandler
from paceline.remediator.settings import RemediatorSettings
from paceline.remediator.writing import SOURCE, Context
from paceline.runtime.app import BackgroundTasks, Readiness, first_crash
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.cloud_events import EventHeaders, decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.handling import Handle, RetryPolicy, each_event, only
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.retry import is_transient as is_transient_kafka
from paceline.runtime.telemetry import current_traceparent
from paceline.store import is_transient
from paceline.store.actors import system
from paceline.store.base import JsonObject
from paceline.store.repair_changes import tell_action
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.repair import RepairRepository
from paceline.store.times import from_unix, to_unix

CAPTURES_MAX = 100  # looked at in one round
CAPTURE_EVERY_S = 2.0
CAPTURE_ASK_S = 20.0  # within it the incidents service has asked the nodes, or has no key to
UNDECIDABLE_S = 30.0  # until a job whose state cannot be read is tried again
log = get_logger(__name__)


@dataclass(frozen=True)
class _Reader:
    topic: Topic
    group: str
    handle: Handle
    start: Start = Start.COMMITTED


class RemediatorApp:
    """Start as many as you like: events of one job meet in its lock."""

    name = "remediator"

    def __init__(self, settings: RemediatorSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._database = settings.database.open()
        self._context = Context(settings.command.read_key(), settings.policy(), settings.console_url)
        self._tasks = BackgroundTasks()
        self._producer = Producer(settings.kafka, self.name, clock=self._clock)
        reports = ReportHandler(self._database, self._clock, self._context, lambda: self.heard_s, self._note)
        readers = (
            _Reader(JOBS, "remediator-registry", self._handle_registry),
            _Reader(HEALTH, "remediator-health", each_event(HealthEvent, "health", self._handle_health)),
            _Reader(INCIDENTS, "remediator", each_event(IncidentEvent, "incident", self._handle_incident)),
            _Reader(
                COMMAND_RESULTS, "remediator-results",
                only(EventType.RECOVERY_REPORT, reports.handle),
            ),
        )  # fmt: skip
        # Seconds count: a record is taken as soon as the broker has it.
        options = ConsumerOptions(poll_s=0.1, retry=RetryPolicy(transient=_is_transient))
        self._consumers = tuple(
            Consumer(
                settings.kafka, [reader.topic], reader.group, reader.handle, producer=self._producer,
                options=options, clock=self._clock,
            )
            for reader in readers
        )  # fmt: skip
        self._hearing = Hearing(self._consumers, self._clock)

    async def start(self) -> None:
        """Begin in the background; never fails, never waits for Kafka or PostgreSQL."""
        await self._producer.start()
        for consumer in self._consumers:
            await consumer.start()
        if self._context.key is None:
            log.warning("no_command_key", consequence="repair only observes; set PACELINE_COMMAND_KEY")
        self._tasks.spawn("remediator-due", self._repeat(self.look_at_due, self._settings.poll_s))
        self._tasks.spawn("remediator-captures", self._repeat(self.look_at_captures, CAPTURE_EVERY_S))
        self._tasks.spawn("remediator-cleaner", self._repeat(self._clean, self._settings.cleanup_interval_s))

    async def stop(self) -> None:
        """What is being handled is finished or comes again; what is under way goes on where it stood."""
        for consumer in self._consumers:
            await consumer.stop()
        await self._tasks.cancel()
        await self._producer.stop()
        await self._database.stop()

    async def crashed(self) -> BaseException:
        return await first_crash(self._tasks, *self._consumers)

    @property
    def heard_s(self) -> float:
        """Unix time: what was written to its topics before has been read; 0 before that is known."""
        return self._hearing.heard_s

    def readiness(self) -> Readiness:
        for consumer in self._consumers:
            readiness = consumer.readiness()
            if not readiness.ready:
                return readiness
        return Readiness(True)

    # ------------------------------------------------------------------ records

    async def _handle_health(self, headers: EventHeaders, record: HealthEvent) -> None:
        event = event_of_health(record)
        if event is not None:
            await self.apply(record.job, record.attempt, event, headers.traceparent)

    async def _handle_incident(self, headers: EventHeaders, record: IncidentEvent) -> None:
        event = judged_of(record)
        if event is not None:
            await self.apply(record.job, record.attempt, event, headers.traceparent)

    async def _handle_registry(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        """Supervisors of a batch in one transaction; then each of their jobs is looked at."""
        bad: list[BadRecord] = []
        members: dict[tuple[str, ...], JsonObject] = {}
        over: list[JobRecord] = []
        at = from_unix(self._clock.unix_s())
        for record in records:
            kind = record.header("ce_type")
            try:
                if record.is_tombstone:
                    continue
                if kind == EventType.MEMBER_RECORD.value:
                    member = decode_event(MemberRecord, record.headers, record.value)[1]
                    members[member.job, member.attempt, member.member] = member_values(member) | {
                        "updated_at": at
                    }
                elif kind == EventType.JOB_RECORD.value:
                    over.append(decode_event(JobRecord, record.headers, record.value)[1])
            except ContractError as error:
                if kind == EventType.MEMBER_RECORD.value:  # of others somebody else complains
                    bad.append(BadRecord(record, str(error)))
        if members:
            async with self._database.transaction() as session:
                await RepairRepository(session).put_members([members[key] for key in sorted(members)])
        for job, attempt in sorted({(key[0], key[1]) for key in members}):
            await self.apply(job, attempt, Tick(), "")
        for job_record in over:
            event = event_of_job(job_record)
            if event is not None:
                await self.apply(job_record.job, job_record.attempt, event, "")
        return bad

    async def apply(self, job: str, attempt: str, event: Event, traceparent: str) -> Step:
        """One event, one transaction."""
        async with self._database.transaction() as session:
            step = await apply(
                session, job, attempt, event, self._clock.unix_s(), self._context,
                current_traceparent() or traceparent, self._hearing.heard_s,
            )  # fmt: skip
        self._note(job, attempt, event, step)
        return step

    def _note(self, job: str, attempt: str, event: Event, step: Step) -> None:
        if not step.effects:
            return
        count("paceline.repair.decisions", reason=step.reason.value)
        log.info(
            "repair_decided", job=job, attempt=attempt, cause=type(event).__name__,
            decision=step.reason.value, state=step.job.state.value, generation=step.job.generation,
        )  # fmt: skip

    # ------------------------------------------------------------------ time

    async def look_at_due(self) -> None:
        """Jobs whose deadline has passed, or about whose action somebody has decided."""
        async with self._database.transaction() as session:
            now = from_unix(self._clock.unix_s())
            due = await RepairRepository(session).due(now, self._settings.due_max)
            due += await RepairRepository(session).with_requests(self._settings.due_max)
        await self._hearing.look(needed=bool(due))
        for job, attempt in due:
            try:
                await self.apply(job, attempt, Tick(), "")
            except Exception as error:
                if _is_transient(error):
                    raise
                await self._put_off(job, attempt, error)

    async def _put_off(self, job: str, attempt: str, error: Exception) -> None:
        """What one job cannot be decided about holds up no other one."""
        count("paceline.repair.decisions", reason="undecidable")
        log.error("repair_undecidable", job=job, attempt=attempt, error=repr(error)[:500])
        at = from_unix(self._clock.unix_s() + UNDECIDABLE_S)
        async with self._database.transaction() as session:
            await RepairRepository(session).look_at(job, attempt, at)

    async def look_at_captures(self) -> None:
        """A capture has succeeded once the nodes have shipped, and failed where they have not in time."""
        now_s = self._clock.unix_s()
        async with self._database.transaction() as session:
            for row in await RepairRepository(session).captures(ActionStatus.OBSERVING.value, CAPTURES_MAX):
                incident = await IncidentRepository(session).get(row.incident_id or "")
                state = EvidenceState.NONE if incident is None else EvidenceState(incident.evidence)
                status, reason = capture_status(
                    state, now_s - to_unix(row.created_at), self._settings.capture_s
                )
                if status is not ActionStatus.OBSERVING:
                    row.status, row.reason, row.ended_at = status.value, reason, from_unix(now_s)
                    row.updated_at, row.version = from_unix(now_s), row.version + 1
                    await session.flush()
                    await tell_action(
                        session, row, system(SOURCE), from_unix(now_s), self._settings.console_url
                    )

    async def _clean(self) -> None:
        before = from_unix(self._clock.unix_s()) - timedelta(days=self._settings.history_days_max)
        async with self._database.transaction() as session:
            await RepairRepository(session).clean(before, self._settings.cleanup_rows_max)

    async def _repeat(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        """For ever; what a database that is away left undone is done later."""
        while True:
            try:
                await work()
            except Exception as error:
                if not is_transient(error):
                    raise
            await self._clock.sleep(every_s)


def capture_status(state: EvidenceState, age_s: float, limit_s: float) -> tuple[ActionStatus, str]:
    """Only what has come proves a capture. Where no node was asked there is nothing to wait for."""
    if state is EvidenceState.COMPLETE:
        return ActionStatus.SUCCEEDED, "shipped"
    if state is EvidenceState.EXPIRED:
        return ActionStatus.FAILED, "not_shipped_in_time"
    if age_s >= (CAPTURE_ASK_S if state is EvidenceState.NONE else limit_s):
        return ActionStatus.FAILED, "nobody_asked" if state is EvidenceState.NONE else "not_shipped_in_time"
    return ActionStatus.OBSERVING, "capture"


def _is_transient(error: BaseException) -> bool:
    return is_transient(error) or is_transient_kafka(error)
