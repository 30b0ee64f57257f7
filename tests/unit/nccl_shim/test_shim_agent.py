"""Ranks with the shim speak to the real agent; what it publishes is judged. No plugin: NCCL before 2.27."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.batch import RowKind
from paceline.contracts.codes import HostWait, Source
from paceline.contracts.registry import CommunicatorRecord
from paceline.contracts.verdicts import SubReason, VerdictClass
from tests.unit.agent.conftest import MemoryPublisher
from tests.unit.nccl.conftest import RANKS, verdict_of
from tests.unit.nccl_shim.conftest import ShimProcess, StartShim

Eventually = Callable[..., Awaitable[Any]]


def start_ranks(start: StartShim, socket: Path, ranks: int = RANKS) -> list[ShimProcess]:
    return [
        start(
            PACELINE_AGENT_SOCKET=str(socket), PACELINE_ATTEMPT="a1", RANK=str(rank),
            WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank),
        )
        for rank in range(ranks)
    ]  # fmt: skip


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
            and verdict_of(publisher, VerdictClass.INIT, rows=0)
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
    verdict = await eventually(lambda: verdict_of(publisher, wanted))
    assert [root.rank for root in verdict.roots] == [2]
    assert set(publisher.newest(RowKind.STATE)["sources"].tolist()) == {Source.NCCL_SHIM}
    world = publisher.values(CommunicatorRecord)[-1]
    assert (world.name, world.ranks) == ("world", "0-3")
