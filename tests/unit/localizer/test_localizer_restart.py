"""Stalls of one round that come again and again, and episodes that a restart of the localizer cuts in two."""

from dataclasses import replace

import pytest

from paceline.analysis import JobEvidence, JudgePolicy
from paceline.analysis.judge import Judgement, explain
from paceline.contracts.batch import Batch, BatchKind
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.localizer import core as core_module
from paceline.localizer.core import ENDING_WAIT_S, LocalizerCore, Published
from paceline.localizer.memory import Registry
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import ATTEMPT, JOB, Shape, SimulatedJob

EPOCH_S = 1_700_000_000


@pytest.fixture
def hung() -> SimulatedJob:
    return inject("h1", SimulatedJob(Shape(4, 2, 1), 3)).job


def start(job: SimulatedJob, *published: Published) -> LocalizerCore:
    """A localizer that has read the registry and what was published before."""
    core = LocalizerCore()
    record, nodes, comms = job.registry()
    items: list[Registry] = [record, *nodes, *comms]
    for item in items:
        core.note_registry(item)
    for out in published:
        core.note_published(out.record)
    return core


def stall(
    core: LocalizerCore, job: SimulatedJob, second: float, shards: tuple[int, ...] = (0, 1), of: int = 2
) -> list[Published]:
    """Signals of some of the shards; the episode of each has a name of its own."""
    outputs: list[Published] = []
    for batch in job.batches(of):
        if batch.shard in shards:
            names = {"episode": f"shard{batch.shard}", "seq": int(second * 10), "kind": BatchKind.STALLED}
            stamp = {"sampled_ns": int(second * 1e9), "sampled_unix_ns": int((EPOCH_S + second) * 1e9)}
            outputs += core.apply(replace(batch, **names, **stamp))  # type: ignore[arg-type]
    return outputs


def clear(core: LocalizerCore, second: float, shard: int) -> list[Published]:
    stamp = int((EPOCH_S + second) * 1e9)
    return core.apply(
        Batch(BatchKind.CLEAR, JOB, ATTEMPT, "d", shard, 2, 9, 9, stamp, episode=f"shard{shard}")
    )


def death(rank: int, second: float) -> HealthEvent:
    at = EPOCH_S + second
    return HealthEvent(f"exit-{rank}", HealthKind.PROCESS_EXIT, "node0", JOB, ATTEMPT, rank, 99, at, -9)


@pytest.mark.parametrize("times", [3, 4])
def test_each_stall_of_the_same_round_is_an_episode(hung: SimulatedJob, times: int) -> None:
    core = start(hung)
    told: list[Published] = []
    for number in range(times):
        told += stall(core, hung, 100.0 * number)
        told += clear(core, 100.0 * number + 20, 0)
        told += clear(core, 100.0 * number + 21, 1)
    assert [out.record.resolved for out in told] == [False, True] * times
    assert [out.record.revision for out in told[::2]] == [1] * times
    assert len({out.record.episode for out in told}) == times


def test_signals_of_the_second_stall_that_come_again_open_nothing(hung: SimulatedJob) -> None:
    before = start(hung)
    told: list[Published] = []
    for begin in (0.0, 100.0):
        told += [*stall(before, hung, begin, of=1), *clear(before, begin + 20, 0)]
    assert len(told) == 4
    after = start(hung, *told)
    assert stall(after, hung, 100.0, of=1) == []
    assert after.decisions["replayed"] == 1


def test_after_a_restart_another_shard_goes_on_with_the_episode(hung: SimulatedJob) -> None:
    before = start(hung)
    (first,) = stall(before, hung, 0.0)
    after = start(hung, first)
    assert stall(after, hung, 10.0, (1,)) == []
    assert stall(after, hung, 10.1, (0,)) == []
    (end,) = [*clear(after, 20.0, 0), *clear(after, 21.0, 1)]
    assert (end.record.episode, end.record.resolved) == (first.record.episode, True)


def test_after_a_restart_an_episode_named_by_a_death_goes_on(hung: SimulatedJob) -> None:
    before = start(hung)
    for rank in range(2):
        before.note_health(death(rank, 0.0), 100.0)
    (first,) = before.tick(110.0)
    after = start(hung, first)
    assert {out.record.episode for out in stall(after, hung, 10.0)} <= {first.record.episode}
    ends = [*clear(after, 20.0, 0), *clear(after, 21.0, 1)]
    assert [(end.record.episode, end.record.resolved) for end in ends] == [(first.record.episode, True)]


def test_a_clear_that_comes_first_ends_the_episode_of_another_name(hung: SimulatedJob) -> None:
    before = start(hung)
    (first,) = stall(before, hung, 0.0)
    assert clear(before, 20.0, 0) == []  # the other shard still stands
    after = start(hung, first)
    assert clear(after, 21.0, 1) == []
    assert after.tick(50.0) == []
    (end,) = after.tick(50.0 + ENDING_WAIT_S)
    assert (end.record.episode, end.record.resolved) == (first.record.episode, True)
    assert after.open_episodes == 0
    assert after.tick(200.0) == []


def test_a_shard_that_still_stands_keeps_the_episode_open(hung: SimulatedJob) -> None:
    before = start(hung)
    (first,) = stall(before, hung, 0.0)
    after = start(hung, first)
    assert clear(after, 21.0, 1) == []
    assert after.tick(50.0) == []
    assert stall(after, hung, 30.0, (0,)) == []
    assert after.tick(50.0 + ENDING_WAIT_S) == []
    (end,) = clear(after, 40.0, 0)
    assert (end.record.episode, end.record.resolved) == (first.record.episode, True)


def test_an_old_clear_that_comes_again_ends_no_newer_episode(hung: SimulatedJob) -> None:
    before = start(hung)
    told = [*stall(before, hung, 0.0, of=1), *clear(before, 20.0, 0), *stall(before, hung, 30.0, of=1)]
    assert len(told) == 3
    after = start(hung, *told)
    assert clear(after, 20.0, 0) == []
    assert after.tick(50.0) == []
    assert after.tick(50.0 + ENDING_WAIT_S) == []
    (end,) = [*stall(after, hung, 35.0, of=1), *clear(after, 40.0, 0)]
    assert (end.record.episode, end.record.resolved) == (told[-1].record.episode, True)


def test_a_job_that_cannot_be_judged_silences_no_other(
    hung: SimulatedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = start(hung)
    core.note_health(replace(death(0, 0.0), job="broken"), 100.0)
    for rank in range(2):
        core.note_health(death(rank, 0.0), 100.0)

    def explain_or_fail(evidence: JobEvidence, policy: JudgePolicy) -> Judgement:
        if evidence.job == "broken":
            raise OverflowError("int too large")
        return explain(evidence, policy)

    monkeypatch.setattr(core_module, "explain", explain_or_fail)
    (told,) = core.tick(110.0)
    assert told.record.job == JOB
    assert core.decisions["death_not_judged"] == 1


def test_numbers_that_no_table_holds_are_unknown(hung: SimulatedJob) -> None:
    record, (node, *_), _ = hung.registry()
    core = start(hung)
    row = replace(
        node.ranks[0], gpu=1 << 70, local_rank=1 << 64, coordinates={"tp": 1 << 63, "dp": -(1 << 80)}
    )
    core.note_registry(replace(node, ranks=(row, *node.ranks[1:])))
    for rank in range(2):
        core.note_health(death(rank, 0.0), 100.0)
    (told,) = core.tick(110.0)
    assert told.record.job == record.job
    assert core.decisions["death_not_judged"] == 0


def test_deaths_beyond_the_bound_are_counted(hung: SimulatedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "PENDING_DEATHS_MAX", 1)
    core = start(hung)
    for job in ("one", "two", "two"):
        core.note_health(replace(death(0, 0.0), job=job, id=f"{job}-exit"), 100.0)
    assert core.memory.dropped["death"] == 1
