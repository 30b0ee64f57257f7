"""Several faults in one action: each has its own delay, its own proof and its own end."""

from collections.abc import Callable
from dataclasses import replace

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import parse_members
from paceline.contracts.repair import ActionStatus, RepairCause
from paceline.remediator.model import Closed, Judged, NodeLost, ProcessStopped, Reason
from tests.unit.remediator.conftest import Rig, make_member

MakeRig = Callable[..., Rig]


def judged(rig: Rig, cause: RepairCause, *ranks: int, **changes: object) -> Judged:
    event = Judged(rig.new_id(), rig.now_s, "inc_1", cause, False, ranks, (), "verdict", rig.now_s)
    return replace(event, **changes)  # type: ignore[arg-type]


def stopped(rig: Rig, name: str, *, resumed: bool = False) -> ProcessStopped:
    member = rig.members[name]
    return ProcessStopped(rig.new_id(), rig.now_s, member.rank, member.child_pid, resumed)


def fenced(rig: Rig) -> set[str]:
    return {name for order in rig.sent if order.kind is CommandKind.FENCE for name in order.members}


def test_a_death_does_not_shorten_the_delay_of_a_stop(rig: Rig) -> None:
    rig.feed(stopped(rig, "m1"))
    rig.now_s += 0.2
    rig.kill("m2")
    assert rig.sent == [], "m1 has stood for 0.2 s only"
    rig.now_s += 1.0
    rig.feed(stopped(rig, "m1", resumed=True))
    (order,) = rig.sent
    assert [row.member for row in parse_members(order.arguments["members"])] == ["m0", "m1", "s1", "m3"]


def test_a_member_that_goes_on_leaves_an_action_that_waits_for_another(rig: Rig) -> None:
    rig.feed(stopped(rig, "m1"))
    rig.change("s0", ready=False)
    rig.change("s1", ready=False)
    rig.kill("m2")
    rig.feed(stopped(rig, "m1", resumed=True))
    rig.change("s1", ready=True)
    rig.tick(10)
    assert fenced(rig) == set()
    (order,) = rig.sent
    assert "m1" in order.arguments["members"]


def test_the_end_of_a_stop_does_not_end_the_action_of_a_death(rig: Rig) -> None:
    rig.kill("m2", -15)
    rig.feed(stopped(rig, "m1"))
    rig.now_s += 1.0
    rig.feed(stopped(rig, "m1", resumed=True))
    assert rig.job.action is not None
    assert rig.tick(2.0).reason is Reason.REBUILD


def test_a_node_that_comes_back_does_not_end_the_action_of_a_death(rig: Rig) -> None:
    rig.members["s2"] = make_member("s2", -1, "n3")
    rig.feed(NodeLost(rig.new_id(), rig.now_s, "n1"))
    assert rig.job.action is not None
    assert rig.job.action.reason is Reason.NOT_FENCED
    rig.kill("m0")
    assert rig.sent == []
    rig.feed(NodeLost(rig.new_id(), rig.now_s, "n1", back=True))
    (order,) = rig.sent
    assert [row.member for row in parse_members(order.arguments["members"])] == ["s1", "m1", "m2", "m3"]


def test_a_resolved_incident_does_not_end_the_action_of_a_death(rig: Rig) -> None:
    rig.evidence_pending = True
    verdict = judged(rig, RepairCause.HARDWARE, 1)
    rig.kill("m2", -15)
    rig.feed(verdict)
    rig.feed(replace(verdict, id="end", resolved=True))
    assert rig.job.action is not None
    assert rig.job.action.named == {"m2"}
    rig.tick(2.1)
    assert fenced(rig) == set()
    assert "m1" in rig.sent[-1].arguments["members"]


def test_a_planned_leaver_is_not_killed_for_the_death_of_another(rig: Rig) -> None:
    rig.change("s0", ready=False)
    rig.change("s1", ready=False)
    rig.feed(judged(rig, RepairCause.SLOW, 3, planned=True))
    step = rig.kill("m1")
    (over,) = [effect.action for effect in step.effects if isinstance(effect, Closed)]
    assert (over.status, over.reason) == (ActionStatus.EXPIRED, Reason.SUPERSEDED)
    rig.change("s1", ready=True)
    rig.tick(1)
    assert fenced(rig) == set()
    assert "m3" in rig.sent[-1].arguments["members"]


def test_a_hang_that_waits_behind_a_death_does_not_make_it_a_retry(rig: Rig) -> None:
    rig.kill("m1", -15)
    rig.feed(judged(rig, RepairCause.HANG, 2))
    rig.tick(2.1)
    assert rig.sent[-1].kind is CommandKind.REBUILD


def test_only_leavers_of_a_lost_node_are_left_to_their_lease(rig: Rig) -> None:
    for name in ("m2", "m3"):
        rig.change(name, lease_s=20.0)
    rig.members["s2"] = make_member("s2", -1, "n3")
    rig.feed(stopped(rig, "m0"))
    rig.feed(NodeLost(rig.new_id(), rig.now_s, "n1"))
    rig.tick(4.1)
    assert fenced(rig) == {"m0"}
