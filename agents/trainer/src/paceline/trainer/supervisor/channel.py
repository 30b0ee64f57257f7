"""Messages over one stream socket, without ever blocking: the socketpair's two ends and the agent's link."""

import socket
import threading

from paceline.contracts.agent_socket import Framer

READ_BYTES = 64 << 10
READS_AT_ONCE_MAX = 16
OUTBOX_BYTES_MAX = 1 << 20  # then messages are dropped and counted


class Channel:
    """One non-blocking stream. `send` may be called by any thread, the rest by the one that owns it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._framer = Framer()
        self._outbox = bytearray()
        self._lock = threading.Lock()
        self.open = True
        self.dropped = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for the peer to read."""
        return bool(self._outbox)

    def send(self, data: bytes) -> bool:
        """Send now what the peer takes, keep the rest; False where the message was dropped."""
        with self._lock:
            if not self.open or len(self._outbox) + len(data) > OUTBOX_BYTES_MAX:
                self.dropped += 1
                return False
            self._outbox += data
            self._flush()
            return self.open

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        while self._outbox and self.open:
            try:
                sent = self._sock.send(self._outbox, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.open = False
                return
            del self._outbox[:sent]

    def receive(self) -> list[bytes]:
        """Bodies that have arrived; `open` is False afterwards where the peer has gone.

        FramingError where the stream means nothing any more.
        """
        bodies: list[bytes] = []
        for _ in range(READS_AT_ONCE_MAX):
            try:
                data = self._sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self.open = False
                break
            bodies += self._framer.feed(data)
        return bodies

    def close(self) -> None:
        with self._lock:
            self.open = False
            self._sock.close()
