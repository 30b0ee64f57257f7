"""Ends what gloo cannot abort: shuts the sockets of one dead group, so that its operations fail at once.

gloo's `abort` does nothing, and an operation whose peer is frozen stays in its thread until the timeout.
The sockets of a group are known by address: each gloo device listens at a port of its own, and every
pair is a connection to the listener of one of its two ranks. A listener that cannot be told for certain
leaves the group as it is: it is then kept until its operations end by themselves.
"""

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Address = tuple[str, int]
FDS = "/proc/self/fd"
FDS_MAX = 65_536


@dataclass(frozen=True)
class Listeners:
    """Where the ranks of one group listen, this rank's first."""

    own: Address
    peers: frozenset[Address]


def listening() -> set[tuple[int, Address]]:
    """(inode, address) of every TCP socket of this process that listens."""
    found = set()
    for fd in _socket_fds():
        with _Borrowed(fd) as sock:
            try:
                if sock.family in _FAMILIES and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add((os.fstat(sock.fileno()).st_ino, _address(sock.getsockname())))
            except OSError:
                continue
    return found


def device_with_address(make: Callable[[], Any]) -> tuple[Any, Address | None]:
    """A gloo device and where it listens; None where another thread began to listen meanwhile."""
    before = listening()
    device = make()
    new = listening() - before
    return device, next(iter(new))[1] if len(new) == 1 else None


def announce(store: Any, rank: int, own: Address | None) -> None:
    """Tell the others where this rank listens; before the group is made, so that nobody waits for it."""
    store.set(f"listens/{rank}", f"{own[0]} {own[1]}" if own is not None else "-")


def hear(store: Any, rank: int, size: int, own: Address | None) -> Listeners | None:
    """Where the others listen, once the group is made; None where one of them does not know."""
    texts = [store.get(f"listens/{peer}").decode() for peer in range(size) if peer != rank]
    if own is None or "-" in texts:
        return None
    peers = [text.split(" ") for text in texts]
    return Listeners(own, frozenset((host, int(port)) for host, port in peers))


def cut(listeners: Listeners) -> int:
    """Shut every connection of the group in both directions; how many. From any thread, without waiting."""
    shut = 0
    for fd in _socket_fds():
        with _Borrowed(fd) as sock:
            try:
                if sock.family not in _FAMILIES or not _belongs(sock, listeners):
                    continue
                sock.shutdown(socket.SHUT_RDWR)
                shut += 1
            except OSError:
                continue  # not connected, or gone meanwhile
    return shut


_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_LEFT_ALONE = socket.SOCK_STREAM | socket.SOCK_NONBLOCK


def _belongs(sock: socket.socket, listeners: Listeners) -> bool:
    remote = _address(sock.getpeername())
    return _address(sock.getsockname()) == listeners.own or remote in listeners.peers


def _address(name: Any) -> Address:
    return str(name[0]).removeprefix("::ffff:"), int(name[1])


def _socket_fds() -> list[int]:
    found = []
    for name in os.listdir(FDS)[:FDS_MAX]:
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
        except OSError:
            continue
    return found


class _Borrowed:
    """A duplicate of somebody else's descriptor: its number cannot be re-used under us.

    The kernel's flags belong to both. Where the script has set a default timeout, Python makes each socket
    object's description non-blocking, and its owner, who waits in C, would get EAGAIN: one that is said to
    be non-blocking already is left as it is.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> socket.socket:
        try:
            duplicate = os.dup(self._fd)
        except OSError:
            return self._nothing()
        try:
            self._sock = socket.socket(type=_LEFT_ALONE, fileno=duplicate)
        except OSError:
            os.close(duplicate)
            return self._nothing()
        return self._sock

    def _nothing(self) -> socket.socket:
        """It is gone: a socket that matches nothing."""
        self._sock = socket.socket(socket.AF_UNIX)
        return self._sock

    def __exit__(self, *_: object) -> None:
        self._sock.close()
