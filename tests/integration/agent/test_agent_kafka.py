"""The agent with a real Kafka that is away at first, and goes away again."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.kafka_publisher import KafkaPublisher
from paceline.agent.settings import AgentSettings
from paceline.contracts.batch import Batch, BatchFlag, RowKind, decode_batch
from paceline.contracts.codes import ExitKind
from paceline.contracts.registry import HealthEvent, JobRecord, JobState
from paceline.contracts.topics import FRAMES, HEALTH, JOBS
from paceline.lab.kafka import LocalKafka
from paceline.runtime.clock import SystemClock
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.record import Record
from paceline.runtime.settings import KafkaSettings

Eventually = Callable[..., Awaitable[Any]]
SCRIPT = Path(__file__).parents[2] / "unit" / "agent" / "rank_process.py"


class Rank:
    def __init__(self, socket: Path, job: str, rank: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(socket), job, "a1", str(rank), "2", str(os.getuid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Reader:
    """Everything in the agent's topics, from the start."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.records: list[Record] = []
        self.consumer = Consumer(
            settings, (FRAMES, HEALTH, JOBS), None, self.take, producer=None,
            options=ConsumerOptions(start=Start.EARLIEST),
        )  # fmt: skip

    async def take(self, records: Sequence[Record]) -> None:
        self.records += records

    def batches(self, job: str) -> list[Batch]:
        found = [decode_batch(r.value) for r in self.records if r.topic == FRAMES.name]
        return [batch for batch in found if batch.job == job]

    def health(self, job: str) -> list[HealthEvent]:
        found = [
            decode_event(HealthEvent, r.headers, r.value)[1] for r in self.records if r.topic == HEALTH.name
        ]
        return [event for event in found if event.job == job]

    def states(self, job: str) -> list[JobState]:
        records = [r for r in self.records if r.topic == JOBS.name and r.key_text == job]
        return [decode_event(JobRecord, r.headers, r.value)[1].state for r in records]


@pytest.fixture
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="pa-"))


@pytest.fixture
def ranks(folder: Path) -> Iterator[Callable[[str, int], Rank]]:
    started: list[Rank] = []

    def start(job: str, rank: int) -> Rank:
        started.append(Rank(folder / "agent.sock", job, rank))
        return started[-1]

    yield start
    for rank in started:
        rank.end()


async def start_kafka(server: LocalKafka) -> None:
    """While the loop goes on. Launched here: the server dies with the thread that launched it."""
    server.launch()
    await asyncio.to_thread(server.wait_ready)


def make_agent(folder: Path, bootstrap: str, **changes: object) -> AgentApp:
    kafka = KafkaSettings(bootstrap=bootstrap, request_timeout_s=5.0)
    values: dict[str, Any] = {
        "socket": folder / "agent.sock", "state_dir": folder, "node": "n1", "interval_s": 0.2, "drain_s": 3.0,
        **changes,
    }  # fmt: skip
    clock = SystemClock()
    return AgentApp(AgentSettings(**values), clock, KafkaPublisher(kafka, "agent-n1", clock, timeout_s=2.0))


async def test_outage_loses_no_diagnosis(
    kafka_server: LocalKafka, kafka_bootstrap: str, folder: Path, ranks: Any, eventually: Eventually
) -> None:
    """Kafka is absent when the agent starts and while a rank dies; afterwards all of it is there."""
    await asyncio.to_thread(kafka_server.stop)
    app = make_agent(folder, kafka_bootstrap, memory_bytes_max=64 << 10)
    await app.start()
    job = "outage"
    dying, waiting = ranks(job, 0), ranks(job, 1)
    dying.ask("rounds 3")
    waiting.ask("rounds 3")
    waiting.ask("enter")
    await eventually(lambda: app.waiting[1] > 5 and app.roster.living_count == 2)
    os.kill(dying.process.pid, signal.SIGKILL)
    await eventually(lambda: any(p.exit for p in app.roster.processes.values()))
    samples = app.sampler.samples
    await eventually(lambda: app.sampler.samples > samples + 10)  # it goes on sampling
    assert app.delivered.total() == 0
    await start_kafka(kafka_server)
    reader = Reader(KafkaSettings(bootstrap=kafka_bootstrap))
    await reader.consumer.start()
    (event,) = await eventually(lambda: reader.health(job), 40)
    assert (event.rank, event.exit_code) == (0, -9)
    last = await eventually(lambda: [b for b in reader.batches(job) if b.flags & BatchFlag.LAST], 20)
    rows = {int(row["rank"]): row for row in last[0].table(RowKind.PROCESS)}
    assert rows[0]["exit_kind"] == ExitKind.SIGNAL
    assert rows[1]["exit_kind"] == ExitKind.NONE
    seqs = [batch.seq for batch in reader.batches(job)]
    assert sorted(set(seqs)) == list(range(min(seqs), max(seqs) + 1))  # no gap
    assert seqs == sorted(seqs)
    assert JobState.RUNNING in reader.states(job)
    assert app.drops.total() == 0
    await app.stop()
    await reader.consumer.stop()


async def test_restarted_agent_delivers_what_its_predecessor_could_not(
    kafka_server: LocalKafka, kafka_bootstrap: str, folder: Path, ranks: Any, eventually: Eventually
) -> None:
    await asyncio.to_thread(kafka_server.stop)
    job = "restart"
    first = make_agent(folder, kafka_bootstrap, drain_s=0.2)
    await first.start()
    rank = ranks(job, 0)
    rank.ask("rounds 3")
    dying = ranks(job, 1)
    await eventually(lambda: first.roster.living_count == 2)
    os.kill(dying.process.pid, signal.SIGKILL)
    await eventually(lambda: first.waiting[1] > 5 and first.roster.living_count == 1)
    await first.stop()
    await start_kafka(kafka_server)
    second = make_agent(folder, kafka_bootstrap)
    await second.start()
    reader = Reader(KafkaSettings(bootstrap=kafka_bootstrap))
    await reader.consumer.start()
    await eventually(lambda: second.roster.living_count == 1, 20)  # the process said hello again
    newest = await eventually(lambda: reader.batches(job) and reader.batches(job)[-1].seq, 30)
    rounds = {int(n) for batch in reader.batches(job) for n in batch.table(RowKind.ROUND)["round"]}
    assert rounds == {1, 2, 3}  # sampled by the first agent only
    await eventually(lambda: reader.batches(job)[-1].seq > newest + 2, 20)
    (event,) = await eventually(lambda: reader.health(job))
    assert (event.rank, event.exit_code) == (1, -9)
    await second.stop()
    await reader.consumer.stop()


async def test_kafka_that_vanishes_and_comes_back(
    kafka_server: LocalKafka, kafka_bootstrap: str, folder: Path, ranks: Any, eventually: Eventually
) -> None:
    app = make_agent(folder, kafka_bootstrap)
    await app.start()
    job = "vanish"
    rank = ranks(job, 0)
    rank.ask("rounds 1")
    await eventually(lambda: app.delivered["frames"] > 3, 30)
    await asyncio.to_thread(kafka_server.stop)
    await eventually(lambda: app.waiting[1] > 10, 30)
    os.kill(rank.process.pid, signal.SIGTERM)
    await eventually(lambda: app.waiting[0] > 0)
    await start_kafka(kafka_server)
    reader = Reader(KafkaSettings(bootstrap=kafka_bootstrap))
    await reader.consumer.start()
    await eventually(lambda: reader.health(job), 40)
    await eventually(
        lambda: JobState.FAILED in reader.states(job) or JobState.CANCELLED in reader.states(job), 20
    )
    await eventually(lambda: [b for b in reader.batches(job) if b.flags & BatchFlag.LAST], 20)
    await app.stop()
    await reader.consumer.stop()
