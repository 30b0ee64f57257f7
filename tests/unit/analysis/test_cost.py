"""Rank hours lost, and what a root is worth: measured, bounded, or refused with the reason."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis import JobEvidence
from paceline.analysis.cost import Stretch, hours_lost
from paceline.analysis.judge import judge
from paceline.contracts.batch import STEP_ROW, StepFlag
from paceline.contracts.verdicts import RootKind, SlowLoss, VerdictClass
from tests.unit.analysis.test_slow_rounds_judged import ALL, WORLD, SlowJob, late


def with_steps(
    evidence: JobEvidence, step_ms: float, usual_ms: float, rise_ms: dict[int, float] | None = None
) -> JobEvidence:
    """STEP rows of all ranks; own times rise by `rise_ms`, or are not observed where it is null."""
    rows = np.zeros(WORLD, STEP_ROW)
    rows["rank"] = np.arange(WORLD)
    rows["step_us"], rows["base_step_us"] = int(step_ms * 1e3), int(usual_ms * 1e3)
    if rise_ms is None:
        rows["flags"] = StepFlag.OWN_UNOBSERVED | StepFlag.NO_BASE
    else:
        rows["base_own_us"] = 1_000
        rows["own_us"] = [1_000 + int(1e3 * rise_ms.get(rank, 0.0)) for rank in range(WORLD)]
    return replace(evidence, steps=rows)


def with_rounds(evidence: JobEvidence, per_step: float, step_ms: float = 0.0) -> JobEvidence:
    rows = evidence.baselines.copy()
    rows["rounds_per_step"], rows["step_ms"] = per_step, step_ms
    return replace(evidence, baselines=rows)


def loss_of(evidence: JobEvidence) -> SlowLoss:
    verdict = judge(evidence)
    assert verdict.loss is not None
    return verdict.loss


class TestHoursLost:
    def test_every_rank_of_the_job_stands_still(self) -> None:
        lost = hours_lost(1024, [Stretch(0, 1800, 1.0)])
        assert (lost.rank_hours, lost.unknown_s, lost.at_most) == (512.0, 0.0, False)

    def test_a_moment_counts_once_by_the_largest_share(self) -> None:
        spans = [Stretch(0, 3600, 0.25, at_most=True), Stretch(1800, 5400, 1.0), Stretch(1800, 3600, None)]
        lost = hours_lost(8, spans)
        assert lost.rank_hours == pytest.approx(8 * (0.25 * 0.5 + 1.0))
        assert (lost.unknown_s, lost.at_most) == (0.0, True)

    def test_what_is_not_known_is_not_guessed(self) -> None:
        lost = hours_lost(8, [Stretch(0, 60, None), Stretch(60, 120, 0.5)])
        assert lost.rank_hours == pytest.approx(8 * 30 / 3600)
        assert lost.unknown_s == 60.0

    def test_clocks_that_disagree_lose_nothing(self) -> None:
        assert hours_lost(8, [Stretch(100, 90, 1.0)]).rank_hours == 0.0


class TestWhatIf:
    def test_own_time_says_what_a_late_rank_is_worth(self) -> None:
        evidence = SlowJob().add(1, ALL, late(3)).evidence()
        loss = loss_of(with_steps(evidence, 10.0, 8.0, {3: 2.0}))
        assert loss.share == pytest.approx(0.2)
        (regain,) = loss.regains
        assert (regain.root.rank, regain.at_most) == (3, False)
        assert regain.ratio == pytest.approx(0.25, abs=1e-3)

    def test_behind_the_late_rank_waits_the_next_one(self) -> None:
        evidence = SlowJob().add(1, ALL, late(3)).evidence()
        (regain,) = loss_of(with_steps(evidence, 10.0, 8.0, {3: 2.0, 5: 1.0})).regains[:1]
        assert regain.ratio == pytest.approx(1 / 9, abs=1e-3)

    def test_without_own_times_the_keys_give_an_upper_bound(self) -> None:
        evidence = with_rounds(SlowJob().add(1, ALL, late(3, 5.0)).evidence(), per_step=1.0)
        (regain,) = loss_of(with_steps(evidence, 20.0, 10.0)).regains
        assert regain.at_most
        assert regain.ratio == pytest.approx(4 / 16, abs=0.02)  # four base times of 1 ms in 20 ms

    def test_a_slow_link_is_worth_what_even_the_last_one_waits(self) -> None:
        job = SlowJob().add(1, ALL, lambda _, rank: (5.0, 3900.0 if rank == 4 else 300.0))
        verdict = judge(with_steps(with_rounds(job.evidence(), per_step=1.0), 20.0, 16.0))
        assert verdict.verdict_class is VerdictClass.S2
        assert verdict.loss is not None
        (regain,) = verdict.loss.regains
        assert (regain.root.kind, regain.at_most) == (RootKind.LINK, True)
        assert regain.ratio == pytest.approx(4 / 16, abs=0.02)

    def test_lateness_from_the_first_step_on_is_seen_against_tbase(self) -> None:
        evidence = with_rounds(SlowJob().add(1, ALL, late(3)).evidence(), per_step=2.0, step_ms=40.0)
        loss = loss_of(evidence)
        assert loss.at_most
        assert loss.share == pytest.approx(8 / 40, abs=0.02)

    @pytest.mark.parametrize(
        ("per_step", "step_ms", "reason"),
        [(0.0, 0.0, "marks no steps"), (0.0, 10.0, "not counted"), (50.0, 10.0, "overlap")],
    )
    def test_it_refuses_and_says_why(self, per_step: float, step_ms: float, reason: str) -> None:
        loss = loss_of(with_rounds(SlowJob().add(1, ALL, late(3)).evidence(), per_step, step_ms))
        assert loss.share is None
        assert reason in loss.reason
        assert [(regain.ratio, reason in regain.reason) for regain in loss.regains] == [(None, True)]

    def test_rotating_stragglers_have_no_one_to_replace(self) -> None:
        job = SlowJob().add(1, ALL, lambda number, rank: (1.0 if rank == number % WORLD else 5.0, 0.0))
        verdict = judge(with_steps(job.evidence(), 10.0, 8.0))
        assert [root.kind for root in verdict.roots] == [RootKind.ROTATING]
        assert verdict.loss is not None
        assert [regain.ratio for regain in verdict.loss.regains] == [None]

    def test_a_hang_has_none(self) -> None:
        assert judge(replace(SlowJob().add(1, ALL, late(3)).evidence(), job_state="finished")).loss is None
