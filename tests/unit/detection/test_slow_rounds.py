"""Slow rounds: base line, repeat rule, persistence, one late rank; and what is no slowness."""

import random
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.analysis.detection import DecisionKind, DetectionPolicy, Reason, SlowPolicy
from paceline.contracts.batch import RowKind
from paceline.contracts.codes import FrameFlag, Phase

SLOW, CLEAR = DecisionKind.SLOW, DecisionKind.CLEAR
HEALTHY = 0.004  # s


def jitter(rng: Any, ranks: int = 8, scale: float = 1.0) -> Any:
    return [HEALTHY * scale * rng.uniform(0.97, 1.03) for _ in range(ranks)]


def late(rng: Any, rank: Any, lag: Any, ranks: int = 8) -> Any:
    """T where `rank` comes `lag` s after the others: it alone does not wait."""
    return [value if index == rank else value + lag for index, value in enumerate(jitter(rng, ranks))]


def run(seen: Any, seconds: Any, durations: Any, comm: int = 7, per_second: int = 2) -> Any:
    found = []
    for _ in range(seconds):
        for _ in range(per_second):
            seen.job.record_round(comm, durations())
        seen.job.now_s += 1.0
        found += seen.tick()
    return found


class TestSlow:
    def test_late_rank_is_slow_after_persisting(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(1)
        seen = watch(fake_job())
        assert run(seen, 20, lambda: jitter(rng)) == []
        assert run(seen, 9, lambda: late(rng, 5, 0.3)) == []
        found = run(seen, 8, lambda: late(rng, 5, 0.3))
        assert (found[0].kind, found[0].reason, found[0].communicator) == (SLOW, Reason.SLOW_ROUNDS, 7)

    def test_evidence_has_base_line_and_same_rounds(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(2)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        found = run(seen, 20, lambda: late(rng, 5, 0.3))
        rows, cut = seen.block.evidence(found[-1])
        assert cut == 0
        base = rows[RowKind.BASELINE][0]
        assert 0.9 * HEALTHY < base["t_base_ns"] / 1e9 < 1.1 * HEALTHY
        assert (base["slow"], base["window"], base["threshold"]) == (5, 5, 3.0)
        assert int(base["bucket"]) == seen.job.count.bit_length()
        rounds = rows[RowKind.ROUND]
        assert len(rounds) == 5 * 8
        for number in np.unique(rounds["round"]):
            mine = rounds[rounds["round"] == number]
            assert sorted(mine["rank"]) == list(range(8))
            assert mine["rank"][mine["duration_ns"].argmin()] == 5

    def test_evidence_says_which_members_waits_are_not_seen(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(2)
        seen = watch(fake_job())
        for rank in (1, 2):
            seen.job.member[7, rank].flags = int(FrameFlag.COUNTS_UNOBSERVABLE)
        run(seen, 20, lambda: jitter(rng))
        found = run(seen, 20, lambda: late(rng, 5, 0.3))
        rounds = seen.block.evidence(found[-1])[0][RowKind.ROUND]
        hidden = rounds["rank"][(rounds["flags"] & FrameFlag.COUNTS_UNOBSERVABLE) != 0]
        assert set(hidden.tolist()) == {1, 2}

    def test_base_line_is_frozen_in_the_anomaly(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(3)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        before = seen.block.slow.keys.base_ns.max()
        run(seen, 120, lambda: late(rng, 5, 0.3))
        assert seen.block.slow.keys.base_ns.max() == before
        assert seen.block.slow.active

    def test_normal_rounds_clear_it_once(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(4)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        run(seen, 20, lambda: late(rng, 5, 0.3))
        found = run(seen, 10, lambda: jitter(rng))
        assert [decision.kind for decision in found if decision.kind is CLEAR] == [CLEAR]
        assert found[-1].kind is CLEAR

    def test_silence_of_the_key_clears_it(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(5)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        run(seen, 20, lambda: late(rng, 5, 0.3))
        seen.decisions.clear()
        seen.healthy(130)  # rounds pass, none is reported as kept any more
        assert seen.kinds()[-1] is CLEAR

    def test_everybody_slow_is_slow(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(6)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        assert SLOW in {decision.kind for decision in run(seen, 20, lambda: jitter(rng, scale=20))}

    def test_slow_rounds_are_published_at_most_every_five_seconds(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(7)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        found = run(seen, 61, lambda: late(rng, 5, 0.3))
        assert 8 <= len(found) <= 11

    def test_stall_comes_first(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(8)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        run(seen, 20, lambda: late(rng, 5, 0.3))
        seen.job.hang(7, missing=[5])
        found = seen.idle(12)
        assert found[-1].kind is DecisionKind.STALLED
        assert SLOW not in {decision.kind for decision in found[6:]}


class TestHealthy:
    def test_microsecond_rounds_with_noise_are_nothing(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(9)
        seen = watch(fake_job())
        assert run(seen, 30, lambda: [50e-6 * rng.lognormvariate(0, 1.2) for _ in range(8)]) == []

    def test_scheduling_hiccups_of_changing_ranks_are_nothing(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(10)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))

        def hiccup() -> Any:
            return late(rng, rng.randrange(8), rng.choice([0.0, 0.03, 0.06]))

        assert run(seen, 300, hiccup) == []

    def test_one_long_round_is_nothing(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(11)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        found = run(seen, 1, lambda: late(rng, 5, 40.0), per_second=2)
        assert found + run(seen, 30, lambda: jitter(rng)) == []

    def test_imbalance_from_the_start_is_usual(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(12)
        seen = watch(fake_job())
        assert run(seen, 120, lambda: late(rng, 0, 0.05 * rng.uniform(0.9, 1.1))) == []

    def test_larger_operation_is_another_key(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(13)
        seen = watch(fake_job())
        run(seen, 20, lambda: jitter(rng))
        seen.job.count <<= 6
        assert run(seen, 60, lambda: jitter(rng, scale=40)) == []

    def test_rounds_under_a_gate_teach_nothing(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(14)
        seen = watch(fake_job())
        seen.job.process[0].phase = Phase.EVALUATE
        run(seen, 20, lambda: jitter(rng))
        assert seen.block.slow.keys.samples.sum() == 0
        seen.job.process[0].phase = Phase.DATA
        run(seen, 20, lambda: jitter(rng))
        assert seen.block.slow.keys.samples.sum() > 0


class TestWindow:
    def test_round_lacking_one_member_is_never_judged(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(15)
        seen = watch(fake_job())
        for _ in range(60):
            seen.job.record_round(7, jitter(rng))
            seen.job.member[7, 6].rounds.clear()
            seen.job.now_s += 1.0
            seen.tick()
        assert seen.block.slow.keys.samples.sum() == 0

    def test_ragged_and_late_samples_still_complete_rounds(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(16)
        seen = watch(fake_job())
        for second in range(60):
            for _ in range(20):
                seen.job.record_round(7, jitter(rng))
            seen.job.now_s += 1.0
            seen.tick(seen.job.sample(nodes=["node0"] if second % 2 else ["node1"]))
        assert seen.block.slow.keys.samples.max() > 60

    def test_coarse_levels_win_a_cell(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        for _ in range(400):
            job.record_round(7, [HEALTHY] * 8)
        batches = []
        for batch in job.sample():
            rows = batch.table(RowKind.ROUND).copy()
            rows["level"] = np.where(rows["round"] % 33 == 0, 4, 0)
            batches.append(replace(batch, rows={**batch.rows, RowKind.ROUND: rows}))
        seen.block.apply(batches)
        held = {int(number) for number in seen.block.slow.window.number.reshape(-1)}
        first = job.member[7, 0].entered - 399
        coarse = {number for number in range(first, first + 400) if number % 33 == 0}
        assert len(coarse) == 12
        assert coarse <= held

    def test_window_stays_within_its_bound(self, fake_job: Any) -> None:
        from paceline.analysis.detection import Bounds, JobBlock

        job = fake_job(ranks=64, per_node=8)
        block = JobBlock(DetectionPolicy(slow=SlowPolicy(), bounds=Bounds(window_bytes_max=1)))
        block.apply(job.sample())
        job.record_round(7, [HEALTHY] * 64)
        block.apply(job.sample())
        assert block.slow.window.duration.shape == (8, 64)
