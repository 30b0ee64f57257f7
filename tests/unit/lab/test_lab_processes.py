import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.lab.paths import UNIX_PATH_BYTES_MAX, is_searchable_by_others, short_directory
from paceline.lab.processes import Child, HomeLock, LabError, start_time_of

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('up', flush=True); time.sleep(600)",
]


def _wait_for(condition, deadline_s: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_child_ends_by_signal_and_leaves_no_pid_file(tmp_path: Path) -> None:
    child = Child("sleeper", tmp_path)
    child.start(SLEEPER)
    pid = child.pid

    assert pid is not None
    child.stop(timeout_s=5.0)

    assert start_time_of(pid) is None
    assert not (tmp_path / "sleeper.pid").exists()


def test_child_that_ignores_the_signal_is_killed_in_bounded_time(tmp_path: Path) -> None:
    child = Child("stubborn", tmp_path)
    child.start(STUBBORN)
    _wait_for(lambda: "up" in child.log_tail())
    pid = child.pid
    started = time.monotonic()

    child.stop(timeout_s=0.2)

    assert time.monotonic() - started < 5.0
    assert pid is not None
    assert start_time_of(pid) is None


def test_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from paceline.lab.processes import Child\n"
        f"child = Child('sleeper', Path({str(tmp_path)!r})); child.start({SLEEPER!r})\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert start_time_of(pid) is not None
        parent.kill()
    _wait_for(lambda: start_time_of(pid) is None)


def test_orphan_of_an_earlier_run_is_ended_but_a_stranger_with_its_pid_is_not(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEPER, stdout=subprocess.DEVNULL) as stranger:
        started = start_time_of(stranger.pid)
        assert started is not None
        pid_file = tmp_path / "it.pid"
        pid_file.write_text(f"{stranger.pid} {started - 1}\n")
        Child("it", tmp_path).stop_orphan()
        assert stranger.poll() is None

        pid_file.write_text(f"{stranger.pid} {started}\n")
        Child("it", tmp_path).stop_orphan()
        assert stranger.wait(5.0) == -signal.SIGTERM
    assert not pid_file.exists()


def test_second_owner_of_a_home_is_told_who_has_it(tmp_path: Path) -> None:
    first, second = HomeLock(tmp_path / "lock"), HomeLock(tmp_path / "lock")
    first.acquire()

    with pytest.raises(LabError, match=f"in use by process {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_socket_folder_moves_out_of_a_long_home(tmp_path: Path) -> None:
    short, long = Path("/srv/p"), Path("/srv") / ("x" * 100)

    assert short_directory(short, "s") == Path("/srv/p/s")
    assert len(str(short_directory(long, "s")) + "/.s.PGSQL.5432") < UNIX_PATH_BYTES_MAX
    assert short_directory(long, "s") != short_directory(long / "y", "s")


def test_private_parent_is_not_searchable(tmp_path: Path) -> None:
    inner = tmp_path / "a"
    inner.mkdir(mode=0o700)
    assert not is_searchable_by_others(inner)
    assert is_searchable_by_others(Path("/usr/lib"))
