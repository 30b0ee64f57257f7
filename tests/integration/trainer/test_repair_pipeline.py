"""A pipeline of three different stages through `Session`; one general standby takes any of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.recovery import Support
from paceline.trainer.testing import Fault, RepairJob
from paceline.trainer.testing.fixture import nursery, repair_job, same_outcomes, uninterrupted

__all__ = ["nursery", "repair_job", "same_outcomes", "uninterrupted"]
pytestmark = pytest.mark.needs_torch
PROGRAM = str(Path(__file__).parent / "programs" / "pipeline.py")
PHASES = ("forward", "backward", "in_collective", "optimizer", "snapshot")


def kinds(job: RepairJob) -> list[str]:
    wanted = ("recovery", "retry", "resumed", "fallback")
    return [event.kind for event in job.controller.events if event.kind in wanted]


@pytest.mark.parametrize("stage", range(3), ids=("first", "middle", "last"))
@pytest.mark.parametrize("phase", PHASES)
def test_one_standby_takes_the_place_of_any_stage(
    repair_job: Callable[..., RepairJob],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    stage: int,
    phase: str,
) -> None:
    job = repair_job(PROGRAM, ranks=3, standbys=1, faults=[Fault("sigkill", stage, 4, phase)])
    job.await_end()
    assert kinds(job) == ["recovery", "resumed"], job.output()
    assert job.controller.supports() == {Support.VERIFIED}
    same_outcomes(job.outcomes(), uninterrupted(PROGRAM, ranks=3))


def test_a_planned_replacement_of_a_stage_is_refused_by_name(
    repair_job: Callable[..., RepairJob],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
) -> None:
    job = repair_job(PROGRAM, ranks=3, standbys=1)
    job.open_gate()
    job.controller.planned(1)
    job.await_end()
    (end,) = job.controller.of_kind("rolled_back")
    assert "ranks hold different objects (Session.on_place)" in end.detail
    same_outcomes(job.outcomes(), uninterrupted(PROGRAM, ranks=3), replayed_max=0)


COPIES = ((0, "backward"), (3, "in_collective"), (1, "forward"), (4, "optimizer"), (5, "snapshot"))


@pytest.mark.parametrize(("rank", "phase"), COPIES, ids=[phase for _, phase in COPIES])
def test_a_rank_of_a_stage_that_has_copies_is_replaced_in_its_own_groups(
    repair_job: Callable[..., RepairJob],
    uninterrupted: Callable[..., Any],
    same_outcomes: Callable[..., None],
    rank: int,
    phase: str,
) -> None:
    words = ("--copies", "2")
    job = repair_job(PROGRAM, *words, ranks=6, standbys=1, faults=[Fault("sigkill", rank, 4, phase)])
    job.await_end()
    assert kinds(job) == ["recovery", "resumed"], job.output()
    assert job.controller.supports() == {Support.VERIFIED}
    same_outcomes(job.outcomes(), uninterrupted(PROGRAM, *words, ranks=6))
