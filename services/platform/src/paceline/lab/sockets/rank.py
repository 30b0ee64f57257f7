"""One rank of the job: a process in its own network namespace, told what to do over a socket.

It says `page` with the descriptors of its probe page, `ready` when it has met the others, and `wrong`
where a sum is not right. It is told `late <ms>` (sleep so long before each round) and ends at the end
of the socket. SIGUSR1 makes its thread stand still wherever it is, as a hung driver call does: unlike
after SIGSTOP the process lives on, with its heartbeat.
"""

import os
import random
import signal
import socket
import time
from dataclasses import dataclass
from types import FrameType

import numpy as np

from paceline.collectives.host.errors import HostCollectiveError
from paceline.collectives.host.group import HostGroup, HostOptions
from paceline.collectives.host.meter import Membership
from paceline.collectives.host.schedule import Cut, Topology
from paceline.contracts.codes import Phase
from paceline.lab.sockets.network import enter_namespace
from paceline.probe.writer import Page

PORT = 29470
STUCK_S = 600.0
MESSAGE_BYTES_MAX = 64
ROUNDS_MAX = 100_000


@dataclass(frozen=True)
class RankPlan:
    """What a rank needs to know. `topology` is over ranks 0 to world - 1."""

    job: str
    attempt: str
    rank: int
    comm: int
    topology: Topology
    namespace: str
    addresses: tuple[str, ...]
    elements: int
    slice_elements: int
    window: int
    compute_ms: float  # between rounds, +-20%
    seed: int


def run_rank(plan: RankPlan, control: socket.socket) -> None:
    """Body of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us
    signal.signal(signal.SIGUSR1, _stand_still)
    enter_namespace(plan.namespace)
    page = Page.create(plan.job, plan.attempt, plan.rank, plan.topology.size, 0, "paceline.collectives.host")
    socket.send_fds(control, [b"page"], [page.page_fd, page.control_fd])
    try:
        with socket.create_server((plan.addresses[plan.rank], PORT), backlog=64) as listener:
            options = HostOptions(Cut(plan.slice_elements), plan.window, connect_timeout_s=20.0)
            addresses = [(address, PORT) for address in plan.addresses]
            member = Membership(plan.comm, 0, plan.rank, plan.rank)
            group = HostGroup.connect(listener, addresses, member, plan.topology, page, options)
        control.send(b"ready")
        _train(plan, control, page, group)
    except (HostCollectiveError, BrokenPipeError, ConnectionResetError):
        pass  # the others are being stopped too
    # No tidy end: the page stays as it is until its reader is done with it.
    os._exit(0)


def _train(plan: RankPlan, control: socket.socket, page: Page, group: HostGroup) -> None:
    chance = random.Random(plan.seed * 1000 + plan.rank)
    array = np.empty(plan.elements, np.float32)
    total = float(plan.topology.size * (plan.topology.size - 1) // 2)
    late_s = 0.0
    control.setblocking(False)
    page.set_phase(Phase.TRAIN, "train")
    for step in range(ROUNDS_MAX):
        page.set_step(step)
        try:
            told = control.recv(MESSAGE_BYTES_MAX)
        except BlockingIOError:
            pass
        else:
            if not told:
                return
            late_s = float(told.decode().removeprefix("late ")) / 1000.0
        time.sleep(plan.compute_ms / 1000.0 * chance.uniform(0.8, 1.2) + late_s)
        array.fill(plan.rank)
        group.all_reduce(array)
        if array[0] != total or array[-1] != total:
            control.send(b"wrong")


def _stand_still(number: int, frame: FrameType | None) -> None:
    time.sleep(STUCK_S)
