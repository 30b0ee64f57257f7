"""A planned replacement: everybody prepares, then switches; who is healthy is killed by nothing of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, parse_members
from paceline.contracts.repair import ActionStatus, RepairCause, RepairState
from paceline.remediator.model import Action, Closed, Judged, MemberError, OrderAnswer, Reason, Step
from tests.unit.remediator.conftest import Rig


def closed(step: Step) -> Action:
    (found,) = [effect.action for effect in step.effects if isinstance(effect, Closed)]
    return found


def start(rig: Rig) -> None:
    now_s = rig.now_s
    event = Judged("slow", now_s, "inc_slow", RepairCause.SLOW, True, (2,), (), "rank 2 is slow", now_s)
    rig.feed(event)


def test_everybody_gets_ready_and_then_switches(rig: Rig) -> None:
    start(rig)
    (order,) = rig.sent
    assert order.kind is CommandKind.PREPARE
    assert set(order.members) == {"m0", "m1", "m2", "m3", "s1"}
    assert parse_members(order.arguments["members"])[2].member == "s1"
    for name in ("m0", "m1", "m2", "m3"):
        rig.answer(name)
    assert rig.job.state is RepairState.PREPARING
    assert rig.answer("s1").reason is Reason.SWITCH
    assert rig.sent[-1].kind is CommandKind.SWITCH
    assert rig.sent[-1].generation == order.generation
    assert closed(rig.finish()).status is ActionStatus.SUCCEEDED


def test_what_is_not_ready_in_time_is_rolled_back(rig: Rig) -> None:
    start(rig)
    step = rig.tick(301)
    assert closed(step).status is ActionStatus.ROLLED_BACK
    assert rig.sent[-1].kind is CommandKind.CANCEL
    assert rig.job.state is RepairState.HEALTHY


def switch(rig: Rig) -> None:
    start(rig)
    for name in ("m0", "m1", "m2", "m3", "s1"):
        rig.answer(name)
    assert rig.sent[-1].kind is CommandKind.SWITCH


def test_a_step_may_take_longer_than_a_rendezvous(rig: Rig) -> None:
    switch(rig)
    rig.tick(60)
    assert rig.sent[-1].kind is CommandKind.SWITCH
    assert closed(rig.finish()).status is ActionStatus.SUCCEEDED


def test_a_switch_of_which_nothing_is_seen_is_taken_back_and_nobody_is_killed(rig: Rig) -> None:
    switch(rig)
    assert closed(rig.tick(301)).status is ActionStatus.ROLLED_BACK
    assert rig.sent[-1].kind is CommandKind.CANCEL
    assert CommandKind.FENCE not in {order.kind for order in rig.sent}


def test_a_switch_that_all_have_called_off_is_rolled_back(rig: Rig) -> None:
    switch(rig)
    step = rig.answer("m1", OrderOutcome.REFUSED, "cancelled: somebody cannot switch")
    assert closed(step).status is ActionStatus.ROLLED_BACK
    assert CommandKind.FENCE not in {order.kind for order in rig.sent}


def test_a_state_that_did_not_arrive_is_a_loss_as_any(rig: Rig) -> None:
    switch(rig)
    rig.phase("m0", RecoveryPhase.RENDEZVOUS)
    rig.answer("m2", OrderOutcome.FAILED, "TransferFailed: the joiner has not taken the state")
    assert rig.sent[-1].kind is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


@pytest.mark.parametrize("others_have", [True, False])
def test_a_failure_in_the_switch_waits_for_what_the_others_have_done(rig: Rig, others_have: bool) -> None:
    switch(rig)
    rig.answer("m2", OrderOutcome.FAILED, "no supervisor of this name is connected to the agent")
    assert rig.sent[-1].kind is CommandKind.SWITCH
    if others_have:
        rig.phase("m0", RecoveryPhase.RENDEZVOUS)
    rig.tick(16)
    assert rig.sent[-1].kind is (CommandKind.FENCE if others_have else CommandKind.CANCEL)


def test_a_death_while_it_is_prepared_is_repaired(rig: Rig) -> None:
    start(rig)
    step = rig.kill("m2")
    assert closed(step).status is ActionStatus.ROLLED_BACK
    assert [order.kind for order in rig.sent] == [
        CommandKind.PREPARE, CommandKind.CANCEL, CommandKind.REBUILD,
    ]  # fmt: skip
    assert rig.sent[-1].generation > rig.sent[0].generation


def test_a_leaver_that_ends_is_no_fault_and_no_end_of_the_job(rig: Rig) -> None:
    switch(rig)
    rig.phase("m0", RecoveryPhase.RENDEZVOUS)
    rig.kill("m2", 0)
    assert rig.sent[-1].kind is CommandKind.SWITCH
    assert closed(rig.finish()).status is ActionStatus.SUCCEEDED
    assert rig.kill("m3").job.action is not None, "whoever is lost later is replaced"


def test_the_end_of_a_leaver_may_be_heard_of_after_the_switch(rig: Rig) -> None:
    switch(rig)
    rig.finish()
    assert rig.kill("m2", 0).reason is Reason.UNKNOWN_MEMBER
    assert not rig.job.over


def error(rig: Rig, name: str, generation: int = 0) -> Step:
    return rig.feed(MemberError(rig.new_id(), rig.now_s, name, generation, "timed out"))


def test_an_error_after_a_rollback_is_one_of_the_generation_in_which_all_train(rig: Rig) -> None:
    switch(rig)
    rig.answer("m1", OrderOutcome.REFUSED, "cancelled: somebody cannot switch")
    rolled_back = rig.job.generation
    error(rig, "m3")
    assert rig.tick(0.6).reason is Reason.REBUILD
    assert rig.sent[-1].kind is CommandKind.RETRY
    assert rig.sent[-1].generation > rolled_back
    assert error(rig, "m3").reason is Reason.OLD_GENERATION, "what is repaired already has no echo"
    assert closed(rig.finish()).status is ActionStatus.SUCCEEDED
    assert error(rig, "m3").reason is Reason.OLD_GENERATION


@pytest.mark.parametrize("ordered", [start, switch])
@pytest.mark.parametrize("name", ["m2", "m3"])
def test_an_error_before_anybody_has_switched_rolls_it_back_and_is_retried(
    rig: Rig, ordered: Callable[[Rig], None], name: str
) -> None:
    ordered(rig)
    assert closed(error(rig, name)).status is ActionStatus.ROLLED_BACK
    refused = OrderAnswer("r", rig.now_s, name, 1, "cmd-1-0", OrderOutcome.REFUSED, "a recovery begins")
    assert rig.feed(refused).reason is Reason.NOTHING_DUE
    rig.tick(0.6)
    assert [order.kind for order in rig.sent][-2:] == [CommandKind.CANCEL, CommandKind.RETRY]
    assert set(rig.sent[-1].members) == {"m0", "m1", "m2", "m3"}
    assert rig.feed(replace(refused, id="r2")).reason is Reason.OLD_GENERATION
    assert closed(rig.finish()).status is ActionStatus.SUCCEEDED


def test_an_error_of_a_joiner_or_after_somebody_has_switched_rolls_nothing_back(rig: Rig) -> None:
    switch(rig)
    error(rig, "s1")
    assert rig.job.state is RepairState.REBUILDING
    rig.phase("m0", RecoveryPhase.RENDEZVOUS)
    error(rig, "m3")
    assert rig.job.state is RepairState.REBUILDING
    assert rig.sent[-1].kind is CommandKind.SWITCH


@pytest.mark.parametrize("how", ["left", "entered"])
def test_who_has_left_or_entered_has_switched_although_no_phase_was_read(rig: Rig, how: str) -> None:
    switch(rig)
    if how == "left":
        rig.answer("m2")
    else:
        rig.change("m1", generation=1)
    error(rig, "m3")
    assert rig.job.state is RepairState.REBUILDING
    assert rig.sent[-1].kind is CommandKind.SWITCH


@pytest.mark.parametrize("name", ["m2", "m3"])
@pytest.mark.parametrize("spare", [True, False])
def test_a_death_before_anybody_has_switched_is_repaired_alone(rig: Rig, name: str, spare: bool) -> None:
    """The leaver's own, or that of one that stays: nobody else is killed, and one standby is enough."""
    if not spare:
        del rig.members["s0"]
    switch(rig)
    step = rig.kill(name)
    assert closed(step).status is ActionStatus.ROLLED_BACK
    assert [order.kind for order in rig.sent][1:] == [
        CommandKind.SWITCH, CommandKind.CANCEL, CommandKind.REBUILD,
    ]  # fmt: skip
    assert set(rig.sent[-1].members) >= {"m0", "m1", "m2", "m3"}
    seats = {one.member for one in parse_members(rig.sent[-1].arguments["members"])}
    assert {"m0", "m1", "m2", "m3"} - seats == {name}
    refused = OrderAnswer("r", rig.now_s, name, 1, "cmd-1-0", OrderOutcome.REFUSED, "it ended with -9")
    assert rig.feed(refused).reason is Reason.OLD_GENERATION
    assert closed(rig.finish()).status is ActionStatus.SUCCEEDED


def test_the_death_of_a_joiner_before_anybody_has_switched_costs_nothing_but_the_switch(rig: Rig) -> None:
    switch(rig)
    assert closed(rig.kill("s1")).status is ActionStatus.ROLLED_BACK
    assert rig.sent[-1].kind is CommandKind.CANCEL
    assert (rig.job.state, rig.job.action) == (RepairState.HEALTHY, None)


@pytest.mark.parametrize("changes", [{"left": True}, {"left": True, "child_pid": 0, "child_pid_start": 0}])
@pytest.mark.parametrize("name", ["s1", "m3"])
def test_who_is_lost_by_the_registry_before_anybody_has_switched_costs_nobody_else(
    rig: Rig, name: str, changes: dict[str, object]
) -> None:
    switch(rig)
    rig.change(name, **changes)
    rig.tick()
    step = rig.tick(6.1)
    assert closed(step).status is ActionStatus.ROLLED_BACK
    assert rig.sent[-1].kind is CommandKind.CANCEL
    assert CommandKind.FENCE not in {order.kind for order in rig.sent}


def test_a_death_after_somebody_has_switched_opens_one_more_generation_without_the_leaver(rig: Rig) -> None:
    switch(rig)
    rig.phase("m0", RecoveryPhase.RENDEZVOUS)
    rig.kill("m3")
    assert rig.sent[-1].kind is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


def test_a_leaver_that_has_answered_may_end_in_any_way(rig: Rig) -> None:
    switch(rig)
    rig.answer("m2")
    rig.kill("m2", -9)  # by its supervisor, which gave it a while
    assert rig.sent[-1].kind is CommandKind.SWITCH
    assert closed(rig.finish()).status is ActionStatus.SUCCEEDED


def stand_by_again(rig: Rig, name: str) -> None:
    """The supervisor of a leaver that has ended starts a standby."""
    rig.change(name, role=Role.STANDBY, rank=-1, child_pid=7001, child_pid_start=7002, ready=True)


@pytest.mark.parametrize("planned", [True, False])
def test_a_leaver_that_has_a_seat_again_has_not_finished(rig: Rig, planned: bool) -> None:
    switch(rig)
    rig.phase("m0", RecoveryPhase.RENDEZVOUS)
    rig.kill("m2", 0)
    rig.finish()
    del rig.members["s0"]
    stand_by_again(rig, "m2")
    rig.now_s += 100
    if planned:
        rig.feed(Judged("slow2", rig.now_s, "inc_2", RepairCause.SLOW, True, (1,), (), "slow", rig.now_s))
        for name in ("m0", "m1", "s1", "m3", "m2"):
            rig.answer(name)
        rig.phase("m0", RecoveryPhase.RENDEZVOUS)
        rig.kill("m1", 0)
    else:
        rig.kill("m1")
    assert "m2" in {seat.member for seat in (rig.job.action.seats if rig.job.action else ())}
    rig.finish()
    for name in ("m0", "s1", "m3"):
        rig.kill(name, 0)
    assert not rig.job.over, "one member still works"
    assert CommandKind.RELEASE not in {order.kind for order in rig.sent}
    rig.kill("m2", 0)
    assert rig.job.over
