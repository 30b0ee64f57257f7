"""Signals of the supervisor as something a poll can wait for."""

import signal
import socket
import types

PASSED_ON = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
)  # fmt: skip


class Signals:
    """Takes the signals that a launcher sends; only one may exist, in the main thread."""

    def __init__(self) -> None:
        self._taken: list[int] = []
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def install(self) -> None:
        """From now on the signals of PASSED_ON end nothing and are kept for `pop`."""
        for number in PASSED_ON:
            signal.signal(number, self._take)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def pop(self) -> list[int]:
        """Those that came since the last call."""
        try:
            while self._reader.recv(256):
                pass
        except (BlockingIOError, InterruptedError):
            pass
        taken, self._taken = self._taken, []
        return taken

    def _take(self, number: int, _frame: types.FrameType | None) -> None:
        self._taken.append(number)
