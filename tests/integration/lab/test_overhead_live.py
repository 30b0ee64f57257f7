"""`paceline overhead` on living jobs: plugins that a harness drives, and a torch job through Kafka."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.evidence import EvidenceApp, make_agent
from paceline.agent.settings import AgentSettings
from paceline.contracts.codes import DetailLevel
from paceline.contracts.commands import Command, CommandResult
from paceline.contracts.detail import KERNEL_EVENTS
from paceline.lab.overhead.report import not_alternated
from paceline.lab.overhead.run import Overhead, Plan, Target
from paceline.lab.overhead.samples import Tracks, Unit
from paceline.runtime.clock import SystemClock
from paceline.runtime.settings import KafkaSettings
from tests.unit.agent.conftest import MemoryPublisher
from tests.unit.nccl.calls import Trace
from tests.unit.nccl.conftest import NcclProcess, StartNccl, build, built, start_nccl  # noqa: F401  (fixtures)

KEY = b"a key of the whole cluster"
Eventually = Callable[..., Awaitable[Any]]
RANK = """
import os, time, torch, torch.distributed as dist
import paceline.trainer
paceline.trainer.attach(name="small")
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(64))
    time.sleep(0.02)
    paceline.trainer.step()
"""


def settings_in(folder: Path) -> AgentSettings:
    return AgentSettings(
        socket=folder / "agent.sock", state_dir=folder, node="n1", interval_s=0.2, drain_s=0.5
    )


class AgentWire:
    """The agent of this process, without Kafka between."""

    def __init__(self, commanded: EvidenceApp, publisher: MemoryPublisher) -> None:
        self._commanded = commanded
        self._publisher = publisher

    async def send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._commanded.take(command)

    async def answers(self, ids: Sequence[str], limit_s: float) -> dict[str, CommandResult]:
        for _ in range(int(limit_s * 20)):
            found = {r.command: r for r in self._publisher.values(CommandResult) if r.command in ids}
            if len(found) == len(ids):
                return found
            await asyncio.sleep(0.05)
        return {}

    def collect(self, tracks: Tracks) -> None:
        for batch in self._publisher.batches():
            tracks.add(batch)
        self._publisher.records.clear()


async def test_plugins_change_their_level_with_the_blocks(
    start_nccl: StartNccl,  # noqa: F811
    eventually: Eventually,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pn-"))
    publisher, clock = MemoryPublisher(), SystemClock()
    agent = AgentApp(settings_in(folder), clock, publisher)
    await agent.start()
    process: NcclProcess = start_nccl(
        PACELINE_AGENT_SOCKET=str(folder / "agent.sock"), PACELINE_ATTEMPT="a1", RANK="0", WORLD_SIZE="1",
        LOCAL_RANK="0", PACELINE_NCCL_BUDGET_PERCENT="100",
    )  # fmt: skip
    trace = Trace()
    context = trace.init(nranks=2, rank=0)
    masks: set[int] = set()

    async def train() -> None:
        while True:
            trace.run(context, rank=0, nranks=2)
            await asyncio.to_thread(process.make, trace)
            masks.add(await asyncio.to_thread(lambda: process.mask))

    training = asyncio.create_task(train())
    try:
        kafka = KafkaSettings(bootstrap="127.0.0.1:1", request_timeout_s=1.0)
        wire = AgentWire(EvidenceApp(agent._settings, kafka, KEY, agent, publisher, clock), publisher)
        target = Target("job", "a1", "", ("n1",), 1)
        plan = Plan(DetailLevel.ROUNDS, DetailLevel.FULL, 1, 5.0, 0)
        await eventually(lambda: agent.roster.living(("job", "a1")))
        outcome = await Overhead(wire, target, plan, KEY, clock, "test", lambda text: None).run()
    finally:
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        await agent.stop()
    assert {bool(mask & KERNEL_EVENTS) for mask in masks} == {True, False}
    assert outcome.tracks.unit is Unit.ROUND
    assert [time is not None and time > 0 for _, time in outcome.times] == [True, True]
    assert not outcome.refused
    reports = {block.is_base: report for block, (report,) in outcome.reports}
    assert (reports[False].kernels, reports[False].steps, reports[False].tier) == (1, 1, 2)
    assert (reports[True].kernels, reports[True].steps) == (0, 0)
    assert len(not_alternated(outcome)) == 1  # what no live job can give up


@pytest.fixture
def torch_job(tmp_path: Path) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """The folder of the agent's socket, and two gloo ranks that look for it."""
    folder = Path(tempfile.mkdtemp(prefix="pn-"))
    script = tmp_path / "train.py"
    script.write_text(RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PACELINE_JOB_ID": "small",
                "PACELINE_AGENT_SOCKET": str(folder / "agent.sock"), "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    yield folder, ranks
    for rank in ranks:
        rank.kill()
        rank.wait()


def is_whole(agent: AgentApp) -> bool:
    """Whether both ranks have joined one attempt."""
    return any(len(agent.roster.living(job)) == 2 for job in agent.roster.jobs)


@pytest.mark.needs_torch
async def test_a_torch_job_through_kafka(
    kafka_bootstrap: str,
    torch_job: tuple[Path, list[subprocess.Popen[bytes]]],
    eventually: Eventually,
) -> None:
    folder, ranks = torch_job
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, request_timeout_s=10.0)
    apps = make_agent(settings_in(folder), kafka, KEY, SystemClock())
    agent = apps[0]
    assert isinstance(agent, AgentApp)
    for app in apps:
        await app.start()
    try:
        await eventually(lambda: agent.delivered["frames"] > 5 and is_whole(agent), 120)
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "paceline.contracts.cli", "overhead", "small", "--level", "off",
            "--pairs", "1", "--block", "5", "--json", "--kafka", kafka_bootstrap,
            env={**os.environ, "PACELINE_COMMAND_KEY": KEY.decode()}, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        answer, _ = await asyncio.wait_for(command.communicate(), 150)
    finally:
        for app in reversed(apps):
            await app.stop()
    assert all(rank.poll() is None for rank in ranks)
    assert command.returncode == 3  # one pair is no answer
    found = json.loads(answer)
    assert (found["unit"], found["pairs"], found["finding"]) == ("step", 1, "too_few")
    assert 0.3 < found["ratio"] < 3
    assert any("2 of 2 processes have no NCCL plugin" in text for text in found["not_alternated"])
