"""Windows in, one record each out; nothing of it touches an episode, and memory is bounded."""

from dataclasses import replace

import numpy as np

from paceline.contracts.batch import ITERATION_ROW, STEP_ROW, Batch, BatchKind, RowKind, StepFlag
from paceline.localizer.core import LocalizerCore
from paceline.localizer.memory import AttemptMemory
from paceline.localizer.scaling import ScalingWatch

SECOND_NS = 10**9


def window(
    seq: int = 1, *, shard: int = 0, shards: int = 1, steps: int = 50, ranks: int = 8, job: str = "j"
) -> Batch:
    rows = np.zeros(steps * ranks, ITERATION_ROW)
    rows["step"] = np.repeat(np.arange(steps) + seq * 1000, ranks)
    rows["rank"] = np.tile(np.arange(ranks), steps)
    rows["step_us"], rows["waited_us"] = 1_000_000, 100_000
    means = np.zeros(ranks, STEP_ROW)
    means["rank"], means["steps"] = np.arange(ranks), steps
    means["step_us"], means["own_us"], means["flags"] = 1_000_000, 900_000, int(StepFlag.NO_BASE)
    return Batch(
        BatchKind.SCALING, job, "a1", "detector-1", shard, shards, seq, seq, seq * 60 * SECOND_NS,
        {RowKind.ITERATION: rows, RowKind.STEP: means},
    )  # fmt: skip


def test_a_window_gives_one_record_and_no_verdict() -> None:
    core = LocalizerCore()
    found = core.apply_window(window())
    assert found is not None
    assert (found.iterations, found.ranks, found.findings, found.refused) == (50, 8, (), "")
    assert (found.first_step, found.last_step, found.step_s) == (1000, 1049, 1.0)
    assert found.cv == (0.0, 0.0)
    assert core.open_episodes == 0
    assert core.decisions == {"scaling_none": 1}
    assert core.apply_window(window()) is None  # the same again
    again = core.apply_window(window(2))
    assert again is not None
    assert again.id != found.id


def test_a_replay_gives_the_same_id() -> None:
    one, other = LocalizerCore().apply_window(window()), LocalizerCore().apply_window(window())
    assert one == other


def test_windows_with_few_iterations_are_joined_until_there_are_enough() -> None:
    core = LocalizerCore()
    records = [core.apply_window(window(seq, steps=15)) for seq in (1, 2, 3, 4)]
    assert [record and record.iterations for record in records] == [15, 30, 45, 45]
    assert records[0] is not None
    assert "15 iterations" in records[0].refused


def test_an_empty_window_says_why_nothing_is_known() -> None:
    found = LocalizerCore().apply_window(replace(window(), rows={}))
    assert found is not None
    assert "no whole iteration" in found.refused
    assert (found.iterations, found.cv, found.step_s) == (0, (), 0.0)


def test_chunks_are_put_together() -> None:
    core, whole = LocalizerCore(), window()
    table, means = whole.table(RowKind.ITERATION), whole.table(RowKind.STEP)
    parts = [
        replace(whole, chunk=at, chunks=2, rows={RowKind.ITERATION: part, RowKind.STEP: means})
        for at, part in enumerate((table[:100], table[100:]))
    ]
    assert core.apply_window(parts[0]) is None
    found = core.apply_window(parts[1])
    assert found is not None
    assert (found.iterations, found.ranks, found.refused) == (50, 8, "")


def test_a_round_is_judged_when_all_shards_have_sent_the_same_window() -> None:
    core = LocalizerCore()
    for seq in (1, 2):
        assert core.apply_window(window(seq, shards=2)) is None
        found = core.apply_window(window(seq, shard=1, shards=2, ranks=10))
        assert found is not None
        assert (found.first_step, found.iterations, found.ranks) == (seq * 1000, 50, 10)


def test_a_shard_that_says_nothing_is_not_waited_for_twice() -> None:
    core = LocalizerCore()
    assert core.apply_window(window(1, shards=2)) is None
    assert core.apply_window(window(2, shards=2)) is not None


def test_the_longest_unheard_job_is_forgotten_first() -> None:
    size = sum(table.nbytes for table in window().rows.values())
    watch = ScalingWatch(bytes_max=2 * size)
    for name in ("one", "two", "three"):
        watch.apply(window(job=name), AttemptMemory(name, "a1"))
    assert watch.dropped == {"scaling_job": 1}
    watch.forget_jobs(["two", "three"])
    assert watch.apply(window(job="one"), AttemptMemory("one", "a1")) is not None  # it was forgotten
