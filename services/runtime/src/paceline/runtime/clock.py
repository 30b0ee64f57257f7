"""Time, injected: durations come from `monotonic_ns`, dates for people from `unix_s`."""

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs time is given."""

    def monotonic_ns(self) -> int: ...

    def unix_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def unix_s(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to; sleepers wake in the order of their deadlines."""

    def __init__(self, unix_s: float = 1_767_323_045.0, monotonic_ns: int = 1_000_000_000) -> None:
        self._unix_s = unix_s
        self._monotonic_ns = monotonic_ns
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Event]] = []

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def unix_s(self) -> float:
        return self._unix_s

    @property
    def sleepers_count(self) -> int:
        """How many coroutines wait, so that a test knows when to advance."""
        return len(self._sleepers)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        entry = (self._monotonic_ns + int(seconds * 1e9), next(self._order), woken)
        heapq.heappush(self._sleepers, entry)
        try:
            await woken.wait()
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)

    def advance(self, seconds: float) -> None:
        """Move both clocks; wakes every sleeper whose time has come."""
        self._monotonic_ns += int(seconds * 1e9)
        self._unix_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ns:
            heapq.heappop(self._sleepers)[2].set()
