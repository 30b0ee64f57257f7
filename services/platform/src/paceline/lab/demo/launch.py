"""Starts the ranks of the demo: imports torch once, then forks one process per rank.

Importing torch costs about three CPU seconds; eight imports on two cores would take most of the start.
Forking after the import is safe here because nothing has run yet: no thread pool, no process group.
When one rank ends, or a signal arrives, all others are ended; the kernel ends them if we are killed.
"""

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType

from paceline.lab.processes import die_with_parent

GRACE_S = 2.0
POLL_S = 0.02


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun would set for one node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def fork_rank(main: Callable[[], None], environment: dict[str, str], log: Path) -> int:
    """Pid of a child that runs `main` with its output in `log`."""
    set_death_signal = die_with_parent(signal.SIGKILL)
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        set_death_signal()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(environment)
        main()
        status = 0
    except BaseException:  # the rank's end is reported by its status and its log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end_all(pids: set[int], stop_signal: int, grace_s: float = GRACE_S) -> None:
    """`stop_signal`, then SIGKILL after `grace_s`; stopped processes are continued first."""
    for pid in pids:
        os.kill(pid, stop_signal)
        os.kill(pid, signal.SIGCONT)
    deadline = time.monotonic() + grace_s
    while pids and time.monotonic() < deadline:
        reap(pids)
        time.sleep(POLL_S)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in tuple(pids):
        os.waitpid(pid, 0)
        pids.discard(pid)


def reap(pids: set[int]) -> dict[int, int]:
    """Exit codes of the children that have ended; they leave `pids`."""
    ended = {}
    for pid in tuple(pids):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            pids.discard(pid)
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def launch(world_size: int, main: Callable[[], None], logs: Path) -> int:
    """Run all ranks until they end or we are told to stop; 0 where every rank ended in order."""
    stop: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        stop.append(number)

    signal.signal(signal.SIGTERM, remember)
    signal.signal(signal.SIGINT, remember)
    port = free_port()
    pids = {
        fork_rank(main, rank_environment(rank, world_size, port), logs / f"rank{rank}.log")
        for rank in range(world_size)
    }
    failed = 0
    while pids and not stop and not failed:
        time.sleep(POLL_S)
        failed = next((code for code in reap(pids).values() if code), 0)
    if pids:
        end_all(pids, stop[0] if stop else signal.SIGTERM)
    return 0 if stop else failed


if __name__ == "__main__":
    from paceline.lab.demo.train import WORLD_SIZE
    from paceline.lab.demo.train import main as train_main

    import_module("paceline.trainer.process")  # loaded here once, started in each rank
    sys.exit(launch(WORLD_SIZE, train_main, Path(sys.argv[1])))
