"""What proves that a leaver is gone, and what does not."""

from dataclasses import replace

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.contracts.repair import RepairState
from paceline.remediator.model import OrderAnswer, PhaseDone, ProcessStopped, Reason
from tests.unit.remediator.conftest import Rig


def freeze(rig: Rig, name: str) -> None:
    member = rig.members[name]
    rig.feed(ProcessStopped(rig.new_id(), rig.now_s, member.rank, member.child_pid, False))
    rig.tick(4.1)
    assert rig.job.state is RepairState.FENCING


def test_an_answer_to_another_order_is_no_proof_of_death(rig: Rig) -> None:
    freeze(rig, "m2")
    other = OrderAnswer(rig.new_id(), rig.now_s, "m2", 0, "cmd_of_a_rebuild-0-0", OrderOutcome.DONE, "")
    rig.feed(other)
    assert rig.job.state is RepairState.FENCING
    assert [order.kind for order in rig.sent] == [CommandKind.FENCE]
    assert rig.answer("m2").reason is Reason.REBUILD


def test_a_fence_that_fails_or_expires_is_ordered_again_before_the_job_is_given_up(rig: Rig) -> None:
    freeze(rig, "m2")
    for outcome in (OrderOutcome.FAILED, OrderOutcome.EXPIRED, OrderOutcome.LOST):
        assert rig.answer("m2", outcome).reason is Reason.NOTED
    assert rig.tick(5.1).reason is Reason.FENCE
    assert rig.answer("m2").reason is Reason.REBUILD


def test_a_late_answer_to_the_first_try_still_counts(rig: Rig) -> None:
    freeze(rig, "m2")
    assert rig.job.action is not None
    ((_, first),) = rig.job.action.fences
    rig.tick(5.1)
    late = OrderAnswer(rig.new_id(), rig.now_s, "m2", 0, first, OrderOutcome.DONE, "")
    assert rig.feed(late).reason is Reason.REBUILD


def test_reports_of_a_large_job_leave_the_memory_of_faults_alone(rig: Rig) -> None:
    rig.kill("m1")
    kept = rig.job.handled
    for number in range(300):
        rig.feed(PhaseDone(f"p{number}", rig.now_s, "m0", 1, RecoveryPhase.RENDEZVOUS, 41, 1))
    assert rig.job.handled == kept
    again = replace(rig.job)
    rig.feed(PhaseDone("p0", rig.now_s, "m0", 1, RecoveryPhase.RENDEZVOUS, 41, 1))
    assert rig.job == again


def test_a_fallback_succeeds_by_ends_and_not_by_words(rig: Rig) -> None:
    rig.change("s0", left=True, child_pid=0)
    rig.change("s1", left=True, child_pid=0)
    rig.kill("m1")
    assert rig.job.state is RepairState.FALLBACK
    for name in ("m0", "m1", "m2", "m3"):
        rig.answer(name)
    assert rig.job.action is not None
    for name in ("m0", "m2", "m3"):
        rig.change(name, child_pid=0)
    rig.tick()
    assert rig.job.action is None
