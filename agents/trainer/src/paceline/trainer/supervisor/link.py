"""The supervisor's connection to the agent: made again for ever, in growing pauses, never waited for."""

import errno
import json
import os
import socket
from collections import deque
from collections.abc import Callable

from paceline.contracts.agent_socket import FramingError, is_trusted_listener, peer_uid
from paceline.contracts.recovery import (
    FromSupervisor,
    Lease,
    Order,
    RecoveryMessageError,
    SupervisorHello,
    encode_recovery,
    parse_recovery,
)
from paceline.trainer.supervisor.channel import Channel

RETRY_S_MIN = 0.05
RETRY_S_MAX = 1.0
REFUSED_RETRY_S = 5.0
UNSENT_MAX = 256  # messages kept for an agent that is away; the oldest go


class AgentLink:
    """One thread owns it. `hello()` is sent first on each connection, then what was not sent."""

    def __init__(
        self,
        path: str,
        hello: Callable[[], SupervisorHello],
        clock: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._path = path
        self._hello = hello
        self._clock = clock
        self._say = say
        self._unsent: deque[bytes] = deque(maxlen=UNSENT_MAX)
        self._retry_s = RETRY_S_MIN
        self._next_try_s = 0.0
        self.channel: Channel | None = None

    @property
    def up(self) -> bool:
        return self.channel is not None

    def due_in_s(self) -> float | None:
        """Seconds to the next attempt to connect, None while connected."""
        return None if self.up else max(0.0, self._next_try_s - self._clock())

    def connect(self) -> bool:
        """Try once where it is time to; True where a new connection was made."""
        if self.up or self._clock() < self._next_try_s:
            return False
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.setblocking(False)
            sock.connect(self._path)  # of a unix socket: at once, or an error
        except OSError as error:
            sock.close()
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
                self._say(f"agent at {self._path}: {error.strerror}")
            self._pause(self._retry_s)
            self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)
            return False
        uid = peer_uid(sock)
        if not is_trusted_listener(self._path, uid, os.getuid()):
            sock.close()  # it would be told where the state is, and be obeyed
            self._say(
                f"agent at {self._path}: its listener belongs to uid {uid}, expected {os.getuid()} or root"
            )
            self._pause(REFUSED_RETRY_S)
            return False
        self.channel = Channel(sock)
        self._retry_s = RETRY_S_MIN
        self.channel.send(encode_recovery(self._hello()))
        while self._unsent and self.channel.send(self._unsent[0]):
            self._unsent.popleft()
        return True

    def send(self, message: FromSupervisor) -> None:
        """Send, or keep for the next connection. A hello is never kept: each connection begins with one."""
        data = encode_recovery(message)
        if self.channel is not None and self.channel.send(data):
            return
        if not isinstance(message, SupervisorHello):
            self._unsent.append(data)

    def receive(self) -> list[Order | Lease]:
        """Orders and leases that have arrived; a lost or senseless stream ends the connection."""
        if self.channel is None:
            return []
        try:
            bodies = self.channel.receive()
        except FramingError as error:
            self._say(f"the agent's stream means nothing: {error}")
            self.drop()
            return []
        found = [message for body in bodies if (message := self._read(body)) is not None]
        if self.channel is not None and not self.channel.open:
            self.drop()
        return found

    def drop(self, retry_s: float = RETRY_S_MIN) -> None:
        """Give the connection up; the next attempt comes after a pause."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self._pause(retry_s)

    def _read(self, body: bytes) -> Order | Lease | None:
        try:
            kind = json.loads(body).get("type")
            if kind == "welcome":
                return None
            if kind == "refused":
                self._say(f"the agent refused: {json.loads(body).get('reason', '')}")
                self.drop(REFUSED_RETRY_S)
                return None
            message = parse_recovery(body)
        except (ValueError, AttributeError, RecoveryMessageError) as error:
            self._say(f"a message of the agent cannot be read: {error}")
            return None
        return message if isinstance(message, (Order, Lease)) else None

    def _pause(self, seconds: float) -> None:
        self._next_try_s = self._clock() + seconds
