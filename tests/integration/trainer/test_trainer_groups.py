"""Groups that are replaced while they are in use, on real gloo processes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs_torch
PROGRAMS = Path(__file__).parent / "programs"
FRAMEWORKS = ["ddp", "zero", "fsdp2"]
KINDS = ["allreduce", "allgather", "reduce_scatter", "broadcast", "alltoall", "send_recv", "barrier"]
GUARD_S = 20.0  # gloo's own timeout is 30 min here; measured are milliseconds


@pytest.fixture(scope="module")
def losses() -> Callable[[str], Any]:
    """What every kind of operation did when a rank was killed or frozen in it; one run for all kinds."""
    known: dict[str, Any] = {}
    program = str(PROGRAMS / "peer_loss.py")

    def run(how: str) -> Any:
        if how not in known:
            done = subprocess.run(
                [sys.executable, program, how, *KINDS],
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            known[how] = json.loads(done.stdout)
        return known[how]

    return run


@pytest.fixture(scope="module")
def interrupted() -> Any:
    program = str(PROGRAMS / "interrupted_steps.py")
    done = subprocess.run(
        [sys.executable, program, *FRAMEWORKS], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_step_cut_off_at_any_operation_is_run_again_with_the_same_objects(
    interrupted: Any, framework: str
) -> None:
    for found in interrupted[framework]["found"]:
        assert len(found) >= 2
        assert all(found), "bitwise as without a cut"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_generation_has_a_frame_of_its_own_and_those_of_the_dead_are_closed(
    interrupted: Any, framework: str
) -> None:
    for said, found in zip(interrupted[framework]["frames"], interrupted[framework]["found"], strict=True):
        world = sorted(said)
        assert [instance for instance, _, _ in world] == list(range(len(found) + 1))
        assert [closed for _, closed, _ in world] == [1] * len(found) + [0]
        assert world[-1][2] == 0


def test_what_is_stuck_at_a_frozen_peer_is_freed_and_the_process_ends_as_usual() -> None:
    """gloo itself would hold it until its timeout, and the end of the interpreter with it."""
    program = str(PROGRAMS / "cut_group.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["stuck"] == 0
    assert said["free_ms"] < GUARD_S * 1e3
    assert said["others live"] == ["there", "x"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_the_loss_of_a_rank_in_an_operation_ends_the_generation_and_the_next_one_is_right(
    losses: Callable[[str], Any], how: str, kind: str
) -> None:
    said = losses(how)[kind]
    assert set(said["raised"]) <= {"GenerationEnded", "PeerLost"}, said
    assert said["took_s"] < GUARD_S
    assert said["right"] == [[True, True]] * 3
    assert all(said["kept"]), "an operation of the dead generation wrote into a live tensor"
