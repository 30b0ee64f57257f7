"""Ranks with the shim speak to the real agent; what it publishes is judged. No plugin: NCCL before 2.27."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.app import AgentApp
from paceline.agent.settings import AgentSettings
from paceline.analysis.builder import build_evidence
from paceline.analysis.judge import judge
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.batch import RowKind
from paceline.contracts.codes import HostWait, Source
from paceline.contracts.registry import CommunicatorRecord, NodeRecord
from paceline.contracts.verdicts import SubReason, Verdict, VerdictClass
from paceline.runtime.clock import SystemClock
from tests.unit.agent.conftest import MemoryPublisher
from tests.unit.nccl_shim.conftest import ShimProcess, StartShim

RANKS = 4
STALL_S = 0.4
Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
def publisher() -> MemoryPublisher:
    return MemoryPublisher()


@pytest.fixture
async def agent_socket(publisher: MemoryPublisher) -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ps-"))  # a unix socket's path may have 107 bytes
    settings = AgentSettings(
        socket=folder / "agent.sock",
        state_dir=folder,
        node="n1",
        interval_s=0.1,
        drain_s=0.5,
        suspect_s=STALL_S,
    )
    app = AgentApp(settings, SystemClock(), publisher)
    await app.start()
    yield folder / "agent.sock"
    await app.stop()


def start_ranks(start: StartShim, socket: Path, ranks: int = RANKS) -> list[ShimProcess]:
    return [
        start(
            PACELINE_AGENT_SOCKET=str(socket), PACELINE_ATTEMPT="a1", RANK=str(rank),
            WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank),
        )
        for rank in range(ranks)
    ]  # fmt: skip


def verdict_of(publisher: MemoryPublisher, wanted: VerdictClass) -> Verdict | None:
    job = publisher.job()
    if job is None:
        return None
    evidence = build_evidence(
        publisher.batches(),
        job,
        publisher.values(NodeRecord)[-1:],
        {record.communicator: record for record in publisher.values(CommunicatorRecord)}.values(),
    )
    verdict = judge(evidence, JudgePolicy(stall_age_s=STALL_S, init_age_s=STALL_S))
    return verdict if verdict.verdict_class is wanted else None


async def test_rank_that_never_comes_to_the_initialisation(
    start_shim: StartShim, agent_socket: Path, publisher: MemoryPublisher, eventually: Eventually
) -> None:
    processes = start_ranks(start_shim, agent_socket, RANKS - 1)
    for rank, process in enumerate(processes):
        process.all("starts 1", f"&init 0 {RANKS} {rank} 1")
    verdict = await eventually(
        lambda: (
            len(publisher.newest(RowKind.PROCESS)) == RANKS - 1
            and (publisher.newest(RowKind.PROCESS)["host_wait"] == HostWait.BOOTSTRAP).all()
            and verdict_of(publisher, VerdictClass.INIT)
        )
    )
    assert verdict.sub_reason is SubReason.BOOTSTRAP
    assert [root.rank for root in verdict.roots] == [RANKS - 1]
    assert [process.end() for process in processes] == [0] * (RANKS - 1)


@pytest.mark.parametrize(
    ("call", "wanted"), [(None, VerdictClass.H1), ("allreduce 0 512 7 0", VerdictClass.H2)], ids=["h1", "h2"]
)
async def test_rank_that_calls_nothing_or_something_else(
    start_shim: StartShim,
    agent_socket: Path,
    publisher: MemoryPublisher,
    eventually: Eventually,
    call: str | None,
    wanted: VerdictClass,
) -> None:
    processes = start_ranks(start_shim, agent_socket)
    for rank, process in enumerate(processes):
        process.all(f"init 0 {RANKS} {rank} 1", *["allreduce 0 1024 7 0"] * 3)
        if rank != 2:
            process.all("allreduce 0 1024 7 0")
        elif call is not None:
            process.all(call)
    verdict = await eventually(
        lambda: len(publisher.newest(RowKind.STATE)) == RANKS and verdict_of(publisher, wanted)
    )
    assert [root.rank for root in verdict.roots] == [2]
    assert set(publisher.newest(RowKind.STATE)["sources"].tolist()) == {Source.NCCL_SHIM}
    world = publisher.values(CommunicatorRecord)[-1]
    assert (world.name, world.ranks) == ("world", "0-3")
