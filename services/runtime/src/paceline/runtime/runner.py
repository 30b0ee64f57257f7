"""Runs apps in one event loop: started in order, stopped in reverse, no app dies unnoticed."""

import asyncio
import signal
from collections.abc import Sequence

from paceline.runtime.app import App, Checked, Readiness, Watched
from paceline.runtime.health import Check
from paceline.runtime.logging import get_logger

STOP_S_MAX = 15.0
START_S_MAX = 30.0
log = get_logger(__name__)


class AppFailed(RuntimeError):
    """An app did not start, or crashed; the message names it and the cause."""

    def __init__(self, app: str, what: str, cause: BaseException) -> None:
        super().__init__(f"{app} {what}: {type(cause).__name__}: {cause}")
        self.app = app


def checks_of(apps: Sequence[App]) -> dict[str, Check]:
    """Readiness of each app by name, for the health server."""
    return {app.name: app.readiness if isinstance(app, Checked) else _always_ready for app in apps}


async def run_apps(
    apps: Sequence[App],
    *,
    stop: asyncio.Event | None = None,
    stop_s_max: float = STOP_S_MAX,
    handle_signals: bool = True,
    on_started: asyncio.Event | None = None,
) -> None:
    """Run until SIGTERM, SIGINT, `stop` or a crash; returns after an orderly stop.

    AppFailed where an app did not start or crashed; the others have been stopped by then. Each
    app has `stop_s_max` to stop; after that it is left behind and named in the log.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT) if handle_signals else ()
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    started: list[App] = []
    try:
        for app in apps:
            started.append(app)
            await _start(app)
            log.info("started", app=app.name)
        if on_started is not None:
            on_started.set()
        await _wait(started, stop)
    finally:
        for app in reversed(started):
            await _stop(app, stop_s_max)
        for number in signals:
            loop.remove_signal_handler(number)


async def _start(app: App) -> None:
    try:
        async with asyncio.timeout(START_S_MAX):
            await app.start()
    except Exception as error:
        raise AppFailed(app.name, "did not start", error) from error


async def _wait(apps: Sequence[App], stop: asyncio.Event) -> None:
    stopping = asyncio.create_task(stop.wait(), name="stop")
    watched = {
        app.name: asyncio.create_task(app.crashed(), name=f"watch-{app.name}")
        for app in apps
        if isinstance(app, Watched)
    }
    try:
        await asyncio.wait({stopping, *watched.values()}, return_when=asyncio.FIRST_COMPLETED)
        for name, crashed in watched.items():
            if crashed.done():
                cause = crashed.result()
                raise AppFailed(name, "crashed", cause) from cause
    finally:
        for task in (stopping, *watched.values()):
            task.cancel()
        await asyncio.gather(stopping, *watched.values(), return_exceptions=True)


async def _stop(app: App, limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await app.stop()
    except TimeoutError:
        log.error("stop_timed_out", app=app.name, limit_s=limit_s)
    except Exception as error:
        log.error("stop_failed", app=app.name, error=repr(error), exc_info=error)
    else:
        log.info("stopped", app=app.name)


def _always_ready() -> Readiness:
    return Readiness(True)
