"""The two ends of a directed link: one TCP connection, slices one way, one byte of credit per slice back.

A sender has at most `window` slices that its receiver has not consumed, so nothing is buffered without
bound, and a receiver that stops is felt by its sender. A slice counts as sent when the peer's kernel has
acknowledged all of it (SIOCOUTQ), which is what a network card's completion means to NCCL's proxy: a
frozen receiver still takes a window full, a broken link takes nothing.
"""

import errno
import fcntl
import socket
import struct
from collections import deque
from dataclasses import dataclass

from paceline.collectives.host.errors import MismatchError, PeerLostError
from paceline.collectives.host.meter import News
from paceline.collectives.host.schedule import Edge

# round, elements of the operation, index of the slice on this link, each the low 32 bits; payload bytes
HEADER = struct.Struct("<IIII")
_LOW = 0xFFFFFFFF
READ_BYTES = 1 << 18
STILL_NS = 1_000_000_000
SIOCOUTQ = 0x5411
_GONE = (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.ECONNABORTED)
_COUNT = struct.Struct("i")


@dataclass(frozen=True)
class Operation:
    """What both ends of a link must agree on."""

    round: int
    count: int  # elements


class _Link:
    """What both ends share: what has happened since the meter was last told."""

    def __init__(self, edge: Edge, sock: socket.socket) -> None:
        self.edge = edge
        self.sock = sock
        self.closed = False  # the peer has hung up
        self.news = News()
        self.waiting = False  # as the page says
        self.steps = 0  # in this operation
        self.fill = 0  # steps of this operation before waits count

    def begin(self, fill: int) -> None:
        self.steps, self.fill = 0, fill

    def waited(self, wait_ns: int, still_ns: int) -> None:
        """The operation waited for this link; nothing has moved in it for `still_ns`.

        Waits before the pipeline is full say who came late and not which link is slow, so they do not
        count; but where the operation stands still they are the only sign of what it waits for.
        """
        if self.steps >= self.fill:
            self.news.wait_ns += wait_ns
        elif still_ns >= STILL_NS:
            self.news.early_wait_ns += wait_ns

    def receive(self) -> bytes:
        """What is there now; empty where nothing is, or where the peer has hung up."""
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno not in _GONE:
                raise
            data = b""
        if not data:
            self.closed = True
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Bytes of `data` that the socket took; 0 where it is full, or where the peer is gone."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in _GONE:
                raise
            self.closed = True
            return 0

    def close(self) -> None:
        self.sock.close()


class SendLink(_Link):
    """Sends slices while it has credit."""

    def __init__(self, edge: Edge, sock: socket.socket, window: int) -> None:
        super().__init__(edge, sock)
        self.credit = window
        self.index = 0
        self.unwritten = bytearray()
        self._written = 0
        self._undelivered: deque[tuple[int, int]] = deque()  # (stream offset of its end, payload bytes)
        self._end = 0

    @property
    def is_delivered(self) -> bool:
        return not self._undelivered

    def post(self, operation: Operation, payload: bytes) -> None:
        """Hand over one slice; the caller has checked `credit`."""
        self.unwritten += HEADER.pack(
            operation.round & _LOW, operation.count & _LOW, self.index, len(payload)
        )
        self.unwritten += payload
        self._end += HEADER.size + len(payload)
        self._undelivered.append((self._end, len(payload)))
        self.index = (self.index + 1) & _LOW
        self.credit -= 1
        self.news.posted += 1
        self.steps += 1
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes."""
        if not self.unwritten or self.closed:
            return
        written = self.send(self.unwritten)
        self._written += written
        del self.unwritten[:written]

    def collect(self) -> None:
        """Count the slices that the peer's kernel has by now."""
        if not self._undelivered:
            return
        (unacked,) = _COUNT.unpack(fcntl.ioctl(self.sock.fileno(), SIOCOUTQ, bytes(4)))
        delivered = self._written - int(unacked)
        while self._undelivered and self._undelivered[0][0] <= delivered:
            self.news.done += 1
            self.news.done_bytes += self._undelivered.popleft()[1]

    def on_readable(self) -> None:
        """Credits have come."""
        self.credit += len(self.receive())

    def check(self) -> None:
        if self.closed:
            raise PeerLostError(self.edge.peer, f"{len(self._undelivered)} slices to it are not delivered")


class ReceiveLink(_Link):
    """Receives slices into a queue that the sender's credit bounds."""

    def __init__(self, edge: Edge, sock: socket.socket, window: int) -> None:
        super().__init__(edge, sock)
        self.window = window
        self.index = 0
        self.remaining = 0  # slices of this operation that are not asked for yet
        self._queue: deque[tuple[Operation, int, bytes]] = deque()
        self._buffer = bytearray()
        self._owed = 0  # credits that the socket did not take

    @property
    def is_ready(self) -> bool:
        return bool(self._queue)

    def begin_receiving(self, fill: int, count: int) -> None:
        """Ask for the first window of `count` slices."""
        self.begin(fill)
        first = min(self.window, count)
        self.news.posted += first
        self.remaining = count - first

    def on_readable(self) -> None:
        self._buffer += self.receive()
        while len(self._buffer) >= HEADER.size:
            number, count, index, length = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            self._queue.append((Operation(number, count), index, bytes(self._buffer[HEADER.size : end])))
            del self._buffer[:end]

    def take(self, operation: Operation, length: int) -> bytes:
        """The next slice, which has to be of `operation` and `length` bytes; MismatchError else."""
        got, got_index, payload = self._queue.popleft()
        wanted = Operation(operation.round & _LOW, operation.count & _LOW)
        if (got, got_index, len(payload)) != (wanted, self.index, length):
            raise MismatchError(
                self.edge.peer,
                f"slice {got_index}, {len(payload)} bytes, of round {got.round} over {got.count} elements",
                f"slice {self.index}, {length} bytes, of round {wanted.round} over {wanted.count} elements",
            )
        self.index = (self.index + 1) & _LOW
        self.news.done += 1
        self.news.done_bytes += length
        self.steps += 1
        if self.remaining:
            self.remaining -= 1
            self.news.posted += 1
        self._give_credit()
        return payload

    def _give_credit(self) -> None:
        self._owed += 1
        self._owed -= self.send(bytes(self._owed))

    def check(self) -> None:
        if self.closed and not self._queue:
            raise PeerLostError(self.edge.peer, f"slice {self.index} of it has not come")
