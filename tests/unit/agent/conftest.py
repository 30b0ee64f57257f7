"""An agent in this loop, rank processes beside it, and a publisher that remembers."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.agent.app import AgentApp
from paceline.agent.delivery import Event, Frame, PublishError
from paceline.agent.settings import AgentSettings
from paceline.contracts.batch import ROW_DTYPES, Batch, BatchFlag, RowKind, Rows, decode_batch
from paceline.contracts.registry import HealthEvent, HealthKind, JobRecord
from paceline.runtime.clock import SystemClock

SCRIPT = Path(__file__).with_name("rank_process.py")


class MemoryPublisher:
    """Remembers what it is given; `away` makes it fail like a Kafka that is not there."""

    def __init__(self) -> None:
        self.records: list[Event | Frame] = []
        self.away = False
        self.tries = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def publish(self, records: Sequence[Event | Frame]) -> None:
        self.tries += 1
        if self.away:
            raise PublishError("away")
        self.records += records

    def batches(self, job: str = "job") -> list[Batch]:
        frames = [r for r in self.records if isinstance(r, Frame) and r.key.startswith(f"{job}:")]
        return [decode_batch(frame.value) for frame in frames]

    def newest(self, kind: RowKind) -> Rows:
        """Rows of the newest batch, an empty table before the first."""
        batches = self.batches()
        return batches[-1].table(kind) if batches else np.zeros(0, ROW_DTYPES[kind])

    def values(self, kind: type) -> list[Any]:
        return [r.value for r in self.records if isinstance(r, Event) and isinstance(r.value, kind)]

    def health(self, kind: HealthKind) -> list[HealthEvent]:
        return [event for event in self.values(HealthEvent) if event.kind is kind]

    def job(self, job: str = "job") -> JobRecord | None:
        found: list[JobRecord] = [record for record in self.values(JobRecord) if record.job == job]
        return found[-1] if found else None

    def last(self, job: str = "job") -> Batch | None:
        found = [batch for batch in self.batches(job) if batch.flags & BatchFlag.LAST]
        return found[-1] if found else None


class RankProcess:
    """Drives one rank_process.py."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid

    async def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        await self.process.stdin.drain()
        return (await asyncio.wait_for(self.process.stdout.readline(), 10)).decode().strip()

    async def is_connected(self) -> bool:
        return (await self.ask("status")).startswith("True")

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        # Let the transports of the pipes close before the loop ends.
        await asyncio.sleep(0)


StartRank = Callable[..., Awaitable[RankProcess]]
StartAgent = Callable[..., Awaitable[AgentApp]]


@pytest.fixture
def publisher() -> MemoryPublisher:
    return MemoryPublisher()


@pytest.fixture
def agent_folder() -> Path:
    """A short path: a unix socket's may have 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="pa-"))


@pytest.fixture
async def start_agent(agent_folder: Path, publisher: MemoryPublisher) -> AsyncIterator[StartAgent]:
    apps: list[AgentApp] = []

    async def start(gpu_command: tuple[str, ...] = (), **changes: object) -> AgentApp:
        settings = AgentSettings(
            **{
                "socket": agent_folder / "agent.sock",
                "state_dir": agent_folder,
                "node": "n1",
                "interval_s": 0.1,
                "drain_s": 0.5,
                "root": agent_folder / "root",
                "watch_gpus": False,
                **changes,
            }  # type: ignore[arg-type]
        )
        app = AgentApp(settings, SystemClock(), publisher, gpu_command=gpu_command)
        await app.start()
        apps.append(app)
        return app

    yield start
    for app in apps:
        await app.stop()


@pytest.fixture
async def start_rank(
    agent_folder: Path, eventually: Callable[..., Awaitable[Any]]
) -> AsyncIterator[StartRank]:
    ranks: list[RankProcess] = []

    async def start(
        rank: int = 0,
        world_size: int = 2,
        job: str = "job",
        attempt: str = "a1",
        user: int | None = None,
        connected: bool = True,
    ) -> RankProcess:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(SCRIPT), str(agent_folder / "agent.sock"), job, attempt, str(rank),
            str(world_size), str(os.getuid() if user is None else user), stdin=pipe, stdout=pipe,
        )  # fmt: skip
        started = RankProcess(process)
        ranks.append(started)
        assert process.stdout is not None
        assert (await asyncio.wait_for(process.stdout.readline(), 20)).strip() == b"ready"
        if connected:
            await eventually(started.is_connected)
        return started

    yield start
    for rank in ranks:
        await rank.end()
