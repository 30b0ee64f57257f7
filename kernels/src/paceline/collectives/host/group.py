"""A communicator of processes over TCP."""

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.collectives.host.engine import Engine
from paceline.collectives.host.errors import HostCollectiveError, RendezvousError
from paceline.collectives.host.links import HEADER, ReceiveLink, SendLink
from paceline.collectives.host.meter import Membership, Meter
from paceline.collectives.host.schedule import Cut, Direction, Edge, Schedule, Topology, make_schedule
from paceline.probe.writer import Page

Address = tuple[str, int]
_HELLO = struct.Struct("<IIQIII")  # magic, version, communicator, sender's rank, channel group, spare
_MAGIC, _VERSION = 0x31484350, 1  # "PCH1"
RETRY_S = 0.02
STRANGERS_MAX = 64  # connections that say something else before we give up
SCHEDULES_MAX = 64


@dataclass(frozen=True)
class HostOptions:
    """Bounds. `window`: slices on one link that are not consumed yet; must exceed `cut.chunk_slices`."""

    cut: Cut = field(default_factory=lambda: Cut(16 * 1024))
    window: int = 4
    connect_timeout_s: float = 30.0
    operation_timeout_s: float = 1800.0  # as torch.distributed's own default for gloo


class HostGroup:
    """Made by `connect` on every member; all members call the same operations in the same order."""

    def __init__(self, engine: Engine, meter: Meter, member: Membership, topology: Topology) -> None:
        self._engine = engine
        self._meter = meter
        self._member = member
        self._topology = topology
        self._options = HostOptions()
        self._schedules: dict[int, Schedule] = {}
        self._round = 0
        self._broken = ""

    @classmethod
    def connect(
        cls,
        listener: socket.socket,
        addresses: Sequence[Address],
        member: Membership,
        topology: Topology,
        page: Page | None = None,
        options: HostOptions | None = None,
    ) -> "HostGroup":
        """Meet the others. `listener` listens at `addresses[member.rank]`; it stays the caller's.

        `addresses`: one for each rank of the communicator. Raises RendezvousError where somebody does
        not come in time, ValueError where the arguments do not fit each other.
        """
        options = options or HostOptions()
        if len(addresses) != topology.size:
            raise ValueError(f"{len(addresses)} addresses, expected one for each of {topology.size} ranks")
        if options.window <= options.cut.chunk_slices:
            raise ValueError(f"window {options.window}, expected more than {options.cut.chunk_slices} slices")
        meeting = _Meeting(listener, addresses, member, options)
        edges = topology.edges(member.rank)
        try:
            outgoing = [edge for edge in edges if edge.direction is Direction.SEND]
            sends = [SendLink(edge, meeting.call(edge), options.window) for edge in outgoing]
            incoming = [edge for edge in edges if edge.direction is Direction.RECEIVE]
            receives = [ReceiveLink(e, s, options.window) for e, s in meeting.answer(incoming).items()]
        except BaseException:
            meeting.close()
            raise
        meter = Meter(page, member, topology)
        group = cls(Engine(sends, receives, meter), meter, member, topology)
        group._options = options
        return group

    def all_reduce(self, array: npt.NDArray[np.float32]) -> None:
        """Sum of `array` (any shape, C-contiguous, float32, same on all ranks) over all ranks, in place.

        Returns when the sum is here and all that was sent has reached the peers' hosts. Raises
        HostCollectiveError; the group is then of no use any more.
        """
        if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(f"array of {array.dtype}, expected writeable C-contiguous float32")
        if self._broken:
            raise HostCollectiveError(f"an earlier operation failed ({self._broken}); make a new group")
        flat = array.reshape(-1)
        self._round += 1
        ticket = self._meter.entered(flat.size)
        try:
            self._engine.run(self._schedule(flat.size), flat, self._round, self._options.operation_timeout_s)
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            self._meter.completed(ticket, failed=True)
            raise
        self._meter.completed(ticket, failed=False)

    def close(self) -> None:
        """Hang up; the communicator's frame is closed."""
        self._broken = self._broken or "closed"
        self._engine.close()
        self._meter.close()

    def _schedule(self, count: int) -> Schedule:
        found = self._schedules.get(count)
        if found is None:
            if len(self._schedules) >= SCHEDULES_MAX:
                self._schedules.clear()
            found = make_schedule(self._topology, self._member.rank, count, self._options.cut)
            self._schedules[count] = found
        return found


class _Meeting:
    """Calls those we send to, waits for those who send to us."""

    def __init__(
        self, listener: socket.socket, addresses: Sequence[Address], member: Membership, options: HostOptions
    ) -> None:
        self._listener = listener
        self._addresses = addresses
        self._member = member
        self._options = options
        self._until_s = time.monotonic() + options.connect_timeout_s
        self._made: list[socket.socket] = []

    def call(self, edge: Edge) -> socket.socket:
        """A connection to `edge.peer`, which may not listen yet."""
        address = self._addresses[edge.peer]
        while True:
            sock = self._prepare(socket.socket(_family(address), socket.SOCK_STREAM))
            try:
                sock.settimeout(self._left_s(f"rank {edge.peer} at {address[0]}:{address[1]}"))
                sock.connect(address)
                hello = _HELLO.pack(_MAGIC, _VERSION, self._member.comm, self._member.rank, edge.group, 0)
                sock.sendall(hello)
            except OSError:
                self._made.remove(sock)
                sock.close()
                time.sleep(RETRY_S)
                continue
            sock.setblocking(False)
            return sock

    def answer(self, edges: Sequence[Edge]) -> dict[Edge, socket.socket]:
        """The connections of all of `edges`; who is somebody else is hung up on."""
        wanted = {(edge.peer, edge.group): edge for edge in edges}
        found: dict[Edge, socket.socket] = {}
        strangers = 0
        while wanted:
            missing = ", ".join(f"rank {peer}" for peer, _ in sorted(wanted))
            self._listener.settimeout(self._left_s(missing))
            try:
                sock = self._prepare(self._listener.accept()[0])
                sock.settimeout(self._left_s(missing))
                edge = wanted.pop(self._read_hello(sock), None)
            except OSError:
                continue  # timed out or hung up: the time left decides
            if edge is None:
                self._made.remove(sock)
                sock.close()
                strangers += 1
                if strangers > STRANGERS_MAX:
                    raise RendezvousError(f"{strangers} strange connections while waiting for {missing}")
                continue
            sock.setblocking(False)
            found[edge] = sock
        return found

    def close(self) -> None:
        for sock in self._made:
            sock.close()

    def _prepare(self, sock: socket.socket) -> socket.socket:
        self._made.append(sock)
        size = self._options.window * (HEADER.size + 4 * self._options.cut.slice_elements)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(1 << 16, 2 * size))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, max(1 << 16, 2 * size))
        return sock

    def _read_hello(self, sock: socket.socket) -> tuple[int, int]:
        data = b""
        while len(data) < _HELLO.size:
            part = sock.recv(_HELLO.size - len(data))
            if not part:
                return (-1, -1)
            data += part
        magic, version, comm, rank, group, _ = _HELLO.unpack(data)
        is_ours = (magic, version, comm) == (_MAGIC, _VERSION, self._member.comm)
        return (rank, group) if is_ours else (-1, -1)

    def _left_s(self, whom: str) -> float:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            limit_s = self._options.connect_timeout_s
            raise RendezvousError(
                f"{whom} did not come within {limit_s:g} s; check that it runs and is reachable"
            )
        return left_s


def _family(address: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET
