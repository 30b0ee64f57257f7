"""Waiting for new rows of the outbox: LISTEN for speed, polling in case a notification is lost.

One connection per process, made again whenever it breaks. A waiter takes a mark, reads the table,
and waits only where there was nothing; every wait ends after `poll_s` at most.
"""

import asyncio
import logging
from collections.abc import Callable

import asyncpg

from paceline.store.engine import driver_dsn
from paceline.store.repositories.outbox import OUTBOX_CHANNEL

log = logging.getLogger(__name__)
RECONNECT_S = 1.0
CONNECT_TIMEOUT_S = 5.0
CHECK_S = 15.0  # a half-open connection is noticed by then


class OutboxWatch:
    """`wait` returns when something may be new, at the latest after `poll_s`."""

    def __init__(self, url: str, *, poll_s: float = 1.0) -> None:
        self._dsn = driver_dsn(url)
        self._poll_s = poll_s
        self._waiters: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._wakes = 0
        self.listening = False

    @property
    def closed(self) -> bool:
        """Whether it is being stopped: whoever waits should end."""
        return self._closed

    async def start(self) -> None:
        """Listen in the background; never fails, never waits for the database."""
        if self._task is None:
            self._closed = False
            self._task = asyncio.create_task(self._run(), name="outbox-watch")

    async def stop(self) -> None:
        """Wake everybody and stop listening."""
        self._closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def mark(self) -> int:
        """Take it before reading the table: what is notified after it ends the next wait at once."""
        return self._wakes

    async def wait(self, mark: int, timeout_s: float | None = None) -> None:
        """Until a notification since `mark`, `poll_s`, `timeout_s` or `stop`, whatever is first."""
        if self._closed or self._wakes != mark:
            return
        event = asyncio.Event()
        self._waiters.add(event)
        limit_s = self._poll_s if timeout_s is None else min(self._poll_s, timeout_s)
        try:
            await asyncio.wait_for(event.wait(), limit_s)
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(event)

    def _wake(self, *_: object) -> None:
        self._wakes += 1
        for event in self._waiters:
            event.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                log.info("outbox notifications interrupted, polling meanwhile: %s", error)
            self.listening = False
            await asyncio.sleep(RECONNECT_S)

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._dsn, timeout=CONNECT_TIMEOUT_S)
        try:
            broken = asyncio.Event()
            on_end: Callable[[object], None] = lambda _: broken.set()  # noqa: E731
            connection.add_termination_listener(on_end)
            await connection.add_listener(OUTBOX_CHANNEL, self._wake)
            self.listening = True
            self._wake()
            while not broken.is_set():
                try:
                    await asyncio.wait_for(broken.wait(), CHECK_S)
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=CONNECT_TIMEOUT_S)
        finally:
            connection.terminate()
