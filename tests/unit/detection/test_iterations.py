"""Windows of iterations: what is summed, what stands for what, what is left out, and the bounds."""

from typing import Any

import numpy as np
import pytest

from paceline.analysis.detection import iterations as module
from paceline.analysis.detection.iteration_window import CELLS_MAX
from paceline.analysis.detection.iterations import IterationWatch
from paceline.analysis.detection.members import Members
from paceline.contracts.batch import (
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    Batch,
    BatchKind,
    RowKind,
    Rows,
    StepFlag,
)
from paceline.contracts.codes import OpKind, OpState

SECOND_NS = 10**9
RANKS, STEP_NS = 4, 500_000_000
ROUNDS = 3  # of a step
WORLD = 7


def make_members() -> Members:
    members = Members(1000, 10)
    members.admit(np.full(RANKS, WORLD, np.uint64), np.arange(RANKS, dtype=np.uint32))
    return members


def round_rows(rank: int, step: int, waits_ns: list[int], keep: list[bool] | None = None) -> Rows:
    """The rounds of one step: equal gaps, `waits_ns` are T."""
    rows = np.zeros(len(waits_ns), ROUND_ROW)
    rows["comm"], rows["rank"], rows["comm_rank"] = WORLD, rank, rank
    rows["round"] = step * len(waits_ns) + np.arange(len(waits_ns)) + 1
    rows["step"], rows["kind"], rows["state"] = step, OpKind.COLLECTIVE, OpState.COMPLETED
    rows["duration_ns"] = waits_ns
    rows["gap_ns"] = (STEP_NS - sum(waits_ns)) // len(waits_ns)
    return rows if keep is None else rows[np.array(keep)]


def batch_of(node: str, second: int, rounds: list[Rows], waited_ms: int = 0) -> Batch:
    process = np.zeros(1, PROCESS_ROW)
    process["rank"], process["step"], process["waited_ms"] = int(node[1:]), second * 2, waited_ms
    return Batch(
        BatchKind.FRAMES, "j", "a1", node, 0, 1, second, second * SECOND_NS, 0,
        {RowKind.ROUND: np.concatenate(rounds), RowKind.PROCESS: process},
    )  # fmt: skip


def fill(watch: IterationWatch, steps: int, waits: object = None) -> None:
    """Two steps a second; `waits(rank, step)` are the T of its rounds."""
    of = waits or (lambda rank, step: [20_000_000] * ROUNDS)
    for second in range(steps // 2):
        for rank in range(RANKS):
            rows = [round_rows(rank, step, of(rank, step)) for step in (second * 2, second * 2 + 1)]  # type: ignore[operator]
            watch.take(batch_of(f"n{rank}", second, rows, waited_ms=1 + second * 120))


def test_waits_and_durations_of_whole_steps() -> None:
    watch = IterationWatch()
    fill(watch, 60, lambda rank, step: [10_000_000 * (1 + rank)] * ROUNDS)
    rows = watch.close(make_members())
    iterations = rows[RowKind.ITERATION]
    # the first step may have begun before us, the last one may go on
    assert sorted(set(iterations["step"].tolist())) == list(range(1, 59))
    assert iterations["step_us"].tolist() == pytest.approx([500_000] * len(iterations), abs=1)
    waited = {
        int(rank): set(iterations["waited_us"][iterations["rank"] == rank].tolist()) for rank in range(RANKS)
    }
    assert waited == {0: {30_000}, 1: {60_000}, 2: {90_000}, 3: {120_000}}
    assert set(rows[RowKind.TRANSFER]["transfer_us"].tolist()) == {30_000}
    means = rows[RowKind.STEP]
    assert means["own_us"].tolist() == pytest.approx([440_000] * RANKS, abs=4_000)  # 120 ms of two steps


def test_the_transfer_is_the_smallest_T_of_each_round_not_of_each_rank() -> None:
    watch = IterationWatch()

    def last_in_turn(rank: int, step: int) -> list[int]:
        return [10_000_000 if rank == at else 50_000_000 for at in range(ROUNDS)]

    fill(watch, 20, last_in_turn)
    rows = watch.close(make_members())
    assert set(rows[RowKind.TRANSFER]["transfer_us"].tolist()) == {30_000}


def test_some_kept_rounds_stand_for_all_and_fewer_for_none() -> None:
    many = 64
    for kept, seen in ((8, True), (3, False)):
        watch = IterationWatch()
        keep = [at % (many // kept) == 0 and at // (many // kept) < kept for at in range(many)]
        for second in range(30):
            for rank in range(RANKS):
                steps = (second * 2, second * 2 + 1)
                rows = [round_rows(rank, step, [2_000_000] * many, keep) for step in steps]
                watch.take(batch_of(f"n{rank}", second, rows))
        found = watch.close(make_members())[RowKind.ITERATION]
        assert bool(len(found)) is seen
        if seen:
            assert found["waited_us"].mean() == pytest.approx(128_000, rel=0.05)
            assert not found["step_us"].any()  # neither each round nor two step marks in a row are seen


def test_steps_under_a_gate_are_no_iterations() -> None:
    watch = IterationWatch()
    fill(watch, 40)
    watch.skip(20, 22)
    rows = watch.close(make_members())
    steps = set(rows[RowKind.ITERATION]["step"].tolist())
    assert steps == set(range(1, 39)) - set(range(19, 24))


def test_windows_follow_each_other_without_gap_or_overlap() -> None:
    watch, members = IterationWatch(), make_members()
    seen: list[int] = []
    for second in range(60):
        for rank in range(RANKS):
            rows = [round_rows(rank, step, [20_000_000] * ROUNDS) for step in (second * 2, second * 2 + 1)]
            watch.take(batch_of(f"n{rank}", second, rows))
        if second % 20 == 19:
            rows_ = watch.close(members)[RowKind.ITERATION]
            seen += sorted(set(rows_["step"].tolist()))
    assert seen == list(range(1, 119))


def test_a_window_is_due_after_a_minute_and_enough_steps_or_ten_minutes() -> None:
    for step, due_s in ((1000, 60), (12, 600)):
        watch = IterationWatch()
        told = [second for second in range(1, 650) if watch.due(second * SECOND_NS, step)]
        assert told[0] == 1 + due_s
        assert told[1:2] == [1 + 2 * due_s][: len(told) - 1]  # said once for each window


def test_of_a_large_job_whole_nodes_are_followed_the_same_ones_everywhere() -> None:
    followed = []
    for _ in range(2):
        watch = IterationWatch(ranks=8 * 400)
        followed.append({node for node in range(400) if watch.follows(f"n{node}")})
    assert followed[0] == followed[1]
    assert 30 < len(followed[0]) < 100  # 512 of 3200 ranks are 64 nodes of 8


def test_rows_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUMS_MAX", 40)
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 1000)
    watch = IterationWatch()
    fill(watch, 60)
    watch.close(make_members())
    assert watch.take_dropped() > 0
    assert watch.take_dropped() == 0


def test_waits_that_no_counter_shows_are_flagged() -> None:
    watch = IterationWatch()
    for second in range(30):
        for rank in range(RANKS):
            rows = [round_rows(rank, step, [20_000_000] * ROUNDS) for step in (second * 2, second * 2 + 1)]
            watch.take(batch_of(f"n{rank}", second, rows, waited_ms=0))
    means = watch.close(make_members())[RowKind.STEP]
    assert bool(np.all(means["flags"] & int(StepFlag.OWN_UNOBSERVED)))


def test_without_rounds_there_is_nothing() -> None:
    watch = IterationWatch()
    assert watch.close(Members(10, 10)) == {}
    state_only = Batch(
        BatchKind.FRAMES, "j", "a1", "n0", 0, 1, 1, 1, 1, {RowKind.STATE: np.zeros(1, STATE_ROW)}
    )
    watch.take(state_only)
    assert watch.close(Members(10, 10)) == {}


def test_step_marks_of_a_job_without_kept_rounds_do_not_pile_up() -> None:
    watch = IterationWatch()
    for second in range(1, 200):
        watch.take(batch_of("n0", second, [round_rows(0, second, [1])[:0]]))
        if second % 60 == 0:
            assert watch.close(make_members()) == {}
            assert len(watch._marks) == 1


def test_marks_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARKS_MAX", 20)
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 1)
    watch = IterationWatch()
    for second in range(1, 100):
        watch.take(batch_of("n0", second, [round_rows(0, second, [1])[:0]]))
    assert len(watch._marks) <= 21
    assert watch.take_dropped() > 0


def test_rounds_of_one_step_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_MAX", 100)
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 1)
    watch = IterationWatch()
    for second in range(1, 100):
        rows = round_rows(0, 1, [1] * 10)
        rows["round"] += second * 10
        watch.take(batch_of("n0", second, [rows]))
    assert len(watch._least) <= 110
    assert watch.take_dropped() > 0


@pytest.mark.parametrize("field", ["rank", "comm"])
def test_a_node_that_names_another_rank_and_step_in_each_row_claims_bounded_memory(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks times steps: 900,000 bytes could ask for half a gigabyte, a minute of them for all there is."""
    count = 3000
    rows = round_rows(0, 1, [1] * (3 * count))
    rows[field] = np.tile(np.arange(count), 3)
    rows["step"] = np.concatenate([np.arange(count), np.full(count, 5000), np.full(count, 6000)])
    watch, tables = IterationWatch(), []
    real = np.bincount

    def counted(*given: Any, **named: Any) -> Any:
        tables.append(real(*given, **named))
        return tables[-1]

    monkeypatch.setattr(np, "bincount", counted)
    watch.take(batch_of("n0", 1, [rows]))
    watch.close(make_members())
    assert 0 < max(map(len, tables)) <= CELLS_MAX
