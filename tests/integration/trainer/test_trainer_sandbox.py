"""Standbys that are warmed up by what others recorded, on real gloo processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs_torch
PROGRAMS = Path(__file__).parent / "programs"


def run(program: str, folder: Path) -> Any:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run("warm_standby.py", tmp_path_factory.mktemp("warm"))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run("pipeline_standby.py", tmp_path_factory.mktemp("pipeline"))


def test_the_sandbox_sends_no_packet(warmed: Any) -> None:
    if not warmed["warm"]["alone"]:
        pytest.skip("this user may not make a network namespace")
    assert warmed["warm"]["packets"] == {"lo in": 0, "lo out": 0, "ip out": 0}


def test_two_steps_in_the_sandbox_are_bitwise_those_of_the_recorded_rank(warmed: Any) -> None:
    assert warmed["warm"]["left"] == 0
    assert warmed["warm"]["digest"] == warmed["recorded"]
    assert warmed["mode"] == "0o600"


def test_a_warmed_standby_issues_in_its_first_real_step_what_the_others_issue(warmed: Any) -> None:
    """Without the two steps DDP would broadcast its new buckets here while the others reduce."""
    first, *others = (said["calls"] for said in warmed["calls"])
    assert others == [first, first]
    assert len(first) > 1, "one bucket would have nothing to rebuild"
    assert len({said["digest"] for said in warmed["calls"]}) == 1
    assert [said["rank"] for said in warmed["calls"]] == [0, 2, 1]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_one_standby_takes_the_place_of_any_stage(pipeline: Any, victim: int) -> None:
    said = pipeline[str(victim)]
    assert said["left"] == {"first": 0, "middle": 0, "last": 0}
    assert said["parameters"] == pipeline["-1"]["parameters"], "bitwise as without a fault"


def test_a_changed_sequence_is_named_and_never_waited_for(pipeline: Any) -> None:
    other, shape, group = pipeline["1"]["changed"]
    assert "called recv((float32[4, 16]); 0; 0)" in other or "called recv(float32[4, 16]; 0; 0)" in other
    assert "allreduce(float32[4]; op SUM)" in other
    assert "recv(float32[5]; 0; 0)" in shape
    assert "no further group" in group
