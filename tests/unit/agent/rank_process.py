"""A training process without training: a real page and a real link, driven by lines on stdin.

Arguments: socket, job, attempt, rank, world size, uid to become. Answers each line with `ok`.
"""

import os
import sys

from paceline.contracts import ids
from paceline.contracts.agent_socket import CommunicatorClosed, CommunicatorOpened, Goodbye, Hello
from paceline.contracts.codes import DType, Function, Phase, ReduceOp, Source
from paceline.probe.connection import AgentConnection, RetryPolicy
from paceline.probe.writer import Page


def read_start() -> int:
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


class Rank:
    def __init__(
        self, socket_path: str, job: str, attempt: str, rank: int, world_size: int, uid: int
    ) -> None:
        self.page = Page.create(job, attempt, rank, world_size, rank, "test")
        if uid != os.getuid():
            os.setuid(uid)
        self.hello = Hello(
            job, "declared", attempt, "declared", rank, world_size, rank, os.getpid(), read_start(),
            versions={"torch": "2.13.0"}, coordinates={"dp": rank}, gpu=rank,
        )  # fmt: skip
        policy = RetryPolicy(first_s=0.05, max_s=0.2, refused_first_s=0.05, refused_max_s=0.2)
        self.link = AgentConnection(
            socket_path, self.page.page_fd, self.page.control_fd, self.hello, policy=policy
        )
        self.page.set_phase(Phase.TRAIN, "train")
        self.comm = ids.communicator_id("world", range(world_size))
        self.slot = self.page.open_communicator(self.comm, 0, rank, world_size, rank, Source.TORCH_HOOK)
        self.link.send(
            CommunicatorOpened(
                ids.format_communicator(self.comm), "world", f"0-{world_size - 1}" if world_size > 1 else "0",
                0, "gloo", self.slot, "world",
            )
        )  # fmt: skip
        self.link.start()

    def enter(self) -> int:
        ticket: int = self.page.enter(
            self.slot, Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 1024, 4096, 1024
        )
        self.page.returned(ticket)
        return ticket

    def do(self, word: str, rest: list[str]) -> str:
        self.page.beat()
        if word == "rounds":
            for _ in range(int(rest[0])):
                self.page.complete(self.enter(), False)
        elif word == "enter":
            self.enter()
        elif word == "status":
            return f"{self.link.connected} {self.link.connects} {self.link.last_error}"
        elif word == "close":
            self.link.send(CommunicatorClosed(ids.format_communicator(self.comm)))
        elif word == "finish":
            self.page.finish()
            self.link.close(Goodbye("finished"))
        elif word == "terminated":
            self.link.close(Goodbye("terminated", "SIGTERM"))
        elif word == "exit":
            os._exit(int(rest[0]))
        return "ok"


def main() -> None:
    socket_path, job, attempt, rank, world_size, uid = sys.argv[1:]
    process = Rank(socket_path, job, attempt, int(rank), int(world_size), int(uid))
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        print(process.do(word, rest), flush=True)


if __name__ == "__main__":
    main()
