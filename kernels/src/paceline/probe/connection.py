"""The training process's end of the agent socket. Standard library only.

A daemon thread connects, says hello with the two descriptors, then passes on what the process opens
and closes. It reconnects for ever at a bounded rate and sends everything again. Callers never wait
for the agent: they leave their message and go on; what finds no place is counted and dropped. In a
forked child nothing works and nothing is held open, so that the agent sees the end of the parent.
"""

from __future__ import annotations

import os
import random
import selectors
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from paceline.contracts.agent_socket import (
    CommunicatorClosed,
    CommunicatorOpened,
    Goodbye,
    Hello,
    Message,
    Refused,
    Welcome,
    encode_message,
    is_trusted_listener,
    peer_uid,
)
from paceline.probe.errors import MessageError
from paceline.probe.messages import READ_BYTES, MessageDecoder, send_with_fds

PENDING_MAX = 1024  # messages that wait for the thread
OPENED_MAX = 1024  # communicators that are sent again after a reconnect
IO_TIMEOUT_S = 2.0
LINGER_S = 0.3
ANSWERS_MAX = 16  # reads while lingering


@dataclass(frozen=True)
class RetryPolicy:
    """Delay before try n (from 0): first_s * 2**n, at most max_s, times 0.5 to 1.5."""

    first_s: float = 0.1
    max_s: float = 5.0
    refused_first_s: float = 1.0
    refused_max_s: float = 30.0

    def delay_s(self, tries: int, refused: bool, chance: float) -> float:
        """`chance` in [0, 1) spreads the ranks of a node that lost their agent together."""
        first, most = (self.refused_first_s, self.refused_max_s) if refused else (self.first_s, self.max_s)
        return float(min(most, first * 2.0 ** min(tries, 30)) * (0.5 + chance))


# Not the generator of the module: a draw from it would change what the script draws next.
_OWN_CHANCE = random.SystemRandom()


class _Outcome(Enum):
    LOST = 1  # no agent, or its connection ended
    REFUSED = 2
    DONE = 3


class AgentConnection:
    """One per process. All methods may be called from any thread, and never raise."""

    def __init__(
        self,
        path: str,
        page_fd: int,
        control_fd: int,
        hello: Hello,
        *,
        policy: RetryPolicy | None = None,
        chance: Callable[[], float] = _OWN_CHANCE.random,
    ) -> None:
        self.connected = False  # the agent has said welcome
        self.connects = 0
        self.dropped = 0  # messages that found no place or were too long
        self.last_error = ""  # why there is no agent, for `paceline doctor` and logs
        self._path = path
        self._fds = (page_fd, control_fd)
        self._policy = policy or RetryPolicy()
        self._chance = chance
        self._lock = threading.Lock()
        self._hello = encode_message(hello)
        self._opened: dict[str, bytes] = {}
        self._pending: deque[bytes] = deque()
        self._goodbye: bytes | None = None
        self._stop = threading.Event()
        self._disabled = False
        self._sock: socket.socket | None = None
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="paceline-agent-link", daemon=True)
        _connections.add(self)

    def start(self) -> None:
        """Start connecting; returns at once."""
        if not self._disabled and not self._thread.is_alive():
            try:
                self._thread.start()
            except RuntimeError as error:  # no more threads, or started before
                self.last_error = str(error)

    def hello(self, hello: Hello) -> None:
        """Replace the hello and say it again."""
        self._leave(hello)

    def send(self, message: Message) -> None:
        """Pass `message` on; opened communicators are remembered for the next agent."""
        self._leave(message)

    def close(self, goodbye: Goodbye | None = None, timeout_s: float = 1.0) -> None:
        """Say goodbye if an agent is there and end the thread; waits at most `timeout_s`."""
        if self._disabled:
            return
        data = self._encode(goodbye) if goodbye is not None else None
        with self._lock:
            self._goodbye = data
            self._stop.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        elif not self._thread.ident:
            self._disabled = True
            self._drop_sockets()

    def _leave(self, message: Message) -> None:
        if self._disabled:
            return
        data = self._encode(message)
        if data is None:
            return
        with self._lock:
            if isinstance(message, Hello):
                self._hello = data
            elif isinstance(message, CommunicatorOpened):
                if message.communicator not in self._opened and len(self._opened) >= OPENED_MAX:
                    self.dropped += 1
                    return
                self._opened[message.communicator] = data
            elif isinstance(message, CommunicatorClosed):
                self._opened.pop(message.communicator, None)
            if len(self._pending) >= PENDING_MAX:
                self._pending.popleft()
                self.dropped += 1
            self._pending.append(data)
        self._wake()

    def _encode(self, message: Message) -> bytes | None:
        try:
            return encode_message(message)
        except (ValueError, TypeError) as error:
            self.dropped += 1
            self.last_error = str(error)
            return None

    def _wake(self) -> None:
        try:
            self._wake_write.send(b"\0", socket.MSG_NOSIGNAL)
        except OSError:
            pass  # full: the thread is awake already; closed: it has ended

    def _run(self) -> None:
        tries = 0
        try:
            while not self._stop.is_set():
                before = self.connects
                outcome = self._attend()
                if outcome is _Outcome.DONE:
                    break
                tries = 0 if self.connects > before else tries + 1
                self._stop.wait(self._policy.delay_s(tries, outcome is _Outcome.REFUSED, self._chance()))
        except Exception as error:
            # Nothing here may reach the training process; without a link it trains unobserved.
            self.last_error = f"{type(error).__name__}: {error}"
        finally:
            self.connected = False
            self._disabled = True
            self._drop_sockets()

    def _attend(self) -> _Outcome:
        """One connection from start to end."""
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as error:  # out of descriptors, for now
            self.last_error = f"no socket to the agent: {error}"
            return _Outcome.LOST
        self._sock = sock
        try:
            sock.settimeout(IO_TIMEOUT_S)
            sock.connect(self._path)
            _check_peer(sock, self._path)
            with self._lock:
                self._pending.clear()  # all of it is in what is sent now
                greeting, opened = self._hello, list(self._opened.values())
            send_with_fds(sock, greeting, self._fds)
            for data in opened:
                send_with_fds(sock, data)
            return self._exchange(sock)
        except (OSError, MessageError) as error:
            self.last_error = f"agent at {self._path}: {error}"
            return _Outcome.LOST
        finally:
            self.connected = False
            sock.close()
            self._sock = None

    def _exchange(self, sock: socket.socket) -> _Outcome:
        decoder = MessageDecoder()
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while True:
                if self._send_pending(sock):
                    _end_gently(sock)
                    return _Outcome.DONE
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wake_read in ready:
                    self._drain_wakes()
                if sock in ready and (outcome := self._receive(sock, decoder)) is not None:
                    return outcome

    def _receive(self, sock: socket.socket, decoder: MessageDecoder) -> _Outcome | None:
        data = sock.recv(READ_BYTES)
        if not data:
            self.last_error = f"agent at {self._path}: connection ended"
            return _Outcome.LOST
        for message in decoder.feed(data):
            if isinstance(message, Welcome):
                self.connects += not self.connected  # each further hello is welcomed too
                self.connected = True
                self.last_error = ""
            elif isinstance(message, Refused):
                self.last_error = f"agent at {self._path} refused: {message.reason}"
                return _Outcome.REFUSED
        return None

    def _send_pending(self, sock: socket.socket) -> bool:
        """Send what waits; true after the goodbye, when there is nothing more to say."""
        while True:
            with self._lock:
                data = self._pending.popleft() if self._pending else None
                stopping, goodbye = self._stop.is_set(), self._goodbye
            if data is not None:
                send_with_fds(sock, data)
                continue
            if stopping and goodbye is not None:
                send_with_fds(sock, goodbye)
            return stopping

    def _drain_wakes(self) -> None:
        try:
            while self._wake_read.recv(4096):
                pass
        except OSError:
            pass

    def _drop_sockets(self) -> None:
        for sock in (self._sock, self._wake_read, self._wake_write):
            if sock is not None:
                sock.close()

    def _forget_in_child(self) -> None:
        self._disabled = True
        self.connected = False
        self._drop_sockets()


def _end_gently(sock: socket.socket) -> None:
    """Wait for the agent to hang up: to close with an answer unread is a reset, which loses the goodbye."""
    sock.shutdown(socket.SHUT_WR)
    sock.settimeout(LINGER_S)
    for _ in range(ANSWERS_MAX):
        if not sock.recv(READ_BYTES):
            return


def _check_peer(sock: socket.socket, path: str) -> None:
    uid = peer_uid(sock)
    if not is_trusted_listener(path, uid, os.getuid()):
        raise PermissionError(f"its listener belongs to uid {uid}, expected {os.getuid()} or root")


_connections: weakref.WeakSet[AgentConnection] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for connection in list(_connections):
        connection._forget_in_child()  # noqa: SLF001


os.register_at_fork(after_in_child=_after_fork_in_child)
