"""Ranks as threads of this process, over loopback, each with a page of its own."""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from paceline.collectives.host.group import HostGroup, HostOptions
from paceline.collectives.host.meter import Membership
from paceline.collectives.host.schedule import Topology
from paceline.probe.reader import PageReader
from paceline.probe.snapshot import FrameDetail
from paceline.probe.writer import Page

COMM = 0xC0FFEE


@dataclass
class Rank:
    """One member: its page, what a reader sees of it, and its thread."""

    rank: int
    page: Page
    reader: PageReader
    listener: socket.socket
    group: HostGroup | None = None
    error: BaseException | None = None
    thread: threading.Thread | None = None

    def frame(self) -> np.void:
        frame: np.void = self.reader.read(detail=False).frames[0]
        return frame

    def detail(self) -> FrameDetail:
        return self.reader.read().details[0]


Work = Callable[[Rank], None]


@dataclass
class Team:
    """All ranks of one communicator."""

    topology: Topology
    options: HostOptions
    ranks: list[Rank] = field(default_factory=list)

    def start(self, work: Work, only: set[int] | None = None) -> None:
        """Connect where needed, then `work` on every rank (or on `only` these), each in its thread."""
        for member in self.ranks:
            if only is None or member.rank in only:
                member.thread = threading.Thread(target=self._run, args=(member, work), daemon=True)
                member.thread.start()

    def join(self, timeout_s: float = 30.0) -> None:
        """Wait for all; the first error of a rank is raised."""
        for member in self.ranks:
            if member.thread is not None:
                member.thread.join(timeout_s)
                assert not member.thread.is_alive(), f"rank {member.rank} is stuck"
        for member in self.ranks:
            if member.error is not None:
                raise member.error

    def run(self, work: Work) -> None:
        self.start(work)
        self.join()

    def _run(self, member: Rank, work: Work) -> None:
        try:
            if member.group is None:
                addresses = [other.listener.getsockname() for other in self.ranks]
                membership = Membership(COMM, 0, member.rank, member.rank)
                member.group = HostGroup.connect(
                    member.listener, addresses, membership, self.topology, member.page, self.options
                )
            work(member)
        except BaseException as error:
            member.error = error

    def close(self) -> None:
        for member in self.ranks:
            if member.group is not None:
                member.group.close()
            if member.thread is not None:
                member.thread.join(10.0)
            member.listener.close()
            member.reader.close()
            member.page.close()


MakeTeam = Callable[..., Team]


@pytest.fixture
def make_team() -> Iterator[MakeTeam]:
    teams: list[Team] = []

    def make(topology: Topology, options: HostOptions | None = None) -> Team:
        team = Team(topology, options or HostOptions(connect_timeout_s=10.0, operation_timeout_s=20.0))
        teams.append(team)
        for rank in range(topology.size):
            page = Page.create("job", "a1", rank, topology.size, rank, "host")
            listener = socket.create_server(("127.0.0.1", 0))
            team.ranks.append(Rank(rank, page, PageReader(page.page_fd), listener))
        return team

    yield make
    for team in teams:
        team.close()
