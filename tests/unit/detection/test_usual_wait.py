"""The usual wait of a job is learned from waits that ended, and a stall comes on top of it."""

from typing import Any

import numpy as np
import pytest

from paceline.analysis.detection import DecisionKind
from paceline.analysis.detection.usual_wait import learn_usual_wait


def learn(waits_ms: list[int], usual_ms: int = 0) -> int:
    before = 0
    for wait in waits_ms:
        usual_ms = learn_usual_wait(usual_ms, before, wait)
        before = wait
    return usual_ms


def test_settles_where_nine_waits_in_ten_are_shorter() -> None:
    lengths = np.random.default_rng(1).integers(1000, 3000, 4000)
    waits = [age for length in lengths for age in (int(length) // 2, int(length), 0)]
    assert 2500 <= learn(waits) <= 3100


def test_a_wait_that_only_grows_teaches_nothing() -> None:
    assert learn(list(range(0, 60_000, 1000)), usual_ms=700) == 700


def test_one_long_pause_counts_little() -> None:
    usual = learn([1000, 0] * 500)
    assert learn([5900, 0], usual) <= 1.1 * usual


@pytest.mark.parametrize(("wait_s", "raises"), [(7, False), (12, True)])
def test_job_that_waits_for_seconds_anyway_is_given_them_before_a_stall(
    fake_job: Any, watch: Any, wait_s: int, raises: bool
) -> None:
    job = fake_job()
    seen = watch(job)
    for _ in range(40):
        job.hang(7, missing=[3])
        seen.idle(3)
        job.release(7)
        seen.healthy(1)
    assert seen.decisions == []
    job.hang(7, missing=[3])
    seen.idle(wait_s)
    assert (DecisionKind.STALLED in seen.kinds()) is raises
