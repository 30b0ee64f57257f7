"""All ranks of one run: started together, read through their pages, ended whatever happened."""

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess

from paceline.agent.pages import MappedPage, open_page
from paceline.agent.process import ProcReader
from paceline.contracts.codes import ProcessState
from paceline.lab.processes import LabError
from paceline.lab.sockets.rank import MESSAGE_BYTES_MAX, RankPlan, run_rank

START_S_MAX = 30.0
END_S_MAX = 5.0


@dataclass
class Member:
    """One rank as its starter sees it."""

    rank: int
    process: ForkServerProcess
    control: socket.socket
    page: MappedPage
    pid_start: int
    wrong: bool = False

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


def start_method() -> ForkServerContext:
    """A server that has imported everything once: a rank starts in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["paceline.lab.sockets.rank"])
    return context


class Team:
    """Made by `start_team`."""

    def __init__(self, members: list[Member], proc: ProcReader) -> None:
        self.members = members
        self._proc = proc

    def wait_ready(self) -> None:
        """Until all have met; LabError names who has not."""
        waiting = {member.rank for member in self.members}
        until_s = time.monotonic() + START_S_MAX
        while waiting:
            left_s = until_s - time.monotonic()
            socks = {m.control.fileno(): m for m in self.members if m.rank in waiting}
            ready, _, _ = select.select(list(socks), [], [], max(left_s, 0.0))
            if not ready:
                raise LabError(f"ranks {sorted(waiting)} have not met the others in {START_S_MAX:g} s")
            for fd in ready:
                member = socks[fd]
                if member.control.recv(MESSAGE_BYTES_MAX) != b"ready":
                    raise LabError(f"rank {member.rank} ended before it had met the others")
                waiting.discard(member.rank)

    def check_sums(self) -> None:
        """LabError where a rank found a wrong sum."""
        for member in self.members:
            with contextlib.suppress(BlockingIOError):
                if member.control.recv(MESSAGE_BYTES_MAX, socket.MSG_DONTWAIT) == b"wrong":
                    raise LabError(f"rank {member.rank} got a wrong sum: the collective is broken")

    def make_late(self, rank: int, late_ms: float) -> None:
        self.members[rank].control.send(f"late {late_ms:.1f}".encode())

    def freeze(self, rank: int) -> None:
        """SIGSTOP, and wait until the kernel has carried it out."""
        self._signal(rank, signal.SIGSTOP)
        until_s = time.monotonic() + END_S_MAX
        while self._proc.read(self.members[rank].pid).state is not ProcessState.STOPPED:
            if time.monotonic() > until_s:
                raise LabError(f"rank {rank} does not stop")
            time.sleep(0.001)

    def thaw(self, rank: int) -> None:
        self._signal(rank, signal.SIGCONT)

    def stick(self, rank: int) -> None:
        """Its thread stands still, its process does not."""
        self._signal(rank, signal.SIGUSR1)

    def is_inside(self, rank: int) -> bool:
        """Whether its newest round is open."""
        frames = self.members[rank].page.read().frames
        return bool(len(frames) and frames["head_round"][0])

    def end(self) -> None:
        """Kill all that still run. Never raises."""
        for member in self.members:
            member.process.kill()
        for member in self.members:
            member.process.join(END_S_MAX)
            member.control.close()
            member.page.close()

    def _signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.members[rank].pid, number)


@contextlib.contextmanager
def start_team(context: ForkServerContext, plans: Sequence[RankPlan]) -> Iterator[Team]:
    """Start one process for each plan and wait until all have met."""
    team = Team([], ProcReader())
    started: list[tuple[ForkServerProcess, socket.socket]] = []
    try:
        for plan in plans:
            started.append(_start(context, plan))
        for plan, (process, control) in zip(plans, started, strict=True):
            team.members.append(_greet(plan, process, control))
        team.wait_ready()
        yield team
    finally:
        team.end()
        for process, control in started[len(team.members) :]:  # those that nobody has greeted
            process.kill()
            process.join(END_S_MAX)
            control.close()


def _start(context: ForkServerContext, plan: RankPlan) -> tuple[ForkServerProcess, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = context.Process(target=run_rank, args=(plan, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _greet(plan: RankPlan, process: ForkServerProcess, control: socket.socket) -> Member:
    """Take the descriptors of its page; LabError where it has died before."""
    control.settimeout(START_S_MAX)
    try:
        said, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
    except OSError as error:
        process.kill()
        raise LabError(f"rank {plan.rank} shows no page: {error}") from None
    if said != b"page" or len(fds) != 2:
        process.kill()
        raise LabError(f"rank {plan.rank} ended before it showed its page")
    control.settimeout(None)
    assert process.pid is not None
    page = open_page(fds[0], fds[1])
    return Member(plan.rank, process, control, page, ProcReader().read(process.pid).start_ticks)
