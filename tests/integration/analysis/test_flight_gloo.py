"""The six faults on real dumps: right where they show it, no rank named as cause where they do not."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("flight_gloo.py")
ODD = 5
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--json"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("late", "H1"),
        ("missing", "H1"),
        ("operation mismatch", "H2"),
        ("order inversion", "DEADLOCK"),
    ],
)
def test_what_the_dumps_show(answers: dict[str, dict[str, Any]], fault: str, expected: str) -> None:
    assert (answers[fault]["verdict_class"], answers[fault]["ranks"]) == (expected, [ODD])


@pytest.mark.parametrize("fault", ["size mismatch", "killed"])
def test_what_they_cannot_show(answers: dict[str, dict[str, Any]], fault: str) -> None:
    """gloo aborts a process on a wrong size, and a killed one writes nothing: its absence is all there is."""
    answer = answers[fault]
    assert answer["verdict_class"] == "INCONCLUSIVE"
    assert answer["ranks"] == []
    assert ODD in answer["candidates"]
    assert set(answer["candidates"]) <= set(answer["missing"])
