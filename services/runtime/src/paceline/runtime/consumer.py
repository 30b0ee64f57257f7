"""The one consumer shell.

The contract: `handle` is called with a batch of records, in order within each partition, one call
at a time. It may take as long as it needs; meanwhile nothing more is read (backpressure). When it
returns, the batch is done and its offsets are committed soon after, so after a crash records come
again. It returns (or raises, one at a time) `BadRecord` for what it can never use: that goes to
the dead letters. Any other exception calls it again with the same records: without end while a
dependency is away, else a few times and then record by record, until the broken one is found.

`on_assigned` runs before the first record of the partitions and may `seek`; `on_revoked` runs after
the last, with everything committed. Without a group the consumer reads all partitions itself.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from aiokafka.errors import KafkaError

from paceline.contracts.topics import Topic
from paceline.runtime.app import BackgroundTasks, Readiness, is_being_cancelled
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.dead_letters import DeadLetterBox
from paceline.runtime.handling import Abandoned, BatchRunner, Handle, describe
from paceline.runtime.kafka import KafkaUnavailable, TopicError, client_options
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge, observe
from paceline.runtime.options import ConsumerOptions
from paceline.runtime.producer import Producer
from paceline.runtime.progress import Progress, ProgressWatch
from paceline.runtime.reach import Reach
from paceline.runtime.record import Partition, Record
from paceline.runtime.retry import Backoff
from paceline.runtime.session import AssignedHook, RevokedHook, Session
from paceline.runtime.settings import KafkaSettings

STOP_S_MAX = 10.0
HEALTHY_S = 30.0  # a consumer that lived so long begins the backoff anew
EXPECTED = (KafkaError, KafkaUnavailable, TopicError, OSError, TimeoutError)
REOPEN_BACKOFF = Backoff(first_s=0.2, max_s=5.0)
log = get_logger(__name__)


class Consumer:
    """Reads `topics` for ever and calls `handle`; recreates its connection when that stands still."""

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Sequence[Topic],
        group: str | None,
        handle: Handle,
        *,
        producer: Producer | None,
        name: str = "",
        options: ConsumerOptions | None = None,
        on_assigned: AssignedHook | None = None,
        on_revoked: RevokedHook | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`producer` writes the dead letters; None only counts and logs them.

        SettingsError where the TLS files cannot be used.
        """
        client_options(settings, name)  # wrong settings fail here, not in the background
        self.name = name or group or "+".join(topic.name for topic in topics)
        self.group = f"{settings.group_prefix}.{group}" if group else None
        self.caught_up = asyncio.Event()  # set once everything that was there at the start is handled
        self._settings = settings
        self._topics = tuple(topics)
        self._options = options or ConsumerOptions()
        self._clock = clock or SystemClock()
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._label = self.group or self.name
        self._box = DeadLetterBox(producer, self._label, self._clock, self._options.dead_letters)
        self._runner = BatchRunner(handle, self._box, self._clock, self._options.retry, self._label)
        self._watch = ProgressWatch(settings.stuck_s, self._options.unassigned_s)
        self._resume: dict[Partition, int] = {}
        self._targets: dict[Partition, int] | None = None
        self._reach = Reach()
        self._session: Session | None = None  # while it is open
        self._tasks = BackgroundTasks()
        self._stopping = False
        self._handling = False
        self._committed_ns = 0
        self.recreated = 0
        self.progress = Progress.WAITING

    @property
    def rejected(self) -> int:
        """Records that went to the dead letters, or would have."""
        return self._box.rejected

    async def start(self) -> None:
        """Begin in the background; never fails, never waits for Kafka."""
        self._stopping = False
        self._tasks.spawn(f"{self.name}-consume", self._run())

    async def stop(self) -> None:
        """Let the handler finish (bounded by STOP_S_MAX), commit and leave the group."""
        self._stopping = True
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await self._tasks.join()
        except TimeoutError:
            log.warning("consumer_stopped_hard", consumer=self.name, limit_s=STOP_S_MAX)
        await self._tasks.cancel()

    async def crashed(self) -> BaseException:
        return await self._tasks.crashed()

    def readiness(self) -> Readiness:
        if self._session is None:
            return Readiness(False, f"{self.name}: no connection to Kafka at {self._settings.bootstrap}")
        if self._runner.failing:
            return Readiness(False, f"{self.name}: retrying, {self._runner.failing}")
        if self._box.ratio_exceeded:
            return Readiness(
                False, f"{self.name}: most records are bad, see {self._box.rejected} dead letters"
            )
        if self.progress.needs_new_consumer:
            return Readiness(False, f"{self.name}: {self.progress.value}")
        return Readiness(True)

    async def handled_until(self) -> float | None:
        """Unix time: what was written to the topics before it has been handled, by whichever member of the
        group; 0 before that is known. None where Kafka does not answer now; asks for a few seconds."""
        session = self._session
        if session is None:
            return None
        try:
            await self._reach.look(session, self._resume, self._clock.unix_s())
        except EXPECTED:
            return None
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            return None  # the session is being closed
        return self._reach.until_s

    async def _run(self) -> None:
        attempt = 0
        while not self._stopping:
            session = Session(
                self._settings, self._topics, self.group, self._options, self.name, self._resume,
                self._on_assigned, self._on_revoked,
            )  # fmt: skip
            opened_ns = self._clock.monotonic_ns()
            try:
                await session.open()
                self._session = session
                reason = await self._consume(session)
            except Exception as error:
                reason = describe(error)
                if not isinstance(error, EXPECTED):
                    log.error("consumer_failed", consumer=self.name, exc_info=error)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                reason = "cancelled: the client gave its own work up"
            finally:
                self._session = None
                await session.close()
            if not self._stopping:
                lived_s = (self._clock.monotonic_ns() - opened_ns) / 1e9
                attempt = 0 if lived_s > HEALTHY_S else attempt
                await self._reopen_later(reason, attempt)
                attempt += 1

    async def _reopen_later(self, reason: str, attempt: int) -> None:
        self.recreated += 1
        count("paceline.kafka.consumer_recreated", group=self._label, reason=reason.partition(":")[0])
        if attempt in (0, 5, 50):
            log.warning("consumer_recreated", consumer=self.name, reason=reason, attempt=attempt)
        await self._clock.sleep(REOPEN_BACKOFF.delay_s(attempt))

    async def _consume(self, session: Session) -> str:
        """Poll until stop or until the watch calls for a new consumer; returns why."""
        self._watch.reset()
        polling = asyncio.create_task(self._poll(session), name=f"{self.name}-poll")
        watching = asyncio.create_task(self._watch_progress(session), name=f"{self.name}-watch")
        try:
            done, _ = await asyncio.wait({polling, watching}, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in (polling, watching):
                task.cancel()
            await asyncio.gather(polling, watching, return_exceptions=True)

    async def _poll(self, session: Session) -> str:
        while not self._stopping:
            records = await session.poll()
            async with session.lock:
                mine = session.owned(records)
                if mine:
                    self._handling = True
                    try:
                        await self._handle(session, mine)
                    finally:
                        self._handling = False
                await self._commit_sometimes(session)
            if not self.caught_up.is_set():
                await self._check_caught_up(session)
        return "stopped"

    async def _handle(self, session: Session, records: list[Record]) -> None:
        started_ns = self._clock.monotonic_ns()

        async def while_waiting() -> None:
            if self._stopping:
                raise Abandoned
            await session.while_waiting()

        try:
            await self._runner.run(records, while_waiting)
        except Abandoned:
            log.info("batch_abandoned", consumer=self.name, records=len(records))
            return
        session.note_handled(records)
        took_s = (self._clock.monotonic_ns() - started_ns) / 1e9
        observe("paceline.kafka.handle", took_s, topic=records[0].topic, group=self._label)
        for topic, number in Counter(record.topic for record in records).items():
            count("paceline.kafka.consumed", number, topic=topic, group=self._label)

    async def _commit_sometimes(self, session: Session) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._committed_ns >= self._options.commit_interval_s * 1e9:
            self._committed_ns = now_ns
            await session.commit()

    async def _check_caught_up(self, session: Session) -> None:
        if self._targets is None:
            ends = await session.end_offsets()
            if not ends:
                return
            self._targets = dict(ends)
        positions = await session.positions()
        if all(positions.get(part, end) >= end for part, end in self._targets.items()):
            self.caught_up.set()

    async def _watch_progress(self, session: Session) -> str:
        while True:
            await self._clock.sleep(self._options.watch_interval_s)
            ends = None if self._handling else await session.end_offsets()
            positions = dict.fromkeys(session.assigned, 0) if self._handling else await session.positions()
            now_s = self._clock.monotonic_ns() / 1e9
            self.progress = self._watch.observe(now_s, positions, ends, handling=self._handling)
            if ends is not None:
                lag = sum(max(0, end - positions.get(part, end)) for part, end in ends.items())
                gauge("paceline.kafka.lag", lag, group=self._label)
            if self.progress.needs_new_consumer:
                return self.progress.value
            if session.has_new_partitions():
                return "new_partitions"
