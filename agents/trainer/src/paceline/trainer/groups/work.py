"""The Work that callers of a swappable group get."""

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from paceline.trainer.groups.pending import Pending


@functools.cache
def work_class(base: Any, future: Any) -> Any:
    """A subclass of c10d's Work over a `Pending`; `future` is torch.futures.Future.

    C++ finds `wait` and `get_future` through the trampoline; the rest is for callers in Python.
    """

    def __init__(self: Any, pending: Pending) -> None:
        base.__init__(self)
        self.paceline_pending = pending

    def wait(self: Any, timeout: timedelta | None = None) -> bool:
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        self.paceline_pending.wait(seconds if seconds > 0 else None)  # torch: 0 is no timeout
        return True

    def get_future(self: Any) -> Any:
        pending: Pending = self.paceline_pending
        signal = future()
        # Python cannot set an error that C++ (DDP's reducer) raises; a callback that raises can.
        outcome = signal.then(lambda _: pending.value())
        pending.attach(signal)
        return outcome

    def exception(self: Any) -> Any:
        return self.paceline_pending.failed

    def is_success(self: Any) -> bool:
        pending: Pending = self.paceline_pending
        return pending.poll() and pending.failed is None

    members: dict[str, Any] = {
        "__doc__": "A Work of a group that Paceline can replace.",
        "__init__": __init__,
        "wait": wait,
        "get_future": get_future,
        "exception": exception,
        "is_success": is_success,
        "is_completed": lambda self: self.paceline_pending.poll(),
        "result": lambda self: self.paceline_pending.value(),
        "synchronize": lambda self: self.paceline_pending.wait(None),
        "block_current_stream": lambda self: self.paceline_pending.wait(None),
    }
    for name in ("source_rank", "_source_rank"):
        members[name] = _of_inner(name)
    return type("SwappableWork", (base,), members)


class FinishedWork:
    """An inner Work of a group that needs no peers: it is over as soon as it is made."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def source_rank(self) -> int:
        return 0

    def get_future(self) -> Any:
        future = self._torch.futures.Future()
        future.set_result(None)
        return future


def _of_inner(name: str) -> Callable[[Any], Any]:
    def method(self: Any) -> Any:
        return getattr(self.paceline_pending.inner, name)()

    return method
