"""What the controller of the testing kit decides."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.recovery import (
    ChildError,
    ChildExit,
    OrderOutcome,
    OrderResult,
    Role,
    SupervisorHello,
)
from paceline.trainer.testing.controller import LocalController
from paceline.trainer.testing.roster import (
    RETRIES_MAX,
    RETRIES_WITHIN_S,
    UNNAMED_MAX,
    Known,
    Transients,
    members_of,
    plan_replacement,
    plan_retry,
)


def known(rank: int, dead: bool = False, **changes: Any) -> Known:
    name = changes.pop("member", f"m{rank}")
    values: dict[str, Any] = {
        "job": "j", "attempt": "r0", "member": name, "role": Role.STANDBY if rank < 0 else Role.MEMBER,
        "rank": rank, "pid": 1, "child_pid": 100 + rank, "child_pid_start": 5, "generation": 0, "step": 3,
        "store": f"h:{rank}", "replica": "", "failure_domain": name, "ready": True, **changes,
    }  # fmt: skip
    return Known(SupervisorHello(**values), ChildExit(name, 100 + rank, 5, -9) if dead else None)


def roster(*dead: int, ranks: int = 4) -> dict[int, Known]:
    return {rank: known(rank, rank in dead) for rank in range(ranks)}


def test_a_standby_takes_the_place_of_the_dead_and_nobody_else_moves() -> None:
    plan = plan_replacement(roster(2), (2,), [known(-1, member="s")])
    assert [one.member for one in plan.members] == ["m0", "m1", "s", "m3"]
    assert plan.fence == (), "it is dead already"


def test_only_the_lost_rank_is_fenced() -> None:
    assert plan_replacement(roster(), (1,), [known(-1, member="s")]).fence == ("m1",)


def test_the_store_is_never_that_of_the_lost_and_changes_with_the_attempt() -> None:
    standby = [known(-1, member="s")]
    assert plan_replacement(roster(0), (0,), standby).store == "h:1"
    assert plan_replacement(roster(0), (0,), standby, attempt_no=1).store == "h:2"


def test_a_standby_that_is_not_warm_or_not_alive_is_passed_over() -> None:
    standbys = [known(-1, member="cold", ready=False), known(-1, dead=True, member="dead")]
    plan = plan_replacement(roster(3), (3,), standbys)
    assert "a fresh process" in plan.reason
    assert plan.members[3].member == "m3", "a fresh process under the same supervisor"


def test_without_a_survivor_there_is_an_explicit_end() -> None:
    assert plan_replacement(roster(0, 1, ranks=2), (0, 1), []).fallback


def test_a_retry_changes_no_member() -> None:
    plan = plan_retry(roster())
    assert plan.retry
    assert [one.member for one in plan.members] == ["m0", "m1", "m2", "m3"]


def test_transients_of_which_nothing_names_the_cause_end_after_some_more_retries() -> None:
    transients = Transients()
    for at_s in range(RETRIES_MAX + UNNAMED_MAX):
        transients.is_permanent(float(at_s))
        assert transients.hopeless == ""
    transients.is_permanent(30.0)
    assert "nothing names the cause" in transients.hopeless


def test_the_third_transient_within_ten_minutes_is_permanent_and_the_third_in_a_day_is_not() -> None:
    transients = Transients()
    assert [transients.is_permanent(at) for at in (0.0, 10.0, 20.0)] == [False, False, True]
    slowly = Transients()
    assert not any(slowly.is_permanent(at * RETRIES_WITHIN_S) for at in range(6))


def test_the_member_of_the_newest_generation_has_the_rank() -> None:
    old, new = known(2, dead=True, member="old"), known(2, member="new", generation=1)
    assert members_of([new, old], 4)[2] is new


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def led(tmp_path: Path) -> Iterator[tuple[LocalController, Clock]]:
    """A controller of two ranks and a standby that was never started: its thread is the test's."""
    clock = Clock()
    controller = LocalController(tmp_path / "socket", 2, clock=clock)
    for one in (known(0), known(1), known(-1, member="s")):
        hello = replace(one.hello, child_pid=os.getpid())
        controller._known[hello.member] = Known(hello)
    yield controller, clock
    controller._listener.close()


def tell(controller: LocalController, *messages: Any) -> None:
    for message in messages:
        controller._take(-1, message)


def look_later(led: tuple[LocalController, Clock]) -> list[str]:
    """What the controller has begun by a moment later."""
    controller, clock = led
    clock.now_s += 1.0
    controller._look()
    return [event.kind for event in controller.events if event.kind in ("retry", "attempt", "rolled_back")]


@pytest.fixture(autouse=True)
def _no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalController, "send", lambda *_: None)


def test_an_error_after_a_switch_that_was_rolled_back_is_retried(led: Any) -> None:
    controller, _ = led
    controller.planned(1)
    controller.cancel_planned()
    tell(controller, ChildError("m0", 0, 7, "a transport error"))
    assert look_later(led) == ["rolled_back", "retry"]


def test_an_error_while_a_switch_is_prepared_is_retried(led: Any) -> None:
    controller, _ = led
    controller.planned(1)
    tell(controller, ChildError("m0", 0, 7, "a transport error"))
    assert look_later(led) == ["rolled_back", "retry"]


def test_an_error_between_the_restored_state_and_the_first_step_is_another_attempt_at_once(led: Any) -> None:
    controller, _ = led
    tell(controller, ChildError("m0", 0, 7, "a transport error"))
    assert look_later(led) == ["retry"]
    first = controller._recovery
    tell(controller, ChildError("m1", 1, 7, "it ends the old groups"))
    assert look_later(led) == ["retry"], "before it has restored its answer says what has failed"
    order = next(iter(first.orders))
    tell(controller, OrderResult(order, "m1", OrderOutcome.DONE, "goes on", 1))
    tell(controller, ChildError("m1", 1, 7, "its first step failed"))
    assert look_later(led) == ["retry", "attempt"]
    assert controller._recovery.attempt_no == 1


def test_an_error_of_a_generation_before_is_none(led: Any) -> None:
    controller, _ = led
    controller.generation = controller._present = 3
    tell(controller, ChildError("m0", 2, 7, "late"))
    assert look_later(led) == []
