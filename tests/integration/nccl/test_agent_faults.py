"""What agents, owners of pages and kernels may do wrong: NCCL's process and the agent live."""

# ruff: noqa: F811  (fixtures of another folder are named by importing them)

import fcntl
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.contracts.batch import RowKind
from paceline.contracts.layout import PAGE_BYTES, PROCESS
from tests.unit.agent.conftest import MemoryPublisher, StartAgent, agent_folder, publisher, start_agent  # noqa: F401
from tests.unit.nccl.calls import Trace
from tests.unit.nccl.conftest import NcclProcess, StartNccl, build, built, start_nccl  # noqa: F401

Eventually = Callable[..., Awaitable[Any]]
F_GET_SEALS, F_SEAL_SHRINK = 1034, 0x0002
WAIT_S = 20


class Rank:
    """One rank of a job of its own: harness, trace, and how many rounds it has done."""

    def __init__(self, start: StartNccl, socket: Path, job: str) -> None:
        self.job = job
        self.process: NcclProcess = start(
            PACELINE_JOB_ID=job, PACELINE_AGENT_SOCKET=str(socket), PACELINE_ATTEMPT="a1", RANK="0",
            WORLD_SIZE="4", LOCAL_RANK="0", PACELINE_NCCL_TIER="2",
            PACELINE_NCCL_BUDGET_PERCENT="100",
        )  # fmt: skip
        self.trace = Trace()
        self.context = self.trace.init()
        self.rounds = 0

    def run(self, rounds: int) -> None:
        """All calls answered success, whatever happens around."""
        for _ in range(rounds):
            self.trace.run(self.context)
        self.process.make(self.trace)
        assert self.process.ask("sync") == "ok 0"
        self.rounds += rounds

    def mapped(self, name: str) -> int:
        """Where its own process has the page."""
        maps = Path(f"/proc/{self.process.process.pid}/maps").read_text()
        found = re.search(rf"^([0-9a-f]+)-\S+ rw\S* .*memfd:{name}", maps, re.MULTILINE)
        assert found is not None
        return int(found[1], 16)

    def overwrite(self, start: int, data: bytes) -> None:
        """As a stray pointer of the process would; the seals stop everybody else."""
        with open(f"/proc/{self.process.process.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(self.mapped("paceline-page") + start)
            memory.write(data)


class Agents:
    """One agent after another at one socket."""

    def __init__(self, start: StartAgent, socket: Path, publisher: MemoryPublisher) -> None:
        self.socket, self.publisher = socket, publisher
        self._start = start
        self._app: AgentApp

    async def start(self) -> None:
        self.publisher.records.clear()
        self._app = await self._start()

    async def stop(self) -> None:
        await self._app.stop()

    def completed(self, job: str) -> int | None:
        """Of the job's newest row."""
        found = [
            int(row["completed"])
            for batch in self.publisher.batches(job)
            for row in batch.table(RowKind.STATE)
        ]
        return found[-1] if found else None


@pytest.fixture
def agents(start_agent: StartAgent, agent_folder: Path, publisher: MemoryPublisher) -> Agents:
    return Agents(start_agent, agent_folder / "agent.sock", publisher)


async def test_agent_absent_at_the_start_and_restarted(
    start_nccl: StartNccl, agents: Agents, eventually: Eventually
) -> None:
    rank = Rank(start_nccl, agents.socket, "job")
    rank.run(20)
    for _ in range(2):
        await agents.start()
        await eventually(lambda: agents.completed("job") == rank.rounds, WAIT_S)
        rank.run(5)
        await eventually(lambda: agents.completed("job") == rank.rounds, WAIT_S)
        await agents.stop()
        rank.run(20)
    assert rank.process.end() == 0


async def test_truncated_page_is_refused_by_its_seal(
    start_nccl: StartNccl, agents: Agents, eventually: Eventually
) -> None:
    """A reader of a shorter file would end with SIGBUS, and so would the process itself."""
    rank = Rank(start_nccl, agents.socket, "job")
    await agents.start()
    rank.run(3)
    for name in ("paceline-page", "paceline-control"):
        page = rank.process.descriptor(name, os.O_RDWR)
        assert page is not None
        assert fcntl.fcntl(page, F_GET_SEALS) & F_SEAL_SHRINK
        for size in (0, 1):
            with pytest.raises(PermissionError):
                os.ftruncate(page, size)
        os.close(page)
    rank.run(3)
    await eventually(lambda: agents.completed("job") == 6, WAIT_S)
    assert rank.process.end() == 0


@pytest.mark.parametrize("start", [0, PROCESS.size], ids=["header", "frames"])
async def test_page_full_of_garbage_hurts_neither_side(
    start_nccl: StartNccl, agents: Agents, eventually: Eventually, start: int
) -> None:
    """Its own process writes noise all over it and goes on calling; the rank beside it is seen as before."""
    mad, sane = (Rank(start_nccl, agents.socket, job) for job in ("mad", "sane"))
    await agents.start()
    for rank in (mad, sane):
        rank.run(3)
    await eventually(lambda: (agents.completed("mad"), agents.completed("sane")) == (3, 3), WAIT_S)
    noise = (b"\xff" * 61 + b"\x00\x01\x80") * (PAGE_BYTES // 64)
    mad.overwrite(start, noise[: PAGE_BYTES - start])
    for _ in range(3):
        mad.run(5)
        sane.run(5)
        await eventually(lambda: agents.completed("sane") == sane.rounds, WAIT_S)
    await agents.stop()
    await agents.start()  # and is handed the same page again
    sane.run(1)
    await eventually(lambda: agents.completed("sane") == sane.rounds, WAIT_S)
    assert [mad.process.end(), sane.process.end()] == [0, 0]


async def test_killed_beside_a_living_rank(
    start_nccl: StartNccl, agents: Agents, eventually: Eventually
) -> None:
    """SIGKILL in the middle of the calls: last words are published, the rank beside it is seen."""
    dead, living = (Rank(start_nccl, agents.socket, job) for job in ("dead", "living"))
    await agents.start()
    for rank in (dead, living):
        rank.run(3)
    await eventually(lambda: (agents.completed("dead"), agents.completed("living")) == (3, 3), WAIT_S)
    assert dead.process.process.stdin is not None
    for _ in range(300):
        dead.trace.run(dead.context)
    dead.process.process.stdin.write(dead.trace.take().lines(dead.process.process.pid))
    dead.process.process.stdin.flush()
    dead.process.process.send_signal(signal.SIGKILL)
    dead.process.process.wait(10)
    living.run(5)
    await eventually(lambda: agents.completed("living") == 8, WAIT_S)
    await eventually(lambda: agents.publisher.last("dead"), WAIT_S)
    assert living.process.end() == 0


async def test_refused_memfd_leaves_nccl_without_a_plugin(
    built: Path, tmp_path: Path, agents: Agents, start_nccl: StartNccl, eventually: Eventually
) -> None:
    """A seccomp filter answers EPERM: NCCL is asked for no events, and the next rank is seen."""
    strict = tmp_path / "strict"
    wrapper = Path(__file__).parent / "programs" / "refuse_memfd.py"
    strict.write_text(f'#!/bin/sh\nexec {sys.executable} {wrapper} {built}/harness "$@"\n')
    strict.chmod(0o755)
    await agents.start()
    with NcclProcess(
        built / "plugin.so", strict, 7, {"PACELINE_AGENT_SOCKET": str(agents.socket)}
    ) as process:
        if not process.loaded:
            pytest.skip("no seccomp filters here")
        trace = Trace()
        context = trace.init()
        process.make(trace)
        assert process.mask == 0
        operation = replace(trace.enter(context), mask=0)  # an NCCL that asks all the same
        trace.begin_task(operation)
        trace.end_task(operation)
        trace.finalize(context)
        process.make(trace)
        assert process.is_null(operation.tasks[0])
        assert process.descriptor("paceline-page", os.O_RDONLY) is None
        assert process.end() == 0
    rank = Rank(start_nccl, agents.socket, "job")
    rank.run(2)
    await eventually(lambda: agents.completed("job") == 2, WAIT_S)
