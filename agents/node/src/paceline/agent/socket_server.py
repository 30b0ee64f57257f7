"""The unix socket: accepts processes, cuts the stream into messages, receives file descriptors.

Everything here is one event loop's; nothing blocks. A peer that breaks the protocol loses its
connection and nothing else stops.
"""

import array
import asyncio
import errno
import os
import socket
import stat
import struct
from collections import Counter
from pathlib import Path
from typing import Protocol

from paceline.agent.admission import PeerCredentials
from paceline.agent.wire import FromPeer, MessageError, parse_message
from paceline.contracts.agent_socket import Framer, FramingError, Message, Refused, encode_message

READ_BYTES = 64 << 10
READS_AT_ONCE_MAX = 64  # then other connections have their turn
FDS_PER_MESSAGE_MAX = 2
FDS_PENDING_MAX = 4
HELLO_S_MAX = 10.0
LINGER_S = 1.0
OUT_BYTES_MAX = 4 << 20  # waiting for one peer: some orders for the largest job
PATH_BYTES_MAX = 107  # sun_path, unix(7)
_UCRED = struct.Struct("iII")
_RIGHTS_BYTES = socket.CMSG_SPACE(16 * array.array("i").itemsize)


class SocketError(RuntimeError):
    """The socket cannot be opened; the message says what to do."""


class Handler(Protocol):
    """Who is told what comes in; calls come from the event loop."""

    def on_message(self, connection: "Connection", message: FromPeer, fds: list[int]) -> None:
        """`fds` belong to the callee."""

    def on_closed(self, connection: "Connection") -> None: ...


class Connection:
    """One process's connection. `refuse` and `close` may be called at any time."""

    def __init__(self, sock: socket.socket, handler: Handler, drops: Counter[str]) -> None:
        self.peer = _peer_of(sock)
        self.accepted = False  # set by the handler once a hello was let in
        self._sock: socket.socket | None = sock
        self._handler = handler
        self._drops = drops
        self._refused = False
        self._framer = Framer()
        self._fds: list[int] = []
        self._out = bytearray()
        self._is_writing = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self.read_all)
        self._deadline = self._loop.call_later(HELLO_S_MAX, self._expect_hello)

    def send(self, message: Message) -> None:
        """Send at once; what the socket does not take waits within OUT_BYTES_MAX, then the peer is dead."""
        self.send_bytes(encode_message(message))

    def send_bytes(self, data: bytes) -> None:
        """`send` of a whole message: an order for thousands of members is larger than a socket's buffer."""
        if self._sock is None:
            return
        if len(self._out) + len(data) > OUT_BYTES_MAX:
            self._give_up()
            return
        self._out += data
        self._flush()

    def _flush(self) -> None:
        """As much as the socket takes; the rest as soon as it takes more."""
        if self._sock is None:
            return
        try:
            sent = self._sock.send(self._out, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT) if self._out else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._give_up()
            return
        del self._out[:sent]
        if bool(self._out) == self._is_writing:
            return
        self._is_writing = bool(self._out)
        if self._is_writing:
            self._loop.add_writer(self._sock.fileno(), self._flush)
            return
        self._loop.remove_writer(self._sock.fileno())
        if self._refused:
            self._end_output()

    def _give_up(self) -> None:
        self._drops["socket_send"] += 1
        self.close()

    def refuse(self, reason: str) -> None:
        """Say why, then listen no more. The end comes with the peer's own, or after LINGER_S."""
        if self._sock is None or self._refused:
            return
        self._refused = True
        self._deadline.cancel()
        close_fds(self._fds)
        self._fds = []
        self.send(Refused(reason[:500]))
        if self._sock is not None:
            if not self._out:
                self._end_output()
            self._deadline = self._loop.call_later(LINGER_S, self.close)

    def _end_output(self) -> None:
        # Closing with unread bytes would reset the connection, and the reason with it.
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the peer has gone already

    def read_all(self) -> None:
        """Take in what has arrived, in bounded portions."""
        for _ in range(READS_AT_ONCE_MAX):
            if self._sock is None or not self._read_once(self._sock):
                return

    def close(self) -> None:
        """Close and tell the handler once."""
        if self._sock is None:
            return
        self._deadline.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._sock = None
        self._out.clear()
        close_fds(self._fds)
        self._fds = []
        self._handler.on_closed(self)

    def _read_once(self, sock: socket.socket) -> bool:
        try:
            data, ancillary, flags, _ = sock.recvmsg(READ_BYTES, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.close()
            return False
        self._fds += _received_fds(ancillary)
        if not data:
            self.close()
            return False
        if self._refused:
            close_fds(self._fds)
            self._fds = []
            return True
        try:
            if flags & socket.MSG_CTRUNC or len(self._fds) > FDS_PENDING_MAX:
                raise MessageError(f"more than {FDS_PENDING_MAX} file descriptors, expected 2 with a hello")
            for body in self._framer.feed(data):
                self._dispatch(body)
                if self._sock is None or self._refused:
                    break
        except (MessageError, FramingError) as error:
            self._drops["bad_message"] += 1
            self.refuse(str(error))
        return True

    def _dispatch(self, body: bytes) -> None:
        try:
            message = parse_message(body)
        except MessageError:
            if not self.accepted:
                raise
            # The frame was whole, so the stream can go on without this message.
            self._drops["bad_message"] += 1
            return
        fds: list[int] = []
        if message.type == "hello":
            fds, self._fds = self._fds[:FDS_PER_MESSAGE_MAX], self._fds[FDS_PER_MESSAGE_MAX:]
        self._handler.on_message(self, message, fds)

    def _expect_hello(self) -> None:
        if not self.accepted:
            self._drops["no_hello"] += 1
            self.refuse(f"no valid hello within {HELLO_S_MAX:g} s")


class SocketServer:
    """Listens at `path`; at most `connections_max` connections at a time."""

    def __init__(self, path: Path, handler: Handler, drops: Counter[str], connections_max: int) -> None:
        self._path = path
        self._handler = handler
        self._drops = drops
        self._connections_max = connections_max
        self._connections: set[Connection] = set()
        self._sock: socket.socket | None = None
        self._inode = 0

    def start(self) -> None:
        """Bind and listen; SocketError where another agent listens or the folder is not safe."""
        prepare_folder(self._path)
        remove_stale(self._path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.bind(str(self._path))
            sock.listen(128)
        except OSError as error:
            sock.close()
            raise SocketError(f"cannot listen at {self._path}: {error}; set PACELINE_AGENT_SOCKET") from error
        self._inode = os.stat(self._path).st_ino
        self._sock = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept)

    def stop(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
            try:
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)
            except OSError:
                pass
        for connection in list(self._connections):
            connection.close()
        self._connections.clear()

    def on_message(self, connection: Connection, message: FromPeer, fds: list[int]) -> None:
        self._handler.on_message(connection, message, fds)

    def on_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._handler.on_closed(connection)

    def _accept(self) -> None:
        for _ in range(READS_AT_ONCE_MAX):
            if self._sock is None:
                return
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._drops["accept_failed"] += 1
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    self._pause()
                return
            sock.setblocking(False)
            if len(self._connections) >= self._connections_max:
                self._drops["connections_full"] += 1
                sock.close()
                continue
            self._connections.add(Connection(sock, self, self._drops))

    def _pause(self) -> None:
        # Out of descriptors the listener stays readable: without a pause the loop would spin.
        assert self._sock is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock.fileno())
        loop.call_later(1.0, self._resume)

    def _resume(self) -> None:
        if self._sock is not None:
            asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)


def prepare_folder(path: Path) -> None:
    """Make the socket's folder, 0700; SocketError where others could replace the socket in it."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise SocketError(
            f"socket path {path} has {len(os.fsencode(path))} bytes, expected at most {PATH_BYTES_MAX}; "
            "set PACELINE_AGENT_SOCKET to a shorter one"
        )
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = os.stat(folder)
    except OSError as error:
        raise SocketError(f"cannot use folder {folder}: {error}; set PACELINE_AGENT_SOCKET") from error
    shared = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not info.st_mode & stat.S_ISVTX
    if info.st_uid not in (os.geteuid(), 0) or shared:
        raise SocketError(
            f"folder {folder} belongs to uid {info.st_uid} with mode {stat.S_IMODE(info.st_mode):o}, "
            f"expected uid {os.geteuid()} and no write access for others; set PACELINE_AGENT_SOCKET"
        )


def remove_stale(path: Path) -> None:
    """Remove the socket of an agent that is gone; SocketError where one answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise SocketError(
                f"{path} is in the way: {error}; remove it or set PACELINE_AGENT_SOCKET"
            ) from error
    raise SocketError(f"another agent listens at {path}; stop it or set PACELINE_AGENT_SOCKET")


def close_fds(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _received_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _peer_of(sock: socket.socket) -> PeerCredentials:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return PeerCredentials(*_UCRED.unpack(raw))
