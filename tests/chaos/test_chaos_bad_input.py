"""Garbage on every topic and on the agent's socket: kept or counted, and the next hang is found."""

import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from paceline.contracts.topics import DEAD_LETTERS, FRAMES, HEALTH, INCIDENTS, JOBS, SIGNALS, VERDICTS
from paceline.detector import DetectorApp
from tests.chaos.bad_input import bad_records
from tests.chaos.conftest import Chaos, roots
from tests.chaos.driver import FakeJob

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEPT = {topic.name for topic in (FRAMES, HEALTH, INCIDENTS, JOBS, SIGNALS, VERDICTS)}


async def send_all(chaos: Chaos, job: FakeJob, draw: random.Random) -> int:
    producer = AIOKafkaProducer(bootstrap_servers=chaos.stack.kafka.bootstrap)
    await producer.start()
    records = bad_records(job.job, job.attempt, job.world, draw)
    try:
        for record in records:
            await producer.send(record.topic.name, record.value, record.key.encode(), headers=record.headers)
        await producer.flush()
    finally:
        await producer.stop()
    return len(records)


class DeadLetters:
    """Source topics of the dead letters that belong to a job."""

    def __init__(self, consumer: AIOKafkaConsumer, job: str) -> None:
        self.sources: set[str] = set()
        self.reasons: list[str] = []
        self._consumer = consumer
        self._job = job

    async def read(self) -> set[str]:
        found = await self._consumer.getmany(timeout_ms=200)
        for record in (record for records in found.values() for record in records):
            headers = dict(record.headers)
            if headers["paceline_key"].decode().startswith(self._job):
                self.sources.add(headers["paceline_topic"].decode())
                self.reasons.append(headers["paceline_reason"].decode())
        return self.sources


def watch_losses(chaos: Chaos, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What the detector tells the metrics that it refused or could not read."""
    detector = cast(DetectorApp, chaos.stack.parts["detector"][0])
    told: Counter[str] = Counter()

    def watch(take: Callable[[], Mapping[str, int]]) -> Callable[[], Mapping[str, int]]:
        def taken() -> Mapping[str, int]:
            found = take()
            told.update(found)
            return found

        return taken

    monkeypatch.setattr(detector.core, "take_refused", watch(detector.core.take_refused))
    monkeypatch.setattr(detector.shelf, "take_lost", watch(detector.shelf.take_lost))
    return told


async def test_garbage_on_every_topic(chaos: Chaos, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await chaos.launch()
    told = watch_losses(chaos, monkeypatch)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    consumer = AIOKafkaConsumer(
        DEAD_LETTERS.name, bootstrap_servers=chaos.stack.kafka.bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        letters = DeadLetters(consumer, job.job)
        await send_all(chaos, job, random.Random(seed))

        async def all_kept() -> bool:
            return await letters.read() >= KEPT

        await eventually(all_kept, 40)
    finally:
        await consumer.stop()
    assert all(letters.reasons)
    await eventually(lambda: told["rank_out_of_range"] and told["snapshot_unreadable"], 20)
    assert chaos.ranks_seen(job) == job.world
    await job.stuck(2, "hold")
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [2])
    everything = await chaos.stack.get("/v1/incidents")
    assert [item["job"] for item in everything["items"]] == [job.job]
    job.tell(2, "go")
    await chaos.incident(job, "resolved")
    await chaos.stack.ready()


async def test_garbage_on_the_agent_socket(chaos: Chaos, eventually: Any) -> None:
    """Strangers are refused or dropped; the ranks that are observed stay observed."""
    job = await chaos.launch()
    drops = chaos.stack.agent.drops
    before = drops["bad_message"]
    draw = random.Random(5)
    payloads = [
        struct.pack("<I", 2**31) + b"x" * 100,
        struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc",
        struct.pack("<I", 2) + b"{}",
        struct.pack("<I", 17) + b'{"type": "hello"}',
        draw.randbytes(4096),
    ]
    strangers = []
    for payload in payloads:
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(str(chaos.stack.socket))
        stranger.sendall(payload)
        strangers.append(stranger)
    await eventually(lambda: drops["bad_message"] - before >= len(payloads), 10)
    for stranger in strangers:
        stranger.close()
    await job.stuck(1, "hold")
    incident = await chaos.incident(job)
    assert (incident["verdict_class"], roots(incident)) == ("H1", [1])
