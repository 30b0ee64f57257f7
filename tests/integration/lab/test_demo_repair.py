"""`paceline demo --fault kill --mode auto` as a user runs it: the whole loop and its exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(300)]
COMMAND = [sys.executable, "-m", "paceline.contracts.cli", "demo", "--port", "0", "--once", "--json"]


def test_a_killed_rank_is_replaced_while_the_job_runs(tmp_path: Path) -> None:
    command = [*COMMAND, "--home", str(tmp_path), "--fault", "kill", "--mode", "auto", "--rank", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["right"] is True
    action = result["action"]
    assert (action["kind"], action["status"], action["ranks"]) == ("swap", "succeeded", "0")
    assert list(result["phases"]) == ["rendezvous", "restore", "first step"]
    assert 0 < result["detected_s"] <= result["ordered_s"] <= result["resumed_s"]
    assert result["equal"] is True
    assert result["replayed"] <= 1
    line = next(line for line in done.stderr.splitlines() if line.startswith("resumed"))
    assert "equal to the bit" in line


def test_auto_is_refused_for_a_job_that_nothing_repairs(tmp_path: Path) -> None:
    command = [*COMMAND, "--home", str(tmp_path), "--fault", "h1", "--mode", "auto"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert "--mode auto: expected --fault kill or hang" in done.stderr
