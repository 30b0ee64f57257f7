"""Ranks that come and go: `cycles.py SOCKET FIRST COUNT` forks one after the other.

Each is a job of its own. It connects, does some rounds, and ends with a goodbye, without one, or
by SIGTERM, in turn: none of them is an incident. Prints one line when all have ended.
"""

import os
import signal
import sys
import time

from paceline.agent.process import ProcReader
from paceline.contracts import ids
from paceline.contracts.agent_socket import CommunicatorOpened, Goodbye, Hello
from paceline.contracts.codes import DType, Function, Phase, ReduceOp, Source
from paceline.probe.connection import AgentConnection, RetryPolicy
from paceline.probe.writer import Page

CONNECT_S_MAX = 20.0


def run_rank(path: str, number: int) -> None:
    job = f"cycle-{number}"
    page = Page.create(job, "a1", 0, 1, 0, "fake")
    page.set_phase(Phase.TRAIN, "train")
    start = ProcReader().read(os.getpid()).start_ticks
    hello = Hello(job, "declared", "a1", "declared", 0, 1, 0, os.getpid(), start)
    link = AgentConnection(path, page.page_fd, page.control_fd, hello, policy=RetryPolicy(first_s=0.01))
    comm = ids.communicator_id("world", (0,))
    slot = page.open_communicator(comm, 0, 0, 1, 0, Source.TORCH_HOOK)
    link.send(CommunicatorOpened(ids.format_communicator(comm), "world", "0", 0, "gloo", slot, "world"))
    link.start()
    deadline = time.monotonic() + CONNECT_S_MAX
    while not link.connected and time.monotonic() < deadline:
        time.sleep(0.002)
    for _ in range(5):
        page.complete(page.enter(slot, Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 1, 4, 1), False)
    if number % 3 == 0:
        page.finish()
        link.close(Goodbye("finished"))
        os._exit(0)
    if number % 3 == 1:
        os._exit(0)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for number in range(first, first + count):
        pid = os.fork()
        if pid == 0:
            run_rank(path, number)
        os.waitpid(pid, 0)
    print("done", flush=True)


if __name__ == "__main__":
    main()
