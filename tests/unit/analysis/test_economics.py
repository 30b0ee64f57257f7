"""The economics reproduce the papers' arithmetic, and no second of a run is lost from the books."""

import dataclasses
import json
import math

import pytest

from paceline.analysis.economics import SCENARIOS, UnusableScenario, compare, scenario_of_job
from paceline.analysis.economics.arithmetic import ettr, lost_share, recovery_ratio
from paceline.analysis.economics.commands import add
from paceline.analysis.economics.papers import check_papers, recovery_ratio_simulated
from paceline.analysis.economics.report import POLICY_TITLES, simulate
from paceline.analysis.economics.scenario import ARRIVALS, Scenario
from paceline.analysis.economics.scenarios import phoenix
from paceline.contracts.cli import CommandParser

SMALL = Scenario("small", "small").with_values(
    {
        "job.steps": 2000,
        "job.failure_every_s": 1800,
        "job.planned_every_s": 2400,
        "restart.checkpoint_steps": 50,
    },
    "test",
)


class TestPapers:
    def test_18_8_times_by_formula_within_5_percent(self) -> None:
        assert recovery_ratio(step_s=0.9, checkpoint_steps=1000, restart_s=150, swap_s=31) == pytest.approx(
            18.8, rel=0.05
        )

    @pytest.mark.parametrize("hours", [1, 3, 12])
    def test_18_8_times_by_simulation(self, hours: float) -> None:
        ratio = recovery_ratio_simulated(phoenix(hours * 3600), seeds=40)
        assert 100 / ratio == pytest.approx(5.3, abs=1.0)

    def test_18_8_times_says_nothing_without_its_step_time(self) -> None:
        slower = phoenix().with_values({"job.step_s": 5.0}, "test")
        assert recovery_ratio_simulated(slower, seeds=20) > 60  # papers.md 4.3: 73 to 78 times

    def test_ettr_of_a_replacement_every_ten_minutes(self) -> None:
        ledger = simulate(SCENARIOS["rebalance"], "hot_swap", 0)
        assert ettr(18, 600) == pytest.approx(0.97)
        assert ledger.useful_s / ledger.wall_s == pytest.approx(0.97, abs=0.001)

    def test_ettr_of_restarts_every_ten_minutes(self) -> None:
        ledger = simulate(SCENARIOS["rebalance"], "restart", 0)
        assert ledger.useful_s / ledger.wall_s == pytest.approx(0.42, abs=0.005)

    @pytest.mark.parametrize(("name", "minutes", "percent"), [("64k", 27, 16.47), ("128k", 14, 31.79)])
    def test_ettr_lost_at_scale(self, name: str, minutes: float, percent: float) -> None:
        ledger = simulate(SCENARIOS[name], "restart", 0)
        assert 100 * lost_share(267, minutes * 60) == pytest.approx(percent, abs=0.02)
        assert 100 * (1 - ledger.useful_s / ledger.wall_s) == pytest.approx(percent, abs=1.0)

    def test_all_checks_agree_with_their_paper(self) -> None:
        for check in check_papers(seeds=20):
            assert check.formula == pytest.approx(check.paper, rel=0.05), check.claim
            assert check.simulated == pytest.approx(check.paper, rel=0.06), check.claim


class TestBooks:
    @pytest.mark.parametrize("policy", POLICY_TITLES)
    @pytest.mark.parametrize("arrivals", ARRIVALS)
    def test_parts_add_up_to_the_wall_time(self, policy: str, arrivals: str) -> None:
        scenario = dataclasses.replace(SMALL, arrivals=arrivals)
        for seed in range(5):
            ledger = simulate(scenario, policy, seed)
            parts = (
                ledger.useful_s, ledger.down_s, ledger.replay_s, ledger.reduced_s, ledger.overhead_s,
            )  # fmt: skip
            assert math.fsum(parts) == pytest.approx(ledger.wall_s, rel=1e-9)
            assert ledger.useful_s == pytest.approx(2000 * 5.0)
            assert min(parts) >= 0

    def test_a_seed_gives_the_same_answer_and_others_another(self) -> None:
        assert simulate(SMALL, "restart", 3) == simulate(SMALL, "restart", 3)
        assert simulate(SMALL, "restart", 3) != simulate(SMALL, "restart", 4)

    @pytest.mark.parametrize("policy", POLICY_TITLES)
    def test_nothing_is_lost_where_nothing_fails(self, policy: str) -> None:
        quiet = SMALL.with_values(
            {"job.failure_every_s": 0, "job.planned_every_s": 0, "hot_swap.overhead_share": 0}, "test"
        )
        assert simulate(quiet, policy, 0).wall_s == pytest.approx(2000 * 5.0)

    def test_hot_swap_replays_at_most_one_step_unless_it_falls_back(self) -> None:
        sure = SMALL.with_values({"hot_swap.both_lost_share": 0}, "test")
        ledgers = [simulate(sure, "hot_swap", seed) for seed in range(30)]
        assert {ledger.replayed_steps_most for ledger in ledgers} == {1}
        unsure = SMALL.with_values({"hot_swap.both_lost_share": 1}, "test")
        fallen = [simulate(unsure, "hot_swap", seed) for seed in range(30)]
        assert max(ledger.replayed_steps_most for ledger in fallen) > 10
        assert all(ledger.fallbacks == ledger.failures for ledger in fallen)

    def test_restart_replays_less_than_one_checkpoint_interval(self) -> None:
        ledgers = [simulate(SMALL, "restart", seed) for seed in range(30)]
        assert 40 < max(ledger.replayed_steps_most for ledger in ledgers) < 50

    def test_without_standbys_the_job_waits_for_a_machine(self) -> None:
        bare = SMALL.with_values({"hot_swap.standbys": 0}, "test")
        waiting = simulate(bare, "hot_swap", 0)
        assert waiting.waits > 0
        assert waiting.down_s > simulate(SMALL, "hot_swap", 0).down_s

    def test_survivors_go_on_smaller_and_stop_below_their_least(self) -> None:
        going_on = simulate(SMALL, "survivors", 0)
        assert going_on.reduced_s > 0
        assert going_on.waits == 0
        strict = SMALL.with_values({"survivors.groups": 4, "survivors.groups_min": 4}, "test")
        assert simulate(strict, "survivors", 0).waits > 0

    def test_the_last_survivor_takes_the_state_with_it(self) -> None:
        alone = SMALL.with_values({"survivors.groups": 1, "survivors.groups_min": 1}, "test")
        ledger = simulate(alone, "survivors", 0)
        assert ledger.fallbacks > 0
        assert ledger.replayed_steps_most > 1


class TestReport:
    def test_every_number_has_unit_and_source(self) -> None:
        for scenario in SCENARIOS.values():
            for parameter in scenario.parameters():
                assert parameter.unit, parameter.name
                assert len(parameter.source) > 5, parameter.name

    def test_a_given_value_says_so(self) -> None:
        given = {p.name: p for p in SMALL.with_values({"job.gpus": 16}, "given").parameters()}
        assert (given["job.gpus"].value, given["job.gpus"].source) == (16, "given")
        assert given["job.step_s"].source.startswith("assumed")

    def test_lost_hours_are_the_sum_of_their_causes(self) -> None:
        for each in compare(SMALL, seeds=5).outcomes:
            causes = [
                value
                for name, value in vars(each).items()
                if name.endswith("_hours") and name != "lost_hours"
            ]
            assert len(causes) == 5
            assert each.lost_hours.mean == pytest.approx(math.fsum(causes))
            assert each.ettr.least <= each.ettr.mean <= each.ettr.most <= 1

    def test_a_job_is_scaled_to_its_size(self) -> None:
        job = scenario_of_job(SCENARIOS["job"], ranks=512, nodes=64, step_s=0.5, replicas=16)
        assert job.job.failure_every_s == pytest.approx(10_800 * 16)
        assert (job.hot_swap.machine_gpus, job.survivors.groups, job.survivors.groups_min) == (8, 16, 8)
        known = scenario_of_job(SCENARIOS["job"], ranks=512, nodes=64, failure_every_s=7200)
        assert (known.job.failure_every_s, known.job.step_s) == (7200, SCENARIOS["job"].job.step_s)
        assert json.dumps(compare(job, seeds=2).as_json())

    def test_the_smallest_job_is_no_special_case(self) -> None:
        report = compare(scenario_of_job(SCENARIOS["job"], ranks=1, nodes=0, step_s=0.02), seeds=2)
        assert all(0.9 < each.ettr.mean <= 1 for each in report.outcomes)

    @pytest.mark.parametrize(
        ("name", "value", "word"),
        [
            ("job.step_s", 0.0, "job.step_s is 0"),
            ("job.gpus", 1.5, "whole number"),
            ("hot_swap.both_lost_share", 1.2, "share"),
            ("survivors.groups_min", 65.0, "survivors.groups"),
            ("job.failure_every_s", 60.0, "expected at least"),
            ("restart.down_s", math.nan, "expected a number"),
            ("job.no", 1.0, "no parameter"),
        ],
    )
    def test_a_value_that_makes_no_sense_is_refused(self, name: str, value: float, word: str) -> None:
        with pytest.raises(UnusableScenario, match=word):
            compare(SCENARIOS["job"].with_values({name: value}, "test"), seeds=1)


class TestCommand:
    def _run(self, *words: str) -> int:
        parser = CommandParser(prog="paceline")
        add(parser.add_subparsers(parser_class=CommandParser))
        arguments = parser.parse_args(["economics", *words])
        return int(arguments.run(arguments))

    def test_json_holds_parameters_outcomes_and_papers(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self._run("--json", "--seeds", "2", "--set", "job.steps=1000") == 0
        answer = json.loads(capsys.readouterr().out)
        assert {each["policy"] for each in answer["outcomes"]} == set(POLICY_TITLES)
        assert {each["name"]: each["source"] for each in answer["parameters"]}["job.steps"] == "given"
        assert len(answer["papers"]) == 5

    def test_text_prints_every_parameter(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "120")
        assert self._run("--scenario", "phoenix", "--seeds", "2") == 0
        text = capsys.readouterr().out
        assert all(parameter.name in text for parameter in SCENARIOS["phoenix"].parameters())
        assert "18.8" in text

    @pytest.mark.parametrize("words", [("--set", "job.gpus"), ("--set", "x=1"), ("--scenario", "no")])
    def test_what_makes_no_sense_ends_with_2(
        self, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self._run(*words) == 2
        assert capsys.readouterr().err.startswith("paceline: ")
