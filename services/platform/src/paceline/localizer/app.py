"""The Kafka shell of the localizer: what is read when, and verdicts out."""

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace

from paceline.contracts.batch import Batch, BatchError, BatchKind, decode_batch
from paceline.contracts.events import EventType
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord
from paceline.contracts.topics import FINDINGS, HEALTH, JOBS, SIGNALS, VERDICTS
from paceline.contracts.verdicts import VerdictRecord
from paceline.localizer.core import LocalizerCore, Published
from paceline.localizer.memory import Registry
from paceline.localizer.settings import LocalizerSettings
from paceline.runtime.app import BackgroundTasks, Readiness, first_crash
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.kafka import KafkaUnavailable
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, observe
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Partition, Record
from paceline.runtime.session import AssignedHook, Assignment
from paceline.runtime.telemetry import current_traceparent, span

GROUP = "localizer"
TICK_S = 1.0
_REGISTRY: dict[str, type[Registry]] = {
    EventType.JOB_RECORD.value: JobRecord,
    EventType.NODE_RECORD.value: NodeRecord,
    EventType.COMMUNICATOR_RECORD.value: CommunicatorRecord,
}
log = get_logger(__name__)


class LocalizerApp:
    """Owns one `LocalizerCore`; start and stop inside one event loop."""

    name = "localizer"

    def __init__(self, settings: LocalizerSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.core = LocalizerCore(
            settings.judge_policy(), settings.episode_policy(), settings.bounds(), settings.health_wait_s
        )
        self._tasks = BackgroundTasks()
        self._producer = Producer(settings.kafka, self.name, clock=self.clock)
        self._lock = asyncio.Lock()  # verdicts leave in the order in which they were decided
        kafka = settings.kafka
        self._jobs = Consumer(
            kafka, [JOBS], None, self._handle_jobs, producer=self._producer, name="localizer-jobs",
            options=ConsumerOptions(start=Start.EARLIEST, records_max=4000), clock=self.clock,
        )  # fmt: skip
        self._health = Consumer(
            kafka, [HEALTH], None, self._handle_health, producer=self._producer, name="localizer-health",
            options=ConsumerOptions(start=Start.LATEST),
            on_assigned=self._back(settings.health_window_s), clock=self.clock,
        )  # fmt: skip
        self._verdicts = Consumer(
            kafka, [VERDICTS], None, self._handle_verdicts, producer=None, name="localizer-verdicts",
            options=ConsumerOptions(start=Start.LATEST, records_max=100),
            on_assigned=self._back(settings.verdicts_window_s), clock=self.clock,
        )  # fmt: skip
        self._signals = Consumer(
            kafka, [SIGNALS], GROUP, self._handle_signals, producer=self._producer,
            options=ConsumerOptions(start=Start.COMMITTED, poll_s=0.2, commit_interval_s=0.5),
            on_assigned=self._assigned, on_revoked=self._revoked, clock=self.clock,
        )  # fmt: skip
        self._job_partition: dict[str, int] = {}
        self._waiting: deque[Published] = deque()
        self._told_decisions: Counter[str] = Counter()
        self._told_dropped: Counter[str] = Counter()

    async def start(self) -> None:
        await self._producer.start()
        for consumer in (self._jobs, self._health, self._verdicts, self._signals):
            await consumer.start()
        self._tasks.spawn("localizer-ticks", self._tick())

    async def stop(self) -> None:
        await self._signals.stop()
        await asyncio.gather(self._jobs.stop(), self._health.stop(), self._verdicts.stop())
        await self._tasks.cancel()
        await self._producer.stop()

    async def crashed(self) -> BaseException:
        return await first_crash(self._tasks, self._signals, self._jobs, self._health, self._verdicts)

    def readiness(self) -> Readiness:
        return self._signals.readiness()

    # ------------------------------------------------------------------ records

    async def _handle_jobs(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        bad: list[BadRecord] = []
        for record in records:
            if record.is_tombstone or record.header("ce_type") == EventType.MEMBER_RECORD.value:
                continue  # supervisors are the remediator's
            kind = _REGISTRY.get(record.header("ce_type"))
            if kind is None:
                bad.append(BadRecord(record, f"ce_type {record.header('ce_type')!r} is no registry record"))
                continue
            try:
                _, value = decode_event(kind, record.headers, record.value)
            except ValueError as error:
                bad.append(BadRecord(record, str(error)))
                continue
            self.core.note_registry(value)
        return bad

    async def _handle_health(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        bad: list[BadRecord] = []
        for record in records:
            try:
                _, event = decode_event(HealthEvent, record.headers, record.value)
            except ValueError as error:
                bad.append(BadRecord(record, str(error)))
                continue
            self.core.note_health(event, self.clock.monotonic_ns() / 1e9)
        return bad

    async def _handle_verdicts(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        for record in records:
            try:
                _, verdict = decode_event(VerdictRecord, record.headers, record.value)
            except ValueError:
                continue  # its readers send it to the dead letters
            self.core.note_published(verdict)
        return ()

    async def _handle_signals(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        bad: list[BadRecord] = []
        for record in records:
            try:
                batch = decode_batch(record.value)
            except BatchError as error:
                bad.append(BadRecord(record, str(error)))
                continue
            if len(self._job_partition) < self.settings.jobs_max:
                self._job_partition[batch.job] = record.partition
            async with self._lock:
                await self._answer(batch)
            await asyncio.sleep(0)
        return bad

    async def _answer(self, batch: Batch) -> None:
        if batch.kind is BatchKind.SCALING:
            await self._find(batch)
            return
        outputs = self.core.apply(batch)
        if not outputs and not self._waiting:
            return
        await self._publish(outputs)

    async def _find(self, batch: Batch) -> None:
        """Findings may be lost, and verdicts never wait for them."""
        record = self.core.apply_window(batch)
        if record is None:
            return
        await self._producer.send_event(FINDINGS, record.job, EventType.SCALING, record, event_id=record.id)
        modes = [finding.mode.value for finding in record.findings]
        log.info("scaling", job=record.job, iterations=record.iterations, modes=modes, refused=record.refused)

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(TICK_S)
            self.tell_counts()
            # Before that we do not know which deaths were told already.
            if all(reader.caught_up.is_set() for reader in (self._jobs, self._health, self._verdicts)):
                await self.judge_deaths()

    def tell_counts(self) -> None:
        """Emit what the core has counted since the last time."""
        for reason, number in (self.core.decisions - self._told_decisions).items():
            count("paceline.localizer.decisions", number, reason=reason)
        for reason, number in (self.core.memory.dropped - self._told_dropped).items():
            count("paceline.localizer.dropped", number, reason=reason)
        self._told_decisions = self.core.decisions.copy()
        self._told_dropped = self.core.memory.dropped.copy()

    async def judge_deaths(self) -> None:
        """Verdicts on deaths that no signal has reported."""
        async with self._lock:
            outputs = self.core.tick(self.clock.monotonic_ns() / 1e9)
            try:
                await self._publish(outputs)
            except KafkaUnavailable as error:
                log.warning("verdicts_wait", count=len(self._waiting), error=str(error))

    async def _publish(self, outputs: Sequence[Published]) -> None:
        """Send in order. KafkaUnavailable leaves the rest waiting and the signal unhandled: it comes
        again, changes nothing, and what waits is sent then."""
        self._waiting.extend(outputs)
        while self._waiting:
            record, verdict = self._waiting[0].record, self._waiting[0].record.verdict
            try:
                await self._send(record)
            except ValueError as error:
                if not record.evidence_bundle:
                    log.error("verdict_refused", episode=record.episode, error=str(error))
                    self._waiting.popleft()
                    continue
                bare = replace(record, evidence_bundle="")
                self._waiting[0] = replace(self._waiting[0], record=bare)
                continue
            self._waiting.popleft()
            count("paceline.verdicts.published", verdict=verdict.verdict_class.value)
            observe("paceline.verdict.confidence", verdict.confidence)
            log.info(
                "verdict", job=record.job, episode=record.episode, revision=record.revision,
                verdict=verdict.verdict_class.value, resolved=record.resolved, summary=verdict.summary,
            )  # fmt: skip

    async def _send(self, record: VerdictRecord) -> None:
        attributes = {"paceline.job": record.job, "paceline.episode": record.episode}
        with span("localizer.verdict", traceparent=episode_trace(record), attributes=attributes):
            await self._producer.send_event(
                VERDICTS,
                record.job,
                EventType.VERDICT,
                record,
                event_id=event_id(record),
                traceparent=current_traceparent() or episode_trace(record),
            )

    # ------------------------------------------------------------------ positions

    def _back(self, window_s: float) -> AssignedHook:
        """Begin `window_s` before now."""

        async def seek(assignment: Assignment) -> None:
            offsets = await assignment.offsets_at(self.clock.unix_s() - window_s)
            for partition, offset in offsets.items():
                assignment.seek(partition, offset)

        return seek

    async def _assigned(self, assignment: Assignment) -> None:
        """Signals mean little without the registry, and episodes go on where they were."""
        readers = (self._jobs, self._health, self._verdicts)
        waits = asyncio.gather(*(reader.caught_up.wait() for reader in readers))
        try:
            await asyncio.wait_for(waits, self.settings.catch_up_s)
        except TimeoutError:
            log.warning("registry_not_read", limit_s=self.settings.catch_up_s)
        log.info("assigned", partitions=len(assignment.partitions))

    async def _revoked(self, partitions: Sequence[Partition]) -> None:
        numbers = {partition.number for partition in partitions}
        gone = [job for job, number in self._job_partition.items() if number in numbers]
        for job in gone:
            del self._job_partition[job]
        self.core.forget_jobs(gone)


def episode_trace(record: VerdictRecord) -> str:
    """W3C traceparent that all verdicts of an episode share, restarts and exporters or not."""
    digest = hashlib.blake2b(f"{record.job}/{record.attempt}/{record.episode}".encode(), digest_size=24)
    text = digest.hexdigest()
    return f"00-{text[:32]}-{text[32:]}-01"


def event_id(record: VerdictRecord) -> str:
    """Unique for each record of the chain: the end has the id of the revision that it ends."""
    return f"{record.id}-end" if record.resolved else record.id
