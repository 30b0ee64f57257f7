"""aiokafka hands the cancellation of its own tasks on to its callers: nothing of ours may end by it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from paceline.contracts.topics import FRAMES, HEALTH
from paceline.runtime import consumer as consumer_module
from paceline.runtime import session as session_module
from paceline.runtime.app import BackgroundTasks, first_crash
from paceline.runtime.clock import SystemClock
from paceline.runtime.connection import ProducerConnection
from paceline.runtime.consumer import Consumer
from paceline.runtime.kafka import KafkaUnavailable
from paceline.runtime.options import ConsumerOptions
from paceline.runtime.producer import Producer
from paceline.runtime.progress import Progress, ProgressWatch
from paceline.runtime.record import Partition, Record
from paceline.runtime.retry import Backoff
from paceline.runtime.settings import KafkaSettings

Eventually = Callable[..., Awaitable[Any]]
PART = Partition(HEALTH.name, 0)


class FakeSession:
    """The first life is cancelled from inside, in `poll`, `end_offsets` or `close`; the second delivers."""

    lives = 0
    breaks_in = ""

    def __init__(self, *_: object) -> None:
        FakeSession.lives += 1
        self.life = FakeSession.lives
        self.lock = asyncio.Lock()
        self.assigned = (PART,)
        self.sent = False

    def _break(self, where: str) -> None:
        if self.life == 1 and self.breaks_in == where:
            raise asyncio.CancelledError

    async def open(self) -> None:
        self._break("open")

    async def close(self) -> None: ...

    async def poll(self) -> list[Record]:
        await asyncio.sleep(0)
        self._break("poll")
        if self.life == 1 or self.sent:
            return []
        self.sent = True
        return [Record(HEALTH.name, 0, 0, b"k", b"v", (), 0)]

    def owned(self, records: Sequence[Record]) -> list[Record]:
        return list(records)

    def note_handled(self, records: Sequence[Record]) -> None: ...

    async def commit(self) -> None: ...

    async def while_waiting(self) -> None: ...

    async def positions(self) -> dict[Partition, int]:
        return {PART: 0}

    async def end_offsets(self) -> dict[Partition, int]:
        self._break("end_offsets")
        return {PART: 0}

    def has_new_partitions(self) -> bool:
        return False


@pytest.mark.parametrize("where", ["open", "poll", "end_offsets"])
async def test_consumer_is_recreated(
    where: str, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(consumer_module, "Session", FakeSession)
    monkeypatch.setattr(consumer_module, "REOPEN_BACKOFF", Backoff(first_s=0.001, max_s=0.001))
    monkeypatch.setattr(FakeSession, "lives", 0)
    monkeypatch.setattr(FakeSession, "breaks_in", where)
    seen: list[bytes] = []

    async def handle(records: Sequence[Record]) -> None:
        seen.extend(record.value for record in records)

    options = ConsumerOptions(watch_interval_s=0.01)
    consumer = Consumer(KafkaSettings(), [HEALTH], None, handle, producer=None, options=options)
    await consumer.start()
    assert await eventually(lambda: seen) == [b"v"]
    assert consumer.recreated == 1
    await consumer.stop()


class FakePart:
    """Coordinator, fetcher and client of a consumer that will not stop."""

    def __init__(self, calls: list[str], name: str, *, fails: bool = False) -> None:
        self._calls = calls
        self._name = name
        self._fails = fails

    async def close(self) -> None:
        self._calls.append(self._name)
        if self._fails:
            raise asyncio.CancelledError

    async def _stop_heartbeat_task(self) -> None:
        self._calls.append("heartbeat")
        raise asyncio.CancelledError

    async def _maybe_leave_group(self) -> None:
        self._calls.append("leave")


class FakeConsumer:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self._coordinator = FakePart(self.calls, "coordinator", fails=True)
        self._fetcher = FakePart(self.calls, "fetcher")
        self._client = FakePart(self.calls, "client")

    async def stop(self) -> None:
        await self._coordinator.close()
        await self._fetcher.close()
        await self._client.close()


async def test_consumer_that_will_not_stop_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka's `stop` ends at its first part that fails."""
    fake = FakeConsumer()
    monkeypatch.setattr(session_module.Session, "_make", lambda self: fake)
    session = session_module.Session(KafkaSettings(), [HEALTH], "g", ConsumerOptions(), "c", {}, None, None)
    await session.close()
    assert fake.calls == ["coordinator", "heartbeat", "leave", "fetcher", "client"]


class FakeClient:
    """A producer client whose calls are cancelled from inside."""

    def __init__(self, *, accepts: bool) -> None:
        self.accepts = accepts
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        if not self.accepts:
            raise asyncio.CancelledError

    async def send(self, *_: object, **__: object) -> "asyncio.Future[object]":
        if not self.accepts:
            raise asyncio.CancelledError
        return self.future


async def nothing(*_: object, **__: object) -> None: ...


@pytest.mark.parametrize("accepts", [False, True])
async def test_durable_send_says_that_kafka_is_away(accepts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(KafkaSettings(), "p")
    client = FakeClient(accepts=accepts)
    client.future.cancel()
    monkeypatch.setattr(producer._durable, "_client", client)
    monkeypatch.setattr(producer._durable, "replace", nothing)
    with pytest.raises(KafkaUnavailable):
        await producer.send(HEALTH, "k", b"v")


async def test_lossy_record_is_kept(monkeypatch: pytest.MonkeyPatch, eventually: Eventually) -> None:
    producer = Producer(KafkaSettings(), "p")
    broken, sound = FakeClient(accepts=False), FakeClient(accepts=True)
    monkeypatch.setattr(producer._lossy, "_client", broken)
    monkeypatch.setattr(producer._clock, "sleep", nothing)
    producer._tasks.spawn("pump", producer._pump())
    await producer.send(FRAMES, "k", b"v")

    def mend() -> bool:
        producer._lossy._client = sound
        return producer.buffered_bytes == 0 and producer._lossy_inflight == 1

    assert await eventually(mend)
    sound.future.set_result(None)
    await producer._tasks.cancel()


async def test_producer_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [FakeClient(accepts=False), FakeClient(accepts=True)]
    settings = KafkaSettings(create_topics=False)
    connection = ProducerConnection(settings, "p", SystemClock(), durable=True, on_up=lambda: None)
    left = iter(clients)
    monkeypatch.setattr(connection, "_make", lambda: next(left))
    monkeypatch.setattr("paceline.runtime.connection.close_producer", nothing)
    monkeypatch.setattr("paceline.runtime.connection.CONNECT_BACKOFF", Backoff(first_s=0.001, max_s=0.001))
    connection.start()
    assert await asyncio.wait_for(connection.client(), 5) is clients[1]


async def test_task_that_somebody_else_cancels_is_a_crash() -> None:
    tasks = BackgroundTasks()
    task = tasks.spawn("work", asyncio.sleep(60))
    task.cancel()
    other = BackgroundTasks()
    cause = await asyncio.wait_for(first_crash(other, tasks), 5)
    assert isinstance(cause, asyncio.CancelledError)


async def test_cancel_of_all_is_no_crash() -> None:
    tasks = BackgroundTasks()
    tasks.spawn("work", asyncio.sleep(60))
    await tasks.cancel()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(tasks.crashed(), 0.01)


def test_first_record_after_a_long_silence_is_not_stuck() -> None:
    watch = ProgressWatch(stuck_s=15, unassigned_s=60)
    watch.observe(0, {PART: 9}, {PART: 9}, handling=False)
    watch.observe(1_000, {PART: 9}, {PART: 9}, handling=False)
    assert watch.observe(1_003, {PART: 9}, {PART: 10}, handling=False) is Progress.WAITING
    assert watch.observe(1_015, {PART: 9}, {PART: 10}, handling=False) is Progress.STUCK
