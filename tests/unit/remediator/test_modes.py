"""What may not be carried out neither holds up nor rides along with what may."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import parse_members
from paceline.contracts.repair import ActionStatus, RepairCause, RepairLimits, RepairMode
from paceline.remediator.guards import fleet_breaker_open
from paceline.remediator.model import Closed, Judged, MemberError, Policy, Reason, RepairEnd
from tests.unit.remediator.conftest import NOW, Rig, make_member

MakeRig = Callable[..., Rig]


def judged(rig: Rig, cause: RepairCause, *ranks: int, **changes: object) -> Judged:
    event = Judged(rig.new_id(), rig.now_s, "inc_1", cause, False, ranks, (), "verdict", rig.now_s)
    return replace(event, **changes)  # type: ignore[arg-type]


@pytest.fixture
def mixed(make_rig: MakeRig) -> Rig:
    """Exits and transients are repaired, everything else is observed."""
    rig = make_rig(RepairMode.OBSERVE)
    for cause in (RepairCause.PROCESS_EXIT, RepairCause.TRANSIENT):
        rig.by_cause[cause] = Policy(RepairMode.AUTO, limits=rig.policy.limits)
    return rig


def test_a_proposal_that_is_only_observed_gives_way_to_a_death(mixed: Rig) -> None:
    mixed.feed(judged(mixed, RepairCause.HARDWARE, 3))
    assert mixed.job.action is not None
    assert mixed.job.action.reason is Reason.OBSERVED_ONLY
    step = mixed.kill("m1")
    (over,) = [effect.action for effect in step.effects if isinstance(effect, Closed)]
    assert (over.status, over.reason) == (ActionStatus.EXPIRED, Reason.SUPERSEDED)
    (order,) = mixed.sent
    assert order.kind is CommandKind.REBUILD
    assert [row.member for row in parse_members(order.arguments["members"])] == ["m0", "s1", "m2", "m3"]


def test_a_proposal_that_is_only_observed_gives_way_to_an_error(mixed: Rig) -> None:
    mixed.feed(judged(mixed, RepairCause.HARDWARE, 3))
    mixed.feed(MemberError(mixed.new_id(), mixed.now_s, "m2", 0, "timed out"))
    assert mixed.tick(0.6).reason is Reason.REBUILD
    assert mixed.sent[-1].kind is CommandKind.RETRY


def test_what_is_only_observed_does_not_stop_a_repair_that_waits(mixed: Rig) -> None:
    mixed.kill("m1", -15)
    verdict = judged(mixed, RepairCause.HARDWARE, 3)
    assert mixed.feed(verdict).reason is Reason.ALREADY_UNDER_WAY
    assert mixed.tick(2.1).reason is Reason.REBUILD
    assert "m3" in mixed.sent[-1].arguments["members"]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(RepairMode.OBSERVE, Reason.OBSERVED_ONLY), (RepairMode.APPROVE, Reason.NEEDS_APPROVAL)],
)
def test_a_policy_that_becomes_more_careful_holds_for_what_waits(
    rig: Rig, mode: RepairMode, reason: Reason
) -> None:
    rig.change("s0", ready=False)
    rig.change("s1", ready=False)
    rig.kill("m1")
    rig.policy = replace(rig.policy, mode=mode)
    rig.change("s1", ready=True)
    assert rig.tick(1).reason is reason
    action = rig.job.action
    assert action is not None
    assert (action.mode, rig.sent) == (mode, [])


def test_an_approval_without_a_key_opens_no_generation(make_rig: MakeRig) -> None:
    rig = make_rig(RepairMode.APPROVE)
    rig.kill("m1")
    assert rig.job.action is not None
    rig.job = replace(rig.job, action=replace(rig.job.action, status=ActionStatus.APPROVED))
    rig.may_act = False
    assert rig.tick().reason is Reason.OBSERVED_ONLY
    assert rig.job.generation == 0


def test_a_job_that_no_order_can_name_waits_with_that_reason(rig: Rig) -> None:
    for rank in range(4, 4100):
        rig.members[f"m{rank}"] = make_member(f"m{rank}", rank, "n5")
    rig.kill("m1", 1)
    step = rig.tick(1.0)
    assert (step.reason, rig.sent) == (Reason.TOO_LARGE, [])


def test_what_a_person_has_rejected_is_not_proposed_again_by_its_incident(make_rig: MakeRig) -> None:
    rig = make_rig(RepairMode.APPROVE)
    rig.kill("m1")
    assert rig.job.action is not None
    rig.job = replace(rig.job, action=replace(rig.job.action, status=ActionStatus.REJECTED))
    rig.tick()
    rig.policy = replace(rig.policy, mode=RepairMode.AUTO)
    rig.now_s += 5
    assert rig.feed(judged(rig, RepairCause.PROCESS_EXIT, 1)).reason is Reason.ALREADY_REPAIRED
    assert rig.sent == []


def ends(failed: int, succeeded: int, at_s: float = NOW - 60) -> tuple[RepairEnd, ...]:
    return tuple(RepairEnd(f"job-{number}", at_s, number < failed) for number in range(failed + succeeded))


@pytest.mark.parametrize(
    ("fleet", "is_open"),
    [
        (ends(5, 0), True),
        (ends(4, 0), False),
        (ends(5, 5), True),
        (ends(5, 6), False),  # most of a large cluster is repaired
        (ends(9, 0, NOW - 1801), False),
        (ends(4, 0) + ends(4, 0), False),  # the same jobs again
    ],
)
def test_the_breaker_of_the_cluster_counts_jobs(fleet: tuple[RepairEnd, ...], is_open: bool) -> None:
    assert fleet_breaker_open(fleet, RepairLimits(), NOW) is is_open
