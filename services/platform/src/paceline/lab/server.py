"""What the local servers have in common: one process below a home, started, waited for and stopped."""

import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path

from paceline.lab.processes import STOP_TIMEOUT_S, Child, HomeLock, LabError

START_TIMEOUT_S = 60.0
POLL_S = 0.02


class LocalServer(ABC):
    """A server whose log, pid file and lock live in `directory`."""

    title: str  # for messages
    stop_signal = signal.SIGTERM
    kill_signal = signal.SIGKILL  # ends it as a machine that loses power would

    def __init__(self, directory: Path) -> None:
        self._child = Child(directory.name, directory)
        self._lock = HomeLock(directory / "lock")

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def log_path(self) -> Path:
        return self._child.log_path

    @property
    @abstractmethod
    def address(self) -> str:
        """What clients are told, once it was started."""

    @abstractmethod
    def _launch(self) -> None:
        """Prepare what the process needs and start it."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves clients."""

    def start(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """Start and wait until clients are served; returns `address`."""
        self.launch()
        self.wait_ready(timeout_s)
        return self.address

    def launch(self) -> None:
        """Start without waiting. Call it on the main thread (see `Child`)."""
        if self.is_running:
            return
        self._lock.acquire()
        self._child.stop_orphan()
        self._launch()

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until clients are served; LabError with its log where it ended."""
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if not self.is_running:
                tail = self._child.log_tail()
                raise LabError(f"{self.title} ended at start, {self.log_path} says:\n{tail}")
            if time.monotonic() > deadline:
                raise LabError(f"{self.title} is not ready after {timeout_s:g} s, see {self.log_path}")
            time.sleep(POLL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Orderly stop, killed after `timeout_s`; the home may be started again."""
        self._child.stop(self.stop_signal, timeout_s)
        self._lock.release()

    def kill(self) -> None:
        """End at once; for chaos tests."""
        self._child.stop(self.kill_signal, 2.0)

    def restart(self) -> str:
        """Stop and start with the same address and data."""
        self._child.stop(self.stop_signal)
        return self.start()
