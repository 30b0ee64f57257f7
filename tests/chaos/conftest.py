"""One platform for each module of this folder, and fake jobs on it."""

import asyncio
import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest_asyncio

from paceline.detector import DetectorApp
from paceline.detector.core import BlockKey
from paceline.lab.kafka import LocalKafka
from paceline.lab.postgres import LocalPostgres
from tests.chaos.driver import FakeJob
from tests.chaos.stack import Stack

VERDICT_S_MAX = 45.0
POLL_S = 0.1
Incident = dict[str, Any]
LaunchJob = Callable[..., Awaitable[FakeJob]]


class Chaos:
    """What a test needs: the stack, jobs, and waiting for incidents."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.jobs: list[FakeJob] = []

    async def launch(self, job: str = "", *sockets: Path, **options: Any) -> FakeJob:
        """A job that trains, and whose ranks the detector has seen."""
        name = job or f"job-{secrets.token_hex(4)}"
        started = await FakeJob.launch(sockets or [self.stack.socket], name, **options)
        self.jobs.append(started)
        deadline = time.monotonic() + VERDICT_S_MAX
        while self.ranks_seen(started) < started.world:
            assert time.monotonic() < deadline, f"{name}: {self.ranks_seen(started)} ranks in the detector"
            await asyncio.sleep(POLL_S)
        return started

    def ranks_seen(self, job: FakeJob) -> int:
        """Ranks of a job that the detector knows."""
        core = cast(DetectorApp, self.stack.parts["detector"][0]).core
        held = core.held.get(BlockKey(job.job, job.attempt, 0))
        return 0 if held is None else len(held.block.processes)

    async def incident(
        self, job: FakeJob, status: str = "open", *, reopened: int = 0, within_s: float = VERDICT_S_MAX
    ) -> Incident:
        """The one incident of a job, once it has this status and was reopened so often."""
        deadline = time.monotonic() + within_s
        while True:
            found = [i for i in await self.stack.incidents(job.job) if i["attempt"] == job.attempt]
            assert len(found) <= 1, f"more than one incident of {job.job}: {[i['summary'] for i in found]}"
            if found and (found[0]["status"], found[0]["reopened_count"]) == (status, reopened):
                return found[0]
            assert time.monotonic() < deadline, f"{job.job}: not {status} within {within_s:g} s: {found}"
            await asyncio.sleep(POLL_S)

    async def sentinel(self) -> FakeJob:
        """A job whose hang was found just now: what another job had to report before is reported."""
        job = await self.launch(f"sentinel-{secrets.token_hex(4)}", world=2, tp=2)
        await job.stuck(1, "hold")
        assert roots(await self.incident(job)) == [1]
        return job

    async def changes(self, incident: Incident) -> list[str]:
        """Kinds of the timeline, oldest first, without what is proposed as a repair."""
        page = await self.stack.get(f"/v1/incidents/{incident['id']}/timeline")
        return [entry["kind"] for entry in reversed(page["items"]) if entry["kind"] != "repair"]

    async def close(self) -> None:
        await asyncio.gather(*(job.close() for job in self.jobs))


def roots(incident: Incident) -> list[int]:
    """Ranks that are named as first cause."""
    return [root["rank"] for root in incident["roots"]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(kafka_server: LocalKafka, postgres_server: LocalPostgres) -> AsyncIterator[Stack]:
    """The platform, on a database of its own. Its Kafka groups go on from module to module."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # hundreds of lines a second in an outage
    kafka_server.start()
    name = f"chaos_{secrets.token_hex(4)}"
    await execute(postgres_server.start(), f'CREATE DATABASE "{name}"')
    home = Path(tempfile.mkdtemp(prefix="pc-"))
    stack = Stack(home, kafka_server, postgres_server, postgres_server.url(name))
    await stack.open()
    yield stack
    await stack.close()
    await execute(postgres_server.url(), f'DROP DATABASE "{name}" WITH (FORCE)')
    shutil.rmtree(home)


@pytest_asyncio.fixture(loop_scope="module")
async def chaos(stack: Stack) -> AsyncIterator[Chaos]:
    """Jobs end in order after the test; no service may have crashed by then."""
    chaos = Chaos(stack)
    yield chaos
    await chaos.close()
    assert stack.crashes() == {}


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url.replace("postgresql+asyncpg://", "postgresql://"))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
