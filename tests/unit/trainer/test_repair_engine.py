"""The part of a session's engine that needs no job."""

from typing import Any, cast

import pytest

from paceline.contracts.recovery import Order, OrderKind, RecoveryPhase
from paceline.trainer.repair import engine as engines
from paceline.trainer.repair.control import Control
from paceline.trainer.repair.engine import Engine
from paceline.trainer.repair.placing import Placing
from paceline.trainer.repair.protecting import Protection
from paceline.trainer.repair.session import Session
from paceline.trainer.repair.wiring import Wiring


class Ended(RuntimeError):
    pass


class Life:
    def error(self) -> Exception:
        return Ended("the generation has ended")


class Groups:
    generation = 0
    ended = False
    life = Life()

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def abort(self, generation: int, reason: str) -> bool:
        self.aborted.append(reason)
        return True


class Control_:
    member = "m"

    def __init__(self) -> None:
        self.told: list[Any] = []

    def tell(self, message: object) -> None:
        self.told.append(message)

    def answer(self, *answer: object) -> None:
        self.told.append(answer)

    def tell_state(self, state: object) -> None:
        pass


class Protection_:
    replica = "h:1"
    settled = True

    def begin_step(self) -> None:
        raise Ended("the generation has ended")

    def settle(self) -> bool:
        return self.settled


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(outside: bool) -> tuple[Engine, Groups]:
        monkeypatch.setattr(engines, "host_store", lambda host: (object(), "h:2"))
        groups = Groups()
        wired = Wiring(cast(Any, groups), outside, 1, 2, "h")
        control, protection = cast(Control, Control_()), cast(Protection, Protection_())
        placing = Placing(wired, protection, {})
        return Engine(control, wired, protection, placing, 1.0), groups

    return make


def order(generation: int) -> Order:
    return Order(f"o{generation}", OrderKind.REBUILD, generation, 0, 4e9, {})


def test_an_order_cuts_a_step_off_but_no_warm_up(engine: Any) -> None:
    member, groups = engine(outside=False)
    member.take_order(order(1))
    assert groups.aborted == ["generation 1 begins"]
    joiner, groups = engine(outside=True)
    steps = joiner.steps(10, 0)
    assert next(steps) == 0
    joiner.take_order(order(1))
    assert groups.aborted == [], "an exception in its step would be nobody's fault and end it"


class Lost:
    """What was prepared, forgotten by the training thread meanwhile."""

    def cancel(self, why: str) -> None:
        raise RuntimeError(why)


def test_an_order_cuts_a_step_off_whatever_becomes_of_what_was_prepared(engine: Any) -> None:
    member, groups = engine(outside=False)
    member._part = Lost()
    with pytest.raises(RuntimeError, match="generation 1 begins"):
        member.take_order(order(1))
    assert groups.aborted == ["generation 1 begins"]


def test_a_generation_that_ends_at_the_head_of_a_step_ends_the_step_and_not_the_script(engine: Any) -> None:
    member, groups = engine(outside=False)
    session = Session(member)
    groups.ended = True
    with session.step(3):
        begun = True
    assert begun
    assert member._is_broken()


def test_a_phase_is_told_with_the_try_that_it_belongs_to(engine: Any) -> None:
    member, _ = engine(outside=False)
    member._epoch = (4, 1)
    member._send_phase(RecoveryPhase.RENDEZVOUS, 0.5, 7, 0)
    (told,) = member._control.told
    assert (told.generation, told.attempt_no, told.phase) == (4, 1, RecoveryPhase.RENDEZVOUS)


def test_what_is_no_end_of_a_generation_leaves_the_head_of_a_step(engine: Any) -> None:
    member, _ = engine(outside=False)
    with pytest.raises(Ended), Session(member).step(3):
        pass


class Part:
    """A planned replacement that others count on."""

    over = False
    switch_order = None
    order = order(5)

    def __init__(self) -> None:
        self.let = False

    def cancel(self, why: str, unless_bound: bool) -> bool:
        return False

    def let_go(self) -> None:
        self.let = True


def test_a_switch_that_others_count_on_is_dropped_by_a_recovery_and_not_by_another_one(engine: Any) -> None:
    member, _ = engine(outside=False)
    part = member._part = Part()
    assert not member._forget_part("another one is prepared")
    assert member._part is part
    assert not part.let
    assert member._forget_part("a recovery begins", is_broken=True)
    assert member._part is None
    assert part.let
