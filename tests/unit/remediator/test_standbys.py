"""A job is given up for want of a standby only where none is about to come, and no longer than that."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import Role
from paceline.contracts.repair import ActionStatus, RepairKind, RepairMode, RepairState
from paceline.remediator.model import Action, Reason
from tests.unit.remediator.conftest import Rig

MakeRig = Callable[..., Rig]


def without_standbys(rig: Rig, *names: str) -> Rig:
    for name in names:
        rig.change(name, left=True, child_pid=0)
    return rig


def action_of(rig: Rig) -> Action:
    assert rig.job.action is not None
    return rig.job.action


def approve(rig: Rig) -> None:
    rig.job = replace(rig.job, action=replace(action_of(rig), status=ActionStatus.APPROVED))


def test_a_supervisor_that_starts_a_fresh_child_is_waited_for(rig: Rig) -> None:
    without_standbys(rig, "s0")
    rig.kill("m1")
    rig.finish()  # s1 has its rank; its own supervisor stays and starts another child in 5 s
    rig.kill("m2")
    assert action_of(rig).reason is Reason.WAIT_STANDBY
    rig.change("m1", role=Role.STANDBY, rank=-1, child_pid=77, child_pid_start=78, ready=False)
    assert rig.tick(6).reason is Reason.WAIT_STANDBY
    rig.change("m1", ready=True)
    assert rig.tick(6).reason is Reason.REBUILD
    assert "m1" in rig.sent[-1].arguments["members"]


def test_it_is_waited_for_within_a_bound(rig: Rig) -> None:
    without_standbys(rig, "s0")
    rig.kill("m1")
    rig.finish()
    rig.kill("m2")
    assert rig.tick(29).reason is Reason.WAIT_STANDBY
    assert rig.tick(2).reason is Reason.NO_STANDBY
    assert rig.sent[-1].kind is CommandKind.FALLBACK


def test_a_second_death_during_a_recovery_waits_for_a_standby_as_well(rig: Rig) -> None:
    rig.change("s0", ready=False)
    rig.kill("m1")
    assert rig.kill("m2").reason is Reason.WAIT_STANDBY
    assert action_of(rig).reason is Reason.WAIT_STANDBY
    assert [order.kind for order in rig.sent] == [CommandKind.REBUILD]
    rig.change("s0", ready=True)
    assert rig.tick(20).reason is Reason.REBUILD
    assert rig.sent[-1].generation == 2
    assert "s0" in rig.sent[-1].arguments["members"]
    rig.finish()
    assert rig.job.state is RepairState.RESUMED


def test_a_second_death_does_not_wait_for_ever(rig: Rig) -> None:
    rig.change("s0", ready=False)
    rig.kill("m1")
    rig.kill("m2")
    assert rig.tick(29).effects == ()
    assert rig.tick(2).reason is Reason.NO_STANDBY


def test_a_member_that_left_while_a_standby_was_awaited_is_fenced_before_it_is_replaced(rig: Rig) -> None:
    rig.change("s0", ready=False)
    rig.kill("m1")
    rig.kill("m2")
    rig.members["s2"] = rig.members["s0"]
    rig.change("s2", member="s2", ready=True)
    rig.change("s0", ready=True)
    rig.change("m3", left=True)  # its connection has ended, and nobody has seen the end of its process
    assert rig.tick(5).reason is Reason.FENCE
    assert rig.sent[-1].members == ("m3",)
    rig.answer("m3")
    assert rig.job.state is RepairState.REBUILDING
    assert "m3" not in rig.sent[-1].arguments["members"]


@pytest.mark.parametrize("is_approved", [False, True])
def test_a_fallback_that_waits_is_a_swap_again_once_a_standby_is_ready(
    make_rig: MakeRig, is_approved: bool
) -> None:
    rig = without_standbys(make_rig(RepairMode.APPROVE), "s0", "s1")
    rig.kill("m1")
    assert (action_of(rig).kind, action_of(rig).reason) == (RepairKind.FALLBACK, Reason.NEEDS_APPROVAL)
    message = action_of(rig).message
    rig.change("s0", left=False, child_pid=77, ready=False)
    if is_approved:
        approve(rig)  # of the fallback, and of nothing else
    rig.tick(10)
    rig.change("s0", ready=True)
    rig.tick(20)
    assert (action_of(rig).kind, action_of(rig).status) == (RepairKind.SWAP, ActionStatus.PROPOSED)
    assert f"no standby is ready; {action_of(rig).message}" == message
    assert rig.sent == []
    approve(rig)
    assert rig.tick(1).reason is Reason.REBUILD


def test_an_approved_fallback_is_carried_out(make_rig: MakeRig) -> None:
    rig = without_standbys(make_rig(RepairMode.APPROVE), "s0", "s1")
    rig.kill("m1")
    approve(rig)
    assert rig.tick(1).reason is Reason.NO_STANDBY
    assert rig.sent[-1].kind is CommandKind.FALLBACK


def test_an_approved_swap_is_no_approved_fallback(make_rig: MakeRig) -> None:
    rig = make_rig(RepairMode.APPROVE)
    rig.kill("m1")
    approve(rig)
    without_standbys(rig, "s0", "s1")
    rig.tick(1)
    assert (action_of(rig).kind, action_of(rig).status) == (RepairKind.FALLBACK, ActionStatus.PROPOSED)
    assert rig.sent == []
