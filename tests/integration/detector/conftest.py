"""The fake job of the detection tests, an agent that publishes it, and an ear on the signals."""

import asyncio
import importlib.util
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paceline.analysis.detection import DetectionPolicy
from paceline.analysis.detection.snapshot import load_block, unpack_chunks
from paceline.contracts.batch import Batch, BatchKind, decode_batch, encode_batch
from paceline.contracts.topics import DEAD_LETTERS, DETECTOR_STATE, FRAMES, HEALTH, SIGNALS
from paceline.detector import DetectorSettings
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.settings import KafkaSettings


def _load_fake_job() -> ModuleType:
    name = "paceline_tests_fake_job"
    if name not in sys.modules:
        path = Path(__file__).parents[2] / "unit" / "detection" / "conftest.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


class Ear:
    """Everything said on the topics that the detector writes, from now on."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.batches: list[Batch] = []
        self.ticks: list[Batch] = []
        self.states: dict[str, bytes] = {}
        self.health: list[Record] = []
        self.dead: list[Record] = []
        self.consumer = Consumer(
            kafka,
            [SIGNALS, HEALTH, DEAD_LETTERS, FRAMES, DETECTOR_STATE],
            None,
            self._hear,
            producer=None,
            name="test-ear",
            options=ConsumerOptions(start=Start.LATEST, poll_s=0.05),
        )

    async def _hear(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        for record in records:
            if record.topic == SIGNALS.name:
                self.batches.append(decode_batch(record.value))
            elif record.topic == HEALTH.name:
                self.health.append(record)
            elif record.topic == DEAD_LETTERS.name:
                self.dead.append(record)
            elif record.topic == DETECTOR_STATE.name:
                self.states[record.key_text] = record.value
            elif record.value[:4] == b"PLB1" and decode_batch(record.value).kind is BatchKind.TICK:
                self.ticks.append(decode_batch(record.value))
        return ()

    def of(self, job: str, kind: BatchKind) -> list[Batch]:
        return [batch for batch in self.batches if batch.job == job and batch.kind is kind]

    def stored_suspicion(self, job: str) -> bool:
        """Whether the newest snapshot of `job` knows of the stall."""
        stored = [unpack_chunks([value]) for key, value in self.states.items() if key.startswith(job + ":")]
        return any(load_block(raw, DetectionPolicy())[0].suspicion.active for raw in stored)


class FakeAgents:
    """Publishes one sample of a fake job every `period_s`, each a second of the job's own time."""

    def __init__(self, producer: Producer, job: Any, period_s: float = 0.1) -> None:
        self.producer = producer
        self.job = job
        self.period_s = period_s
        self.moving = True
        self.published = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if self.moving:
                self.job.run(1.0)
            else:
                self.job.wait(1.0)
            for batch in self.job.sample():
                await self.producer.send(FRAMES, f"{batch.job}:{batch.shard}", encode_batch(batch))
            self.published += 1
            await asyncio.sleep(self.period_s)


QUICK = {"floor_s": 1.0, "dead_floor_s": 0.5, "tick_s": 0.1, "snapshot_s": 0.5}
RUN_DETECTOR = """
import asyncio
from paceline.detector import DetectorApp, DetectorSettings
from paceline.runtime.runner import run_apps
asyncio.run(run_apps([DetectorApp(DetectorSettings())]))
"""


@pytest.fixture
def kafka(kafka_bootstrap: str) -> KafkaSettings:
    prefix = f"test-{secrets.token_hex(4)}"
    return KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=prefix, session_timeout_s=6.0)


@pytest.fixture
def detector_process(kafka: KafkaSettings) -> Iterator[Callable[[str], "subprocess.Popen[bytes]"]]:
    """A detector in a process of its own, to be killed."""
    started: list[subprocess.Popen[bytes]] = []

    def make(instance: str) -> "subprocess.Popen[bytes]":
        settings = {f"PACELINE_DETECTOR_{name.upper()}": str(value) for name, value in QUICK.items()}
        settings |= {
            "PACELINE_DETECTOR_INSTANCE": instance,
            "PACELINE_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "PACELINE_KAFKA_GROUP_PREFIX": kafka.group_prefix,
            "PACELINE_KAFKA_SESSION_TIMEOUT_S": str(kafka.session_timeout_s),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", RUN_DETECTOR], env={**os.environ, **settings}, stdout=subprocess.DEVNULL
        )
        started.append(process)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def detector_settings(kafka: KafkaSettings) -> Callable[..., DetectorSettings]:
    """Short limits: the job's own clock runs ten times as fast as ours, ticks do not."""

    def make(instance: str = "d1", **changes: Any) -> DetectorSettings:
        return DetectorSettings(kafka=kafka, instance=instance, **{**QUICK, **changes})

    return make


@pytest.fixture
async def producer(kafka: KafkaSettings) -> AsyncIterator[Producer]:
    made = Producer(kafka, "test-agents")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def ear(kafka: KafkaSettings, eventually: Any) -> AsyncIterator[Ear]:
    made = Ear(kafka)
    await made.consumer.start()
    await eventually(made.consumer.caught_up.is_set, 60)
    yield made
    await made.consumer.stop()


@pytest.fixture
async def agents(producer: Producer) -> AsyncIterator[Callable[..., FakeAgents]]:
    started: list[FakeAgents] = []

    def make(job: Any) -> FakeAgents:
        started.append(FakeAgents(producer, job))
        started[-1].start()
        return started[-1]

    yield make
    for one in started:
        await one.stop()


@pytest.fixture
def fake_job() -> Callable[..., Any]:
    """A fake job with a name of its own."""
    kind = _load_fake_job().FakeJob

    def make(**changes: Any) -> Any:
        return kind(**{"job": f"job-{secrets.token_hex(4)}", **changes})

    return make
