"""An agent that records instead of publishing: it needs no Kafka, and may follow one command to its end."""

import asyncio
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.agent.app import AgentApp
from paceline.agent.disk_ring import NoRing
from paceline.agent.process import ProcReader, exit_code_of, open_pidfd, read_exit_status
from paceline.agent.recorder import Recorder, RecordingError
from paceline.agent.settings import AgentSettings
from paceline.agent.socket_server import SocketError
from paceline.contracts.codes import ExitKind, ProcessState
from paceline.runtime.clock import Clock, SystemClock

POLL_S = 0.1
STATUS_TRIES = 10  # a command that has just ended is reaped within milliseconds, then its status can be read
FOLDER_PREFIX = "paceline-record-"  # of the socket's folder, made for this agent alone
READY = b"ok\n"


@dataclass(frozen=True)
class Request:
    """What to record where; `follow` is the command whose end ends the recording, 0 for none, and `follow_fd`
    its pidfd, -1 where we have to open one."""

    folder: Path
    bytes_max: int
    follow: int = 0
    follow_fd: int = -1
    ready_fd: int = -1


def record(settings: AgentSettings, request: Request, say: Callable[[str], None]) -> int:
    """Record until the followed command and its ranks have ended, else until SIGTERM or SIGINT.

    0 after an orderly end, 1 where nothing could be recorded. `say` tells the user.
    """
    clock = SystemClock()
    recorder = Recorder(request.folder, settings.node, request.bytes_max, clock, settings.interval_s)
    try:
        recorder.open()
        return asyncio.run(_serve(settings, recorder, request, clock, say))
    except (RecordingError, SocketError) as error:
        if not _answer(request.ready_fd, f"{error}\n".encode()):
            say(f"nothing is recorded: {error}")
        return 1
    finally:
        folder = settings.socket.parent
        if request.follow and folder.name.startswith(FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)


async def _serve(
    settings: AgentSettings, recorder: Recorder, request: Request, clock: Clock, say: Callable[[str], None]
) -> int:
    command = _Command(request.follow, request.follow_fd) if request.follow else None
    app = AgentApp(settings, clock, recorder, ring=NoRing())
    recorder.told = app.drops
    stopped = asyncio.Event()
    _handle_signals(stopped, command)
    try:
        await app.start()
    except SocketError:
        recorder.close("socket")
        raise
    _answer(request.ready_fd, READY)
    if command is None:
        await stopped.wait()
    else:
        await _follow(command, app, clock)
    app.sampler.sample_all()  # how the job ended
    failed = await _has_failed(app, command)
    await app.stop()
    recorder.close("the command has ended" if command else "told to stop")
    if failed:
        say(f"the job did not end well; what happened: paceline diagnose {request.folder}")
    return 0


class _Command:
    """The process whose end is awaited: not a child of ours."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self._pid = pid
        self._proc = ProcReader()
        self._start_ticks = self._proc.read(pid).start_ticks
        self._pidfd = pidfd if pidfd >= 0 else open_pidfd(pid)

    @property
    def is_alive(self) -> bool:
        if self._pidfd is not None:
            poller = select.poll()  # `select` takes no descriptor above 1023
            poller.register(self._pidfd, select.POLLIN)
            return not poller.poll(0)  # readable once it has ended
        reading = self._proc.read(self._pid)
        if reading.state in (ProcessState.ZOMBIE, ProcessState.GONE):
            return False
        return not (reading.start_ticks and self._start_ticks) or reading.start_ticks == self._start_ticks

    async def status(self) -> int | None:
        """Exit status or minus the signal, None where the kernel does not say."""
        for _ in range(STATUS_TRIES):
            reading = self._proc.read(self._pid)
            same = reading.state is ProcessState.ZOMBIE and reading.start_ticks == self._start_ticks
            found = reading.wait_status if same else None
            if found is None and self._pidfd is not None:
                found = read_exit_status(self._pidfd)
            if found is not None:
                return exit_code_of(found)
            await asyncio.sleep(POLL_S / 5)
        return None


async def _follow(command: _Command, app: AgentApp, clock: Clock) -> None:
    """Until the command has ended, and every rank that said hello: a launcher may die before its ranks."""
    while command.is_alive or app.roster.living_count:
        await clock.sleep(POLL_S)


async def _has_failed(app: AgentApp, command: _Command | None) -> bool:
    if command is None:
        return False
    status = await command.status()
    ends = [process.exit for process in app.roster.processes.values() if process.exit is not None]
    ill = any(end.kind in (ExitKind.ERROR, ExitKind.SIGNAL) for end in ends)
    return bool(status) or (status is None and ill)


def _handle_signals(stopped: asyncio.Event, command: _Command | None) -> None:
    """What a scheduler sends to every process of a job is meant for the command: its end ends us, too."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        if command is None:
            stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, told)


def _answer(ready_fd: int, words: bytes) -> bool:
    """Tell who started us that we listen, or why not; whether it still waits for that. Once."""
    if ready_fd < 0:
        return False
    try:
        os.write(ready_fd, words)
        os.close(ready_fd)
    except OSError:
        return False
    return True


def say(text: str) -> None:
    """One line on stderr; a closed one is no reason to fail."""
    try:
        sys.stderr.write(f"paceline: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
