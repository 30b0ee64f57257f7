"""Whom the third transient within ten minutes replaces: never who only speaks of a peer."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.commands import CommandKind
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairMode
from paceline.remediator.model import JobRepair, MemberError, Reason, Step
from paceline.remediator.transients import UNNAMED_MAX
from paceline.remediator.writing import STATE
from tests.unit.remediator.conftest import Rig

OWN = "ConnectionError: the connections of this rank are gone"
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4000"
RETRIES_MAX = 2


def tell(rig: Rig, name: str, message: str) -> Step:
    return rig.feed(MemberError(rig.new_id(), rig.now_s, name, rig.job.said_generation, message))


def settle(rig: Rig) -> CommandKind:
    """The window is over; a retry succeeds and the job makes steps."""
    rig.tick(0.6)
    kind = rig.sent[-1].kind
    if kind is CommandKind.RETRY:
        rig.finish()
        rig.members = {name: replace(one, step=40 + 10 * len(rig.sent)) for name, one in rig.members.items()}
        rig.now_s += 60
    return kind


def flap(rig: Rig, times: int) -> None:
    for _ in range(times):
        tell(rig, "m2", OWN)
        assert settle(rig) is CommandKind.RETRY


def test_the_word_of_its_own_names_it_although_a_victim_told_first(rig: Rig) -> None:
    flap(rig, 1)
    wait_unnamed(rig, 1)
    tell(rig, "m0", PEER)
    tell(rig, "m3", PEER)
    assert tell(rig, "m2", OWN).reason is Reason.MERGED
    assert settle(rig) is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


def test_a_later_word_changes_nothing(rig: Rig) -> None:
    flap(rig, RETRIES_MAX)
    tell(rig, "m2", OWN)
    for name, message in (("m1", OWN), ("m0", PEER), ("m2", OWN)):
        assert tell(rig, name, message).reason is Reason.ALREADY_UNDER_WAY
    assert settle(rig) is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


def test_all_words_of_one_error_count_once(rig: Rig) -> None:
    for _ in range(RETRIES_MAX):
        for name in ("m0", "m3", "m2", "m1"):
            tell(rig, name, OWN if name == "m2" else PEER)
        assert settle(rig) is CommandKind.RETRY
    assert len(rig.job.transients) == RETRIES_MAX


def test_a_member_that_spoke_of_a_peer_may_still_speak_for_itself(rig: Rig) -> None:
    wait_unnamed(rig, RETRIES_MAX)
    tell(rig, "m2", PEER)
    tell(rig, "m2", OWN)
    assert settle(rig) is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


def wait_unnamed(rig: Rig, times: int) -> None:
    for _ in range(times):
        tell(rig, "m0", PEER)
        assert settle(rig) is CommandKind.RETRY


@pytest.mark.parametrize("names", [("m0",), ("m0", "m1", "m3"), ("m0", "m1", "m2", "m3")])
def test_who_only_speaks_of_a_peer_or_is_silent_is_never_replaced(rig: Rig, names: tuple[str, ...]) -> None:
    for _ in range(RETRIES_MAX + UNNAMED_MAX):
        for name in names:
            tell(rig, name, PEER)
        assert settle(rig) is CommandKind.RETRY
    tell(rig, names[0], PEER)
    action = rig.job.action
    assert action is not None
    assert (action.kind, action.cause, action.leavers) == (RepairKind.FALLBACK, RepairCause.TRANSIENT, ())
    rig.tick(0.6)
    assert rig.sent[-1].kind is CommandKind.FALLBACK
    assert rig.job.action is not None
    assert rig.job.action.reason is Reason.UNNAMED_TRANSIENTS


@pytest.mark.parametrize("how", ["exit", "word"])
def test_the_last_resort_gives_way_to_whoever_is_named(rig: Rig, how: str) -> None:
    """Two standbys are ready: the death of a member or its own word within the window ends no job."""
    wait_unnamed(rig, RETRIES_MAX + UNNAMED_MAX)
    tell(rig, "m0", PEER)
    if how == "exit":
        rig.kill("m2")
    else:
        tell(rig, "m2", OWN)
        rig.tick(0.6)
    assert rig.sent[-1].kind is (CommandKind.REBUILD if how == "exit" else CommandKind.FENCE)
    assert rig.job.action is not None
    assert [seat.member for seat in rig.job.action.leavers] == ["m2"]


def test_what_an_exit_explains_is_no_transient(rig: Rig) -> None:
    tell(rig, "m0", PEER)
    rig.kill("m2")
    assert rig.job.transients == ()
    rig.finish()


def test_who_told_of_most_errors_is_named_before_the_job_is_given_up(rig: Rig) -> None:
    flap(rig, RETRIES_MAX)
    wait_unnamed(rig, UNNAMED_MAX)
    tell(rig, "m0", PEER)
    assert settle(rig) is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


def test_one_word_of_its_own_among_the_earlier_ones_names_nobody(rig: Rig) -> None:
    flap(rig, 1)
    wait_unnamed(rig, RETRIES_MAX + UNNAMED_MAX - 1)
    tell(rig, "m0", PEER)
    assert settle(rig) is CommandKind.FALLBACK


def test_a_stranger_joins_no_error_that_waits(rig: Rig) -> None:
    wait_unnamed(rig, RETRIES_MAX)
    tell(rig, "m0", PEER)
    assert tell(rig, "s0", OWN).reason is Reason.UNKNOWN_MEMBER
    assert rig.job.accused == ()
    tell(rig, "m2", OWN)
    assert settle(rig) is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


def test_a_word_that_comes_much_later_is_of_another_error(make_rig: Callable[[RepairMode], Rig]) -> None:
    rig = make_rig(RepairMode.APPROVE)
    rig.job = replace(rig.job, transients=(rig.now_s - 2, rig.now_s - 1))
    tell(rig, "m0", PEER)
    rig.now_s += 60
    assert tell(rig, "m3", OWN).reason is Reason.ALREADY_UNDER_WAY
    assert rig.job.action is not None
    assert (rig.job.action.kind, rig.job.action.leavers) == (RepairKind.RETRY, ())


def test_a_policy_that_is_raised_is_heard_by_the_next_word(make_rig: Callable[[RepairMode], Rig]) -> None:
    rig = make_rig(RepairMode.OBSERVE)
    tell(rig, "m0", PEER)
    rig.policy = replace(rig.policy, mode=RepairMode.AUTO)
    tell(rig, "m1", PEER)
    assert settle(rig) is CommandKind.RETRY


def test_what_was_rejected_does_not_come_back(rig: Rig) -> None:
    wait_unnamed(rig, RETRIES_MAX)
    tell(rig, "m0", PEER)
    assert rig.job.action is not None
    rig.job = replace(rig.job, action=replace(rig.job.action, status=ActionStatus.REJECTED))
    tell(rig, "m2", OWN)
    assert rig.tick(0.6).reason is Reason.NOTHING_DUE
    assert rig.sent[-1].kind is CommandKind.RETRY


def test_the_loss_of_a_peer_explains_what_comes_after_the_first_word(rig: Rig) -> None:
    wait_unnamed(rig, RETRIES_MAX)
    tell(rig, "m0", PEER)
    rig.change("m1", child_pid=0, child_pid_start=0)
    assert tell(rig, "m3", OWN).reason is Reason.NOTED
    assert rig.job.accused == ()


def test_a_stored_state_from_before_reads_as_nobody_accused() -> None:
    stored = STATE.dump_python(JobRepair("train", "a1", transients=(1.0, 2.0)), mode="json")
    del stored["accused"]
    assert STATE.validate_python(stored).accused == ()
