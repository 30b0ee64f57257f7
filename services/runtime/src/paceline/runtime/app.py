"""What every service is: something that starts and stops inside one event loop."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class App(Protocol):
    """`start` returns soon and never waits for Kafka or the database; `stop` may be called twice
    and is bounded by its caller."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True)
class Readiness:
    """An app's own word on whether it does its work; `detail` tells a person what is wrong."""

    ready: bool
    detail: str = ""


@runtime_checkable
class Checked(Protocol):
    """An app with an opinion on its readiness; apps without one are ready once started."""

    def readiness(self) -> Readiness: ...


@runtime_checkable
class Watched(Protocol):
    """An app that can crash after its start."""

    async def crashed(self) -> BaseException:
        """Returns the cause once the app cannot go on; otherwise waits for ever."""
        ...


async def first_crash(*sources: Watched) -> BaseException:
    """The cause of the first of `sources` that cannot go on."""
    waits = [asyncio.create_task(source.crashed(), name="first-crash") for source in sources]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def is_being_cancelled() -> bool:
    """Whether somebody cancels the current task. False for a CancelledError that comes from inside:
    aiokafka hands the cancellation of its own tasks on to whoever waits for them."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class BackgroundTasks:
    """The long-running tasks of one app: none is lost by the garbage collector, none dies unseen."""

    def __init__(self) -> None:
        self._cancelling = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._cause: BaseException | None = None
        self._crash = asyncio.Event()

    def spawn(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run `work` until `cancel`; an exception that leaves it is a crash of the app, and so is a
        cancellation that we did not ask for."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def crashed(self) -> BaseException:
        await self._crash.wait()
        assert self._cause is not None
        return self._cause

    async def join(self) -> None:
        """Wait until all have ended by themselves."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel all and wait for them; what they raise meanwhile is dropped."""
        tasks = list(self._tasks)
        self._cancelling = True
        try:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._cancelling = False

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError(f"{task.get_name()} was cancelled") if task.cancelled() else None
        if error is not None and self._cancelling:
            return
        cause = error or task.exception()
        if cause is not None and self._cause is None:
            self._cause = cause
            self._crash.set()
