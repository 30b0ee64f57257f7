"""Whom the third transient within ten minutes replaces: never who only speaks of a peer."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.commands import CommandKind
from paceline.contracts.repair import RepairCause, RepairKind
from paceline.remediator.model import JobRepair, MemberError, Reason, Step
from paceline.remediator.transients import UNNAMED_MAX
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
        rig.members = {name: replace(one, step=one.step + 5) for name, one in rig.members.items()}
        rig.now_s += 60
    return kind


def flap(rig: Rig, times: int) -> None:
    for _ in range(times):
        tell(rig, "m2", OWN)
        assert settle(rig) is CommandKind.RETRY


def test_the_word_of_its_own_names_it_although_a_victim_told_first(rig: Rig) -> None:
    flap(rig, RETRIES_MAX)
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
    assert "nothing names who causes them" in action.message


def test_an_unnamed_one_is_named_by_a_later_flap(rig: Rig) -> None:
    flap(rig, RETRIES_MAX)
    tell(rig, "m0", PEER)
    assert settle(rig) is CommandKind.RETRY
    tell(rig, "m1", PEER)
    tell(rig, "m2", OWN)
    assert settle(rig) is CommandKind.FENCE
    assert rig.sent[-1].members == ("m2",)


def test_a_stranger_joins_no_error_that_waits(rig: Rig) -> None:
    flap(rig, RETRIES_MAX)
    tell(rig, "m0", PEER)
    tell(rig, "s0", OWN)
    assert settle(rig) is CommandKind.RETRY


def test_a_state_from_before_reads_as_nobody_has_told(make_rig: Callable[[], Rig]) -> None:
    assert JobRepair("train", "a1").told == ()
    rig = make_rig()
    rig.job = replace(rig.job, transients=(rig.now_s - 2, rig.now_s - 1))
    tell(rig, "m2", OWN)
    assert settle(rig) is CommandKind.FENCE
