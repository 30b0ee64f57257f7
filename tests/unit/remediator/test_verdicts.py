"""A verdict names ranks: it must not hit whoever has that rank by now."""

from dataclasses import replace

from paceline.contracts.commands import CommandKind
from paceline.contracts.repair import RepairCause
from paceline.remediator.model import Judged, ProcessStopped, Reason
from tests.unit.remediator.conftest import Rig, make_member


def judged(rig: Rig, cause: RepairCause, *ranks: int, **changes: object) -> Judged:
    event = Judged(rig.new_id(), rig.now_s, "inc_1", cause, False, ranks, (), "verdict", rig.now_s)
    return replace(event, **changes)  # type: ignore[arg-type]


def stopped(rig: Rig, name: str, *, resumed: bool = False) -> ProcessStopped:
    member = rig.members[name]
    return ProcessStopped(rig.new_id(), rig.now_s, member.rank, member.child_pid, resumed)


def repair_of(rig: Rig, name: str) -> None:
    rig.kill(name)
    rig.finish()


def test_a_verdict_that_is_revised_after_two_repairs_kills_no_replacement(rig: Rig) -> None:
    rig.feed(stopped(rig, "m3"))
    rig.tick(4.1)
    verdict = judged(rig, RepairCause.FROZEN, 3)
    rig.feed(verdict)
    rig.kill("m3")
    rig.finish()
    rig.now_s += 10
    repair_of(rig, "m2")
    rig.members["s9"] = make_member("s9", -1, "n9")
    rig.sent = []
    rig.now_s += 10
    step = rig.feed(replace(verdict, id="revised", at_s=rig.now_s))
    rig.tick(60)
    assert (step.reason, rig.sent) == (Reason.DUPLICATE, [])


def test_a_verdict_on_what_was_before_the_newest_generation_does_nothing(rig: Rig) -> None:
    verdict = judged(rig, RepairCause.HARDWARE, 3)
    rig.now_s += 5
    repair_of(rig, "m1")
    rig.sent = []
    assert rig.feed(replace(verdict, at_s=rig.now_s)).reason is Reason.ALREADY_REPAIRED
    assert rig.sent == []
    rig.now_s += 70
    again = replace(verdict, id="again", at_s=rig.now_s, reopened=True)
    rig.feed(again)
    assert [order.kind for order in rig.sent] == [CommandKind.FENCE]


def test_a_frozen_verdict_on_what_goes_on_again_does_nothing(rig: Rig) -> None:
    rig.feed(stopped(rig, "m2"))
    rig.now_s += 1
    rig.feed(stopped(rig, "m2", resumed=True))
    rig.now_s += 1
    assert rig.feed(judged(rig, RepairCause.FROZEN, 2)).reason is Reason.WENT_AWAY
    rig.tick(60)
    assert rig.sent == []


def test_a_frozen_verdict_alone_waits_as_long_as_a_stop(rig: Rig) -> None:
    rig.feed(judged(rig, RepairCause.FROZEN, 2))
    rig.tick(3.9)
    assert rig.sent == []
    assert rig.tick(0.2).reason is Reason.FENCE


def test_a_node_whose_clock_is_behind_gets_no_shorter_wait(rig: Rig) -> None:
    rig.feed(replace(stopped(rig, "m2"), at_s=rig.now_s - 10))
    rig.tick(3.9)
    assert rig.sent == []
    assert rig.tick(0.2).reason is Reason.FENCE


def test_the_reports_of_a_large_recovery_do_not_push_incidents_out(rig: Rig) -> None:
    verdict = judged(rig, RepairCause.SOFTWARE, 2)
    assert rig.feed(verdict).reason is Reason.CAPTURE
    for _ in range(200):
        rig.feed(stopped(rig, "m1"))
        rig.feed(stopped(rig, "m1", resumed=True))
    assert rig.feed(replace(verdict, id="revised", at_s=rig.now_s)).reason is Reason.DUPLICATE
