"""A real hung gloo job of two ranks: collected alive through torch's worker server, then diagnosed."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from paceline.analysis.collect import Request, collect
from paceline.analysis.diagnosis import diagnose
from paceline.contracts.verdicts import VerdictClass

Eventually = Callable[..., Awaitable[object]]

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(240)]

RANK = """
import os, sys, threading, torch, torch.distributed as dist
from pathlib import Path
from torch.distributed.elastic.control_plane import worker_main

@worker_main()
def main():
    rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    (folder / f"up{rank}").touch()
    if rank == 0:
        dist.all_reduce(tensor)
    threading.Event().wait(200)

main()
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = []
    for rank in range(2):
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "100",
            "TORCH_WORKER_SERVER_SOCKET": str(tmp_path / f"ws{rank}"),
        }  # fmt: skip
        with (tmp_path / f"out{rank}.log").open("wb") as output:
            command = [sys.executable, "-c", RANK, str(tmp_path)]
            processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output))
    yield processes
    for process in processes:
        process.kill()
        process.wait()


async def test_the_rank_that_never_entered_is_named(
    ranks: list[subprocess.Popen[bytes]], tmp_path: Path, eventually: Eventually
) -> None:
    def stands() -> bool:
        assert all(process.poll() is None for process in ranks), (tmp_path / "out0.log").read_text()
        return all((tmp_path / f"up{rank}").exists() for rank in range(2))

    await eventually(stands, deadline_s=120)
    request = Request([process.pid for process in ranks], limit_s=30.0)

    def answered() -> bool:  # rank 0 enters its third collective a moment after its mark
        archive = tmp_path / "node.tar.gz"
        collect(request, archive)
        diagnosis = diagnose([str(archive)])[-1]
        named = [root.rank for root in diagnosis.roots]
        return diagnosis.verdict_class is VerdictClass.H1 and named == [1] and diagnosis.victims == (0,)

    await eventually(answered, deadline_s=60)
    assert all(process.poll() is None for process in ranks)
