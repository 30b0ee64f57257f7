"""Child processes that never outlive us: death signal, own session, pid file, bounded stop."""

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 10.0
LOG_TAIL_BYTES = 4096

_prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded before any fork: nothing to load in the child


class LabError(RuntimeError):
    """Something the local platform needs is missing or broken; the message says what to do."""


def die_with_parent(death_signal: int) -> Callable[[], None]:
    """A `preexec_fn`: the kernel sends `death_signal` to the child when the thread that started it ends."""
    parent = os.getpid()

    def set_death_signal() -> None:
        _prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call above
            os._exit(1)

    return set_death_signal


def start_time_of(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, None where there is none (or only its zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def own_age_s() -> float:
    """Seconds since this process was started, imports included."""
    ticks = start_time_of(os.getpid()) or 0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Credentials:
    """The user that a child runs as; None in `Child` means ours."""

    name: str
    uid: int
    gid: int


class Child:
    """One child process with its log and pid file.

    Start it on a thread that lives as long as the child should (the main thread): the death signal
    belongs to the thread.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log_path = directory / f"{name}.log"
        self._pid_path = directory / f"{name}.pid"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the running child, None where it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        run_as: Credentials | None = None,
        death_signal: int = signal.SIGKILL,
    ) -> None:
        """Start `command` in its own session, so that Ctrl-C in a terminal reaches only us."""
        self.stop_orphan()
        user = (
            {} if run_as is None else {"user": run_as.uid, "group": run_as.gid, "extra_groups": [run_as.gid]}
        )
        with self.log_path.open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=directory,
                start_new_session=True,
                preexec_fn=die_with_parent(death_signal),
                **user,
            )
        self._process = process
        self._pid_path.write_text(f"{process.pid} {start_time_of(process.pid) or 0}\n")

    def stop(self, stop_signal: int = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask with `stop_signal`, then kill after `timeout_s`; the child is reaped when this returns."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(stop_signal)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        self._pid_path.unlink(missing_ok=True)

    def stop_orphan(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process that an earlier run named in the pid file, where it still is that process."""
        try:
            pid, started = (int(part) for part in self._pid_path.read_text().split())
        except (OSError, ValueError):
            return
        deadline = time.monotonic() + timeout_s
        stop_signal = signal.SIGTERM
        while start_time_of(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, stop_signal)
            if time.monotonic() > deadline:
                stop_signal = signal.SIGKILL
            time.sleep(0.05)
        self._pid_path.unlink(missing_ok=True)

    def log_tail(self) -> str:
        """The last few kilobytes of the child's output, for error messages."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - LOG_TAIL_BYTES))
                return log.read(LOG_TAIL_BYTES).decode(errors="replace").strip()
        except OSError:
            return ""


class HomeLock:
    """One owner of a home at a time; the kernel frees the lock when its owner dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """LabError where another process holds it."""
        if self._file is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise LabError(
                f"{self._path.parent} is in use by process {holder}: stop it, or set PACELINE_HOME"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
