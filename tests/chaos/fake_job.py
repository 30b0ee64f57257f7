"""A job without torch: forked ranks in lock step, real probe pages, real links to the agent.

    fake_job.py --socket PATH [--socket PATH] --job J --attempt A --world N --tp T [--gap-ms G]

With several sockets the ranks are spread over as many nodes, in order. Each rank belongs to its
tensor group, its data group and the world, and does one round in each of them per step. A round is
a real blocking wait: a rank sends a token to every other member and waits for one of each.
Commands are JSON lines on stdin, `{"rank": r, "do": ...}`, rank -1 for all:

    hold GROUP [phase] [seconds]   stop before the next round of GROUP; goes on with `go`
    linger GROUP                   enter the next round of GROUP and stay inside; goes on with `go`
    mismatch GROUP                 the same, but call broadcast where the others call all_reduce
    finish STEP                    end in order before that step
    leave                          end in order at once, from inside a wait too
    exit CODE                      end in disorder at the next step

`status` is answered with one JSON line. The end of stdin kills the ranks. Freezing and killing is
done from outside, with signals.
"""

import argparse
import ctypes
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from paceline.agent.process import ProcReader
from paceline.contracts import ids
from paceline.contracts.agent_socket import CommunicatorOpened, Goodbye, Hello
from paceline.contracts.codes import DType, Function, Phase, ReduceOp, Source
from paceline.probe.connection import AgentConnection, RetryPolicy
from paceline.probe.writer import Page

RUNNING, HELD, INSIDE, ENDED = "running", "held", "inside", "ended"
PLACES = (RUNNING, HELD, INSIDE, ENDED)
PR_SET_PDEATHSIG = 1
BEAT_S = 0.2
_SLOT = struct.Struct("<QQ")  # steps done, place
_PRCTL = ctypes.CDLL(None).prctl  # loaded before any fork


@dataclass(frozen=True)
class Group:
    """One communicator: `name` is unique in the job, `kind` is what commands call it."""

    name: str
    kind: str
    ranks: tuple[int, ...]

    @property
    def comm(self) -> int:
        return ids.communicator_id(self.name, self.ranks)


def make_groups(world: int, tp: int) -> list[Group]:
    """Tensor groups of neighbours, data groups across them, the world."""
    groups = [Group(f"tp_{at}", "tp", tuple(range(at * tp, at * tp + tp))) for at in range(world // tp)]
    groups += [Group(f"dp_{at}", "dp", tuple(range(at, world, tp))) for at in range(tp)]
    return [
        *(group for group in groups if len(group.ranks) > 1),
        Group("world", "world", tuple(range(world))),
    ]


class Board:
    """Steps and places of all ranks, in memory shared by fork."""

    def __init__(self, world: int) -> None:
        self._memory = mmap.mmap(-1, max(world * _SLOT.size, mmap.PAGESIZE))

    def write(self, rank: int, steps: int, place: str) -> None:
        _SLOT.pack_into(self._memory, rank * _SLOT.size, steps, PLACES.index(place))

    def read(self, rank: int) -> tuple[int, str]:
        steps, place = _SLOT.unpack_from(self._memory, rank * _SLOT.size)
        return steps, PLACES[place]


class Leave(Exception):
    """The rank was told to end in order, wherever it is."""


class Mailbox:
    """Tokens that the other members of one group sent to one rank."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.counts: dict[int, int] = {}

    def put(self, source: int) -> None:
        os.write(self.write_end, bytes([source]))

    def take(self) -> None:
        for source in os.read(self.read_end, 4096):
            self.counts[source] = self.counts.get(source, 0) + 1


class Rank:
    """One training process."""

    def __init__(
        self,
        options: argparse.Namespace,
        rank: int,
        groups: Sequence[Group],
        mailboxes: Mapping[tuple[str, int], Mailbox],
        channel: socket.socket,
        board: Board,
    ) -> None:
        self.rank = rank
        self.groups = [group for group in groups if rank in group.ranks]
        self.gap_s = options.gap_ms / 1000
        self._mailboxes = mailboxes
        self._channel = channel
        self._board = board
        self._steps = 0
        self._rounds = dict.fromkeys((group.name for group in self.groups), 0)
        self._order: dict[str, Any] = {}
        self._finish_step = 1 << 62
        self._page = Page.create(options.job, options.attempt, rank, options.world, rank, "fake")
        self._page.set_phase(Phase.TRAIN, "train")
        start = ProcReader().read(os.getpid()).start_ticks
        hello = Hello(
            options.job, "declared", options.attempt, "declared", rank, options.world, rank, os.getpid(),
            start, coordinates={"tp": rank % options.tp, "dp": rank // options.tp},
            coordinate_source="declared",
        )  # fmt: skip
        policy = RetryPolicy(first_s=0.05, max_s=0.5, refused_first_s=0.1, refused_max_s=0.5)
        path = options.socket[rank * len(options.socket) // options.world]
        self.link = AgentConnection(path, self._page.page_fd, self._page.control_fd, hello, policy=policy)
        self._slots = {group.name: self._open(group) for group in self.groups}
        self.link.start()
        threading.Thread(target=self._beat, daemon=True).start()

    def run(self) -> int:
        """Steps until told to end; the exit status."""
        try:
            while self._steps < self._finish_step:
                self._take_order(block=False)
                if self._order.get("do") == "exit":
                    return int(self._order["code"])
                for group in self.groups:
                    self._round(group)
                self._steps += 1
                self._page.set_step(self._steps)
                self._show(RUNNING)
                time.sleep(self.gap_s)
        except Leave:
            pass
        self._show(ENDED)
        self._page.finish()
        self.link.close(Goodbye("finished"))
        return 0

    def _open(self, group: Group) -> int:
        slot: int = self._page.open_communicator(
            group.comm, 0, group.ranks.index(self.rank), len(group.ranks), self.rank, Source.TORCH_HOOK
        )
        text = ids.format_communicator(group.comm)
        ranks = ids.format_ranks(group.ranks)
        self.link.send(CommunicatorOpened(text, group.name, ranks, 0, "gloo", slot, group.kind))
        return slot

    def _round(self, group: Group) -> None:
        order = self._order if self._order.get("group") == group.kind else {}
        if order.get("do") == "hold":
            self._wait_for_go(HELD, order)
        wrong = order.get("do") == "mismatch"
        function = Function.BROADCAST if wrong else Function.ALL_REDUCE
        op, peer = (ReduceOp.UNKNOWN, 0) if wrong else (ReduceOp.SUM, -1)
        ticket = self._page.enter(
            self._slots[group.name], function, DType.FLOAT32, op, peer, 4096, 16384, 4096
        )
        self._page.returned(ticket)
        if wrong or order.get("do") == "linger":
            self._wait_for_go(INSIDE, order)
        self._exchange(group)
        self._page.complete(ticket, False)

    def _exchange(self, group: Group) -> None:
        self._rounds[group.name] += 1
        number, others = self._rounds[group.name], [rank for rank in group.ranks if rank != self.rank]
        for rank in others:
            self._mailboxes[(group.name, rank)].put(self.rank)
        mine = self._mailboxes[(group.name, self.rank)]
        while any(mine.counts.get(rank, 0) < number for rank in others):
            ready, _, _ = select.select([mine.read_end, self._channel.fileno()], [], [])
            if mine.read_end in ready:
                mine.take()
            else:
                self._take_order(block=True)

    def _wait_for_go(self, place: str, order: Mapping[str, Any]) -> None:
        if "phase" in order:
            self._page.set_phase(Phase[order["phase"].upper()], order["phase"])
        self._show(place)
        deadline = time.monotonic() + order.get("seconds", 1e6)
        while self._order is order:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._channel], [], [], left_s)[0]:
                self._order = {}
                break
            self._take_order(block=True)
        if "phase" in order:
            self._page.set_phase(Phase.TRAIN, "train")
        self._show(RUNNING)

    def _take_order(self, *, block: bool) -> None:
        if not block and not select.select([self._channel], [], [], 0)[0]:
            return
        data = self._channel.recv(4096)
        if not data:
            os._exit(70)  # the launcher is gone
        order = json.loads(data)
        if order["do"] == "leave":
            raise Leave
        if order["do"] == "finish":
            self._finish_step = int(order["step"])
        elif order["do"] == "go":
            self._order = {}
        else:
            self._order = order

    def _show(self, place: str) -> None:
        self._board.write(self.rank, self._steps, place)

    def _beat(self) -> None:
        while True:
            self._page.beat()
            time.sleep(BEAT_S)


class Launcher:
    """Forks the ranks, passes commands on, reaps, answers `status`."""

    def __init__(self, options: argparse.Namespace) -> None:
        world = options.world
        groups = make_groups(world, options.tp)
        mailboxes = {(group.name, rank): Mailbox() for group in groups for rank in group.ranks}
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(world)]
        self._board = Board(world)
        self._exits: dict[int, int] = {}
        self._pids = [
            self._fork(options, rank, groups, mailboxes, [ours for ours, _ in pairs], pairs[rank][1])
            for rank in range(world)
        ]
        self._channels = [ours for ours, _ in pairs]
        for _, theirs in pairs:
            theirs.close()

    def _fork(
        self,
        options: argparse.Namespace,
        rank: int,
        groups: Sequence[Group],
        mailboxes: Mapping[tuple[str, int], Mailbox],
        launcher_ends: Sequence[socket.socket],
        channel: socket.socket,
    ) -> int:
        pid = os.fork()
        if pid:
            return pid
        _PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for end in launcher_ends:
            end.close()
        os.close(0)
        os.dup2(2, 1)
        _run_rank(options, rank, groups, mailboxes, channel, self._board)

    def serve(self) -> None:
        """Until stdin ends."""
        self._answer()
        pending = b""
        while True:
            if select.select([0], [], [], 0.05)[0]:
                data = os.read(0, 4096)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._do(json.loads(line))
            self._reap()

    def kill(self) -> None:
        for rank, pid in enumerate(self._pids):
            if rank not in self._exits:
                os.kill(pid, signal.SIGKILL)
        while len(self._exits) < len(self._pids):
            self._reap()
            time.sleep(0.01)

    def _do(self, command: dict[str, Any]) -> None:
        if command["do"] == "status":
            self._answer()
            return
        rank = command.pop("rank")
        for channel in self._channels if rank < 0 else [self._channels[rank]]:
            try:
                channel.send(json.dumps(command).encode())
            except OSError:
                pass  # a rank that has ended

    def _answer(self) -> None:
        self._reap()
        ranks = []
        for rank, pid in enumerate(self._pids):
            steps, place = self._board.read(rank)
            ranks.append({"pid": pid, "steps": steps, "place": place, "exit": self._exits.get(rank)})
        sys.stdout.write(json.dumps(ranks) + "\n")
        sys.stdout.flush()

    def _reap(self) -> None:
        for rank, pid in enumerate(self._pids):
            if rank in self._exits:
                continue
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._exits[rank] = os.waitstatus_to_exitcode(status)


def _run_rank(
    options: argparse.Namespace,
    rank: int,
    groups: Sequence[Group],
    mailboxes: Mapping[tuple[str, int], Mailbox],
    channel: socket.socket,
    board: Board,
) -> NoReturn:
    status = 71
    try:
        status = Rank(options, rank, groups, mailboxes, channel, board).run()
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", action="append", required=True)
    for name in ("--job", "--attempt"):
        parser.add_argument(name, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--tp", type=int, required=True)
    parser.add_argument("--gap-ms", type=float, default=25.0)
    launcher = Launcher(parser.parse_args())
    try:
        launcher.serve()
    finally:
        launcher.kill()


if __name__ == "__main__":
    main()
