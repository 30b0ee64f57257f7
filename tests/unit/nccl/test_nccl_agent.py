"""An NCCL job without a trainer hook: plugins speak to the real agent over its socket, and the judge reads
what the agent publishes. Nothing of the agent or the analysis knows that it is NCCL."""

import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.contracts.batch import RowKind
from paceline.contracts.codes import FrameFlag, Function, Source
from paceline.contracts.registry import CommunicatorRecord, HealthKind
from paceline.contracts.verdicts import VerdictClass
from tests.unit.agent.conftest import MemoryPublisher, StartAgent
from tests.unit.nccl.calls import RECV_WAIT, SEND_PEER_WAIT, SEND_WAIT, Operation, Trace
from tests.unit.nccl.conftest import RANKS, NcclProcess, StartNccl, verdict_of

Eventually = Callable[..., Awaitable[Any]]


class Job:
    """Four ranks, one process each, one world communicator. `each`: what only that rank's environment has."""

    def __init__(
        self,
        start: StartNccl,
        socket: Path,
        each: Sequence[Mapping[str, str]] = ({},) * RANKS,
        **environment: str,
    ) -> None:
        self.processes: list[NcclProcess] = [
            start(
                PACELINE_AGENT_SOCKET=str(socket), PACELINE_ATTEMPT="a1", RANK=str(rank),
                WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank),
                PACELINE_NCCL_BUDGET_PERCENT="100", **environment, **each[rank],
            )
            for rank in range(RANKS)
        ]  # fmt: skip
        self.traces = [Trace() for _ in range(RANKS)]
        self.contexts = [trace.init(nranks=RANKS, rank=rank) for rank, trace in enumerate(self.traces)]

    def run(self, rounds: int) -> None:
        for rank, trace in enumerate(self.traces):
            for _ in range(rounds):
                trace.run(self.contexts[rank], rank=rank, nranks=RANKS)
        self.make()

    def begin(self, rank: int, count: int = 1024, steps: int = 8) -> Operation:
        """Called, launched and begun by the GPU."""
        trace = self.traces[rank]
        operation = trace.enter(self.contexts[rank], count=count)
        trace.launch_kernels(operation)
        trace.begin_task(operation, channels=1)
        trace.ring(operation, rank, RANKS, channels=1, steps=steps)
        trace.end_task(operation)
        trace.begin_kernels(operation, 1)
        return operation

    def make(self) -> None:
        for process, trace in zip(self.processes, self.traces, strict=True):
            process.make(trace)


async def test_agent_publishes_rounds_sizes_and_edges(
    start_nccl: StartNccl, agent_socket: Path, publisher: MemoryPublisher, eventually: Eventually
) -> None:
    job = Job(start_nccl, agent_socket, PACELINE_NCCL_TIER="2", PACELINE_NAME='a "name"')
    job.run(5)
    (state,) = await eventually(
        lambda: (
            len(rows := publisher.newest(RowKind.STATE)) == RANKS
            and (rows["completed"] == 5).all()
            and [rows]
        )
    )
    assert sorted(state["rank"].tolist()) == list(range(RANKS))
    assert set(state["sources"].tolist()) == {Source.NCCL_PROFILER}
    assert state["send_count"].tolist() == state["recv_count"].tolist() == [40] * RANKS
    assert not (state["flags"] & (FrameFlag.COUNTS_UNOBSERVABLE | FrameFlag.COMPLETION_UNOBSERVABLE)).any()
    rounds = [row for batch in publisher.batches() for row in batch.table(RowKind.ROUND)]
    assert {(int(row["round"]), int(row["function"]), int(row["count"])) for row in rounds} == {
        (number, Function.ALL_REDUCE, 1024) for number in range(1, 6)
    }
    assert all(row["duration_ns"] > 0 for row in rounds)
    record = publisher.job()
    assert record is not None
    assert (record.world_size, record.name, record.versions) == (RANKS, 'a "name"', {"nccl": "2.28.9"})
    world = publisher.values(CommunicatorRecord)[-1]
    assert (world.name, world.ranks, world.backend, world.kind) == ("world", "0-3", "nccl", "world")


@pytest.mark.parametrize("tier", ["0", "2"])
async def test_h1_rank_that_does_not_call(
    start_nccl: StartNccl, agent_socket: Path, publisher: MemoryPublisher, eventually: Eventually, tier: str
) -> None:
    """(d): also where nothing but the calls themselves is seen."""
    job = Job(start_nccl, agent_socket, PACELINE_NCCL_TIER=tier)
    job.run(3)
    for rank in (0, 1, 3):
        job.begin(rank)
    job.make()
    verdict = await eventually(lambda: verdict_of(publisher, VerdictClass.H1))
    assert [root.rank for root in verdict.roots] == [2]


async def test_h2_rank_with_another_count(
    start_nccl: StartNccl, agent_socket: Path, publisher: MemoryPublisher, eventually: Eventually
) -> None:
    """(e)"""
    job = Job(start_nccl, agent_socket, PACELINE_NCCL_TIER="2")
    job.run(3)
    for rank in range(RANKS):
        job.begin(rank, count=1024 if rank != 1 else 512)
    job.make()
    verdict = await eventually(lambda: verdict_of(publisher, VerdictClass.H2))
    assert [root.rank for root in verdict.roots] == [1]


@pytest.mark.parametrize("before", [3, 0])
async def test_h3_link_that_carries_nothing(
    start_nccl: StartNccl, agent_socket: Path, publisher: MemoryPublisher, eventually: Eventually, before: int
) -> None:
    """(f), (g): the link from 1 to 2 breaks after three slices: 1 waits for the network, 2 for data, and
    behind them the ring fills up. In the very first round, too: what moves slices is connected."""
    job = Job(start_nccl, agent_socket, PACELINE_NCCL_TIER="2")
    job.run(before)
    operations = [job.begin(rank) for rank in range(RANKS)]
    # What each link had carried when the ring stood still.
    carried = {0: 5, 1: 3, 2: 4, 3: 5}  # sender: slices
    for rank, trace in enumerate(job.traces):
        send = operations[rank].proxies[0, (rank + 1) % RANKS, True]
        receive = operations[rank].proxies[0, (rank - 1) % RANKS, False]
        for step in range(carried[rank]):
            trace.step(send, step, is_send=True)
        for step in range(carried[(rank - 1) % RANKS]):
            trace.step(receive, step, is_send=False)
        stuck = {1: SEND_WAIT, 0: SEND_PEER_WAIT}.get(rank, 8)
        trace.step(send, carried[rank], is_send=True, upto=stuck)
        if rank != 1:
            trace.step(receive, carried[(rank - 1) % RANKS], is_send=False, upto=RECV_WAIT)
    job.make()
    verdict = await eventually(lambda: verdict_of(publisher, VerdictClass.H3))
    (root,) = verdict.roots
    assert (root.rank, root.peer_rank) == (1, 2)


async def test_t_agent_buries_a_killed_process_and_gives_its_page_back(
    start_nccl: StartNccl,
    start_agent: StartAgent,
    agent_folder: Path,
    publisher: MemoryPublisher,
    eventually: Eventually,
) -> None:
    """In the middle of its calls: what it wrote last is published, and its page is let go."""
    agent = await start_agent()
    job = Job(start_nccl, agent_folder / "agent.sock", PACELINE_NCCL_TIER="2")
    job.run(3)
    await eventually(lambda: len(publisher.newest(RowKind.STATE)) == RANKS)
    victim = job.processes[1].process
    for _ in range(200):
        job.traces[1].run(job.contexts[1], rank=1, nranks=RANKS)
    assert victim.stdin is not None
    victim.stdin.write(job.traces[1].take().lines(victim.pid))
    victim.send_signal(signal.SIGKILL)
    (exit_,) = await eventually(lambda: publisher.health(HealthKind.PROCESS_EXIT))
    assert (exit_.rank, exit_.exit_code) == (1, -signal.SIGKILL)
    (dead,) = [process for process in agent.roster.processes.values() if process.hello.rank == 1]
    assert dead.page is None
    states = np.concatenate([batch.table(RowKind.STATE) for batch in publisher.batches()])
    assert states["completed"][states["rank"] == 1].max() >= 3


async def test_link_outlives_an_agent_that_comes_late(
    start_nccl: StartNccl,
    start_agent: StartAgent,
    agent_folder: Path,
    publisher: MemoryPublisher,
    eventually: Eventually,
) -> None:
    job = Job(start_nccl, agent_folder / "agent.sock")
    job.run(2)
    for _ in range(2):
        publisher.records.clear()
        app = await start_agent()
        await eventually(lambda: len(publisher.newest(RowKind.STATE)) == RANKS, 20)
        await app.stop()
    job.run(1)
    assert [process.end() for process in job.processes] == [0] * RANKS
