"""Gloo and NCCL in one job, through agents, Kafka, detector and localizer: one hang is one verdict."""

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.kafka_publisher import KafkaPublisher
from paceline.agent.settings import AgentSettings
from paceline.contracts.topics import VERDICTS
from paceline.contracts.verdicts import VerdictClass, VerdictRecord
from paceline.detector import DetectorApp, DetectorSettings
from paceline.localizer import LocalizerApp, LocalizerSettings
from paceline.runtime.app import App
from paceline.runtime.clock import SystemClock
from paceline.runtime.cloud_events import decode_event
from paceline.runtime.consumer import Consumer
from paceline.runtime.options import ConsumerOptions, Start
from paceline.runtime.record import BadRecord, Record
from paceline.runtime.settings import KafkaSettings
from tests.unit.nccl.conftest import built  # noqa: F401

pytestmark = pytest.mark.needs_torch
PROGRAM = Path(__file__).parent / "programs" / "two_sources.py"
WAIT_S = 90.0
ALL = ",".join(map(str, range(8)))
Eventually = Callable[..., Awaitable[Any]]


class Platform:
    """Two nodes' agents, one detector, one localizer, and what they come to."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.verdicts: list[VerdictRecord] = []
        self.sockets = [folder / "a.sock", folder / "b.sock"]
        clock = SystemClock()
        agents = [
            AgentApp(
                AgentSettings(
                    socket=socket, state_dir=folder / socket.stem, node=socket.stem, interval_s=0.25,
                    suspect_s=1.0, drain_s=1.0,
                ),
                clock,
                KafkaPublisher(kafka, f"agent-{socket.stem}", clock, 3.0),
            )
            for socket in self.sockets
        ]  # fmt: skip
        detector = DetectorApp(
            DetectorSettings(
                kafka=kafka, floor_s=2.5, dead_floor_s=1.0, warmup_limit_s=5.0, tick_s=0.5, snapshot_s=2.0
            )
        )
        self.apps: list[App] = [detector, LocalizerApp(LocalizerSettings(kafka=kafka)), *agents]
        self.ear = Consumer(
            kafka, [VERDICTS], None, self._hear, producer=None, name="test-ear",
            options=ConsumerOptions(start=Start.LATEST, poll_s=0.05),
        )  # fmt: skip

    async def _hear(self, records: Sequence[Record]) -> Sequence[BadRecord]:
        self.verdicts += [decode_event(VerdictRecord, record.headers, record.value)[1] for record in records]
        return ()

    def of(self, job: str) -> list[VerdictRecord]:
        return [verdict for verdict in self.verdicts if verdict.job == job]


@pytest.fixture
async def platform(kafka_bootstrap: str) -> AsyncIterator[Platform]:
    folder = Path(tempfile.mkdtemp(prefix="pn-"))  # a unix socket's path may have 107 bytes
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=f"test-{secrets.token_hex(4)}")
    platform = Platform(kafka, folder)
    await platform.ear.start()
    await platform.ear.caught_up.wait()
    for app in platform.apps:
        await app.start()
    yield platform
    for app in reversed(platform.apps):
        await app.stop()
    await platform.ear.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("hooked", "tier"), [("5,6,7", "0"), (ALL, "1")], ids=["side-by-side", "in-one-process"]
)
async def test_a_hang_that_gloo_and_nccl_both_see_is_one(
    built: Path,  # noqa: F811
    platform: Platform,
    eventually: Eventually,
    hooked: str,
    tier: str,
) -> None:
    """Six ranks wait in NCCL for two, two of these eight in gloo for one: that one is the cause of both."""
    job = f"job-{secrets.token_hex(4)}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE", "SLURM"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), str(built / "plugin.so"), hooked, *map(str, platform.sockets),
        stdin=PIPE, stdout=PIPE,
        env={
            **clean, "PACELINE_JOB_ID": job, "PACELINE_ATTEMPT": "a1", "PACELINE_NCCL_TIER": tier,
            "PACELINE_NCCL_BUDGET_PERCENT": "100",
        },
    )  # fmt: skip
    assert process.stdin is not None
    try:
        first = await eventually(lambda: platform.of(job), WAIT_S)
        await eventually(lambda: [root.rank for root in platform.of(job)[-1].verdict.roots] == [7], WAIT_S)
        verdict = platform.of(job)[-1].verdict
        assert verdict.verdict_class is VerdictClass.H1
        assert first[0].verdict.verdict_class is VerdictClass.H1
        assert all({root.rank for root in record.verdict.roots} == {7} for record in platform.of(job)), (
            "no victim was ever named as a cause"
        )
        process.stdin.write(b"\n")
        assert await asyncio.wait_for(process.wait(), 30) == 0
        await eventually(lambda: platform.of(job)[-1].resolved, WAIT_S)
        assert len({record.episode for record in platform.of(job)}) == 1
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()
