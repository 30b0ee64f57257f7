"""Slowness far below theta: small lasting rises, short bursts, stragglers in turn, and healthy noise."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from paceline.analysis.detection import Decision, DecisionKind, Reason
from paceline.contracts.batch import RowKind, StepFlag
from paceline.contracts.codes import Phase

SLOW, CLEAR = DecisionKind.SLOW, DecisionKind.CLEAR
TRANSFER_S = 0.02
Compute = Callable[[random.Random, int], Sequence[float]]  # (random, ranks) -> seconds of each rank


class Stepped:
    """A data-parallel job: every rank computes, all meet in one all_reduce, one sample a step."""

    def __init__(self, fake_job: Any, watch: Any, seed: int, ranks: int = 8, policy: Any = None) -> None:
        self.job = fake_job(ranks=ranks)
        self.seen = watch(self.job, policy, healthy=0)
        self.rng = random.Random(seed)
        self.ranks = ranks
        self.blind: set[int] = set()  # ranks whose waits are not observed

    def run(
        self, steps: int, compute: Compute, transfer_s: float = TRANSFER_S, until: Any = None
    ) -> list[tuple[int, Decision]]:
        """(step, decision) of everything that was decided."""
        found: list[tuple[int, Decision]] = []
        for number in range(1, steps + 1):
            arrival = compute(self.rng, self.ranks)
            end = max(arrival) + transfer_s * self.rng.gauss(1, 0.02)
            self.job.record_round(7, [end - value for value in arrival])
            for rank, value in enumerate(arrival):
                process = self.job.process[rank]
                process.step += 1
                process.waited_ms += 0 if rank in self.blind else round((end - value) * 1000)
            self.job.now_s += end
            found += [(number, decision) for decision in self.seen.tick(seconds=end)]
            if until in [decision.kind for _, decision in found]:
                break
        return found

    def rows(self, decision: Decision) -> Any:
        return self.seen.block.evidence(decision)[0]


def even(noise: float, step_s: float = 1.0) -> Compute:
    return lambda rng, ranks: [step_s * max(rng.gauss(1, noise), 0.3) for _ in range(ranks)]


def slower(noise: float, rank: int, factor: float) -> Compute:
    def compute(rng: random.Random, ranks: int) -> Sequence[float]:
        values = list(even(noise)(rng, ranks))
        values[rank] *= factor
        return values

    return compute


@pytest.fixture
def stepped(fake_job: Any, watch: Any) -> Callable[..., Stepped]:
    return lambda seed, **options: Stepped(fake_job, watch, seed, **options)


class TestFound:
    @pytest.mark.parametrize("seed", range(5))
    def test_five_percent_for_good_within_twenty_steps(self, stepped: Any, seed: int) -> None:
        """Steps become 5% longer: the rank itself by 8%, because the latest of eight at 2% noise is late."""
        job = stepped(seed)
        assert job.run(60, even(0.02)) == []
        found = job.run(40, slower(0.02, 5, 1.08), until=SLOW)
        number, decision = found[0]
        assert (decision.kind, number <= 20) == (SLOW, True)
        job.run(20, slower(0.02, 5, 1.08))
        (base,) = job.rows(decision)[RowKind.BASELINE]
        assert int(base["late_rank"]) == 5
        assert 1.0 < float(base["threshold"]) <= 3.0

    @pytest.mark.parametrize("seed", range(3))
    def test_less_than_two_milliseconds_of_a_short_step(self, stepped: Any, seed: int) -> None:
        """What matters is measured in steps; the floor of single rounds does not hide it."""

        def late(rng: random.Random, ranks: int) -> Sequence[float]:
            values = list(even(0.02, step_s=0.04)(rng, ranks))
            values[5] += 0.0028
            return values

        job = stepped(seed)
        assert job.run(200, even(0.02, step_s=0.04)) == []
        found = job.run(20, late, until=SLOW)
        assert [decision.kind for _, decision in found] == [SLOW]
        (base,) = job.rows(found[0][1])[RowKind.BASELINE]
        assert int(base["late_rank"]) == 5
        assert float(base["threshold"]) < 3

    def test_long_steps_are_known_after_a_few(self, stepped: Any) -> None:
        """Twelve steps of three seconds: a job is not blind for its first minute."""
        job = stepped(3)
        assert job.run(14, even(0.02, step_s=3.0)) == []

        def late(rng: random.Random, ranks: int) -> Sequence[float]:
            return [
                value + (0.6 if rank == 2 else 0) for rank, value in enumerate(even(0.02, 3.0)(rng, ranks))
            ]

        number, decision = job.run(10, late, until=SLOW)[-1]
        assert (decision.kind, number <= 8) == (SLOW, True)
        (base,) = job.rows(decision)[RowKind.BASELINE]
        assert int(base["late_rank"]) == 2

    @pytest.mark.parametrize("seed", range(5))
    def test_burst_of_eight_steps(self, stepped: Any, seed: int) -> None:
        job = stepped(seed)
        job.run(60, even(0.02))
        found = job.run(8, slower(0.02, 3, 1.3))
        assert found[0][1].kind is SLOW
        found = job.run(60, even(0.02))
        assert [decision.kind for _, decision in found if decision.kind is CLEAR] == [CLEAR]

    def test_five_percent_for_everybody(self, stepped: Any) -> None:
        """No rank is late: only the transfer takes longer, by a twentieth of the step."""
        job = stepped(4)
        job.run(60, even(0.005))
        found = job.run(40, even(0.005), transfer_s=0.07, until=SLOW)
        assert found[0][1].kind is SLOW
        (base,) = job.rows(found[0][1])[RowKind.BASELINE]
        assert int(base["late_rank"]) == -1

    def test_stragglers_in_turn(self, stepped: Any) -> None:
        def in_turn(rng: random.Random, ranks: int) -> Sequence[float]:
            return slower(0.02, rng.randrange(ranks), 1.4)(rng, ranks)

        job = stepped(5)
        job.run(60, even(0.02))
        found = job.run(150, in_turn)
        decision = found[-1][1]
        assert decision.reason is Reason.SLOW_ROUNDS
        (base,) = job.rows(decision)[RowKind.BASELINE]
        assert int(base["late_rank"]) == -1

    def test_late_from_the_first_round_on(self, stepped: Any) -> None:
        job = stepped(6)
        found = job.run(200, slower(0.02, 2, 1.4), until=SLOW)
        number, decision = found[-1]
        assert number * 1.4 > 60
        (base,) = job.rows(decision)[RowKind.BASELINE]
        assert int(base["late_rank"]) == 2

    def test_late_from_the_first_round_on_by_little_is_usual(self, stepped: Any) -> None:
        assert stepped(6).run(200, slower(0.02, 2, 1.15)) == []

    def test_own_time_of_the_late_rank_has_risen(self, stepped: Any) -> None:
        job = stepped(7)
        job.run(60, even(0.02))
        found = job.run(60, slower(0.02, 5, 1.3))
        rows = job.rows(found[-1][1])[RowKind.STEP]
        rise = (rows["own_us"].astype(np.int64) - rows["base_own_us"].astype(np.int64)) / 1e6
        assert rise[5] == pytest.approx(0.3, abs=0.05)
        assert np.abs(np.delete(rise, 5)).max() < 0.05
        assert rows["step_us"][0] / rows["base_step_us"][0] == pytest.approx(1.27, abs=0.05)

    def test_own_time_is_not_guessed_where_waits_are_unseen(self, stepped: Any) -> None:
        job = stepped(8)
        job.blind = {2}
        job.run(60, even(0.02))
        block = job.seen.block
        rows = block.slow.steps.rows(block.processes, block.processes.rank)
        unseen = (rows["flags"] & StepFlag.OWN_UNOBSERVED) != 0
        assert np.flatnonzero(unseen).tolist() == [2]
        assert rows["own_us"][2] == 0


class TestHealthy:
    def test_ten_percent_jitter(self, stepped: Any) -> None:
        assert stepped(11).run(1500, even(0.10)) == []

    @pytest.mark.parametrize("noise", [0.03, 0.1])
    def test_short_history_is_no_reason_to_raise(self, stepped: Any, noise: float) -> None:
        for seed in range(20, 26):
            assert stepped(seed).run(60, even(noise, step_s=3.0)) == []

    def test_pauses_for_garbage_collection(self, stepped: Any) -> None:
        def collecting(rng: random.Random, ranks: int) -> Sequence[float]:
            return [value + (0.3 if rng.random() < 0.01 else 0) for value in even(0.03)(rng, ranks)]

        assert stepped(12).run(1500, collecting) == []

    def test_short_undeclared_pauses(self, stepped: Any) -> None:
        def pausing(rng: random.Random, ranks: int) -> Sequence[float]:
            pause = rng.choice([0, 5.0]) if rng.random() < 0.02 else 0
            return [value + pause for value in even(0.03)(rng, ranks)]

        assert stepped(13).run(1500, pausing) == []

    def test_declared_pauses_are_left_out(self, stepped: Any) -> None:
        job = stepped(14)
        job.run(60, even(0.02))
        for _ in range(3):
            job.job.process[0].phase = Phase.CHECKPOINT
            assert job.run(15, even(0.02, step_s=3.0)) == []
            job.job.process[0].phase = Phase.TRAIN
            assert job.run(30, even(0.02)) == []

    def test_a_rank_that_pauses_alone_once(self, stepped: Any) -> None:
        job = stepped(15)
        job.run(60, even(0.02))
        assert job.run(1, slower(0.02, 1, 20.0)) + job.run(60, even(0.02)) == []
