"""The bars of the diagnosis on the public incidents, and what no answer may do."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.incidents.score import CASES, POINTS_MAX, TARGETS, Score, score_all

SHARE_MIN = 0.9


@pytest.fixture(scope="module")
def results() -> Sequence[tuple[Score, dict[str, Any]]]:
    return list(score_all(sorted(TARGETS)))


def test_every_case_has_a_target() -> None:
    assert sorted(path.name for path in CASES.iterdir()) == sorted(TARGETS)


def test_points(results: Sequence[tuple[Score, dict[str, Any]]]) -> None:
    total = sum(score.points for score, _ in results)
    lost = [f"{score.case}: {score.points}" for score, _ in results if score.points < POINTS_MAX]
    assert total >= SHARE_MIN * POINTS_MAX * len(results), lost


def test_no_victim_is_named(results: Sequence[tuple[Score, dict[str, Any]]]) -> None:
    assert [score.case for score, _ in results if score.victim] == []


def test_no_machine_is_touched_for_software(results: Sequence[tuple[Score, dict[str, Any]]]) -> None:
    assert [score.case for score, _ in results if score.node_action] == []


def test_answers_are_whole(results: Sequence[tuple[Score, dict[str, Any]]]) -> None:
    wanted = {
        "class", "sub_reason", "roots", "victims", "communicator", "operation", "owner", "action",
        "confidence", "coverage", "evidence", "summary",
    }  # fmt: skip
    for score, answer in results:
        assert wanted <= set(answer), score.case
        assert answer["summary"], score.case
        assert answer["roots"], score.case
        assert answer["evidence"], score.case
        assert all(isinstance(root.get("rank", 0), int) for root in answer["roots"]), score.case
        assert json.dumps(answer), score.case
        if answer["class"] == "INCONCLUSIVE":
            assert answer["would_decide"], score.case
            assert answer["export_next"], score.case
