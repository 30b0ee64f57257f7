"""Planned switches of real gloo processes: all at one step, bitwise, and training goes on where they fail."""

from typing import Any

import pytest

from tests.bench.planned_switch import run_job

pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
SMALL = {"ranks": 3, "every": 30, "state_bytes": 120_000, "step_ms": 25.0, "timeout_s": 20.0}


@pytest.fixture(scope="module")
def reference() -> str:
    """The state of a job of as many steps without any switch."""
    answers = run_job({**SMALL, "switches": 0, "every": 90, "step_ms": 0.0})
    states = {answer["state"] for answer in answers}
    assert len(states) == 1
    return str(states.pop())


def rows_of(answers: list[dict[str, Any]], switch: int, decision: str) -> list[dict[str, Any]]:
    return [
        row
        for answer in answers
        for row in answer["rows"]
        if row["switch"] == switch and row.get("decision") == decision
    ]


def states(answers: list[dict[str, Any]]) -> set[str]:
    return {answer["state"] for answer in answers} - {""}


def test_two_switches_end_as_a_job_without_any(reference: str) -> None:
    answers = run_job({**SMALL, "switches": 2})
    for switch in (0, 1):
        stayers = rows_of(answers, switch, "SWITCH")
        assert len({row["step"] for row in stayers}) == 1
        assert len(stayers) == SMALL["ranks"] - 1
    assert sorted(answer["rank"] for answer in answers) == [-1, 0, 1, 2]
    assert states(answers) == {reference}


@pytest.mark.parametrize(
    ("fault", "who"), [("other_tensors", "tensors differ"), ("other_plan", "do not follow one plan")]
)
def test_what_does_not_fit_cancels_for_all_at_one_step_and_the_next_attempt_works(
    fault: str, who: str, reference: str
) -> None:
    answers = run_job({**SMALL, "switches": 2, "fault": fault})
    cancelled = rows_of(answers, 0, "CANCEL")
    assert len(cancelled) == SMALL["ranks"]
    assert len({row["step"] for row in cancelled}) == 1
    assert any(who in row.get("joiner", "") for answer in answers for row in answer["rows"])
    assert len(rows_of(answers, 1, "SWITCH")) == SMALL["ranks"] - 1
    assert states(answers) == {reference}


def test_a_joiner_that_never_comes_costs_no_step(reference: str) -> None:
    answers = run_job({**SMALL, "switches": 2, "fault": "dead", "timeout_s": 0.3})
    assert len(rows_of(answers, 0, "CANCEL")) == SMALL["ranks"]
    assert states(answers) == {reference}
