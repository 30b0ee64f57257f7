"""An operation in flight: its scratch tensors, who waits for it, and the one moment at which it settles."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from paceline.trainer.groups.generation import Generation

LOOK_S = 0.25  # a waiter looks for itself this often, should a report of the backend be lost
WAIT_THREADS_MAX = 64  # receives of one generation that are waited for at a time; more wait their turn
IDLE_S = 60.0  # then a wait thread ends

CopyBack = Callable[[Sequence[tuple[Any, Any]]], None]  # (live, scratch) pairs


class Pending:
    """Settles once: with the results copied into the live tensors, or with an error and nothing copied.

    The backend works on scratch tensors only, because an operation of a dead generation that goes on
    (its peer was frozen and wakes up) would otherwise overwrite tensors in use.
    """

    __slots__ = (
        "_awaited",
        "_copy_back",
        "_error",
        "_futures",
        "_gate",
        "_keep",
        "_lock",
        "_pairs",
        "_returned",
        "_waiters",
        "generation",
        "inner",
        "live",
        "settled",
    )

    def __init__(
        self,
        generation: Generation,
        pairs: Sequence[tuple[Any, Any]],
        copy_back: CopyBack,
        waiters: "WaitThreads",
        keep: "Callable[[Sequence[Any]], None] | None" = None,
    ) -> None:
        self._keep = keep  # is given the scratch tensors of a result
        self.generation = generation
        self.inner: Any = None  # the backend's Work
        self.live = [live for live, _ in pairs]
        self.settled = False
        self._pairs = pairs
        self._copy_back = copy_back
        self._waiters = waiters
        self._awaited = False
        self._returned = False  # the backend is done with it
        self._error: BaseException | None = None
        self._futures: list[Any] = []
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()

    def start(self, inner: Any) -> None:
        """The backend has taken the operation; from now on its end settles this one."""
        self.inner = inner
        try:
            inner.get_future().add_done_callback(self._done)
        except RuntimeError:
            pass  # gloo's send, receive and reduce_scatter have none: somebody has to wait for them
        else:
            self._awaited = True

    def _done(self, future: Any) -> None:
        self._returned = True
        try:
            future.value()
        except Exception as error:
            self._fail(error)
        else:
            self.settle(None)

    def _fail(self, error: BaseException) -> None:
        if not self.settled:
            self.generation.fail(error)
        self.settle(error)

    def settle(self, error: BaseException | None) -> bool:
        """True where this call settled it."""
        with self._lock:
            if self.settled:
                return False
            if self.generation.ended:
                error = self.generation.error()
            if error is None:
                try:
                    if self._keep is not None:
                        self._keep([scratch for _, scratch in self._pairs])
                    self._copy_back(self._pairs)
                except Exception as failed:
                    error = failed
            self._error = error
            self.settled = True
            self._pairs = ()
            futures, self._futures = self._futures, []
        for future in futures:  # before the gate: a completion is told before wait() returns
            future.set_result(None)
        self._gate.release()
        self.generation.leave(self)
        return True

    def attach(self, future: Any) -> None:
        """Complete `future` when this settles; it only signals, `value` has the outcome."""
        with self._lock:
            if not self.settled:
                self._futures.append(future)
                self._await()
                return
        future.set_result(None)

    def value(self) -> list[Any]:
        """The live tensors; raises where the operation failed. Only once settled."""
        if self._error is not None:
            raise self._fresh_error()
        return self.live

    @property
    def failed(self) -> BaseException | None:
        return self._error

    def _fresh_error(self) -> BaseException:
        error = self._error
        if self.generation.ended:
            return self.generation.error()
        return error if error is not None else RuntimeError("unreachable")

    def poll(self) -> bool:
        """Whether it has settled; never blocks."""
        if not self.settled:
            self._await()
        return self.settled

    def wait(self, timeout_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Until it has settled; raises its error, or RuntimeError after `timeout_s`."""
        if not self.settled:
            self._await()
            until = None if timeout_s is None else clock() + timeout_s
            while not self._gate.acquire(timeout=LOOK_S if until is None else _left(until, clock)):
                self._look()
                if until is not None and clock() >= until and not self.settled:
                    raise RuntimeError(f"an operation was not over within {timeout_s} s")
            self._gate.release()
        if self._error is not None:
            raise self._fresh_error()

    def held(self) -> bool:
        """Whether the backend still works on it, though it has settled."""
        return self.inner is not None and not self._returned

    def _look(self) -> None:
        if self.generation.ended:
            self.settle(None)
        elif self.inner is not None and self.inner.is_completed():
            self.await_inner()

    def _await(self) -> None:
        """Have a thread wait for it, where the backend will not tell by itself."""
        if not self._awaited and self.inner is not None:
            self._awaited = True
            self._waiters.submit(self)

    def await_inner(self) -> None:
        """Blocks in the backend: for a wait thread, or where it is known to be over."""
        try:
            self.inner.wait()
        except Exception as error:
            self._returned = True
            self._fail(error)
        else:
            self._returned = True
            self.settle(None)


def _left(until: float, clock: Callable[[], float]) -> float:
    return max(0.0, min(LOOK_S, until - clock()))


class WaitThreads:
    """Threads that block in the backend, so that the training thread never does.

    One generation has its own: a thread that is stuck in a dead one is left behind with it.
    """

    def __init__(self, threads_max: int = WAIT_THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._queue: queue.SimpleQueue[Pending | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._busy = 0
        self._closed = False

    @property
    def busy(self) -> int:
        """Operations that are waited for or queued."""
        return self._busy

    def submit(self, pending: Pending) -> None:
        with self._lock:
            self._busy += 1
            if self._busy > self._threads and self._threads < self._threads_max:
                self._threads += 1
                threading.Thread(target=self._run, name="paceline-wait", daemon=True).start()
        self._queue.put(pending)

    def close(self) -> None:
        """Idle threads end; stuck ones end when the backend lets them go."""
        with self._lock:
            self._closed = True
            threads = self._threads
        for _ in range(threads):
            self._queue.put(None)

    def _run(self) -> None:
        while True:
            try:
                pending = self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                pending = None
            if pending is None:
                with self._lock:
                    if self._closed or self._busy < self._threads:
                        self._threads -= 1
                        return
                continue
            pending.await_inner()
            with self._lock:
                self._busy -= 1
