"""Planned replacements in real DDP jobs under real supervisors: no step is replayed, nothing shows."""

import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.recovery import OrderKind, RecoveryPhase
from paceline.trainer.testing import RepairJob
from paceline.trainer.testing.fixture import nursery, repair_job, same_outcomes, uninterrupted

__all__ = ["nursery", "repair_job", "same_outcomes", "uninterrupted"]
pytestmark = pytest.mark.needs_torch
PROGRAM = str(Path(__file__).parent / "programs" / "repaired.py")
RANKS = 4
STEPS = 60
WORDS = ("--steps", str(STEPS), "--pause", "0.1")  # longer than two preparations on a busy machine
PAUSED = re.compile(r"training stood still for (\d+\.\d) ms")
ENDS = ("resumed", "rolled_back", "recovery", "retry", "fallback")


@pytest.fixture
def whole(uninterrupted: Callable[..., Any]) -> Any:
    return uninterrupted(PROGRAM, "--steps", str(STEPS), ranks=RANKS)


@pytest.fixture
def start(repair_job: Callable[..., RepairJob]) -> Callable[..., RepairJob]:
    """A job of four ranks with a warm standby that has done some steps."""

    def make(standbys: int = 1, words: tuple[str, ...] = WORDS, **options: Any) -> RepairJob:
        job = repair_job(PROGRAM, *words, ranks=RANKS, standbys=standbys, **options)
        job.open_gate()
        job.await_that(lambda: min(job.controller.steps().values(), default=-1) >= 3)
        return job

    return make


def ends(job: RepairJob) -> list[str]:
    return [event.kind for event in job.controller.events if event.kind in ENDS]


def has_resumed(job: RepairJob, times: int) -> bool:
    return ends(job) == ["resumed"] * times


def first_steps(job: RepairJob, generation: int) -> list[Any]:
    return [
        event.detail
        for event in job.controller.of_kind("phase_report")
        if event.detail.phase is RecoveryPhase.FIRST_STEP and event.detail.generation == generation
    ]


@pytest.mark.parametrize("rank", [1, 0])
def test_a_living_rank_is_replaced_and_no_step_is_replayed(
    start: Callable[..., RepairJob], whole: Any, same_outcomes: Callable[..., None], rank: int
) -> None:
    job = start()
    leaver = job.controller.child_of(rank)
    generation = job.controller.planned(rank)
    job.await_that(lambda: "resumed" in ends(job))
    assert job.controller.child_of(rank) not in (0, leaver)
    statuses = job.await_end()
    assert ends(job) == ["resumed"], job.output()
    assert statuses == [0] * (RANKS + 1), job.output()
    same_outcomes(job.outcomes(), whole, replayed_max=0)
    reports = first_steps(job, generation)
    assert sorted(one.rank for one in reports) == list(range(RANKS))
    assert [one.replayed for one in reports] == [0] * RANKS
    paused = [float(found[1]) for one in reports if (found := PAUSED.search(one.detail))]
    assert len(paused) == RANKS - 1, "each stayer says how long it stood still"
    print("paused ms", paused)
    assert not [event for event in job.controller.of_kind("ordered") if event.detail.kind is OrderKind.FENCE]


@pytest.mark.parametrize("kind", ["zero", "fsdp2", "hsdp", "stages"])
def test_a_rank_of_any_layout_is_replaced_by_one_that_was_another(
    start: Callable[..., RepairJob],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    kind: str,
) -> None:
    """The standby was warmed up as the last rank, whose share of the state is another one."""
    job = start(words=("--kind", kind, *WORDS))
    generation = job.controller.planned(0)
    job.await_end()
    assert ends(job) == ["resumed"], job.output()
    whole = uninterrupted(PROGRAM, "--kind", kind, "--steps", str(STEPS), ranks=RANKS)
    same_outcomes(job.outcomes(), whole, replayed_max=0)
    assert sorted(one.rank for one in first_steps(job, generation)) == list(range(RANKS))


def test_a_second_replacement_takes_the_place_of_the_first_joiner(
    start: Callable[..., RepairJob], whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = start(standbys=2)
    for number in (1, 2):
        job.controller.planned(1)
        job.await_that(partial(has_resumed, job, number))
    job.await_end()
    same_outcomes(job.outcomes(), whole, replayed_max=0)


def test_what_is_cancelled_while_it_is_prepared_costs_no_step(
    start: Callable[..., RepairJob], whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = start()
    job.controller.planned(2)
    job.controller.cancel_planned()
    job.await_end()
    assert ends(job) == ["rolled_back"], job.output()
    same_outcomes(job.outcomes(), whole, replayed_max=0)


def test_a_joiner_that_dies_while_it_is_prepared_rolls_it_back(
    start: Callable[..., RepairJob], whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = start()
    joiner = standby_of(job)
    os.kill(joiner, signal.SIGSTOP)  # so that it cannot be ready before it dies
    job.controller.planned(1)
    os.kill(joiner, signal.SIGKILL)
    job.await_that(lambda: ends(job) == ["rolled_back"])
    job.await_end()
    assert ends(job) == ["rolled_back"], job.output()
    same_outcomes(job.outcomes(), whole, replayed_max=0)


def test_a_leaver_that_is_killed_while_it_is_prepared_is_repaired_as_any_loss(
    start: Callable[..., RepairJob], whole: Any, same_outcomes: Callable[..., None]
) -> None:
    job = start()
    joiner = standby_of(job)
    os.kill(joiner, signal.SIGSTOP)
    job.controller.planned(1)
    os.kill(job.controller.child_of(1), signal.SIGKILL)
    job.await_that(lambda: "recovery" in ends(job))
    os.kill(joiner, signal.SIGCONT)
    job.await_end()
    assert ends(job) == ["rolled_back", "recovery", "resumed"], job.output()
    same_outcomes(job.outcomes(), whole)


def standby_of(job: RepairJob) -> int:
    """pid of the training process of the standby."""
    (found,) = [one.hello.child_pid for one in job.controller._known.values() if one.standby]
    return found
