"""`/proc` from a fake root, exit statuses, and how jobs end."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.agent import process
from paceline.agent.exits import Ended, Exit, explain_exit, is_cancelled, judge_end
from paceline.agent.process import ProcReader, exit_code_of, open_pidfd, read_exit_status
from paceline.agent.processes import Process
from paceline.contracts.agent_socket import Hello
from paceline.contracts.codes import ExitKind, ProcessState
from paceline.contracts.registry import JobState

S = 1_000_000_000


def lay_out(
    root: Path, pid: int, state: str, exit_code: int = 0, comm: str = "python3", uid: int | None = None
) -> None:
    folder = root / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = [state, *["0"] * 10, "150", "50", *["0"] * 6, "4242", *["0"] * 29, str(exit_code)]
    assert len(fields) == 50
    (folder / "stat").write_text(f"{pid} ({comm}) {' '.join(fields)}\n")
    owner = os.geteuid() if uid is None else uid
    (folder / "status").write_text(
        f"Name:\t{comm}\nUid:\t{owner}\t{owner}\t{owner}\t{owner}\nNSpid:\t{pid}\t7\n"
        "voluntary_ctxt_switches:\t33\n"
    )


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        ("R", ProcessState.RUNNING), ("S", ProcessState.SLEEPING), ("D", ProcessState.DISK_SLEEP),
        ("T", ProcessState.STOPPED), ("t", ProcessState.TRACED), ("Z", ProcessState.ZOMBIE),
        ("?", ProcessState.UNKNOWN),
    ],
)  # fmt: skip
def test_state_letters(tmp_path: Path, letter: str, state: ProcessState) -> None:
    lay_out(tmp_path, 10, letter)
    reading = ProcReader(tmp_path, ticks_per_s=100).read(10)
    assert reading.state is state
    assert (reading.cpu_ms, reading.start_ticks, reading.voluntary_switches) == (2000, 4242, 33)


def test_switches_are_asked_for_at_every_fifth_look(tmp_path: Path) -> None:
    asked: list[bool] = []

    class Counting(ProcReader):
        def _read(self, pid: int, name: str, bytes_max: int) -> bytes:
            asked.append(name == "status")
            return super()._read(pid, name, bytes_max)

    lay_out(tmp_path, 10, "S")
    hello = Hello("job", "declared", "a1", "declared", 2, 8, 2, 10, 4242)
    one = Process(("job", "a1"), hello, 0, 10, None, None, None)
    reader = Counting(tmp_path)
    assert all(one.observe(reader) for _ in range(11))
    assert one.reading.voluntary_switches == 33
    assert (asked.count(False), asked.count(True)) == (11, 3)  # the first one, the fourth and the ninth


def test_command_with_parentheses_and_spaces(tmp_path: Path) -> None:
    lay_out(tmp_path, 10, "T", comm="a) R (b")
    assert ProcReader(tmp_path).read(10).state is ProcessState.STOPPED


def test_gone_and_garbage(tmp_path: Path) -> None:
    reader = ProcReader(tmp_path)
    assert reader.read(11).state is ProcessState.GONE
    lay_out(tmp_path, 12, "S")
    for text in (b"", b"12 (x", b"12 (x) S 1 2", b"\xff" * 100):
        (tmp_path / "12" / "stat").write_bytes(text)
        assert reader.read(12).state is ProcessState.UNKNOWN


def test_wait_status_only_of_zombies_and_only_where_it_can_be_trusted(tmp_path: Path) -> None:
    reader = ProcReader(tmp_path)
    lay_out(tmp_path, 10, "S", exit_code=9)
    assert reader.read(10).wait_status is None
    lay_out(tmp_path, 10, "Z", exit_code=9)
    assert reader.read(10).wait_status == 9
    lay_out(tmp_path, 10, "Z", exit_code=0)
    assert reader.read(10).wait_status == 0


def test_zero_of_another_user_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reader = ProcReader(tmp_path)
    lay_out(tmp_path, 10, "Z", exit_code=0, uid=1001)
    assert reader.read(10).wait_status is None  # the kernel prints 0 to those who may not know
    lay_out(tmp_path, 10, "Z", exit_code=256, uid=1001)
    assert reader.read(10).wait_status == 256


def test_innermost_pid(tmp_path: Path) -> None:
    lay_out(tmp_path, 10, "S")
    assert ProcReader(tmp_path).innermost_pid(10) == 7
    assert ProcReader(tmp_path).innermost_pid(11) is None


def test_kept_files_show_what_is_new_and_the_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    reader, before = ProcReader(), _descriptors()
    first = reader.read(child.pid, keep=True)
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    second = reader.read(child.pid, keep=True)
    assert (first.start_ticks, second.state) == (second.start_ticks, ProcessState.STOPPED)
    assert _descriptors() == before + 2
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert reader.read(child.pid, keep=True).state is ProcessState.ZOMBIE
    child.wait()
    assert child.stdin is not None
    child.stdin.close()
    assert reader.read(child.pid, keep=True).state is ProcessState.GONE
    reader.forget(child.pid)
    assert _descriptors() == before - 1  # the pipe


def test_kept_files_are_closed_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KEPT_MAX", 1)
    reader, before = ProcReader(tmp_path), _descriptors()
    for pid in (10, 11):
        lay_out(tmp_path, pid, "S")
        assert reader.read(pid, keep=True).state is ProcessState.SLEEPING
    assert _descriptors() == before + 2
    reader.forget(10)
    reader.forget(10)
    assert _descriptors() == before


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_exit_status_of_a_reaped_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    pidfd = open_pidfd(child.pid)
    assert pidfd is not None
    assert read_exit_status(pidfd) is None  # it lives or is not reaped
    child.wait()
    status = read_exit_status(pidfd)
    os.close(pidfd)
    if status is None:
        pytest.skip("the kernel is older than 6.15")
    assert exit_code_of(status) == 3


def test_pidfd_of_a_gone_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert open_pidfd(child.pid) is None


@pytest.mark.parametrize(
    ("status", "goodbye", "finished", "kind", "code", "told"),
    [
        (0, None, False, ExitKind.CLEAN, 0, False),
        (9, None, False, ExitKind.SIGNAL, -9, False),
        (9 | 0x80, None, False, ExitKind.SIGNAL, -9, False),  # with a core dump
        (15, None, False, ExitKind.SIGNAL, -15, True),
        (3 << 8, None, False, ExitKind.ERROR, 3, False),
        ((128 + 15) << 8, None, False, ExitKind.ERROR, 143, True),
        (1 << 8, "terminated", False, ExitKind.ERROR, 1, True),
        (1 << 8, "finished", True, ExitKind.ERROR, 1, False),  # the kernel knows better
        (None, "finished", False, ExitKind.CLEAN, None, False),
        (None, "error", False, ExitKind.ERROR, None, False),
        (None, "terminated", False, ExitKind.SIGNAL, None, True),
        (None, None, True, ExitKind.CLEAN, None, False),
        (None, None, False, ExitKind.UNKNOWN, None, False),
        (None, "gibberish", False, ExitKind.UNKNOWN, None, False),
    ],
)
def test_explain_exit(status: Any, goodbye: Any, finished: Any, kind: Any, code: Any, told: Any) -> None:
    end = explain_exit(status, goodbye, "", finished)
    assert (end.kind, end.code, end.told_to_stop) == (kind, code, told)
    assert end.reason


CLEAN = Exit(ExitKind.CLEAN, 0, "exited with status 0")
UNREAD = explain_exit(None, "finished", "", False)
TERM = Exit(ExitKind.SIGNAL, -15, "killed by SIGTERM", told_to_stop=True)
KILL = Exit(ExitKind.SIGNAL, -9, "killed by SIGKILL")


def ended(*ends: tuple[Exit, float]) -> list[Ended]:
    return [Ended(rank, end, int(at_s * S)) for rank, (end, at_s) in enumerate(ends)]


def test_most_ranks_told_to_stop_is_a_cancellation() -> None:
    assert is_cancelled(ended((TERM, 1), (TERM, 1.5), (TERM, 3)), [], 4)
    assert is_cancelled(ended((TERM, 1)), [(1, 2 * S), (2, 2 * S)], 4)  # two are still saying goodbye


def test_few_or_scattered_terminations_are_none() -> None:
    assert not is_cancelled(ended((TERM, 1), (TERM, 2)), [], 4)
    assert not is_cancelled(ended((TERM, 1), (TERM, 30), (TERM, 60)), [], 4)
    assert not is_cancelled([], [], 4)


def test_launcher_that_stops_the_rest_after_a_failure_is_no_cancellation() -> None:
    assert not is_cancelled(ended((KILL, 1), (TERM, 2), (TERM, 2), (TERM, 2)), [], 4)


def test_kill_after_the_grace_period_is_still_a_cancellation() -> None:
    assert is_cancelled(ended((TERM, 1), (TERM, 1), (TERM, 1), (KILL, 9)), [], 4)


def test_ragged_clean_end_is_no_cancellation() -> None:
    assert not is_cancelled(ended((CLEAN, 1), (CLEAN, 20)), [], 2)


def test_judge_end() -> None:
    assert judge_end(ended((CLEAN, 1), (CLEAN, 2)), False)[0] is JobState.FINISHED
    state, reason = judge_end(ended((CLEAN, 1), (UNREAD, 2), (CLEAN, 3)), False)
    assert state is JobState.ENDED
    assert reason == "all 3 local ranks ended without an error; exit status of 1 not readable"
    assert judge_end(ended((TERM, 1), (TERM, 2)), True)[0] is JobState.CANCELLED
    state, reason = judge_end(ended((TERM, 3), (KILL, 1), (CLEAN, 2)), False)
    assert (state, reason) == (
        JobState.FAILED,
        "rank 1 killed by SIGKILL; 1 more did not end in order",
    )
