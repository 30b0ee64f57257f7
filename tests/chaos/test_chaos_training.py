"""What the ranks and the agent may never feel: an absent platform, and those who came before."""

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paceline.lab.platform import SERVICES
from tests.chaos.conftest import Chaos
from tests.chaos.driver import FakeJob
from tests.chaos.stack import AgentProcess, Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")
CYCLES = Path(__file__).with_name("cycles.py")
WINDOW_S = 1.0
WINDOWS = 3  # in each block
RATIO_MAX = 1.25


async def measure(job: FakeJob) -> list[float]:
    """Milliseconds per step of the slowest rank, in windows of one block."""
    times = []
    for _ in range(WINDOWS):
        before, began_s = min(rank.steps for rank in await job.status()), time.monotonic()
        await asyncio.sleep(WINDOW_S)
        after, ended_s = min(rank.steps for rank in await job.status()), time.monotonic()
        assert after > before
        times.append(1000 * (ended_s - began_s) / (after - before))
    return times


async def take_away(stack: Stack) -> None:
    """Everything but the agent."""
    for name in reversed(SERVICES):
        await stack.stop(name)
    await stack.stop_kafka()
    await stack.stop_postgres()


async def bring_back(stack: Stack) -> None:
    await stack.start_postgres()
    await stack.start_kafka()
    for name in SERVICES:
        await stack.start(name)
    await stack.ready()


async def test_training_does_not_feel_an_absent_platform(chaos: Chaos, eventually: Any) -> None:
    """Interleaved blocks with the platform there and away."""
    job = await chaos.launch(gap_ms=10)
    there, away = [], []
    for _ in range(2):
        there += await measure(job)
        await take_away(chaos.stack)
        waiting = chaos.stack.agent.waiting[1]
        await eventually(lambda waiting=waiting: chaos.stack.agent.waiting[1] > waiting, 20)
        away += await measure(job)
        await bring_back(chaos.stack)
    with_ms, without_ms = statistics.median(there), statistics.median(away)
    print(f"step {with_ms:.2f} ms with the platform, {without_ms:.2f} ms without: {there} {away}")
    assert without_ms / with_ms < RATIO_MAX
    await eventually(lambda: chaos.stack.agent.waiting[1] < 10, 30)
    assert chaos.stack.agent.drops.total() == 0


async def test_agent_keeps_nothing_of_those_who_left(chaos: Chaos, eventually: Any) -> None:
    """Threads and descriptors after 50 processes are those after 10."""
    agent = AgentProcess(chaos.stack, "node-c")
    await agent.start()
    try:
        await run_cycles(agent, 0, 10)
        settled = await eventually(lambda: settle(agent.pid), 10)
        await run_cycles(agent, 10, 50)
        await eventually(lambda: counts(agent.pid)[0] <= settled[0] + 2, 10)
        assert counts(agent.pid)[1] <= settled[1]
        print(f"descriptors and threads: {settled} after 10, {counts(agent.pid)} after 60")
    finally:
        await agent.end()


def counts(pid: int) -> tuple[int, int]:
    """Open descriptors and threads."""
    return len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


_last: dict[int, tuple[int, tuple[int, int]]] = {}


def settle(pid: int) -> tuple[int, int] | None:
    """The counts once they have been the same for some readings."""
    now = counts(pid)
    seen, value = _last.get(pid, (0, now))
    _last[pid] = (seen + 1 if value == now else 0, now)
    return now if _last[pid][0] >= 40 else None


async def run_cycles(agent: AgentProcess, first: int, count: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CYCLES), str(agent.socket), str(first), str(count),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert (process.returncode, out.strip()) == (0, b"done")
