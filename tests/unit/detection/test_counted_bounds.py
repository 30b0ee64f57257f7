"""What detection leaves out because of a bound is counted by reason."""

import random
from typing import Any

import pytest

from paceline.analysis.detection import rounds, slow, suspicion
from paceline.analysis.detection.reasons import Refusal


def run(seen: Any, seconds: int, lag_s: float) -> None:
    """Two rounds a second of every communicator, rank 5 late by `lag_s`."""
    rng = random.Random(3)
    for _ in range(seconds):
        for comm in seen.job.comms:
            for _ in range(2):
                values = [0.004 * rng.uniform(0.97, 1.03) + lag_s for _ in range(8)]
                values[5] -= lag_s
                seen.job.record_round(comm, values)
        seen.job.now_s += 1.0
        seen.tick()


@pytest.mark.parametrize("bound", [1, 2])
def test_suspects_beyond_the_bound(
    fake_job: Any, watch: Any, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(suspicion, "TRACKED_MAX", bound)
    job = fake_job(comms={7: range(8), 8: range(8), 9: range(8)})
    seen = watch(job).healthy()
    for comm in job.comms:
        job.hang(comm, missing=[3])
    seen.idle(8)
    assert len(seen.block.suspicion.tracked) == bound
    assert seen.block.refused[Refusal.SUSPECTS_FULL] >= 3 - bound


def test_suspects_that_come_when_the_table_is_full(
    fake_job: Any, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest stall is not the oldest wait: it is counted although fewer than the bound come before."""
    monkeypatch.setattr(suspicion, "TRACKED_MAX", 1)
    job = fake_job(comms={7: range(8), 8: range(8)})
    seen = watch(job).healthy()
    job.hang(7, missing=[3])
    seen.idle(8)
    assert Refusal.SUSPECTS_FULL not in +seen.block.refused
    job.hang(8, missing=[3])
    seen.idle(8)
    assert seen.block.refused[Refusal.SUSPECTS_FULL] > 0


def test_slow_keys_beyond_the_bound(fake_job: Any, watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "HOT_MAX", 1)
    seen = watch(fake_job(comms={7: range(8), 8: range(8)}))
    run(seen, 20, 0.0)
    assert Refusal.SLOW_KEYS_FULL not in +seen.block.refused
    run(seen, 5, 0.3)
    assert len(seen.block.slow.hot) == 1
    assert seen.block.refused[Refusal.SLOW_KEYS_FULL] > 0


def test_values_of_slow_rounds_beyond_the_bound(
    fake_job: Any, watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "HOT_VALUES_MAX", 20)
    seen = watch(fake_job())
    run(seen, 20, 0.0)
    run(seen, 5, 0.3)
    assert seen.block.refused[Refusal.SLOW_VALUES_FULL] == 8  # ten slow rounds, two fit


def test_rows_without_a_cell_and_keys_without_a_place_are_told(fake_job: Any, watch: Any) -> None:
    seen = watch(fake_job())
    rng = random.Random(4)
    for bits in range(14):  # as many sizes, more than KEYS_MAX
        seen.job.count = 1 << bits
        seen.job.record_round(7, [0.004 * rng.uniform(0.97, 1.03) for _ in range(8)])
        seen.tick(seconds=1.0)
    assert seen.block.refused[Refusal.ROUND_KEYS_FULL] == 2
    for _ in range(rounds.CELLS_MAX + 8):  # in one sample, nothing judged in between
        seen.job.record_round(7, [0.004] * 8)
    seen.tick()
    assert seen.block.refused[Refusal.ROUND_WINDOW_FULL] == 8 * 8
    assert (seen.block.slow.window.dropped_rows, seen.block.slow.keys.full) == (0, 0)
