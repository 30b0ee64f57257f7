"""The whole way of a user: `paceline run --repair -- torchrun` with a standby beside it; torch for real."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.trainer.testing import LocalController
from paceline.trainer.testing.job import free_port

pytestmark = pytest.mark.needs_torch
BIN = Path(sys.executable).parent
PROGRAM = str(Path(__file__).parent / "programs" / "repaired.py")
STEPS = ["--steps", "400", "--pause", "0.05"]
START_S = 120.0  # of three interpreters that import torch


@pytest.fixture
def controller() -> Iterator[LocalController]:
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:  # a short path for the socket
        made = LocalController(Path(folder) / "a.sock", 2).start()
        yield made
        made.stop()


def test_torchrun_does_not_notice_that_rank_0_was_killed(
    controller: LocalController, until: Callable[..., None]
) -> None:
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("PACELINE", "SLURM"))},
        "OMP_NUM_THREADS": "1",
        "PACELINE_RESPAWN_AFTER_S": "-1",
    }
    paceline = [str(BIN / "paceline"), "run", "--job-id", "torchrun", "--socket", str(controller.path)]
    launcher = [str(BIN / "torchrun"), "--nproc-per-node", "2", "--master-port", str(free_port())]
    started: list[subprocess.Popen[bytes]] = []

    def start(words: list[str], **changes: str) -> Any:
        started.append(subprocess.Popen([*paceline, *words], env={**environment, **changes}))
        return started[-1]

    def least() -> int:
        return min(controller.steps().values(), default=-1)

    try:
        torchrun = start(["--repair", "--", *launcher, PROGRAM, *STEPS])
        standby = start(["--standby", "--", sys.executable, PROGRAM, *STEPS], WORLD_SIZE="2")
        until(lambda: controller.ready_standbys() and least() > 3, START_S)
        os.kill(controller.child_of(0), signal.SIGKILL)
        until(lambda: controller.of_kind("resumed"))
        before = least()
        until(lambda: least() > before + 5)
        assert (torchrun.poll(), standby.poll()) == (None, None)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)
