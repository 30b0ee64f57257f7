"""Runs what can be prepared on a thread of its own, so that training never waits for it."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.trainer.switch.agree import Preparing

Result = TypeVar("Result")


class Preparation(Generic[Result]):
    """One attempt. A thread that is still stuck after `limit_s` counts as failed and is left behind."""

    def __init__(
        self, work: Callable[[], Result], limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work = work
        self._limit_s = limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._state = Preparing.IDLE
        self._started_s = 0.0
        self.took_s = 0.0

    def start(self) -> None:
        """Once."""
        self._started_s = self._clock()
        self._state = Preparing.BUILDING
        threading.Thread(target=self._run, name="paceline-prepare", daemon=True).start()

    def _run(self) -> None:
        try:
            result = self._work()
        except Exception as error:
            self._settle(None, error)
        else:
            self._settle(result, None)

    def _settle(self, result: Result | None, error: BaseException | None) -> None:
        with self._lock:
            if self._state is not Preparing.BUILDING:
                return
            self._result, self._error = result, error
            self.took_s = self._clock() - self._started_s
            self._state = Preparing.READY if error is None else Preparing.FAILED

    def state(self) -> Preparing:
        """READY and FAILED are final: a vote that was given is never taken back."""
        if self._state is Preparing.BUILDING and self._clock() - self._started_s > self._limit_s:
            self._settle(None, TimeoutError(f"not prepared within {self._limit_s:g} s"))
        return self._state

    @property
    def error(self) -> BaseException | None:
        return self._error

    def result(self) -> Result:
        """Only where READY."""
        if self._state is not Preparing.READY or self._result is None:
            raise ValueError(f"nothing is prepared: {self._state.value}")
        return self._result
