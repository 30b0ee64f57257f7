"""One aiokafka producer that comes and goes: connected in the background, replaced when it hangs."""

import asyncio
from collections.abc import Callable
from itertools import chain

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from paceline.contracts.topics import TOPICS
from paceline.runtime.app import is_being_cancelled
from paceline.runtime.clock import Clock
from paceline.runtime.kafka import KafkaUnavailable, client_options, create_topics
from paceline.runtime.logging import get_logger
from paceline.runtime.retry import Backoff
from paceline.runtime.settings import KafkaSettings

CLOSE_S_MAX = 2.0
CONNECT_BACKOFF = Backoff(first_s=0.2, max_s=5.0)
log = get_logger(__name__)


class ProducerConnection:
    """Holds the client; `client()` waits for one, `replace()` drops it and connects anew."""

    def __init__(
        self, settings: KafkaSettings, name: str, clock: Clock, *, durable: bool, on_up: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._name = name
        self._clock = clock
        self._durable = durable
        self._on_up = on_up
        self._client: AIOKafkaProducer | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._client is not None

    def start(self) -> None:
        """Begin to connect; returns at once."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._connect(), name=f"{self._name}-connect")

    async def client(self) -> AIOKafkaProducer:
        """The connected client; waits as long as it takes, callers bound it."""
        while self._client is None:
            await self._up.wait()
        return self._client

    async def replace(self, client: AIOKafkaProducer, flush_s: float = 0.0) -> None:
        """Give `client` up, what it still holds fails, and connect again."""
        if client is self._client:
            self._client = None
            self._up.clear()
            self.start()
        await close_producer(client, flush_s)

    async def stop(self, flush_s: float) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        client, self._client = self._client, None
        self._up.clear()
        if client is not None:
            await close_producer(client, flush_s)

    async def _connect(self) -> None:
        attempt = 0
        while True:
            client: AIOKafkaProducer | None = None
            try:
                if self._settings.create_topics:
                    await create_topics(self._settings, TOPICS)
                client = self._make()
                await client.start()
            except (Exception, asyncio.CancelledError) as error:
                # Nobody awaits this task: it must not end without a client, only with its owner.
                if client is not None:
                    await close_producer(client, 0.0)
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                if attempt in (0, 5, 50):
                    log.warning("kafka_unreachable", producer=self._name, error=repr(error), attempt=attempt)
                await self._clock.sleep(CONNECT_BACKOFF.delay_s(attempt))
                attempt += 1
                continue
            self._client = client
            self._up.set()
            self._on_up()
            return

    def _make(self) -> AIOKafkaProducer:
        options = client_options(self._settings, self._name)
        if self._durable:
            return AIOKafkaProducer(**options, acks="all", enable_idempotence=True, linger_ms=0)
        return AIOKafkaProducer(
            **options, acks=1, compression_type="lz4", linger_ms=20, max_batch_size=256 << 10
        )


async def close_producer(client: AIOKafkaProducer, flush_s: float) -> None:
    """Close for certain: after `flush_s` what is not acknowledged fails, instead of being waited for."""
    if flush_s > 0:
        try:
            async with asyncio.timeout(flush_s):
                await client.flush()
                await client.stop()
                return
        except (TimeoutError, KafkaError, OSError):
            pass
    await _abandon(client)


async def _abandon(client: AIOKafkaProducer) -> None:
    """`AIOKafkaProducer.stop` waits without bound for records it cannot deliver; only its parts can
    be told to give up: connections first, so that requests in flight end, then the sender."""
    client._closed = True  # noqa: SLF001
    sender = client._sender  # noqa: SLF001
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await client.client.close()
    except (TimeoutError, KafkaError, OSError):
        pass
    if sender.sender_task is not None:
        sender.sender_task.cancel()
        await asyncio.wait([sender.sender_task], timeout=CLOSE_S_MAX)
        if sender.sender_task.done() and not sender.sender_task.cancelled():
            sender.sender_task.exception()  # looked at: what it says of abandoned batches is no news
    accumulator = client._message_accumulator  # noqa: SLF001
    batches = [*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches]  # noqa: SLF001
    accumulator.fail_all(KafkaUnavailable("the producer was closed before the broker acknowledged"))
    for batch in batches:
        batch._drain_waiter.exception()  # noqa: SLF001 - looked at: mostly nobody waits for its room
