import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from paceline.lab.demo.faults import Command, FaultPage, RankFaults, Word
from paceline.lab.demo.inject import inject
from paceline.lab.demo.job import RANKS, partner_of
from paceline.lab.processes import LabError

Eventually = Callable[..., Awaitable[object]]


@pytest.fixture
def page(tmp_path: Path) -> FaultPage:
    return FaultPage(tmp_path / "faults", RANKS, create=True)


def _now() -> int:
    return 77


def test_rows_of_two_mappings_are_the_same_memory(page: FaultPage, tmp_path: Path) -> None:
    other = FaultPage(tmp_path / "faults", RANKS)
    page.set(7, Word.DELAY_NS, 2**63)

    assert other.get(7, Word.DELAY_NS) == 2**63
    assert other.get(6, Word.DELAY_NS) == 0


def test_healthy_rank_never_sleeps_and_is_never_marked(page: FaultPage) -> None:
    sleeps: list[float] = []
    faults = RankFaults(page, 3, sleep=sleeps.append, now_ns=_now)

    faults.before_operation(9)
    faults.before_each_operation()
    faults.after_operation()

    assert sleeps == []
    assert not faults.calls_another()
    assert [page.get(3, word) for word in (Word.STALL_NS, Word.INSIDE, Word.HELD)] == [0, 0, 0]
    assert page.get(3, Word.PID) == os.getpid()


def test_h1_stays_out_until_it_is_taken_back(page: FaultPage) -> None:
    naps = 0

    def sleep(_: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 5:
            page.set(0, Word.COMMAND, Command.NONE)

    page.set(0, Word.COMMAND, Command.H1)
    RankFaults(page, 0, sleep=sleep, now_ns=_now).before_operation(1)

    assert naps == 5
    assert page.get(0, Word.STALL_NS) == 77


def test_s1_is_late_every_step_and_keeps_the_time_of_the_first(page: FaultPage) -> None:
    sleeps: list[float] = []
    times = iter([100, 200])
    faults = RankFaults(page, 1, sleep=sleeps.append, now_ns=lambda: next(times))
    page.set(1, Word.DELAY_NS, 600_000_000)
    page.set(1, Word.COMMAND, Command.S1)

    faults.before_operation(1)
    faults.before_each_operation()
    faults.before_each_operation()

    assert sleeps == [0.6, 0.6]
    assert page.get(1, Word.STALL_NS) == 100


def test_pause_happens_once(page: FaultPage) -> None:
    sleeps: list[float] = []
    faults = RankFaults(page, 1, sleep=sleeps.append)
    page.set(1, Word.DELAY_NS, 40_000_000_000)
    page.set(1, Word.COMMAND, Command.PAUSE)

    faults.before_operation(1)
    faults.before_operation(2)

    assert sleeps == [40.0]


def test_h2_is_said_at_the_operation_of_all_ranks(page: FaultPage) -> None:
    faults = RankFaults(page, 2, now_ns=_now)
    page.set(2, Word.COMMAND, Command.H2)

    faults.before_operation(1)
    assert page.get(2, Word.STALL_NS) == 0
    assert faults.calls_another()
    assert page.get(2, Word.STALL_NS) == 77


async def test_h3_freezes_only_while_inside(page: FaultPage, eventually: Eventually) -> None:
    """The partner is held first; the signal goes out only when the rank waits in the same step."""
    target, partner, step = 5, 4, 12
    sleeper = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220 (returns at once)
    pid = sleeper.pid
    try:
        page.set(target, Word.PID, pid)
        injecting = asyncio.create_task(inject(page, "h3", target, partner_of(target), RANKS, asyncio.sleep))
        await asyncio.sleep(0)
        assert page.get(partner, Word.COMMAND) == Command.HOLD
        page.set(partner, Word.HELD, step + 1)
        page.set(target, Word.INSIDE, step)  # still in the step before
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert _state(pid) == "S"
        page.set(target, Word.INSIDE, step + 1)

        stall_ns = await injecting

        await eventually(lambda: _state(pid) == "T")
        assert stall_ns > 0
        assert page.get(partner, Word.RELEASE) == 1
    finally:
        sleeper.kill()
        sleeper.wait()


async def test_slow_rank_loses_seven_healthy_steps(page: FaultPage) -> None:
    for rank in range(RANKS):
        page.set(rank, Word.STEP_NS, 200_000_000 + rank)
    page.set(6, Word.STALL_NS, 5)

    assert await inject(page, "s1", 6, partner_of(6), RANKS, asyncio.sleep) == 5
    assert page.get(6, Word.COMMAND) == Command.S1
    assert page.get(6, Word.DELAY_NS) == pytest.approx(175_000_000, rel=0.001)


async def test_rank_that_does_not_come_by_is_named(page: FaultPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.lab.demo.inject.STEP_WAIT_S", 0.05)

    with pytest.raises(LabError, match="rank 2 did not take up h1"):
        await inject(page, "h1", 2, partner_of(2), RANKS, asyncio.sleep)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_mark_stands_only_around_the_first_operation_of_a_step(page: FaultPage) -> None:
    faults = RankFaults(page, 2)

    faults.before_operation(4)  # data and receives still follow: not inside yet
    assert page.get(2, Word.INSIDE) == 0
    faults.before_each_operation()
    assert page.get(2, Word.INSIDE) == 5
    faults.after_operation()
    faults.before_each_operation()
    assert page.get(2, Word.INSIDE) == 0


async def test_a_rank_that_still_runs_is_not_frozen(page: FaultPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is up, but the process has not come to rest in the operation."""
    monkeypatch.setattr("paceline.lab.demo.inject.STEP_WAIT_S", 0.3)
    runner = subprocess.Popen(["sh", "-c", "while :; do :; done"])  # noqa: ASYNC220 (returns at once)
    try:
        page.set(5, Word.PID, runner.pid)
        page.set(5, Word.INSIDE, 8)
        page.set(4, Word.HELD, 8)
        with pytest.raises(LabError, match="rank 5 does not come to rest"):
            await inject(page, "h3", 5, partner_of(5), RANKS, asyncio.sleep)
        assert _state(runner.pid) == "R"
    finally:
        runner.kill()
        runner.wait()
