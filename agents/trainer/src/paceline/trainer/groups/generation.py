"""One generation: the time between two rebuilds, shared by all process groups of a process."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from paceline.trainer.groups.errors import GenerationEnded, PeerLost, first_line

log = logging.getLogger("paceline")


class Settles(Protocol):
    """An operation in flight."""

    def settle(self, error: BaseException | None) -> bool: ...

    def held(self) -> bool: ...  # whether the backend still has it


Fault = Callable[
    [int, BaseException], None
]  # generation, error of the backend; from any thread, must not block


class Generation:
    """Knows every operation in flight and ends all of them at once; safe from any thread.

    An operation is admitted before it is handed to the backend and leaves when it has settled. After
    `end` has returned, every operation has settled with an error and none writes a live tensor.
    """

    def __init__(self, number: int, on_fault: Fault | None = None) -> None:
        self.number = number
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._ending = threading.RLock()  # a callback of a future may end it again
        self._pending: dict[int, Settles] = {}
        self._ended: GenerationEnded | None = None
        self._left: tuple[Settles, ...] = ()
        self.on_stuck: Callable[[], None] | None = None  # makes the backend let go; must not raise

    @property
    def ended(self) -> bool:
        return self._ended is not None

    @property
    def reason(self) -> str:
        return self._ended.reason if self._ended is not None else ""

    @property
    def pending(self) -> int:
        """Operations in flight."""
        return len(self._pending)

    def error(self) -> GenerationEnded:
        """A fresh exception for whoever asks; only where `ended`."""
        first = self._ended
        if first is None:
            raise ValueError(f"generation {self.number} has not ended")
        error = type(first)(first.generation, first.reason)
        error.__cause__ = first.__cause__
        return error

    def check(self) -> None:
        """GenerationEnded where the generation has ended."""
        if self._ended is not None:
            raise self.error()

    def admit(self, operation: Settles) -> bool:
        """False where the generation has ended: the operation must not reach the backend."""
        with self._lock:
            if self._ended is not None:
                return False
            self._pending[id(operation)] = operation
            return True

    def leave(self, operation: Settles) -> None:
        with self._lock:
            self._pending.pop(id(operation), None)

    def end(self, reason: str) -> bool:
        """End it; True where this call was the first. Returns when every operation has settled."""
        return self._end(GenerationEnded(self.number, reason))

    def fail(self, error: BaseException) -> bool:
        """The backend failed: end it and tell `on_fault`, once."""
        ended = PeerLost(self.number, f"{type(error).__name__}: {first_line(error)[:200]}")
        ended.__cause__ = error
        first = self._end(ended)
        if first and self._on_fault is not None:
            try:
                self._on_fault(self.number, error)
            except Exception as failed:
                log.warning("the fault of generation %d could not be told: %r", self.number, failed)
        return first

    def _end(self, ended: GenerationEnded) -> bool:
        with self._lock:
            first = self._ended is None
            if first:
                self._ended = ended
        with self._ending:  # a second caller waits until the first has settled them all
            with self._lock:
                pending = list(self._pending.values())
            for operation in pending:
                operation.settle(self.error())
            self._left += tuple(pending)
            if pending and self.on_stuck is not None and self.stuck:
                self.on_stuck()
        return first

    @property
    def stuck(self) -> int:
        """Operations that were in flight at the end and that the backend still holds."""
        self._left = tuple(operation for operation in self._left if operation.held())
        return len(self._left)
