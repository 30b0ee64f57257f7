"""Faults that come while a replacement is prepared, or while another recovery is under way."""

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import RecoveryPhase
from paceline.contracts.repair import ActionStatus, RepairCause, RepairMode, RepairState
from paceline.remediator.model import (
    Action,
    Closed,
    JobRepair,
    Judged,
    NodeLost,
    Policy,
    ProcessStopped,
    Reason,
    Step,
)
from tests.unit.remediator.conftest import Rig, make_member


def slow(rig: Rig) -> Step:
    """Rank 2 is to be replaced, and everybody is told to prepare."""
    return rig.feed(Judged("slow", rig.now_s, "inc_1", RepairCause.SLOW, True, (2,), (), "slow", rig.now_s))


def order_switch(rig: Rig) -> None:
    for name in ("m0", "m1", "s1", "m3", "m2"):
        rig.answer(name)
    assert rig.sent[-1].kind is CommandKind.SWITCH


def stopped(rig: Rig, name: str, *, resumed: bool = False) -> ProcessStopped:
    member = rig.members[name]
    return ProcessStopped(rig.new_id(), rig.now_s, member.rank, member.child_pid, resumed)


def judged(rig: Rig, cause: RepairCause, rank: int) -> Judged:
    return Judged(rig.new_id(), rig.now_s, "inc_2", cause, False, (rank,), (), "verdict", rig.now_s)


def closed(step: Step) -> Action:
    (action,) = [effect.action for effect in step.effects if isinstance(effect, Closed)]
    return action


def kinds(rig: Rig) -> list[CommandKind]:
    return [order.kind for order in rig.sent]


@pytest.mark.parametrize("name", ["m1", "m2"], ids=["stays", "leaves"])
def test_a_stop_that_lasts_supersedes_what_is_prepared(rig: Rig, name: str) -> None:
    slow(rig)
    assert rig.feed(stopped(rig, name)).reason is Reason.ALREADY_UNDER_WAY
    assert not rig.tick(3.9).effects
    over = closed(rig.tick(0.2))
    assert (over.status, over.reason) == (ActionStatus.ROLLED_BACK, Reason.SUPERSEDED)
    assert rig.sent[-1].kind is CommandKind.CANCEL
    assert rig.tick(4.1).reason is Reason.FENCE
    assert rig.sent[-1].members == (name,)


def test_a_short_stop_costs_nothing_that_is_prepared(rig: Rig) -> None:
    slow(rig)
    rig.feed(stopped(rig, "m1"))
    rig.tick(0.1)
    rig.feed(stopped(rig, "m1", resumed=True))
    assert not rig.tick(10).effects
    assert (rig.job.state, rig.job.later) == (RepairState.PREPARING, ())


def test_what_comes_after_the_order_to_switch_follows_it(rig: Rig) -> None:
    """Who has switched is not known before the reports are read."""
    slow(rig)
    order_switch(rig)
    sent = len(rig.sent)
    assert rig.feed(judged(rig, RepairCause.HANG, 1)).reason is Reason.ALREADY_UNDER_WAY
    assert rig.feed(NodeLost(rig.new_id(), rig.now_s, "n0")).reason is Reason.ALREADY_UNDER_WAY
    assert rig.feed(stopped(rig, "m2")).reason is Reason.ALREADY_UNDER_WAY
    assert len(rig.sent) == sent
    rig.finish()
    assert rig.job.later == ()


@pytest.mark.parametrize("cause", [RepairCause.HARDWARE, RepairCause.HANG])
def test_what_needs_a_person_supersedes_nothing(rig: Rig, cause: RepairCause) -> None:
    rig.by_cause[cause] = Policy(RepairMode.APPROVE)
    slow(rig)
    assert rig.feed(judged(rig, cause, 1)).reason is Reason.ALREADY_UNDER_WAY
    assert rig.job.state is RepairState.PREPARING


def test_a_lost_node_supersedes_what_is_prepared(rig: Rig) -> None:
    for name in ("m0", "m1"):
        rig.change(name, lease_s=5.0)
    slow(rig)
    assert closed(rig.feed(NodeLost(rig.new_id(), rig.now_s, "n0"))).reason is Reason.SUPERSEDED
    rig.tick(5.1)
    assert kinds(rig)[:3] == [CommandKind.PREPARE, CommandKind.CANCEL, CommandKind.REBUILD]
    assert {"m0", "m1"}.isdisjoint(seat.member for seat in (rig.job.action.seats if rig.job.action else ()))


def test_the_loss_of_the_joiners_node_costs_the_replacement_alone(rig: Rig) -> None:
    slow(rig)
    assert closed(rig.feed(NodeLost(rig.new_id(), rig.now_s, "n2"))).status is ActionStatus.ROLLED_BACK
    assert (rig.job.state, rig.job.action) == (RepairState.HEALTHY, None)


@pytest.mark.parametrize(
    ("cause", "rank", "kind"),
    [
        (RepairCause.HARDWARE, 1, CommandKind.FENCE),
        (RepairCause.HANG, 1, CommandKind.RETRY),
        (RepairCause.HANG, 2, CommandKind.RETRY),
    ],
)
def test_a_verdict_supersedes_what_is_prepared(
    rig: Rig, cause: RepairCause, rank: int, kind: CommandKind
) -> None:
    slow(rig)
    assert closed(rig.feed(judged(rig, cause, rank))).reason is Reason.SUPERSEDED
    assert kinds(rig) == [CommandKind.PREPARE, CommandKind.CANCEL, kind]


def test_what_is_only_observed_supersedes_nothing(rig: Rig) -> None:
    rig.by_cause[RepairCause.FROZEN] = Policy(RepairMode.OBSERVE)
    slow(rig)
    assert rig.feed(stopped(rig, "m1")).reason is Reason.ALREADY_UNDER_WAY
    assert rig.job.state is RepairState.PREPARING


def test_a_stop_after_its_first_step_follows_the_recovery(rig: Rig) -> None:
    rig.kill("m1")
    assert rig.job.action is not None
    names = [seat.member for seat in rig.job.action.seats]
    rig.phase("m2", RecoveryPhase.FIRST_STEP)
    rig.now_s += 0.1
    assert rig.feed(stopped(rig, "m2")).reason is Reason.ALREADY_UNDER_WAY
    for name in names:
        if name != "m2":
            rig.phase(name, RecoveryPhase.FIRST_STEP)
    assert rig.tick(4.1).reason is Reason.FENCE
    assert rig.sent[-1].members == ("m2",)


def test_a_stop_before_its_first_step_is_over_though_nobody_said_so(rig: Rig) -> None:
    rig.kill("m1")
    rig.feed(stopped(rig, "m2"))
    rig.now_s += 0.1
    rig.finish()
    rig.tick(10)
    assert kinds(rig) == [CommandKind.REBUILD]


def test_a_stop_that_ends_before_the_recovery_does_is_forgotten(rig: Rig) -> None:
    rig.kill("m1")
    rig.feed(stopped(rig, "m2"))
    rig.feed(stopped(rig, "m2", resumed=True))
    rig.finish()
    rig.tick(10)
    assert kinds(rig) == [CommandKind.REBUILD]
    assert rig.job.later == ()


def test_a_node_that_is_lost_during_a_recovery_is_left_out_once_its_members_do_not_come(rig: Rig) -> None:
    rig.change("m3", node="n9", lease_s=10.0)
    rig.kill("m1")
    assert rig.feed(NodeLost(rig.new_id(), rig.now_s, "n9")).reason is Reason.ALREADY_UNDER_WAY
    assert rig.tick(15.1).reason is Reason.FENCE
    assert kinds(rig) == [CommandKind.REBUILD], "nobody is there who could be told; its lease runs out"
    assert rig.tick(10.1).reason is Reason.REBUILD
    assert "m3" not in rig.sent[-1].arguments["members"]


def test_a_node_that_is_lost_during_a_recovery_is_proposed_after_it(rig: Rig) -> None:
    rig.members["s2"] = make_member("s2", -1, "n3")
    rig.members["s3"] = make_member("s3", -1, "n4")
    rig.kill("m1")
    rig.feed(NodeLost(rig.new_id(), rig.now_s, "n1"))
    rig.finish()
    rig.tick()
    action = rig.job.action
    assert action is not None
    assert (action.cause, action.named) == (RepairCause.NODE_LOST, frozenset({"m2", "m3"}))
    rig.feed(NodeLost(rig.new_id(), rig.now_s, "n1", back=True))
    assert rig.job.action is None


def test_what_follows_is_kept_by_the_tables(rig: Rig) -> None:
    rig.kill("m1")
    rig.feed(stopped(rig, "m2"))
    rig.feed(NodeLost(rig.new_id(), rig.now_s, "n1"))
    kept = TypeAdapter(JobRepair)
    assert kept.validate_python(kept.dump_python(rig.job, mode="json")) == rig.job
    assert len(replace(rig.job).later) == 2
