"""Real DDP jobs on gloo under real supervisors; each result is compared to the bit with a whole run.

Torch is imported once for all of them (`testing.nursery`); a job takes about two seconds of CPU.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.recovery import EXIT_REQUEUE, Order, OrderKind, OrderOutcome, RecoveryPhase, Support
from paceline.trainer.testing import Fault, RepairJob, draw_fault
from paceline.trainer.testing.fixture import nursery, repair_job, same_outcomes, uninterrupted
from paceline.trainer.testing.job import read_outcomes

__all__ = ["nursery", "repair_job", "same_outcomes", "uninterrupted"]
pytestmark = pytest.mark.needs_torch
PROGRAM = str(Path(__file__).parent / "programs" / "repaired.py")
RANKS = 4
Job = Callable[..., RepairJob]


@pytest.fixture
def whole(uninterrupted: Callable[..., Any]) -> Any:
    return uninterrupted(PROGRAM, ranks=RANKS)


@pytest.fixture
def run(repair_job: Job) -> Job:
    """A job with one standby that has ended; its standby's status is 0 where it was not needed."""

    def start(
        *faults: Fault, words: tuple[str, ...] = (), ranks: int = RANKS, standbys: int = 1, **options: Any
    ) -> RepairJob:
        job = repair_job(PROGRAM, *words, ranks=ranks, standbys=standbys, faults=faults, **options)
        job.await_end()
        return job

    return start


def kinds(job: RepairJob) -> list[str]:
    wanted = ("recovery", "retry", "resumed", "fallback")
    return [event.kind for event in job.controller.events if event.kind in wanted]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("sigkill", 0, 5, "in_collective"),
        Fault("sigkill", 2, 4, "backward"),
        Fault("sigkill", 1, 6, "snapshot"),
        Fault("exception", 3, 3, "forward"),
        Fault("sigterm", 2, 7, "optimizer"),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.phase}",
)
def test_a_lost_rank_is_replaced_and_nothing_shows_in_the_result(
    run: Job, whole: Any, same_outcomes: Callable[..., None], fault: Fault
) -> None:
    job = run(fault)
    assert kinds(job) == ["recovery", "resumed"], job.output()
    same_outcomes(job.outcomes(), whole)
    phases = {event.detail.phase for event in job.controller.of_kind("phase_report")}
    assert phases >= set(RecoveryPhase) - {RecoveryPhase.FENCE}


def test_a_random_kill(run: Job, whole: Any, same_outcomes: Callable[..., None]) -> None:
    job = run(draw_fault(int.from_bytes(os.urandom(4), "little"), RANKS, 12))
    same_outcomes(job.outcomes(), whole)


def test_a_frozen_rank_is_fenced_and_replaced_and_nobody_else_is(
    run: Job, whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = run(Fault("sigstop", 1, 5, "in_collective"), frozen_s=0.3)
    (frozen,) = job.controller.of_kind("frozen")
    killed = [event.member for event in job.controller.of_kind("child_exit") if event.detail.code == -9]
    assert killed == [frozen.member], "never a waiting victim"
    same_outcomes(job.outcomes(), whole)


def test_a_transient_error_is_retried_with_the_same_members_and_the_third_one_is_permanent(
    run: Job, whole: Any, same_outcomes: Callable[..., None]
) -> None:
    faults = [Fault("transient", 2, 3 + 2 * number, "in_collective", number) for number in range(3)]
    job = run(*faults)
    assert kinds(job) == ["retry", "resumed", "retry", "resumed", "recovery", "resumed"], job.output()
    same_outcomes(job.outcomes(), whole, replayed_max=3)


def test_without_a_standby_a_fresh_process_joins(
    run: Job, whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = run(Fault("sigkill", 0, 4, "backward"), standbys=0)
    assert kinds(job) == ["recovery", "resumed"], job.output()
    same_outcomes(job.outcomes(), whole)


LAYOUTS = ("zero", "fsdp2", "hsdp", "stages")
PLACES = ((0, "in_collective"), (1, "forward"), (2, "backward"), (1, "optimizer"), (0, "snapshot"))


@pytest.mark.parametrize(("rank", "phase"), PLACES, ids=[phase for _, phase in PLACES])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_standby_takes_any_rank_of_any_layout(
    run: Job,
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    kind: str,
    rank: int,
    phase: str,
) -> None:
    """It has been warmed up as the last rank, whose share of the state is another one."""
    job = run(Fault("sigkill", rank, 5, phase), words=("--kind", kind))
    assert kinds(job) == ["recovery", "resumed"], job.output()
    assert job.controller.supports() == {Support.EXPERIMENTAL if kind == "stages" else Support.VERIFIED}, (
        "stages that the script does not name are taken for nothing"
    )
    same_outcomes(job.outcomes(), uninterrupted(PROGRAM, "--kind", kind, ranks=RANKS))


def test_a_stage_of_which_nobody_is_left_is_not_restored_from_another(run: Job) -> None:
    faults = [Fault("sigkill", rank, 5, "forward") for rank in (0, 2)]
    job = run(*faults, words=("--kind", "stages"), standbys=2)
    assert kinds(job)[-1] == "fallback", job.output()
    assert "shard_lost" in str(job.controller.of_kind("fallback")[0].detail), job.output()


@pytest.mark.parametrize("standbys", [1, 0], ids=["standby", "joiner"])
def test_who_takes_a_rank_takes_its_samples_though_the_script_asked_once(
    run: Job, uninterrupted: Callable[..., Any], same_outcomes: Callable[..., None], standbys: int
) -> None:
    job = run(Fault("sigkill", 1, 5, "backward"), words=("--sampler",), standbys=standbys)
    assert kinds(job) == ["recovery", "resumed"], job.output()
    same_outcomes(job.outcomes(), uninterrupted(PROGRAM, "--sampler", ranks=RANKS))


def test_a_standby_that_dies_during_the_swap_is_replaced_by_the_next(
    run: Job, whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = run(Fault("sigkill", 2, 4, "forward"), Fault("sigkill", 2, 0, "rebuild", 1), standbys=2)
    assert kinds(job) == ["recovery", "recovery", "resumed"], job.output()
    same_outcomes(job.outcomes(), whole)


def test_a_lost_store_is_not_needed(run: Job, whole: Any, same_outcomes: Callable[..., None]) -> None:
    job = run(Fault("store_loss", 0, 3), Fault("sigkill", 3, 5, "in_collective"))
    same_outcomes(job.outcomes(), whole)


def test_a_rank_and_its_neighbour_are_lost_and_the_job_says_so(run: Job) -> None:
    job = run(Fault("sigkill", 1, 5, "forward"), Fault("sigkill", 2, 5, "forward"), standbys=2)
    assert kinds(job)[-1] == "fallback", job.output()
    (end,) = job.controller.of_kind("fallback")
    assert "checkpoint on disk" in str(end.detail)
    statuses = [process.poll() for process in job.processes]
    assert set(statuses) == {0, EXIT_REQUEUE}, "a supervisor that was replaced before ends with 0"
    assert statuses.count(EXIT_REQUEUE) >= RANKS


def test_a_corrupt_replica_is_noticed_and_never_loaded(
    run: Job, whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = run(Fault("corrupt_replica", 3, 5), Fault("sigkill", 2, 5))
    if kinds(job) == ["recovery", "resumed"]:  # the copy of the step after it had arrived
        same_outcomes(job.outcomes(), whole)
    else:
        assert kinds(job) == ["recovery", "fallback"], job.output()
        assert "checkpoint on disk" in job.controller.of_kind("fallback")[0].detail


def test_the_agent_may_come_back_before_or_after_the_fault(
    repair_job: Job, whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = repair_job(PROGRAM, ranks=RANKS, standbys=1)
    job.await_standbys()
    job.restart_controller()
    job.await_standbys()
    job.await_end()
    assert kinds(job) == []
    same_outcomes(job.outcomes(), whole)


def test_a_stale_and_a_doubled_order_change_nothing(
    repair_job: Job, whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = repair_job(PROGRAM, ranks=RANKS, standbys=1, faults=[Fault("sigkill", 1, 4)])
    job.open_gate()
    job.await_that(lambda: job.controller.of_kind("resumed"))
    for event in job.controller.of_kind("ordered"):
        job.controller.send(event.member, event.detail)
    member = job.controller.of_kind("ordered")[0].member
    job.controller.send(member, Order("stale", OrderKind.FALLBACK, 0, 0, 4e9, {}))
    statuses = job.await_end()
    refused = [event for event in job.controller.of_kind("order_result") if event.detail.id == "stale"]
    assert [event.detail.outcome for event in refused] in ([OrderOutcome.REFUSED], [])
    assert kinds(job) == ["recovery", "resumed"]
    assert not any(statuses[rank] for rank in range(RANKS) if rank != 1)
    same_outcomes(job.outcomes(), whole)


def test_training_without_a_supervisor_is_the_same(
    launch: Callable[..., Any], whole: Any, same_outcomes: Callable[..., None], tmp_path: Path
) -> None:
    ended = launch("repaired.py", ranks=RANKS, environment={"PACELINE_TEST_RESULTS": str(tmp_path)})
    assert [one.status for one in ended] == [0] * RANKS, ended[0].errors
    same_outcomes(read_outcomes(tmp_path, RANKS), whole, replayed_max=0)
