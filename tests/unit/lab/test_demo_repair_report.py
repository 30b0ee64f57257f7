"""What the demo of a repair calls right, and what it prints."""

import json
from dataclasses import replace

import pytest

from paceline.contracts.recovery import RecoveryPhase
from paceline.contracts.repair import RepairMode
from paceline.lab.demo.repair_report import Result, lines_of
from paceline.lab.repair.story import PhaseTime, Story
from paceline.store.models.repair import RepairAction
from paceline.trainer.testing import Fault

STORY = Story(
    cause="process_exit",
    message="rank 2: its supervisor saw signal 9",
    detected_s=0.02,
    fenced_s=0.02,
    ordered_s=0.1,
    orders=1,
    generation=1,
    joiner="s0",
    phases={
        RecoveryPhase.RENDEZVOUS: PhaseTime(0.2, 0.05),
        RecoveryPhase.PARAMETERS: PhaseTime(0.25, 0.02),
        RecoveryPhase.OPTIMIZER: PhaseTime(0.3, 0.03),
        RecoveryPhase.FIRST_STEP: PhaseTime(0.4, 0.1),
    },
    resumed_s=0.4,
    step=31,
    replayed=1,
)


def action(status: str) -> RepairAction:
    return RepairAction(
        id="act", kind="swap", cause="process_exit", status=status, reason="resumed", ranks="2",
        message="rank 2 is gone",
    )  # fmt: skip


def result(status: str = "succeeded", story: Story = STORY, unlike: str = "") -> Result:
    return Result(RepairMode.AUTO, Fault("sigkill", 2, 30, "backward"), 5, 110, story, unlike, action(status))


def test_every_phase_has_a_line_and_its_time() -> None:
    assert lines_of(result()) == [
        "detect      0.020 s  rank 2: its supervisor saw signal 9",
        "action              swap, rank 2 is gone: succeeded (resumed)",
        "fence       0.020 s  the exit that its supervisor saw",
        "order       0.100 s  generation 1 with s0 in its place",
        "rendezvous  0.200 s  took 0.050 s",
        "restore     0.300 s  took 0.050 s",
        "first step  0.400 s  took 0.100 s",
        "resumed     0.400 s  1 step run again; 110 steps, losses and parameters equal to the bit with an "
        "uninterrupted run",
    ]
    told = json.loads(json.dumps(result().as_json()))
    assert (told["right"], told["equal"], told["phases"]["restore"]["took_s"]) == (True, True, 0.05)


@pytest.mark.parametrize(
    "other",
    [
        result(status="failed"),
        result(unlike="rank 0: other final state"),
        result(story=replace(STORY, resumed_s=None)),
        replace(result(), action=None),
    ],
    ids=["the platform says failed", "different", "not resumed", "no action"],
)
def test_it_is_right_only_if_the_job_resumed_with_nothing_lost(other: Result) -> None:
    assert result().right
    assert not other.right


def test_a_proposal_is_all_that_mode_observe_wants() -> None:
    proposed = replace(result(status="proposed", story=Story()), mode=RepairMode.OBSERVE)

    assert proposed.right
    assert lines_of(proposed)[-1].endswith("--mode auto carries it out")
    assert not replace(proposed, action=None).right
