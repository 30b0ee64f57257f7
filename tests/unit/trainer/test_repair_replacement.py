"""Who does what in a planned replacement, and the boundary that is held until all have agreed."""

import threading
from typing import Any, cast

import pytest

from paceline.contracts.recovery import Member, Order, OrderKind, format_members
from paceline.trainer.repair.replacement import Replacement, parts_of
from paceline.trainer.switch import PlanRefused
from paceline.trainer.switch.errors import TransferFailed
from paceline.trainer.switch.planner import Role


def order(joiner: str = "s", members: tuple[str, ...] = ("a", "s", "c"), generation: int = 4) -> Order:
    rows = [Member(rank, name) for rank, name in enumerate(members)]
    arguments = {"members": format_members(rows), "joiner": joiner, "leaver": "b", "store": "h:1"}
    return Order("o", OrderKind.PREPARE, generation, 0, 4e9, arguments)


class Protection:
    def __init__(self) -> None:
        self.dropped: list[int] = []

    def drop(self, generation: int) -> None:
        self.dropped.append(generation)


def replacement(me: str, rank: int) -> Replacement:
    def nothing(*_: object) -> None:
        pass

    return Replacement(order(), me, rank, cast(Any, None), cast(Any, Protection()), nothing, nothing)


def test_everybody_finds_its_part_and_the_same_plan() -> None:
    parts = [replacement("a", 0), replacement("b", 1), replacement("s", -1), replacement("c", 2)]
    assert [part.role for part in parts] == [Role.STAYER, Role.LEAVER, Role.JOINER, Role.STAYER]
    assert [part.rank for part in parts] == [0, 1, 1, 2]
    assert len({part.parts.digest for part in parts}) == 1
    assert parts[0].parts.everybody == ["m0", "m1", "m2", "l1"]


def test_another_joiner_or_another_generation_is_another_plan() -> None:
    digests = {
        parts_of(each).digest
        for each in (order(), order(generation=5), order("t", ("a", "t", "c")), order("a", ("a", "s", "c")))
    }
    assert len(digests) == 4


def test_what_replaces_nobody_is_refused() -> None:
    with pytest.raises(PlanRefused):
        parts_of(order(joiner="x"))
    with pytest.raises(ValueError, match="rank 2"):
        replacement("stranger", 2)


def test_a_step_is_passed_until_the_proposed_boundary_and_that_one_is_held() -> None:
    part = replacement("a", 0)
    assert not part.due(3, lambda: False), "nothing was proposed"
    part._hold = 5
    assert not part.due(4, lambda: False)
    timer = threading.Timer(0.05, part._decided.set)
    part._agreed = 6
    timer.start()
    assert not part.due(5, lambda: False), "others can reach only a later one"
    assert part._decided.is_set(), "it waited for the agreement"
    assert part.due(6, lambda: False)


def test_a_newer_generation_ends_the_wait_at_a_boundary() -> None:
    part = replacement("a", 0)
    part._hold = 5
    assert not part.due(5, lambda: True)


def test_a_cancellation_before_the_agreement_drops_it_and_after_it_is_a_vote() -> None:
    early, late = replacement("a", 0), replacement("a", 0)
    assert early.cancel()
    assert early.over
    late._hold = 5
    assert not late.cancel()
    assert not late.over
    assert not late.is_ready, "its vote at the boundary is against it"


def test_one_that_gives_way_to_another_does_so_only_before_it_is_bound() -> None:
    free, bound = replacement("a", 0), replacement("a", 0)
    assert free.cancel("another one is prepared", unless_bound=True)
    assert free.over
    bound._hold = 5
    assert not bound.cancel("another one is prepared", unless_bound=True)
    assert bound.is_ready, "its vote is what it was"


def test_a_joiner_says_that_the_state_did_not_arrive_and_waits_only_while_nobody_needs_it() -> None:
    part = replacement("s", -1)
    with pytest.raises(TransferFailed, match="newer generation"):
        part.await_copy(lambda: True)
    part._lost = ConnectionResetError("the peer closed the connection")
    part._arrived.set()
    with pytest.raises(TransferFailed, match="the peer closed"):
        part.await_copy(lambda: False)
