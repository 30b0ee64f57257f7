"""Platform, node agent and training job together: started side by side, stopped in any state."""

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from paceline.lab.demo.job import RANKS, DemoJob
from paceline.lab.platform import API_PORT, LocalPlatform, free_port
from paceline.lab.processes import LabError, own_age_s
from paceline.runtime.app import App
from paceline.runtime.local import HOME_VARIABLE, home_directory
from paceline.runtime.logging import configure_logging
from paceline.runtime.runner import run_apps
from paceline.runtime.settings import LogSettings, TelemetrySettings, load_settings
from paceline.runtime.telemetry import configure_telemetry

FIRST_STEP_S_MAX = 120.0
POLL_S = 0.1
JOB = "demo"
LAG_FLOOR_VARIABLE = "PACELINE_DETECTOR_SLOW_LAG_FLOOR_MS"
# Eight ranks, the whole platform and whatever else runs share the cores of one machine: with ten runnable
# processes on two cores the scheduler alone kept one rank 80 ms late. The default floor is for machines
# that a job has for itself.
LAG_FLOOR_MS = 120.0

Act = Callable[[], Awaitable[None]]


def prepare_home(declared: Path | None) -> Path:
    """The demo's own folder below the home: it forgets its records at each start, `up` never does."""
    home = (Path(declared).expanduser().absolute() if declared else home_directory()) / "demo"
    home.mkdir(parents=True, exist_ok=True)
    os.environ[HOME_VARIABLE] = str(home)
    configure_logging(load_settings(LogSettings))
    _log_to(home / "platform.log")
    return home


class Cast(Protocol):
    """The processes beside the platform: ranks and their agent."""

    def launch_ranks(self) -> None: ...

    def launch_agent(self) -> None: ...

    def stop(self) -> None: ...


class Scene:
    """`launch`, then `run(act)` in an event loop, then `close` whatever happened."""

    def __init__(self, home: Path, cast: Cast, *, port: int | None = None, quiet: bool = False) -> None:
        self.stop = asyncio.Event()
        self.started_ns = time.monotonic_ns() - int(own_age_s() * 1e9)
        chosen = free_port(API_PORT) if port is None else port or free_port(0)
        self.platform = LocalPlatform(home, port=chosen, durable=False)
        # Webhooks go to no loopback address by default; the demo's own receiver is there.
        self.platform.export("PACELINE_NOTIFIER_ALLOWED_NETWORKS", "127.0.0.1/32")
        if LAG_FLOOR_VARIABLE not in os.environ:
            self.platform.export(LAG_FLOOR_VARIABLE, str(LAG_FLOOR_MS))
        self._cast = cast
        self._quiet = quiet

    def say(self, line: str) -> None:
        """One line for people: on stderr where stdout belongs to a program."""
        stream = sys.stderr if self._quiet else sys.stdout
        stream.write(line + "\n")
        stream.flush()

    def launch(self) -> None:
        """Everything that takes seconds, side by side; on the main thread."""
        self._cast.launch_ranks()
        self.platform.launch(fresh=True)
        self._cast.launch_agent()

    def close(self) -> None:
        """Nothing that was started is left; may be called in any state."""
        try:
            self._cast.stop()
        finally:
            self.platform.stop()

    async def run(self, act: Act) -> None:
        """Services up and ready, then `act`; ends with it, or with Ctrl-C, SIGTERM or SIGHUP."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.stop.set)
        await self.platform.prepare(fresh=True)
        telemetry = configure_telemetry(load_settings(TelemetrySettings), "paceline-demo")
        apps = self.platform.build()
        started = asyncio.Event()
        serving = asyncio.create_task(
            run_apps(apps, stop=self.stop, handle_signals=False, on_started=started)
        )
        playing = asyncio.create_task(self._play(apps, started, act))
        stopping = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({serving, playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in (serving, playing):
                if task.done():
                    task.result()
        finally:
            self.stop.set()
            for other in (playing, stopping):
                other.cancel()
            await asyncio.gather(playing, stopping, serving, return_exceptions=True)
            telemetry.shutdown()

    async def _play(self, apps: Sequence[App], started: asyncio.Event, act: Act) -> None:
        await started.wait()
        await self.platform.wait_ready(apps)
        await act()

    def say_console(self) -> None:
        """Where to look at it."""
        self.say(
            f"console   {self.platform.url}  token {self.platform.token}  (up after {own_age_s():.1f} s)"
        )


class TrainingScene(Scene):
    """With the demo's eight ranks."""

    def __init__(self, home: Path, *, port: int | None = None, quiet: bool = False) -> None:
        self.job = DemoJob(home, f"{JOB}-{secrets.token_hex(4)}")
        super().__init__(home, self.job, port=port, quiet=quiet)

    async def wait_for_first_step(self) -> float:
        """Seconds from the start of this process to the first step of all ranks."""
        deadline = time.monotonic() + FIRST_STEP_S_MAX
        while self.job.steps() < 1:
            self.job.check()
            if time.monotonic() > deadline:
                raise LabError(f"no step of all ranks within {FIRST_STEP_S_MAX:g} s; logs: {self.job.logs}")
            await asyncio.sleep(POLL_S)
        seconds = round((self.job.first_step_ns() - self.started_ns) / 1e9, 3)
        self.say(f"job       {self.job.job}, {RANKS} ranks, first healthy step after {seconds:.1f} s")
        self.say_console()
        return seconds

    async def let_train(self, seconds: float) -> None:
        """Wait while the job trains; LabError where a process of it ends."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.job.check()
            await asyncio.sleep(POLL_S)


def _log_to(path: Path) -> None:
    """The services' log goes to a file: the terminal is for the few lines of the demo."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(path.open("w"))
