"""The service: three consumers and a cleaner."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from paceline.analysis.history import HistoryPolicy
from paceline.contracts.commands import CommandResult
from paceline.contracts.events import EventType
from paceline.contracts.evidence import EvidencePart
from paceline.contracts.registry import CommunicatorRecord, JobRecord, NodeRecord
from paceline.contracts.scaling import ScalingRecord
from paceline.contracts.schemas import ContractError
from paceline.contracts.topics import COMMAND_RESULTS, EVIDENCE, FINDINGS, JOBS, VERDICTS
from paceline.contracts.verdicts import VerdictRecord
from paceline.incidents.decide import Decision, Reason
from paceline.incidents.registry import check_communicator, check_job, check_node, write_job, write_nodes
from paceline.incidents.retention import clean
from paceline.incidents.scaling import write_window
from paceline.incidents.settings import IncidentsSettings
from paceline.incidents.shipped_reading import read_shipped
from paceline.incidents.shipping import expire_requests, keep_part, note_result
from paceline.incidents.verdicts import VerdictContext, apply_verdict
from paceline.runtime.app import BackgroundTasks, Readiness, first_crash
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.cloud_events import EventHeaders, decode_event, decode_headers
from paceline.runtime.consumer import Consumer
from paceline.runtime.handling import RetryPolicy, each_event, only
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge, observe
from paceline.runtime.options import ConsumerOptions
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.retry import is_transient as is_transient_kafka
from paceline.runtime.telemetry import current_traceparent
from paceline.store import is_transient
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.times import from_unix

GROUP = "incidents"
FINDINGS_GROUP = "incidents-findings"
REGISTRY_GROUP = "incidents-registry"
EVIDENCE_GROUP = "incidents-evidence"
RESULTS_GROUP = "incidents-results"
EXPIRE_EVERY_S = 2.0
BURIED_AT_ONCE_MAX = 100  # tombstones in flight
RegistryRecord = JobRecord | NodeRecord | CommunicatorRecord
REGISTRY_TYPES: dict[str, type[JobRecord] | type[NodeRecord] | type[CommunicatorRecord]] = {
    EventType.JOB_RECORD.value: JobRecord,
    EventType.NODE_RECORD.value: NodeRecord,
    EventType.COMMUNICATOR_RECORD.value: CommunicatorRecord,
}
log = get_logger(__name__)


class IncidentsApp:
    """Verdicts and registry in, incidents out. Ids are derived from the records, none is drawn."""

    name = "incidents"

    def __init__(self, settings: IncidentsSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._database = settings.database.open()
        self._context = VerdictContext(
            settings.policy(),
            settings.console_url,
            settings.evidence_per_incident_max,
            HistoryPolicy(**settings.history.model_dump()),
            settings.shipping(),
        )
        self._shipping_policy = settings.shipping_policy()
        self._tasks = BackgroundTasks()
        self._producer = Producer(settings.kafka, self.name, clock=self._clock)
        options = ConsumerOptions(retry=RetryPolicy(transient=_is_transient))
        self._verdicts = Consumer(
            settings.kafka, [VERDICTS], GROUP, each_event(VerdictRecord, "verdict", self._handle_verdict),
            producer=self._producer, options=options, clock=self._clock,
        )  # fmt: skip
        self._jobs = Consumer(
            settings.kafka, [JOBS], REGISTRY_GROUP, self._handle_registry,
            producer=self._producer, options=options, clock=self._clock,
        )  # fmt: skip
        self._findings = Consumer(
            settings.kafka, [FINDINGS], FINDINGS_GROUP,
            each_event(ScalingRecord, "scaling", self._handle_scaling),
            producer=self._producer, options=options, clock=self._clock,
        )  # fmt: skip
        few = ConsumerOptions(records_max=8, retry=RetryPolicy(transient=_is_transient))
        self._evidence = Consumer(
            settings.kafka, [EVIDENCE], EVIDENCE_GROUP,
            each_event(EvidencePart, "evidence", self._handle_evidence),
            producer=self._producer, options=few, clock=self._clock,
        )  # fmt: skip
        self._results = Consumer(
            settings.kafka, [COMMAND_RESULTS], RESULTS_GROUP,
            only(EventType.COMMAND_RESULT, each_event(CommandResult, "command-result", self._handle_result)),
            producer=self._producer, options=options, clock=self._clock,
        )  # fmt: skip
        self._consumers = (self._jobs, self._verdicts, self._findings, self._evidence, self._results)

    async def start(self) -> None:
        """Begin in the background; never fails, never waits for Kafka or PostgreSQL."""
        await self._producer.start()
        for consumer in self._consumers:
            await consumer.start()
        interval_s = self._settings.cleanup_interval_s
        self._tasks.spawn("incidents-cleaner", self._repeat(self._clean, interval_s))
        self._tasks.spawn("incidents-expiry", self._repeat(self._expire, EXPIRE_EVERY_S))
        if self._settings.shipped_reading:
            self._tasks.spawn("incidents-shipped-files", self._repeat(self._read_shipped, EXPIRE_EVERY_S))

    async def stop(self) -> None:
        """What is being handled is finished or comes again."""
        for consumer in self._consumers:
            await consumer.stop()
        await self._tasks.cancel()
        await self._producer.stop()
        await self._database.stop()

    async def crashed(self) -> BaseException:
        return await first_crash(self._tasks, *self._consumers)

    def readiness(self) -> Readiness:
        for consumer in self._consumers:
            readiness = consumer.readiness()
            if not readiness.ready:
                return readiness
        return Readiness(True)

    async def _handle_verdict(self, headers: EventHeaders, record: VerdictRecord) -> None:
        now_unix_s = self._clock.unix_s()
        traceparent = current_traceparent() or headers.traceparent
        async with self._database.transaction() as session:
            decision = await apply_verdict(session, record, from_unix(now_unix_s), traceparent, self._context)
        self._note(decision, record, now_unix_s)

    def _note(self, decision: Decision, record: VerdictRecord, now_unix_s: float) -> None:
        verdict = record.verdict.verdict_class.value
        if decision.reason is Reason.OPEN:
            count("paceline.incidents.opened", verdict=verdict)
            observe("paceline.detection.latency", max(0.0, now_unix_s - record.stalled_unix_s))
        elif decision.reason in (Reason.RESOLVE, Reason.WITHDRAW):
            count("paceline.incidents.resolved", verdict=verdict)
        log.info(
            "verdict_decided", decision=decision.reason.value, incident=decision.incident_id,
            job=record.job, episode=record.episode, revision=record.revision, verdict=verdict,
        )  # fmt: skip

    async def _handle_scaling(self, headers: EventHeaders, record: ScalingRecord) -> None:
        """A window of iterations becomes a row and nothing else."""
        async with self._database.transaction() as session:
            await write_window(session, record, self._settings.scaling_windows_max)

    async def _handle_evidence(self, headers: EventHeaders, part: EvidencePart) -> None:
        at = from_unix(self._clock.unix_s())
        async with self._database.transaction() as session:
            await keep_part(session, part, at, self._shipping_policy, self._settings.console_url)
        if part.part + 1 == part.parts:
            log.info("evidence_shipped", incident=part.incident, node=part.node, bytes=part.bytes_count)

    async def _handle_result(self, headers: EventHeaders, result: CommandResult) -> None:
        at = from_unix(self._clock.unix_s())
        async with self._database.transaction() as session:
            await note_result(session, result, at, self._settings.console_url)

    async def _handle_registry(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        """Nodes and communicators of a batch in one transaction, each job in one of its own."""
        bad: list[BadRecord] = []
        rows: list[NodeRecord | CommunicatorRecord] = []
        jobs: list[JobRecord] = []
        for record in records:
            if record.is_tombstone or record.header("ce_type") == EventType.MEMBER_RECORD.value:
                continue  # supervisors are the remediator's
            try:
                value = read_registry(record)
            except ContractError as error:
                bad.append(BadRecord(record, str(error)))
                continue
            if isinstance(value, JobRecord):
                jobs.append(value)
            else:
                rows.append(value)
        at = from_unix(self._clock.unix_s())
        if rows:
            async with self._database.transaction() as session:
                await write_nodes(session, rows, at)
        for job in jobs:
            async with self._database.transaction() as session:
                await write_job(session, job, at, self._settings.console_url)
        return bad

    async def _bury(self, keys: Sequence[str]) -> None:
        for begin in range(0, len(keys), BURIED_AT_ONCE_MAX):
            some = keys[begin : begin + BURIED_AT_ONCE_MAX]
            await asyncio.gather(*(self._producer.send(JOBS, key, None) for key in some))

    async def _repeat(self, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        """For ever; what a database that is away left undone is done later."""
        while True:
            try:
                await work()
            except Exception as error:
                if not is_transient(error):
                    raise
            await self._clock.sleep(every_s)

    async def _expire(self) -> None:
        async with self._database.transaction() as session:
            now = from_unix(self._clock.unix_s())
            expired = await expire_requests(session, now, self._settings.console_url)
        if expired:
            count("paceline.evidence.expired", expired)

    async def _read_shipped(self) -> None:
        """What nodes shipped is read once nobody waits for more of it."""
        now = from_unix(self._clock.unix_s())
        try:
            read = await read_shipped(self._database, now, self._settings.console_url)
        except OSError as error:
            if is_transient(error):
                raise
            log.warning("shipped_files_unread", error=str(error))  # no process, no place on the disk: later
            return
        if read:
            count("paceline.evidence.read", read)

    async def _clean(self) -> None:
        dropped = await clean(self._database, from_unix(self._clock.unix_s()), self._settings, self._bury)
        if dropped.shipped:
            count("paceline.evidence.dropped", dropped.shipped)
        if dropped.total:
            log.info("rows_dropped", **vars(dropped))
        async with self._database.transaction() as session:
            gauge("paceline.incidents.open", await IncidentRepository(session).open_count())


def read_registry(record: Record) -> RegistryRecord:
    """A checked registry record; ContractError names what is wrong with it."""
    kind = REGISTRY_TYPES.get(decode_headers(record.headers).type)
    if kind is None:
        raise ContractError(
            f"header ce_type is {record.header('ce_type')[:80]!r}: "
            f"expected one of {', '.join(REGISTRY_TYPES)}"
        )
    _, value = decode_event(kind, record.headers, record.value)
    if isinstance(value, JobRecord):
        return check_job(value)
    if isinstance(value, NodeRecord):
        check_node(value)
    else:
        check_communicator(value)
    return value


def _is_transient(error: BaseException) -> bool:
    return is_transient(error) or is_transient_kafka(error)
