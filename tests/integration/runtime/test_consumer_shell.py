"""The consumer and producer shell against a real Kafka that comes, goes and is given garbage."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from paceline.contracts.topics import DEAD_LETTERS, FRAMES, JOBS, VERDICTS, Topic
from paceline.lab.kafka import LocalKafka
from paceline.runtime.consumer import Consumer
from paceline.runtime.handling import each
from paceline.runtime.kafka import KafkaUnavailable, create_topics
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Partition, Record
from paceline.runtime.session import Assignment
from paceline.runtime.settings import KafkaSettings

Eventually = Callable[..., Awaitable[object]]
FAST = ConsumerOptions(poll_s=0.1, commit_interval_s=0.05, watch_interval_s=0.3)


def named(topic: Topic, partitions: int = 2) -> Topic:
    """A topic of this test's own, so that tests do not read each other's records."""
    return replace(topic, name=f"{topic.name}.{uuid.uuid4().hex[:8]}", partitions=partitions)


Unique = Callable[..., Awaitable[Topic]]


@pytest.fixture
def unique(settings: KafkaSettings) -> Unique:
    async def create(topic: Topic, partitions: int = 2) -> Topic:
        made = named(topic, partitions)
        await create_topics(settings, [made], timeout_s=30.0)
        return made

    return create


class Sink:
    """A handler that remembers what it was given."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    @property
    def values(self) -> list[bytes]:
        return [record.value for record in self.records]

    async def __call__(self, records: Sequence[Record]) -> None:
        self.records.extend(records)


@pytest.fixture
def settings(kafka_bootstrap: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=kafka_bootstrap,
        group_prefix=uuid.uuid4().hex[:8],
        request_timeout_s=5.0,
        send_timeout_s=5.0,
        stuck_s=3.0,
        session_timeout_s=6.0,
    )


@pytest.fixture
async def producer(settings: KafkaSettings) -> AsyncIterator[Producer]:
    made = Producer(settings, "test")
    await made.start()
    yield made
    await made.stop()


async def test_topics_are_created_once(settings: KafkaSettings) -> None:
    topic = named(VERDICTS)
    assert await create_topics(settings, [topic]) == (topic.name,)
    assert await create_topics(settings, [topic]) == ()


async def test_create_topics_without_kafka_says_where_it_looked() -> None:
    absent = KafkaSettings(bootstrap="127.0.0.1:1")
    with pytest.raises(KafkaUnavailable, match=r"127\.0\.0\.1:1.*PACELINE_KAFKA_BOOTSTRAP"):
        await create_topics(absent, timeout_s=2.0)


async def test_records_arrive_in_order_with_key_and_headers(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, sink = await unique(VERDICTS), Sink()
    consumer = Consumer(settings, [topic], "order", sink, producer=producer, options=FAST)
    await consumer.start()
    await eventually(lambda: consumer.readiness().ready)
    for number in range(20):
        await producer.send(topic, "job", b"%d" % number, [("trace", b"t")])
    await eventually(lambda: len(sink.records) == 20)
    assert sink.values == [b"%d" % number for number in range(20)]
    assert sink.records[0].key_text == "job"
    assert sink.records[0].header("trace") == "t"
    await consumer.stop()


async def test_a_second_consumer_of_the_group_continues_where_the_first_stopped(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, first, second = await unique(VERDICTS), Sink(), Sink()
    consumer = Consumer(settings, [topic], "resume", first, producer=producer, options=FAST)
    await consumer.start()
    await eventually(lambda: consumer.readiness().ready)
    await producer.send(topic, "a", b"1")
    await eventually(lambda: first.values == [b"1"])
    await consumer.stop()
    await producer.send(topic, "a", b"2")
    again = Consumer(settings, [topic], "resume", second, producer=producer, options=FAST)
    await again.start()
    await eventually(lambda: second.values)
    await again.stop()
    assert second.values == [b"2"]


async def test_bad_records_go_to_the_dead_letters_with_reason_and_headers(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, good = await unique(VERDICTS, 1), []

    async def handle_one(record: Record) -> None:
        if record.value == b"\xffgarbage":
            raise BadRecord(record, "value is not JSON")
        good.append(record.value)

    letters = Sink()
    consumer = Consumer(settings, [topic], "bad", each(handle_one), producer=producer, options=FAST)
    reader = Consumer(
        settings, [DEAD_LETTERS], None, letters, producer=None, options=replace(FAST, start=Start.LATEST)
    )
    await consumer.start()
    await reader.start()
    await eventually(lambda: consumer.readiness().ready and reader.readiness().ready)
    await eventually(reader.caught_up.is_set)
    for value in (b"1", b"\xffgarbage", b"2"):
        await producer.send(topic, "k", value, [("origin", b"here")])
    await eventually(lambda: good == [b"1", b"2"] and letters.records)
    letter = letters.records[0]
    assert letter.value == b"\xffgarbage"
    assert letter.header("paceline_reason") == "value is not JSON"
    assert letter.header("paceline_topic") == topic.name
    assert letter.header("paceline_offset") == "1"
    assert letter.header("origin") == "here"
    assert consumer.rejected == 1
    await consumer.stop()
    await reader.stop()


async def test_a_record_that_breaks_its_batch_is_found_and_the_rest_goes_on(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, handled = await unique(VERDICTS, 1), set[bytes]()

    async def handle(records: Sequence[Record]) -> None:
        for record in records:
            if record.value == b"3":
                raise KeyError("a bug")
            handled.add(record.value)

    for number in range(6):
        await producer.send(topic, "k", b"%d" % number)
    consumer = Consumer(settings, [topic], "isolate", handle, producer=producer, options=FAST)
    await consumer.start()
    await eventually(lambda: len(handled) == 5 and consumer.rejected == 1, 20)
    await consumer.stop()


async def test_a_dependency_that_is_away_delays_and_loses_nothing(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, handled, away = await unique(VERDICTS, 1), list[bytes](), [True]

    async def handle(records: Sequence[Record]) -> None:
        if away[0]:
            raise ConnectionRefusedError("the database restarts")
        handled.extend(record.value for record in records)

    await producer.send(topic, "k", b"1")
    consumer = Consumer(settings, [topic], "away", handle, producer=producer, options=FAST)
    await consumer.start()
    await eventually(lambda: "the database restarts" in consumer.readiness().detail)
    away[0] = False
    await eventually(lambda: handled == [b"1"])
    await eventually(lambda: consumer.readiness().ready)
    assert consumer.rejected == 0
    await consumer.stop()


async def test_without_a_group_the_whole_topic_is_read_and_caught_up_is_told(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, sink = await unique(JOBS, 4), Sink()
    for number in range(10):
        await producer.send(topic, f"job-{number}", b"%d" % number)
    await producer.send(topic, "job-0", None)
    options = replace(FAST, start=Start.EARLIEST)
    consumer = Consumer(settings, [topic], None, sink, producer=producer, options=options)
    await consumer.start()
    await eventually(consumer.caught_up.is_set)
    assert len(sink.records) == 11
    assert [record.key_text for record in sink.records if record.is_tombstone] == ["job-0"]
    await consumer.stop()


async def test_caught_up_is_told_for_an_empty_topic(
    settings: KafkaSettings, unique: Unique, eventually: Eventually
) -> None:
    topic, sink = await unique(JOBS), Sink()
    options = replace(FAST, start=Start.EARLIEST)
    consumer = Consumer(settings, [topic], None, sink, producer=None, options=options)
    await consumer.start()
    await eventually(consumer.caught_up.is_set)
    await consumer.stop()


async def test_latest_skips_what_was_there_before(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, sink = await unique(VERDICTS, 1), Sink()
    await producer.send(topic, "k", b"old")
    options = replace(FAST, start=Start.LATEST)
    consumer = Consumer(settings, [topic], None, sink, producer=producer, options=options)
    await consumer.start()
    await eventually(consumer.caught_up.is_set)
    await producer.send(topic, "k", b"new")
    await eventually(lambda: sink.values)
    assert sink.values == [b"new"]
    await consumer.stop()


async def test_on_assigned_may_seek_so_that_state_is_rebuilt_from_a_snapshot(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, sink, seen = await unique(VERDICTS, 1), Sink(), list[int]()
    for number in range(5):
        await producer.send(topic, "k", b"%d" % number)

    async def on_assigned(assignment: Assignment) -> None:
        ends = await assignment.end_offsets()
        at_start = await assignment.offsets_at(0.0)
        seen.extend([*ends.values(), *at_start.values()])
        assignment.seek(Partition(topic.name, 0), 3)

    consumer = Consumer(
        settings, [topic], "seek", sink, producer=producer, options=FAST, on_assigned=on_assigned
    )
    await consumer.start()
    await eventually(lambda: len(sink.records) == 2)
    assert sink.values == [b"3", b"4"]
    assert seen == [5, 0]
    await consumer.stop()


async def test_a_rebalance_hands_partitions_over_without_loss(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, left, right = await unique(VERDICTS, 4), Sink(), Sink()
    revoked: list[int] = []

    async def on_revoked(partitions: Sequence[Partition]) -> None:
        revoked.append(len(partitions))

    first = Consumer(settings, [topic], "share", left, producer=producer, options=FAST, on_revoked=on_revoked)
    await first.start()
    await eventually(lambda: first.readiness().ready)
    for number in range(20):
        await producer.send(topic, f"k{number}", b"%d" % number)
    await eventually(lambda: len(left.records) == 20)
    second = Consumer(settings, [topic], "share", right, producer=producer, options=FAST)
    await second.start()
    await eventually(lambda: second.readiness().ready and revoked, 20)
    for number in range(20, 60):
        await producer.send(topic, f"k{number}", b"%d" % number)
    await eventually(lambda: len({*left.values, *right.values}) == 60)
    assert revoked[0] == 4
    assert right.records
    assert len(left.records) + len(right.records) == 60
    await first.stop()
    await second.stop()


async def test_a_group_has_handled_what_any_of_its_members_has(
    settings: KafkaSettings, unique: Unique, producer: Producer, eventually: Eventually
) -> None:
    topic, handled, is_open = await unique(VERDICTS, 4), list[bytes](), asyncio.Event()

    async def handle(records: Sequence[Record]) -> None:
        await is_open.wait()
        handled.extend(record.value for record in records)

    async def reached(consumer: Consumer, at_s: float) -> bool:
        until_s = await consumer.handled_until()
        return until_s is not None and until_s >= at_s

    first, second = (
        Consumer(settings, [topic], "reach", handle, producer=producer, options=FAST) for _ in range(2)
    )
    assert await first.handled_until() is None, "it has no connection"
    await first.start()
    await second.start()
    await eventually(lambda: reached(first, time.time() - 1.0), 20)
    for number in range(20):
        await producer.send(topic, f"k{number}", b"%d" % number)
    written_s = time.time()
    for _ in range(10):
        assert not await reached(first, written_s)
        assert not await reached(second, written_s)
    is_open.set()
    for consumer in (first, second):
        await eventually(lambda consumer=consumer: reached(consumer, written_s), 20)
        assert len(handled) == 20
    await second.stop()
    third = Consumer(settings, [topic], "reach", handle, producer=producer, options=FAST)
    await third.start()
    await eventually(lambda: reached(third, written_s), 20)
    await first.stop()
    await third.stop()
    assert len(handled) == 20


async def test_start_without_kafka_neither_fails_nor_blocks(eventually: Eventually) -> None:
    absent = KafkaSettings(bootstrap="127.0.0.1:1", lossy_buffer_bytes_max=2_000, send_timeout_s=0.3)
    producer, sink = Producer(absent, "alone"), Sink()
    consumer = Consumer(absent, [VERDICTS], "alone", sink, producer=producer)
    async with asyncio.timeout(1.0):
        await producer.start()
        await consumer.start()
        for _ in range(100):
            await producer.send(FRAMES, "job:0", b"x" * 100)
    assert producer.dropped > 0
    assert producer.buffered_bytes <= 2_000
    with pytest.raises(KafkaUnavailable, match=r"no connection within 0\.3 s"):
        await producer.send(VERDICTS, "job", b"v")
    assert not consumer.readiness().ready
    await eventually(lambda: consumer.recreated > 0)
    async with asyncio.timeout(5.0):
        await consumer.stop()
        await producer.stop()


async def test_kafka_restarts_and_everything_goes_on(
    settings: KafkaSettings,
    unique: Unique,
    producer: Producer,
    kafka_server: LocalKafka,
    eventually: Eventually,
) -> None:
    lossy, durable, sink = await unique(FRAMES, 2), await unique(VERDICTS, 2), Sink()
    consumer = Consumer(settings, [lossy, durable], "restart", sink, producer=producer, options=FAST)
    await consumer.start()
    await eventually(lambda: consumer.readiness().ready)
    await producer.send(durable, "k", b"before")
    await eventually(lambda: b"before" in sink.values)
    kafka_server.stop()
    await producer.send(lossy, "j:0", b"frame")
    with pytest.raises(KafkaUnavailable):
        await producer.send(durable, "k", b"during", timeout_s=1.0)
    kafka_server.start()  # not in a thread: the node dies with the thread that started it
    await eventually(lambda: b"frame" in sink.values, 40)

    async def delivered() -> bool:
        try:
            await producer.send(durable, "k", b"after")
        except KafkaUnavailable:
            return False
        return True

    await eventually(delivered, 40)
    await eventually(lambda: b"after" in sink.values, 40)
    await consumer.stop()


async def test_the_watch_recreates_a_consumer_that_stands_still(
    settings: KafkaSettings,
    unique: Unique,
    producer: Producer,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, sink, silent, calls = await unique(VERDICTS, 1), Sink(), [True], list[int]()
    consumer = Consumer(settings, [topic], "stuck", sink, producer=producer, options=FAST)
    await consumer.start()
    await eventually(lambda: consumer.readiness().ready)

    from aiokafka import AIOKafkaConsumer

    real = AIOKafkaConsumer.getmany

    async def getmany(self: AIOKafkaConsumer, *parts: object, **options: object) -> object:
        if silent[0]:
            calls.append(1)
            await asyncio.sleep(0.05)
            return {}
        return await real(self, *parts, **options)

    before = consumer.recreated
    monkeypatch.setattr(AIOKafkaConsumer, "getmany", getmany)
    await eventually(lambda: calls)  # the poll that was under way before has ended
    await producer.send(topic, "k", b"1")
    await eventually(lambda: consumer.recreated > before, 20)
    silent[0] = False
    await eventually(lambda: sink.values == [b"1"], 20)
    await consumer.stop()
