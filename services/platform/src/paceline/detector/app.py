"""The Kafka shell of the detector: assignment, ticks, snapshots, outputs."""

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.analysis.detection.evidence import SIGNAL_BYTES_MAX, split_batch
from paceline.analysis.detection.placing import install
from paceline.contracts.batch import BatchError, BatchKind, decode_batch, encode_batch
from paceline.contracts.events import EventType
from paceline.contracts.registry import HealthEvent, JobRecord
from paceline.contracts.topics import DETECTOR_STATE, FRAMES, HEALTH, JOBS, SIGNALS
from paceline.detector.core import (
    BlockKey,
    DetectorCore,
    Forgotten,
    Held,
    Output,
    Placed,
    PlacedRun,
    Signal,
)
from paceline.detector.native import native_checksums, native_placing
from paceline.detector.records import RecordReader
from paceline.detector.settings import DetectorSettings
from paceline.detector.state import SnapshotShelf, StoredSnapshot, load_held, packer
from paceline.runtime.app import BackgroundTasks, Readiness, first_crash
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.kafka import KafkaUnavailable
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge, observe
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Partition, Record
from paceline.runtime.session import Assignment
from paceline.runtime.settings import KafkaSettings

GROUP = "detector"
APPLIED_AT_ONCE = 512  # records; their rows stay in the processor's cache, which halves the time
TICK_LOST_S = 5.0  # a tick that did not come back after so long is given up
DURABLE_QUEUE_MAX = 4096  # waiting for Kafka: heartbeat events, and as many parts of snapshots
STATE_WRITERS = 4  # parts of a snapshot on their way at once: few enough to be through when we stop
SHELF_WAIT_S = 20.0
SIGNALS_WAITING_BYTES = 2 * SIGNAL_BYTES_MAX + (16 << 20)  # two signals of the largest job, cut or not
GC_ALLOCATIONS = 50_000  # between collections: 12,500 records a second, and none of them a cycle
FRAMES_OPTIONS = ConsumerOptions(
    start=Start.COMMITTED_OR_LATEST,
    records_max=1024,
    poll_s=0.2,
    partition_fetch_bytes_max=16 << 20,  # a large job is one partition: its backlog in few round trips
    fetch_bytes_min=256 << 10,  # thousands of agents append one record each: an answer to each costs a core
    fetch_wait_s_max=0.1,
    check_crcs=False,  # a frame has a checksum of its own
)
log = get_logger(__name__)


@dataclass(frozen=True)
class Durable:
    """A record for a topic that must not be lost."""

    event: HealthEvent | None = None
    state_key: str = ""
    state: bytes | None = None


class DetectorApp:
    """Owns one `DetectorCore`; start and stop inside one event loop."""

    name = "detector"

    def __init__(self, settings: DetectorSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.core = DetectorCore(
            settings.instance,
            settings.policy(),
            jobs_max=settings.jobs_max,
            idle_job_s_max=settings.idle_job_s_max,
        )
        self.shelf = SnapshotShelf(settings.snapshots_bytes_max)
        self.dropped_durable = 0
        self._reader = RecordReader(native_checksums())
        self._stored_ns = self.clock.monotonic_ns()
        self._tasks = BackgroundTasks()
        # Apart: snapshots come again, and a flood of them must cost no heartbeat event.
        self._health_queue: asyncio.Queue[Durable] = asyncio.Queue(DURABLE_QUEUE_MAX)
        self._state_queue: asyncio.Queue[Durable] = asyncio.Queue(DURABLE_QUEUE_MAX)
        self._pending: dict[BlockKey, tuple[int, int]] = {}  # tick in flight: (seq, sent ns)
        self._producer = Producer(_with_room(settings.kafka), self.name, clock=self.clock)
        whole = ConsumerOptions(start=Start.EARLIEST)
        kafka = settings.kafka
        self._states = Consumer(
            kafka, [DETECTOR_STATE], None, self._handle_states, producer=None, name="detector-state",
            options=whole, clock=self.clock,
        )  # fmt: skip
        self._jobs = Consumer(
            kafka, [JOBS], None, self._handle_jobs, producer=None, name="detector-jobs", options=whole,
            clock=self.clock,
        )  # fmt: skip
        self._signals = Consumer(
            kafka, [SIGNALS], None, self._handle_signals, producer=None, name="detector-signals",
            options=ConsumerOptions(start=Start.LATEST), clock=self.clock,
        )  # fmt: skip
        self._frames = Consumer(
            kafka, [FRAMES], GROUP, self._handle_frames, producer=self._producer,
            options=FRAMES_OPTIONS,
            on_assigned=self._assigned, on_revoked=self._revoked, clock=self.clock,
        )  # fmt: skip

    async def start(self) -> None:
        install(native_placing())
        gc.set_threshold(GC_ALLOCATIONS, 20, 20)
        await self._producer.start()
        for consumer in (self._states, self._jobs, self._signals, self._frames):
            await consumer.start()
        self._tasks.spawn("detector-ticks", self._write_ticks())
        self._tasks.spawn("detector-snapshots", self._write_snapshots())
        self._tasks.spawn("detector-health", self._write_durable(self._health_queue))
        for number in range(STATE_WRITERS):
            self._tasks.spawn(f"detector-states-{number}", self._write_durable(self._state_queue))

    async def stop(self) -> None:
        """Hand over: the state is published when the frames are released."""
        await self._frames.stop()
        await asyncio.gather(self._states.stop(), self._jobs.stop(), self._signals.stop())
        self._store(list(self.core.held))
        await self._flush_durable()
        await self._tasks.cancel()
        await self._producer.stop()

    async def crashed(self) -> BaseException:
        return await first_crash(self._tasks, self._frames, self._states, self._jobs, self._signals)

    def readiness(self) -> Readiness:
        return self._frames.readiness()

    # ------------------------------------------------------------------ records

    async def _handle_frames(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        bad: list[BadRecord] = []
        start = 0
        while start < len(records):
            at_once = len(records) if self.core.has_grown else APPLIED_AT_ONCE
            before = len(bad)
            part = records[start : start + at_once]
            placed = self._decode(part, bad)
            start += at_once
            started_ns = self.clock.monotonic_ns()
            outputs = self.core.apply(placed)
            observe("paceline.detector.tick", (self.clock.monotonic_ns() - started_ns) / 1e9)
            count("paceline.frames.received", len(part) - len(bad) + before)
            await self._emit(outputs)
            await asyncio.sleep(0)
        if records:
            delay_s = self.clock.unix_s() - records[-1].timestamp_ms / 1000
            gauge("paceline.detector.event_delay", max(0.0, delay_s))
        return bad

    def _decode(self, records: Sequence[Record], bad: list[BadRecord]) -> list[Placed | PlacedRun]:
        """What can be read of `records`; the rest is added to `bad`."""
        placed = self._reader.read(records, bad)
        for one in placed:
            if isinstance(one, Placed) and one.batch.kind is BatchKind.TICK:
                tick = one.batch
                if tick.node == self.settings.instance:
                    self._tick_came_back(BlockKey(tick.job, tick.attempt, tick.shard), tick.seq)
        return placed

    async def _handle_jobs(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        for record in records:
            if record.is_tombstone or record.header("ce_type") != EventType.JOB_RECORD.value:
                continue
            try:
                _, job = decode_event(JobRecord, record.headers, record.value)
            except ValueError:
                count("paceline.frames.dropped", reason="job_record_unreadable")
                continue
            await self._emit(self.core.note_job(job))
        return ()

    async def _handle_signals(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        for record in records:
            try:
                self.core.note_signal(decode_batch(record.value))
            except BatchError:
                count("paceline.frames.dropped", reason="signal_unreadable")
        return ()

    async def _handle_states(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        for record in records:
            self.shelf.take(record.key_text, record.value)
        return ()

    async def _emit(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, Signal):
                await self._send_signal(output)
            elif isinstance(output, HealthEvent):
                self._enqueue(Durable(event=output))
            elif isinstance(output, Forgotten):
                self._pending.pop(output.key, None)
                self._bury(output.key.text)

    async def _send_signal(self, signal: Signal) -> None:
        headers = [("reason", signal.reason.name.lower().encode())]
        for part in split_batch(signal.batch):
            await self._producer.send(SIGNALS, signal.batch.job, encode_batch(part), headers)
        count("paceline.signals.published", kind=signal.batch.kind.name.lower())
        log.info(
            "signal", kind=signal.batch.kind.name, job=signal.batch.job, shard=signal.batch.shard,
            reason=signal.reason.name,
        )  # fmt: skip

    # ------------------------------------------------------------------ ticks

    def _tick_came_back(self, key: BlockKey, seq: int) -> None:
        pending = self._pending.get(key)
        if pending is not None and seq >= pending[0]:
            del self._pending[key]

    async def _write_ticks(self) -> None:
        while True:
            await self.clock.sleep(self.settings.tick_s)
            await self.write_ticks()

    async def write_ticks(self) -> None:
        """A tick for each block whose last one has come back: ticks never run ahead of the log."""
        now_ns = self.clock.monotonic_ns()
        lost_ns = now_ns - int(TICK_LOST_S * 1e9)
        free = {key for key in self.core.held if self._pending.get(key, (0, 0))[1] <= lost_ns}
        for tick in self.core.make_ticks(now_ns, int(self.clock.unix_s() * 1e9), free):
            self._pending[BlockKey(tick.job, tick.attempt, tick.shard)] = (tick.seq, now_ns)
            await self._producer.send(FRAMES, f"{tick.job}:{tick.shard}", encode_batch(tick))
        self._pending = {key: sent for key, sent in self._pending.items() if key in self.core.held}
        gauge("paceline.detector.jobs", len({key.job for key in self.core.held}))
        communicators = sum(len(held.block.members.comms) for held in self.core.held.values())
        gauge("paceline.detector.communicators", communicators)
        gauge("paceline.detector.snapshot_age", (now_ns - self._stored_ns) / 1e9)
        self._tell_refused()

    def _tell_refused(self) -> None:
        for reason, number in self.core.take_refused().items():
            count("paceline.frames.dropped", number, reason=reason)
        for reason, number in self.shelf.take_lost().items():
            count("paceline.kafka.dropped", number, topic=DETECTOR_STATE.name, reason=reason)

    # ------------------------------------------------------------------ state

    async def _write_snapshots(self) -> None:
        while True:
            await self.clock.sleep(self.settings.snapshot_s)
            for held in list(self.core.held.values()):
                await self._store_beside(held)
            self._stored_ns = self.clock.monotonic_ns()
            self._expire(self.clock.unix_s() - self.settings.idle_job_s_max)

    async def _store_beside(self, held: Held) -> None:
        """Compress in a thread: the state of a large job takes longer than records may wait."""
        if self.core.held.get(held.key) is not held:
            return
        parts = await asyncio.to_thread(packer(held, self.clock.unix_s()))
        if self.core.held.get(held.key) is held:  # else it was released, with a newer snapshot
            for record_key, value in self.shelf.keep(held.key.text, parts):
                self._enqueue(Durable(state_key=record_key, state=value))

    def _store(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            held = self.core.held[key]
            for record_key, value in self.shelf.put(held, self.clock.unix_s()):
                self._enqueue(Durable(state_key=record_key, state=value))

    def _expire(self, saved_before_unix_s: float) -> None:
        for key in self.shelf.expired(saved_before_unix_s):
            self._bury(key)

    def _bury(self, key: str) -> None:
        for record_key in self.shelf.forget(key):
            self._enqueue(Durable(state_key=record_key))

    async def _assigned(self, assignment: Assignment) -> None:
        """Restore what is known of the partitions, then read on from where that knowledge ends."""
        try:
            await asyncio.wait_for(self._states.caught_up.wait(), SHELF_WAIT_S)
        except TimeoutError:
            log.warning("snapshots_not_read", limit_s=SHELF_WAIT_S)
        now_s = self.clock.unix_s()
        floor = await assignment.offsets_at(now_s - self.settings.replay_s_max)
        recent = await assignment.offsets_at(now_s - self.settings.start_window_s)
        for partition in assignment.partitions:
            found = self.shelf.of_partition(partition.number, now_s - self.settings.idle_job_s_max)
            offsets = [self._restore(snapshot) for snapshot in found]
            known = [offset for offset in offsets if offset is not None]
            start = max(min(known), floor[partition]) if known else recent[partition]
            assignment.seek(partition, start)
        log.info("restored", blocks=len(self.core.held), partitions=len(assignment.partitions))

    def _restore(self, snapshot: StoredSnapshot) -> int | None:
        try:
            held = load_held(snapshot.raw(), self.core.policy)
        except ValueError as error:
            log.warning("snapshot_unusable", key=snapshot.key, error=str(error))
            return None
        self.core.adopt(held)
        return held.next_offset

    async def _revoked(self, partitions: Sequence[Partition]) -> None:
        numbers = {partition.number for partition in partitions}
        self._store([key for key, held in self.core.held.items() if held.partition in numbers])
        self.core.drop_partitions(numbers)

    # ------------------------------------------------------------------ durable records

    def _enqueue(self, record: Durable) -> None:
        try:
            queue = self._state_queue if record.event is None else self._health_queue
            queue.put_nowait(record)
        except asyncio.QueueFull:
            self.dropped_durable += 1
            count("paceline.kafka.dropped", topic=HEALTH.name if record.event else DETECTOR_STATE.name,
                  reason="queue_full")  # fmt: skip

    async def _write_durable(self, queue: "asyncio.Queue[Durable]") -> None:
        while True:
            await self._deliver(await queue.get())
            queue.task_done()

    async def _flush_durable(self) -> None:
        try:
            await asyncio.wait_for(asyncio.gather(self._health_queue.join(), self._state_queue.join()), 5.0)
        except TimeoutError:
            log.warning("records_left_behind", count=self._health_queue.qsize() + self._state_queue.qsize())

    async def _deliver(self, record: Durable) -> None:
        """Health events wait for Kafka; a snapshot that fails is replaced by the next one anyway."""
        while True:
            try:
                if record.event is None:
                    await self._producer.send(DETECTOR_STATE, record.state_key, record.state)
                else:
                    await self._producer.send_event(
                        HEALTH, record.event.job or record.event.node, EventType.HEALTH, record.event,
                        event_id=record.event.id,
                    )  # fmt: skip
                return
            except KafkaUnavailable as error:
                if record.event is None:
                    self.dropped_durable += 1
                    return
                log.warning("health_event_waits", error=str(error))
                await self.clock.sleep(1.0)
            except ValueError as error:
                self.dropped_durable += 1
                log.error("record_refused", error=str(error))
                return


def _with_room(kafka: KafkaSettings) -> KafkaSettings:
    """A signal goes out in one burst: the buffer must not drop the head of it for its tail."""
    room = max(kafka.lossy_buffer_bytes_max, SIGNALS_WAITING_BYTES)
    return kafka.model_copy(update={"lossy_buffer_bytes_max": room})
