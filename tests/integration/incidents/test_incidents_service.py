"""The running service between a real Kafka and a real PostgreSQL, with both of them failing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from paceline.contracts.events import EventType, IncidentEvent
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState, NodeRecord, RankRecord
from paceline.contracts.topics import DEAD_LETTERS, INCIDENTS, JOBS, VERDICTS, Topic
from paceline.contracts.verdicts import VerdictRecord
from paceline.incidents.app import IncidentsApp
from paceline.incidents.relay import OutboxRelay
from paceline.incidents.settings import IncidentsSettings
from paceline.runtime.app import App
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import Record
from paceline.runtime.settings import KafkaSettings
from paceline.store import Database
from paceline.store.repositories.incidents import IncidentFilter, IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.settings import StoreSettings

Make = Callable[..., VerdictRecord]
Eventually = Callable[..., Any]
NOW = 1_767_323_045.0
WAIT_S = 60.0  # the machine may be busy


class Wire:
    """Sends records as the other services do, and collects what comes out."""

    def __init__(self, kafka: KafkaSettings, job: str) -> None:
        self.kafka = kafka
        self.job = job
        self.producer = Producer(kafka, "test")
        self.events: list[IncidentEvent] = []
        self.letters: list[Record] = []
        latest = ConsumerOptions(start=Start.EARLIEST, poll_s=0.1)
        self._out = [
            Consumer(kafka, [INCIDENTS], None, self._collect, producer=None, name="out", options=latest),
            Consumer(kafka, [DEAD_LETTERS], None, self._bury, producer=None, name="dead", options=latest),
        ]

    async def start(self) -> None:
        await self.producer.start()
        for consumer in self._out:
            await consumer.start()

    async def stop(self) -> None:
        for consumer in self._out:
            await consumer.stop()
        await self.producer.stop()

    async def verdict(self, record: VerdictRecord, traceparent: str = "") -> None:
        await self.producer.send_event(
            VERDICTS, record.job, EventType.VERDICT.value, record, event_id=record.id, traceparent=traceparent
        )

    async def registry(self, key: str, event_type: EventType, value: object) -> None:
        await self.producer.send_event(JOBS, key, event_type.value, value, event_id=derived_id("r", key))

    async def raw(self, topic: Topic, value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        await self.producer.send(topic, self.job, value, headers)

    @property
    def ids(self) -> set[str]:
        """Once each: what PostgreSQL did not note before it went is published again, same id."""
        return {event.id for event in self.events}

    @property
    def types(self) -> list[str]:
        return [event.type.short.partition(".")[2] for event in self.events]

    async def _collect(self, records: Sequence[Record]) -> None:
        for record in records:
            headers, event = decode_event(IncidentEvent, record.headers, record.value)
            assert headers.id == event.id
            if event.job == self.job:
                self.events.append(event)

    async def _bury(self, records: Sequence[Record]) -> None:
        self.letters += [record for record in records if record.header("paceline_key") == self.job]


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job of this test's own: the topics are shared."""
    return f"job-{request.node.name}"


@pytest.fixture
def settings(database: str, kafka_bootstrap: str, job: str) -> IncidentsSettings:
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=job, send_timeout_s=60.0)
    return IncidentsSettings(kafka=kafka, database=StoreSettings(url=database), console_url="http://console")


@pytest.fixture
async def wire(settings: IncidentsSettings, job: str) -> AsyncIterator[Wire]:
    opened = Wire(settings.kafka, job)
    await opened.start()
    yield opened
    await opened.stop()


@asynccontextmanager
async def running(settings: IncidentsSettings, *, relay: bool = True) -> AsyncIterator[None]:
    apps: list[App] = [IncidentsApp(settings), *([OutboxRelay(settings)] if relay else [])]
    for app in apps:
        await app.start()
    try:
        yield
    finally:
        for app in reversed(apps):
            await app.stop()


async def start_again(server: Any) -> None:
    """Without standing in the loop's way. The process is made here: it dies with the thread that
    makes it, and a worker thread ends with the test."""
    server.launch()
    await asyncio.to_thread(server.wait_ready)


async def statuses(store: Database, job: str) -> list[str]:
    async with store.transaction() as session:
        found = await IncidentRepository(session).page(IncidentFilter(jobs=[job]), 10)
    return [incident.status for incident in found]


async def test_from_verdict_to_event_and_back_to_resolved(
    settings: IncidentsSettings, wire: Wire, make_record: Make, job: str, eventually: Eventually
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with running(settings):
        await wire.verdict(make_record(1, job=job), trace)
        await eventually(lambda: wire.types == ["opened"], WAIT_S)
        for record in (
            make_record(1, job=job),
            make_record(2, job=job),
            make_record(3, job=job, resolved=True),
        ):
            await wire.verdict(record)
        await eventually(lambda: wire.types == ["opened", "updated", "resolved"], WAIT_S)
    assert [event.number for event in wire.events] == [1, 1, 1]
    assert wire.events[0].url.startswith("http://console/incidents/inc_")


async def test_the_trace_goes_on_in_the_outbox(
    settings: IncidentsSettings,
    wire: Wire,
    make_record: Make,
    job: str,
    store: Database,
    eventually: Eventually,
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def stored() -> str:
        async with store.transaction() as session:
            query = text("SELECT traceparent FROM outbox WHERE job = :job")
            return str(await session.scalar(query, {"job": job}) or "")

    async with running(settings, relay=False):
        await wire.verdict(make_record(1, job=job), trace)
        assert (await eventually(stored, WAIT_S)).split("-")[1] == trace.split("-")[1]


async def test_garbage_goes_to_the_dead_letters_and_nothing_else_stops(
    settings: IncidentsSettings,
    wire: Wire,
    make_record: Make,
    job: str,
    store: Database,
    eventually: Eventually,
) -> None:
    good = make_record(1, job=job)
    bad_bundle = replace(make_record(9, job=job, episode="epi_9"), evidence_bundle="###")
    nul = replace(make_record(8, job=job, episode="a\0b"))
    large = make_record(2**70, job=job, episode="epi_7")
    ranks = NodeRecord(job, "a1", "n0", "ag", (RankRecord(-5, 0, 1, 1),))
    async with running(settings):
        for topic in (VERDICTS, JOBS):
            await wire.raw(topic, b"\x00\xff garbage")
            await wire.raw(topic, b"{}", [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"x"),
                                          ("ce_type", b"dev.paceline.other.v9")])  # fmt: skip
        await wire.verdict(bad_bundle)
        await wire.verdict(nul)
        await wire.verdict(large)
        await wire.registry(job, EventType.NODE_RECORD, ranks)
        await wire.verdict(good)
        await eventually(lambda: wire.types == ["opened"], WAIT_S)
        await eventually(lambda: len(wire.letters) == 8, WAIT_S)
    reasons = " | ".join(letter.header("paceline_reason") for letter in wire.letters)
    for words in ("ce_specversion", "evidence_bundle is '###'", "rank is -5", "dev.paceline.other.v9"):
        assert words in reasons
    assert await statuses(store, job) == ["open"]


async def test_the_registry_becomes_tables_and_ends_incidents(
    settings: IncidentsSettings,
    wire: Wire,
    make_record: Make,
    job: str,
    store: Database,
    eventually: Eventually,
) -> None:
    record = JobRecord(
        job=job, attempt="a1", cluster="c", tenant="t", user="u", name=job, world_size=8, shards=1,
        state=JobState.RUNNING, id_source="declared", attempt_source="store", started_unix_s=NOW - 600,
    )  # fmt: skip
    node = NodeRecord(job, "a1", "n0", "ag", tuple(RankRecord(rank, rank, 1, 1) for rank in range(8)))
    group = CommunicatorRecord(job, "a1", "00000000000000aa", "tp_1", "0-7", 0, 0, "gloo")

    async def counts() -> bool:
        async with store.transaction() as session:
            jobs = JobRepository(session)
            found = await jobs.get(job)
            return found is not None and await jobs.counts([found]) == {job: (1, 1)}

    async with running(settings):
        await wire.registry(job, EventType.JOB_RECORD, record)
        await wire.registry(f"{job}:n0", EventType.NODE_RECORD, node)
        await wire.registry(f"{job}:aa", EventType.COMMUNICATOR_RECORD, group)
        await wire.producer.send(JOBS, f"{job}:gone", None)
        await eventually(counts, WAIT_S)
        await wire.verdict(make_record(1, job=job))
        await eventually(lambda: wire.types == ["opened"], WAIT_S)
        ended = replace(record, state=JobState.FINISHED, ended_unix_s=NOW)
        await wire.registry(job, EventType.JOB_RECORD, ended)
        await eventually(lambda: wire.types == ["opened", "resolved"], WAIT_S)
    assert wire.letters == []


async def test_keys_of_a_job_that_nobody_buried_leave_the_registry(
    settings: IncidentsSettings, wire: Wire, job: str, eventually: Eventually
) -> None:
    record = JobRecord(
        job, "a1", "c", "t", "u", "name", 8, 1, JobState.RUNNING, "declared", "store", NOW - 90 * 86_400
    )
    group = CommunicatorRecord(job, "a1", "00000000000000aa", "tp_1", "0-7", 0, 0, "gloo")
    buried: set[str] = set()

    async def collect(records: Sequence[Record]) -> None:
        buried.update(record.key_text for record in records if record.is_tombstone)

    options = ConsumerOptions(start=Start.EARLIEST, poll_s=0.1)
    reader = Consumer(settings.kafka, [JOBS], None, collect, producer=None, name="all", options=options)
    await reader.start()
    try:
        async with running(settings.model_copy(update={"cleanup_interval_s": 0.2})):
            await wire.registry(f"{job}:00000000000000aa", EventType.COMMUNICATOR_RECORD, group)
            await wire.registry(job, EventType.JOB_RECORD, record)
            await eventually(lambda: job in buried, WAIT_S)
    finally:
        await reader.stop()


async def test_postgres_restarts_and_no_incident_is_lost(
    settings: IncidentsSettings,
    wire: Wire,
    make_record: Make,
    job: str,
    store: Database,
    postgres_server: Any,
    eventually: Eventually,
) -> None:
    async with running(settings):
        await wire.verdict(make_record(1, job=job))
        await eventually(lambda: wire.types == ["opened"], WAIT_S)
        await asyncio.to_thread(postgres_server.stop)
        for rank in range(3):
            await wire.verdict(make_record(1, job=job, episode=f"epi_{rank}_down", rank=rank))
        await start_again(postgres_server)
        await eventually(lambda: len(wire.ids) == 4, WAIT_S)
    assert await statuses(store, job) == ["open"] * 4
    assert wire.letters == []


async def test_kafka_restarts_and_every_event_arrives_once_in_order(
    settings: IncidentsSettings,
    wire: Wire,
    make_record: Make,
    job: str,
    store: Database,
    kafka_server: Any,
    eventually: Eventually,
) -> None:
    async with running(settings, relay=False):
        await wire.verdict(make_record(1, job=job))
        await wire.verdict(make_record(2, job=job))

        async def is_revised() -> bool:
            async with store.transaction() as session:
                query = text("SELECT count(*) = 2 FROM outbox WHERE job = :job")
                return bool(await session.scalar(query, {"job": job}))

        await eventually(is_revised, WAIT_S)
    await asyncio.to_thread(kafka_server.stop)
    async with running(settings):
        await start_again(kafka_server)
        await eventually(lambda: len(wire.types) >= 2, WAIT_S)
        await wire.verdict(make_record(3, job=job, resolved=True))
        await eventually(lambda: wire.types[-1] == "resolved", WAIT_S)
    seen = {event.id: event.type.short for event in wire.events}
    assert list(seen.values()) == ["incident.opened", "incident.updated", "incident.resolved"]


async def test_two_relays_publish_everything_in_order(
    settings: IncidentsSettings, wire: Wire, make_record: Make, job: str, eventually: Eventually
) -> None:
    other = OutboxRelay(settings)
    await other.start()
    try:
        async with running(settings):
            for revision in range(1, 30):
                await wire.verdict(make_record(revision, job=job))
            await eventually(lambda: len(wire.events) == 29, WAIT_S)
    finally:
        await other.stop()
    assert [event.revision for event in wire.events] == list(range(1, 30))
