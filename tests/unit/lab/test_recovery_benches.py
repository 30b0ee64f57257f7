"""What the recovery benches make of what they have seen."""

from typing import Any

import pytest

from tests.bench.peers.jobs import Record, judge
from tests.bench.recovery_peers import summarise
from tests.bench.recovery_sizes import missed_bars as missed_of_sizes
from tests.bench.recovery_sizes import width_of
from tests.bench.repair_cases import changed_hands, draw_case
from tests.bench.repair_summary import Run, counts, missed_bars

FAULT_S = 10.0


def records(*told: tuple[float, int, int, int, int]) -> list[Record]:
    return [Record(*one) for one in told]


def run(**changes: Any) -> Run:
    values: dict[str, Any] = {
        "kind": "sigkill", "fault": "sigkill rank 1", "total_s": 0.3, "detected_s": 0.02, "times": {},
        "recovered": True, "replayed": 1, "different": "", "fell_back": "", "orders": 1, "actions": [],
        "at_once": 0, "replaced": [[1]], "expected": [[1]], "step_s": 0.07,
    }  # fmt: skip
    return Run(**{**values, **changes})


class TestPeers:
    def test_the_step_that_the_fault_has_not_stopped_is_no_recovery(self) -> None:
        before = records((9.9, 4, 0, 4, 0), (9.9, 4, 0, 4, 1), (10.01, 5, 0, 4, 2), (10.01, 5, 0, 4, 3))
        assert judge(before, FAULT_S, "").full_s is None

    def test_all_ranks_have_to_make_the_step(self) -> None:
        told = records((9.9, 4, 0, 4, 0), *((12.0 + rank, 3, 1, 4, rank) for rank in range(4)))
        found = judge(told, FAULT_S, "")
        assert (found.full_s, found.back_s, found.replayed) == (5.0, 2.0, 2)

    def test_those_that_were_left_go_on_alone_first(self) -> None:
        alone = records(*((11.0, 5, 1, 3, rank) for rank in range(3)))
        again = records(*((15.0, 9, 2, 4, rank) for rank in range(4)))
        found = judge([*records((9.9, 4, 0, 4, 0)), *alone, *again], FAULT_S, "")
        assert (found.full_s, found.back_s, found.replayed) == (5.0, 1.0, 0)


class TestCases:
    @pytest.mark.parametrize("kind", ["sigkill", "sigstop", "transient", "permanent", "flapping"])
    def test_a_seed_is_a_case(self, kind: str) -> None:
        case = draw_case(kind, 5, 4)
        assert case == draw_case(kind, 5, 4)
        assert len(case.replaced) == len(case.faults)

    def test_only_the_third_error_moves_the_rank(self) -> None:
        case = draw_case("flapping", 1, 4)
        assert case.replaced == [[], [], [case.faults[0].rank]]
        assert [fault.generation for fault in case.faults] == [0, 1, 2]

    def test_another_process_of_the_same_member_is_a_change(self) -> None:
        start = {0: ("a", 1), 1: ("b", 2)}
        assert changed_hands([start, start, {0: ("a", 9), 1: ("c", 2)}]) == [[], [0, 1]]


class TestCounts:
    def test_what_fell_back_with_a_word_is_not_silent(self) -> None:
        runs = [run()] * 19 + [run(recovered=False, fell_back="no_standby", different="it ended")]
        found = counts(runs, 20)
        assert (found["recovered"], found["fell_back_explicitly"], found["silently_different"]) == (19, 1, 0)
        assert missed_bars("sigkill", found) == []

    def test_one_silent_divergence_misses_the_bar(self) -> None:
        found = counts([run()] * 99 + [run(recovered=False, different="other state")], 100)
        assert missed_bars("sigkill", found) == ["sigkill: 1 silently_different, bar 0"]

    def test_a_job_that_was_not_watched_to_its_end_is_lost(self) -> None:
        assert counts([run()], 2)["lost_without_a_word"] == 1

    def test_another_rank_that_was_replaced_misses_the_bar(self) -> None:
        found = counts([run(recovered=False, replaced=[[2]])], 1)
        assert found["other_topology"] == 1


class TestTable:
    def test_bars_are_ratios_of_medians(self) -> None:
        kills = {"of": 1, "recovered": 1}
        part = {"sigkill": kills, "runs": [{"recovered": True, "total_s": 0.5, "replayed": 1}], "missed": []}
        data = {
            "platform": [part], "restarts": [6.0], "peers": {}, "unavailable": {"nvrx_tuned": "no wheel"},
            "planned": {"pause_ms": {"median": 500.0}},
        }  # fmt: skip
        found = summarise(data)
        assert found["ratios"] == {"unplanned": 12.0, "planned": 12.0}
        assert found["missed"] == ["a restart takes 12.0 times as long (planned), bar 15"]
        assert found["rows"]["nvrx_tuned"]["unavailable"] == "no wheel"


class TestSizes:
    def test_a_width_has_the_state_that_was_asked_for(self) -> None:
        assert 3 * 12 * width_of(16) ** 2 == pytest.approx(16e6, rel=0.01)

    def test_a_rebuild_that_grows_with_the_state_misses_the_bar(self) -> None:
        def size(megabytes: int, median: float) -> dict[str, Any]:
            phases = {"build": {"median": median}}
            return {"state_mb": megabytes, "ranks": 4, "failed": [], "recovered": 5, "phases_s": phases}

        assert missed_of_sizes([size(1, 0.02), size(256, 0.023)]) == []
        (missed,) = missed_of_sizes([size(1, 0.02), size(256, 0.03)])
        assert "1.50 times" in missed
