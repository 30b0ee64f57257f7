"""How each peer is started and what it does about a fault, each by its own guide."""

import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.trainer.testing import Fault
from paceline.trainer.testing.job import free_port
from tests.bench.peers.environments import python_of
from tests.bench.peers.jobs import RANKS, PeerJob, PeerRun

MODULE = "tests.bench.peers"
LIGHTHOUSE_S_MAX = 10.0


@dataclass(frozen=True)
class System:
    """A peer in one configuration; `environment` is a name of `environments.PACKAGES`, or empty."""

    environment: str
    words: str  # for the table
    run: Callable[[Fault], PeerRun]


def _torchrun(fault: Fault, **extra: str) -> PeerRun:
    with PeerJob("", fault, extra) as job:
        command = [python_of(""), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        job.launch([*command, "--max-restarts=3", "-m", f"{MODULE}.torchrun_job"])
        return job.run(RANKS)


def _nvrx(fault: Fault, *words: str) -> PeerRun:
    with PeerJob("nvrx", fault) as job:
        for rank in range(RANKS + 1):
            job.launch_rank(f"{MODULE}.nvrx_job", rank, RANKS + 1, *words)
        return job.run(RANKS)


def _torchft(fault: Fault, *lighthouse: str, spares: int = 0) -> PeerRun:
    port = free_port()
    words = ["--spares"] if spares else []
    with PeerJob("torchft", fault, {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}) as job:
        program = Path(python_of("torchft")).parent / "torchft_lighthouse"
        job.launch([str(program), "--bind", f"[::]:{port}", *lighthouse], armed=False)
        _await_port(port)
        for rank in range(RANKS + spares):
            job.launch_rank(f"{MODULE}.torchft_job", rank, 1, *words)
        return job.run(RANKS + spares, None if spares else _start_again)


def _start_again(job: PeerJob) -> None:
    """As the group's own launcher would: at once, a new process under the same name."""
    victim: subprocess.Popen[bytes] = job.processes[1 + job.fault.rank]
    victim.wait()
    job.launch_rank(f"{MODULE}.torchft_job", job.fault.rank, 1, armed=False)


def _await_port(port: int) -> None:
    until = time.monotonic() + LIGHTHOUSE_S_MAX
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)


README = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
QUICK = ("--min_replicas", str(RANKS), "--quorum_tick_ms", "10", "--heartbeat_timeout_ms", "1000")
SYSTEMS: Mapping[str, System] = {
    "nvrx_tuned": System(
        "nvrx",
        "NVRx in-process 0.4.1, one reserve rank, intervals of 50 ms, warmed up",
        lambda fault: _nvrx(fault, "--tuned"),
    ),
    "nvrx_default": System("nvrx", "NVRx in-process 0.4.1, one reserve rank, defaults", _nvrx),
    "torchft_spare": System(
        "torchft",
        "torchft nightly 2026.10.26, one spare group, heartbeat 1 s",
        lambda fault: _torchft(fault, *QUICK, spares=1),
    ),
    "torchft_default": System(
        "torchft",
        "torchft nightly 2026.10.26, README's options, started again",
        lambda fault: _torchft(fault, *README),
    ),
    "torchrun": System("", "torchrun --max-restarts, checkpoint every 5 steps", _torchrun),
    "torchrun_unshared": System(
        "",
        "the same with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        lambda fault: _torchrun(fault, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
    ),
}
