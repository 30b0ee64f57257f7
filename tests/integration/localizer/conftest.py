"""A localizer's surroundings on a real Kafka: a publisher of registry and signals, an ear on verdicts."""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import pytest

from paceline.contracts.batch import Batch, BatchKind, encode_batch
from paceline.contracts.events import EventType
from paceline.contracts.registry import HealthEvent
from paceline.contracts.topics import DEAD_LETTERS, HEALTH, JOBS, SIGNALS, VERDICTS
from paceline.contracts.verdicts import VerdictRecord
from paceline.localizer import LocalizerSettings
from paceline.localizer.memory import Registry
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.settings import KafkaSettings
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob

SECOND_NS = 1_000_000_000


class Ear:
    """Verdicts and dead letters, from now on."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.verdicts: list[tuple[VerdictRecord, str]] = []  # record, traceparent
        self.dead: list[Record] = []
        self.consumer = Consumer(
            kafka,
            [VERDICTS, DEAD_LETTERS],
            None,
            self._hear,
            producer=None,
            name="test-ear",
            options=ConsumerOptions(start=Start.LATEST, poll_s=0.05),
        )

    async def _hear(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        for record in records:
            if record.topic == VERDICTS.name:
                _, verdict = decode_event(VerdictRecord, record.headers, record.value)
                self.verdicts.append((verdict, record.header("traceparent")))
            else:
                self.dead.append(record)
        return ()

    def of(self, job: str) -> list[VerdictRecord]:
        return [verdict for verdict, _ in self.verdicts if verdict.job == job]


class FakeJob:
    """A simulated job that hangs, under a name of its own."""

    def __init__(self, producer: Producer, kind: str = "h1", seed: int = 3) -> None:
        self.name = f"job-{secrets.token_hex(4)}"
        self.producer = producer
        self.injection = inject(kind, SimulatedJob(Shape(4, 2, 1), seed))
        self._seq = 0

    async def register(self) -> None:
        record, nodes, comms = self.injection.job.registry()
        events: list[tuple[EventType, str, Registry]] = [
            (EventType.JOB_RECORD, self.name, replace(record, job=self.name)),
            *((EventType.NODE_RECORD, f"{self.name}:{n.node}", replace(n, job=self.name)) for n in nodes),
            *(
                (EventType.COMMUNICATOR_RECORD, f"{self.name}:{c.communicator}", replace(c, job=self.name))
                for c in comms
            ),
        ]
        for kind, key, item in events:
            await self.producer.send_event(JOBS, key, kind, item, event_id=secrets.token_hex(8))

    def _stamp(self, batch: Batch) -> Batch:
        self._seq += 1
        now = self._seq * SECOND_NS
        return replace(
            batch,
            job=self.name,
            episode=f"epi-{self.name}",
            seq=self._seq,
            sampled_ns=now,
            sampled_unix_ns=1_700_000_000 * SECOND_NS + now,
        )

    async def stall(self, hidden: Sequence[int] = ()) -> None:
        for batch in self.injection.job.batches(2, hidden):
            await self.producer.send(SIGNALS, self.name, encode_batch(self._stamp(batch)))

    async def resume(self) -> None:
        empty = self.injection.job.batches(2)[0]
        clear = replace(self._stamp(empty), kind=BatchKind.CLEAR, rows={})
        await self.producer.send(SIGNALS, self.name, encode_batch(clear))

    async def report(self, event: HealthEvent) -> None:
        mine = replace(event, job=self.name)
        await self.producer.send_event(HEALTH, self.name, EventType.HEALTH, mine, event_id=event.id)


@pytest.fixture
def kafka(kafka_bootstrap: str) -> KafkaSettings:
    return KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=f"test-{secrets.token_hex(4)}")


@pytest.fixture
def settings(kafka: KafkaSettings) -> LocalizerSettings:
    return LocalizerSettings(kafka=kafka, health_wait_s=0.5)


@pytest.fixture
async def producer(kafka: KafkaSettings) -> AsyncIterator[Producer]:
    producer = Producer(kafka, "test")
    await producer.start()
    yield producer
    await producer.stop()


@pytest.fixture
def fake_job(producer: Producer) -> Callable[..., FakeJob]:
    return lambda kind="h1", seed=3: FakeJob(producer, kind, seed)


@pytest.fixture
async def ear(kafka: KafkaSettings, eventually: Callable[..., object]) -> AsyncIterator[Ear]:
    ear = Ear(kafka)
    await ear.consumer.start()
    await ear.consumer.caught_up.wait()
    yield ear
    await ear.consumer.stop()
