"""What the controller of the testing kit decides."""

from typing import Any

from paceline.contracts.recovery import ChildExit, Role, SupervisorHello
from paceline.trainer.testing.roster import (
    RETRIES_WITHIN_S,
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


def test_the_third_transient_within_ten_minutes_is_permanent_and_the_third_in_a_day_is_not() -> None:
    transients = Transients()
    assert [transients.is_permanent(at) for at in (0.0, 10.0, 20.0)] == [False, False, True]
    slowly = Transients()
    assert not any(slowly.is_permanent(at * RETRIES_WITHIN_S) for at in range(6))


def test_the_member_of_the_newest_generation_has_the_rank() -> None:
    old, new = known(2, dead=True, member="old"), known(2, member="new", generation=1)
    assert members_of([new, old], 4)[2] is new
