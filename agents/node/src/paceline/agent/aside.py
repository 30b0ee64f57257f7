"""A read that the kernel may hold for ever, beside the event loop."""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Aside(Generic[Made]):
    """Does one thing in a thread of its own, at most one at a time: what it reads may block for ever."""

    def __init__(self, work: Callable[[], Made]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None

    async def ask(self, timeout_s: float) -> Made | None:
        """The answer, None where it does not come in time; the thread of then is waited for by the next."""
        if self._thread is not None and self._thread.is_alive():
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Made] = loop.create_future()

        def deliver(made: Made) -> None:
            if not answer.done():
                answer.set_result(made)

        def run() -> None:
            made = self._work()
            try:
                loop.call_soon_threadsafe(deliver, made)
            except RuntimeError:
                return  # the loop has ended meanwhile

        # Not the loop's pool: its threads are waited for at the end, and this one may never return.
        self._thread = threading.Thread(target=run, name="paceline-aside", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(timeout_s):  # `wait_for` loses a cancellation that meets the answer
                return await answer
        except TimeoutError:
            return None
