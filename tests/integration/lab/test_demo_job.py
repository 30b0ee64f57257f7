"""The demo's training job alone: it trains, and nothing of it outlives its launcher."""

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from paceline.lab.demo.faults import Word
from paceline.lab.demo.job import RANKS, DemoJob
from paceline.lab.processes import start_time_of

pytestmark = pytest.mark.needs_torch
Eventually = Callable[..., Awaitable[object]]
START_S_MAX = 90.0


async def test_eight_ranks_learn_and_end_in_order(tmp_path: Path, eventually: Eventually) -> None:
    job = DemoJob(tmp_path, "lab-job", step_s=0.01, steps=40)
    job.launch_ranks()
    try:
        await eventually(lambda: job.steps() >= 1, deadline_s=START_S_MAX)
        first = job.loss()
        await eventually(lambda: job.ranks_status() is not None, deadline_s=START_S_MAX)
    finally:
        job.stop()

    assert job.steps() == 40
    assert all(not log.read_text() for log in job.logs.glob("rank?.log"))
    assert 0 < job.loss() < first


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGKILL])
async def test_ranks_end_with_their_launcher_even_when_one_is_frozen(
    tmp_path: Path, eventually: Eventually, stop_signal: signal.Signals
) -> None:
    job = DemoJob(tmp_path, "lab-job", step_s=0.05)
    job.launch_ranks()
    try:
        await eventually(lambda: job.steps() >= 1, deadline_s=START_S_MAX)
        pids = [job.page.get(rank, Word.PID) for rank in range(RANKS)]
        os.kill(pids[3], signal.SIGSTOP)
        assert job.launcher_pid is not None
        os.kill(job.launcher_pid, stop_signal)

        await eventually(lambda: not any(map(start_time_of, pids)), deadline_s=15)
    finally:
        job.stop()
