"""What the collective writes into the probe page of its process."""

from dataclasses import dataclass
from enum import IntEnum

from paceline.collectives.host.schedule import Edge, Topology
from paceline.contracts.codes import DType, Function, Protocol, ReduceOp, Source
from paceline.probe.writer import Page


class ChannelState(IntEnum):
    """`send_state` and `recv_state` of a channel."""

    IDLE = 0
    MOVING = 1
    WAITING = 2


@dataclass(frozen=True)
class Membership:
    """Who this process is in the communicator. `comm` comes from `ids.communicator_id`."""

    comm: int
    instance: int
    rank: int
    global_rank: int


@dataclass
class News:
    """What happened on one edge since the page was told. Slices, bytes of those done, ns."""

    posted: int = 0
    done: int = 0
    done_bytes: int = 0
    wait_ns: int = 0
    early_wait_ns: int = 0  # before the pipeline was full

    def __bool__(self) -> bool:
        return bool(self.posted or self.done or self.wait_ns or self.early_wait_ns)


class Meter:
    """One communicator of one page; without a page every call does nothing."""

    def __init__(self, page: Page | None, member: Membership, topology: Topology) -> None:
        self._page = page
        self._topology = topology
        self._slot = -1
        if page is not None:
            size = topology.size
            self._slot = page.open_communicator(
                member.comm, member.instance, member.rank, size, member.global_rank, Source.KERNEL
            )

    def entered(self, count: int) -> int:
        """An all-reduce of `count` float32 begins; its ticket."""
        if self._page is None:
            return -1
        ticket = self._page.enter(
            self._slot, Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, count, 4 * count, count
        )
        topology = self._topology
        self._page.describe(ticket, topology.algorithm, Protocol.SIMPLE, topology.channels)
        self._page.returned(ticket)  # handed over to the engine
        return ticket

    def advanced(self, edge: Edge, news: "News", state: ChannelState) -> None:
        """What is new on `edge`; all are increments."""
        if self._page is not None:
            self._page.progress(
                self._slot, edge.direction, edge.peer, edge.group, edge.channel, edge.peer_slot,
                news.posted, news.done, news.done_bytes, news.wait_ns, news.early_wait_ns, state,
            )  # fmt: skip

    def completed(self, ticket: int, *, failed: bool) -> None:
        if self._page is not None:
            self._page.complete(ticket, failed)

    def close(self) -> None:
        if self._page is not None:
            self._page.close_communicator(self._slot)
            self._page = None
