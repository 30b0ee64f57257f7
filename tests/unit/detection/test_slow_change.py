"""The two sequential tests by themselves: what they find, how soon, and what they leave alone."""

import numpy as np
import pytest

from paceline.analysis.detection.slow_change import ChangePolicy, Changes, identity

SERIES = 200


def first_alarm(values: np.ndarray, onset: int) -> np.ndarray:
    """Values after the onset until each series is in alarm; -1 = never, -2 = before the onset."""
    changes = Changes((SERIES,), ChangePolicy())
    at = (np.arange(SERIES),)
    found = np.full(SERIES, -1)
    for number, row in enumerate(values.astype(np.float32)):
        alarm = changes.observe(at, row, matters=0.02)
        found[alarm & (found == -1)] = -2 if number < onset else number - onset + 1
    return found


def series(seed: int, healthy: int, after: int, noise: float, factor: float) -> np.ndarray:
    values = np.random.default_rng(seed).normal(1, noise, (healthy + after, SERIES))
    values[healthy:] *= factor
    return values


class TestChanges:
    def test_five_percent_at_two_percent_noise_is_found_within_twenty(self) -> None:
        found = first_alarm(series(1, 100, 20, 0.02, 1.05), 100)
        assert np.mean(found > 0) >= 0.98
        assert not (found == -2).any()
        assert np.median(found) <= 12

    @pytest.mark.parametrize("noise", [0.02, 0.05])
    def test_eight_values_of_a_third_more_are_found(self, noise: float) -> None:
        assert (first_alarm(series(2, 60, 8, noise, 1.3), 60) > 0).all()

    def test_ten_percent_noise_alone_raises_nothing(self) -> None:
        assert (first_alarm(series(3, 3000, 1, 0.1, 1.0), 3001) == -1).all()

    def test_heavy_tails_raise_nothing(self) -> None:
        rng = np.random.default_rng(4)
        values = rng.lognormal(0, 0.08, (2000, SERIES))
        values[rng.random(values.shape) < 0.005] *= 10
        assert (first_alarm(values, 2001) == -1).all()

    def test_one_percent_is_not_worth_a_word(self) -> None:
        assert (first_alarm(series(5, 60, 100, 0.001, 1.01), 60) == -1).all()

    def test_the_usual_is_frozen_while_it_lasts_and_follows_slowly_else(self) -> None:
        changes, at = Changes((1,), ChangePolicy()), (np.zeros(1, np.int64),)
        for value in np.random.default_rng(6).normal(1, 0.02, 100):
            changes.observe(at, np.array([value], np.float32))
        before = float(changes.mean[0])
        for _ in range(500):
            changes.observe(at, np.array([1.2], np.float32))
        assert float(changes.mean[0]) == pytest.approx(before, rel=0.01)
        for _ in range(2000):
            changes.observe(at, np.array([0.97], np.float32))
        assert float(changes.mean[0]) == pytest.approx(0.97, rel=0.01)


class TestIdentity:
    @staticmethod
    def follow(last: np.ndarray, members: int) -> tuple[np.ndarray, np.ndarray]:
        """Suspect and evidence of SERIES groups after rounds x SERIES of who came last."""
        suspect, nats = np.full(SERIES, -2), np.zeros(SERIES, np.float32)
        highest = np.zeros(SERIES, np.float32)
        for row in last:
            suspect, nats = identity(suspect, nats, row, np.full(SERIES, members), 30)
            highest = np.maximum(highest, nats)
        return suspect, highest

    @pytest.mark.parametrize(("members", "rounds"), [(2, 40), (8, 10), (64, 6)])
    def test_one_that_is_always_last_is_known(self, members: int, rounds: int) -> None:
        rng = np.random.default_rng(members)
        last = np.where(rng.random((rounds, SERIES)) < 0.97, 1, 0)
        suspect, nats = self.follow(last, members)
        assert (suspect == 1).all()
        assert np.mean(nats >= 9) > 0.95

    @pytest.mark.parametrize("members", [2, 8])
    def test_chance_is_not_taken_for_a_culprit(self, members: int) -> None:
        last = np.random.default_rng(members).integers(0, members, (500, SERIES))
        _, nats = self.follow(last, members)
        assert np.mean(nats >= 12) < 0.01

    def test_evidence_goes_with_rounds_in_which_nobody_is_late(self) -> None:
        suspect, nats = np.array([3]), np.array([10.0], np.float32)
        for _ in range(20):
            suspect, nats = identity(suspect, nats, np.array([-2]), np.array([8]), 30)
        assert nats[0] == 0

    def test_a_tick_without_any_late_rank_weighs_evidence_as_any_other(self) -> None:
        suspect, nats = np.array([3, -1, -2, 5]), np.array([29.9, 0.3, 0.0, 40.0], np.float32)
        members, quiet = np.full(4, 8), np.full(4, -2)
        alone = identity(suspect, nats, quiet, members, 30)
        one_more = [np.append(values, value) for values, value in ((suspect, 1), (nats, 2), (quiet, 1))]
        mixed = identity(one_more[0], one_more[1], one_more[2], np.full(5, 8), 30)
        assert (alone[0] == mixed[0][:4]).all()
        assert (alone[1] == mixed[1][:4]).all()
        assert alone[1].dtype == np.float32
