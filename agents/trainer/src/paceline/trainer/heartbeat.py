"""The Python heartbeat: it stops while the GIL is held, which the native one does not."""

import threading
from collections.abc import Callable

STOP_TIMEOUT_S = 0.5


class Heartbeat:
    """A daemon thread that calls `beat` at `hertz`; ends at `stop` or when `beat` raises."""

    def __init__(self, beat: Callable[[], None], hertz: float) -> None:
        self._beat = beat
        self._period_s = 1.0 / hertz
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; waits at most STOP_TIMEOUT_S."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._beat()
