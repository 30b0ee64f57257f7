"""Further incidents of the kinds of `cases`, in other words, other launchers, other versions and sizes."""

import pytest

from tests.incidents.score import POINTS_MAX, Score, score_case, variant_names

SHARE_MIN = 0.9
_NAMES = variant_names()


@pytest.fixture(scope="module")
def scores() -> list[Score]:
    return [score_case(name)[0] for name in _NAMES]


@pytest.mark.skipif(not _NAMES, reason="no variants")
def test_variants_are_answered(scores: list[Score]) -> None:
    points = sum(score.points for score in scores)
    lost = [f"{score.case} {score.points}" for score in scores if score.points < POINTS_MAX]
    assert points >= SHARE_MIN * POINTS_MAX * len(scores), lost


def test_no_variant_blames_a_victim(scores: list[Score]) -> None:
    assert [score.case for score in scores if score.victim] == []


def test_no_variant_takes_a_healthy_machine(scores: list[Score]) -> None:
    assert [score.case for score in scores if score.node_action] == []
