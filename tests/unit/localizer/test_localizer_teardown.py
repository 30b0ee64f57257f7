"""Deaths around the end of a stall, and more open episodes than are kept."""

from dataclasses import replace

import pytest

from paceline.contracts.batch import Batch, BatchKind
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.verdicts import VerdictClass
from paceline.localizer import core as core_module
from paceline.localizer.core import TOLD_S, LocalizerCore
from paceline.localizer.memory import Registry
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import ATTEMPT, JOB, Shape, SimulatedJob

WAIT_S = 3.0
NOW_NS = 1_700_000_000 * 10**9


def register(core: LocalizerCore, job: SimulatedJob) -> None:
    record, nodes, comms = job.registry()
    core.note_registry(record)
    for node in nodes:
        core.note_registry(node)
    for comm in comms:
        core.note_registry(comm)


def stalled(core: LocalizerCore, job: SimulatedJob) -> list[VerdictClass]:
    record, nodes, comms = job.registry()
    items: list[Registry] = [record, *nodes, *comms]
    for item in items:
        core.note_registry(item)
    published = [
        out for batch in job.batches(1) for out in core.apply(replace(batch, seq=7, sampled_unix_ns=NOW_NS))
    ]
    return [out.record.verdict.verdict_class for out in published]


def clear(episode: str = "e") -> Batch:
    return Batch(BatchKind.CLEAR, JOB, ATTEMPT, "d", 0, 1, 9, 9, NOW_NS, episode=episode)


def killed(rank: int, after_s: float = 0.0) -> HealthEvent:
    at_unix_s = NOW_NS / 1e9 + after_s
    return HealthEvent(
        f"exit-{rank}", HealthKind.PROCESS_EXIT, "node0", JOB, ATTEMPT, rank, 1000 + rank, at_unix_s, -9
    )


@pytest.fixture
def core() -> LocalizerCore:
    return LocalizerCore(health_wait_s=WAIT_S)


@pytest.fixture
def hung() -> SimulatedJob:
    return inject("h1", SimulatedJob(Shape(4, 2, 1), 3)).job


@pytest.mark.parametrize("first", ["deaths", "clear"])
def test_teardown_of_a_hung_job_is_no_second_incident(
    core: LocalizerCore, hung: SimulatedJob, first: str
) -> None:
    """Killed and started again: the detector calls the stall over, deaths come by another topic."""
    assert stalled(core, hung) == [VerdictClass.H1]
    if first == "clear":
        assert [out.record.resolved for out in core.apply(clear())] == [True]
    for rank in range(4):
        core.note_health(killed(rank, 1.0), 100.0)
    if first == "deaths":
        assert [out.record.resolved for out in core.apply(clear())] == [True]
    assert core.tick(100.0 + WAIT_S) == []
    assert core.decisions["death_told_already"] == 1


def test_death_long_after_a_stall_is_news(core: LocalizerCore, hung: SimulatedJob) -> None:
    stalled(core, hung)
    core.apply(clear())
    for rank in range(4):
        core.note_health(killed(rank, 0.1 + TOLD_S), 100.0)
    (found,) = core.tick(100.0 + WAIT_S)
    assert found.record.verdict.verdict_class is VerdictClass.DEAD_PROCESS


def test_restart_tells_no_death_again(core: LocalizerCore, hung: SimulatedJob) -> None:
    """The next localizer reads an hour of deaths; what was published of them is in their own topic."""
    stalled(core, hung)
    core.apply(clear())
    for rank in range(4):
        core.note_health(killed(rank, 0.1 + TOLD_S), 100.0)
    (found,) = core.tick(100.0 + WAIT_S)
    follower = LocalizerCore(health_wait_s=WAIT_S)
    register(follower, hung)
    follower.note_published(found.record)
    for rank in range(4):
        follower.note_health(killed(rank, 0.1 + TOLD_S), 500.0)
    assert follower.tick(500.0 + WAIT_S) == []


def test_full_table_of_episodes_lets_the_oldest_go(
    core: LocalizerCore, hung: SimulatedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "EPISODES_MAX", 2)
    for number in range(3):
        batch = Batch(BatchKind.STALLED, f"job-{number}", ATTEMPT, "d", 0, 1, 1, 1, 1, episode="e")
        core.apply(batch)
    assert core.open_episodes == 2
    assert stalled(core, hung) == [VerdictClass.H1]
