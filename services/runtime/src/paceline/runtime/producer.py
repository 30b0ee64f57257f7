"""The one producer: two lanes with different promises.

Loss-tolerant topics (`Topic.loss_tolerant`): `send` returns at once; records wait in a bounded
buffer, the oldest are dropped and counted while Kafka is away. All other topics: `send` returns
once every in-sync replica has the record, or raises `KafkaUnavailable` within `send_timeout_s`;
the same record may then be in the log all the same, so readers expect duplicates.
"""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    TopicAuthorizationFailedError,
    UnknownProducerId,
)

from paceline.contracts.events import SOURCE_PREFIX
from paceline.contracts.topics import Topic
from paceline.runtime.app import BackgroundTasks, Readiness, is_being_cancelled
from paceline.runtime.buffer import NewestWins, Outgoing
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.cloud_events import Header, encode_event
from paceline.runtime.connection import ProducerConnection
from paceline.runtime.kafka import KafkaUnavailable, client_options
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge
from paceline.runtime.settings import KafkaSettings
from paceline.runtime.telemetry import current_traceparent

LOSSY_INFLIGHT_MAX = 512
FLUSH_S_MAX = 3.0
# The broker no longer knows the idempotent session: only a new producer helps.
SESSION_LOST = (OutOfOrderSequenceNumber, UnknownProducerId, ProducerFenced)
REFUSED = (MessageSizeTooLargeError, TopicAuthorizationFailedError, AssertionError, TypeError)
log = get_logger(__name__)


class Producer:
    """Sends records; safe to share between the apps of one process."""

    def __init__(self, settings: KafkaSettings, name: str, *, clock: Clock | None = None) -> None:
        """SettingsError where the TLS files cannot be used."""
        client_options(settings, name)  # wrong settings fail here, not in the background
        clock = clock or SystemClock()
        self.name = name
        self._settings = settings
        self._clock = clock
        self._tasks = BackgroundTasks()
        self._work = asyncio.Event()
        self._buffer = NewestWins(settings.lossy_buffer_bytes_max)
        self._lossy_inflight = 0
        self._lossy_freed = asyncio.Event()
        self._durable_bytes = 0
        self._durable_freed = asyncio.Event()
        self._lossy = ProducerConnection(
            settings, f"{name}-lossy", clock, durable=False, on_up=self._work.set
        )
        self._durable = ProducerConnection(
            settings, f"{name}-durable", clock, durable=True, on_up=self._work.set
        )
        self._started = False

    @property
    def dropped(self) -> int:
        """Records of loss-tolerant topics that were given up so far."""
        return self._buffer.dropped

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.size_bytes

    def readiness(self) -> Readiness:
        if self._durable.connected:
            return Readiness(True)
        return Readiness(False, f"no connection to Kafka at {self._settings.bootstrap}")

    async def start(self) -> None:
        """Begin to connect in the background; never fails, never waits for Kafka."""
        if self._started:
            return
        self._started = True
        self._lossy.start()
        self._durable.start()
        self._tasks.spawn(f"{self.name}-pump", self._pump())

    async def stop(self) -> None:
        """Deliver what can be delivered within FLUSH_S_MAX, then let go."""
        if not self._started:
            return
        self._started = False
        if self._lossy.connected:
            try:
                await asyncio.wait_for(self._drained(), FLUSH_S_MAX)
            except TimeoutError:
                log.warning("records_left_behind", producer=self.name, count=len(self._buffer))
        await self._tasks.cancel()
        await asyncio.gather(self._lossy.stop(FLUSH_S_MAX), self._durable.stop(FLUSH_S_MAX))

    async def send(
        self,
        topic: Topic,
        key: str | bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Send one record; a `value` of None is a tombstone. The lane follows from the topic.

        Raises KafkaUnavailable (a durable record was not acknowledged in time) or ValueError (the
        broker will never take this record).
        """
        packed = key.encode() if isinstance(key, str) else key
        if topic.loss_tolerant:
            self._post(Outgoing(topic.name, packed, value or b"", tuple(headers)))
            return
        limit_s = self._settings.send_timeout_s if timeout_s is None else timeout_s
        size_bytes = len(value or b"") + len(packed or b"") + 64
        try:
            async with asyncio.timeout(limit_s):
                await self._reserve(size_bytes)
                client = await self._durable_client(size_bytes)
                future = await self._submit(client, topic.name, packed, value, headers, size_bytes)
        except TimeoutError:
            raise self._unavailable(topic, limit_s, "no connection") from None
        await self._acknowledged(client, future, topic, limit_s)
        count("paceline.kafka.produced", topic=topic.name)

    async def send_event(
        self,
        topic: Topic,
        key: str,
        event_type: str,
        value: object,
        *,
        event_id: str,
        source: str = "",
        traceparent: str = "",
        timeout_s: float | None = None,
    ) -> None:
        """Send a dataclass of `paceline.contracts` as a CloudEvent; errors as `send`.

        `traceparent` defaults to the active span.
        """
        headers, data = encode_event(
            value,
            event_type=getattr(event_type, "value", event_type),
            source=source or SOURCE_PREFIX + self.name,
            event_id=event_id,
            unix_s=self._clock.unix_s(),
            traceparent=traceparent or current_traceparent(),
        )
        await self.send(topic, key, data, headers, timeout_s=timeout_s)

    def _post(self, record: Outgoing) -> None:
        for gone in self._buffer.push(record):
            count("paceline.kafka.dropped", topic=gone.topic, reason="buffer_full")
        gauge("paceline.kafka.buffered", self._buffer.size_bytes, producer=self.name)
        self._work.set()

    async def _pump(self) -> None:
        while True:
            await self._work.wait()
            client = await self._lossy.client()
            record = self._buffer.pop()
            if record is None:
                self._work.clear()
                continue
            while self._lossy_inflight >= LOSSY_INFLIGHT_MAX:
                self._lossy_freed.clear()
                await self._lossy_freed.wait()
            self._lossy_inflight += 1
            try:
                future = await client.send(
                    record.topic, record.value, record.key, headers=list(record.headers)
                )
            except (*REFUSED, KafkaError, OSError, asyncio.CancelledError) as error:
                self._lossy_settled()
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    self._put_back(record, error)
                    raise
                await self._lossy_failed(record, error, client)
            else:
                future.add_done_callback(lambda done, record=record: self._lossy_done(record, done))

    def _lossy_settled(self) -> None:
        self._lossy_inflight -= 1
        self._lossy_freed.set()

    def _lossy_done(self, record: Outgoing, done: "asyncio.Future[object]") -> None:
        self._lossy_settled()
        error = None if done.cancelled() else done.exception()
        if error is None and not done.cancelled():
            count("paceline.kafka.produced", topic=record.topic)
        else:
            self._put_back(record, error)

    async def _lossy_failed(self, record: Outgoing, error: BaseException, client: AIOKafkaProducer) -> None:
        self._put_back(record, error)
        if isinstance(error, ProducerClosed):
            await self._lossy.replace(client)
        if not isinstance(error, REFUSED):
            await self._clock.sleep(0.2)

    def _put_back(self, record: Outgoing, error: BaseException | None) -> None:
        if isinstance(error, REFUSED):
            self._buffer.dropped += 1
            count("paceline.kafka.dropped", topic=record.topic, reason="refused")
            log.warning("record_refused", topic=record.topic, size_bytes=record.size_bytes, error=str(error))
        elif self._buffer.push_back(record):
            self._work.set()
        else:
            count("paceline.kafka.dropped", topic=record.topic, reason="buffer_full")

    async def _drained(self) -> None:
        while len(self._buffer) or self._lossy_inflight:
            self._lossy_freed.clear()
            await self._lossy_freed.wait()

    async def _reserve(self, size_bytes: int) -> None:
        limit = self._settings.durable_buffer_bytes_max
        while self._durable_bytes and self._durable_bytes + size_bytes > limit:
            self._durable_freed.clear()
            await self._durable_freed.wait()
        self._durable_bytes += size_bytes

    def _release(self, size_bytes: int) -> None:
        self._durable_bytes -= size_bytes
        self._durable_freed.set()

    async def _durable_client(self, size_bytes: int) -> AIOKafkaProducer:
        try:
            return await self._durable.client()
        except BaseException:
            self._release(size_bytes)
            raise

    async def _submit(
        self,
        client: AIOKafkaProducer,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        size_bytes: int,
    ) -> "asyncio.Future[object]":
        try:
            future: asyncio.Future[object] = await client.send(topic, value, key, headers=list(headers))
        except REFUSED as error:
            self._release(size_bytes)
            raise ValueError(f"{topic}: the record of {size_bytes} bytes is refused: {error}") from error
        except (KafkaError, OSError) as error:
            self._release(size_bytes)
            await self._durable.replace(client)
            raise KafkaUnavailable(f"{topic}: {error!r} from Kafka at {self._settings.bootstrap}") from error
        except BaseException as error:
            self._release(size_bytes)
            if isinstance(error, asyncio.CancelledError) and not is_being_cancelled():
                await self._durable.replace(client)
                raise KafkaUnavailable(f"{topic}: the client gave its own work up") from error
            raise

        def settled(done: "asyncio.Future[object]") -> None:
            self._release(size_bytes)
            if not done.cancelled():
                done.exception()  # looked at, so that asyncio does not report it once more

        future.add_done_callback(settled)
        return future

    async def _acknowledged(
        self, client: AIOKafkaProducer, future: "asyncio.Future[object]", topic: Topic, limit_s: float
    ) -> None:
        done, _ = await asyncio.wait([future], timeout=limit_s)
        if not done:
            # Giving the client up fails this record and its fellows now: left inside, each retry of
            # the caller would add one more copy to be delivered when Kafka is back.
            await self._durable.replace(client)
            raise self._unavailable(topic, limit_s, "not acknowledged")
        if future.cancelled():
            raise KafkaUnavailable(f"{topic.name}: the client gave the record up")
        error = future.exception()
        if error is None:
            return
        if isinstance(error, REFUSED):
            raise ValueError(f"{topic.name}: the record is refused: {error}") from error
        if isinstance(error, SESSION_LOST):
            await self._durable.replace(client)
        raise KafkaUnavailable(f"{topic.name}: {error!r} from {self._settings.bootstrap}") from error

    def _unavailable(self, topic: Topic, limit_s: float, what: str) -> KafkaUnavailable:
        return KafkaUnavailable(
            f"{topic.name}: {what} within {limit_s:g} s by Kafka at {self._settings.bootstrap}; "
            "check PACELINE_KAFKA_BOOTSTRAP and that the broker runs"
        )
