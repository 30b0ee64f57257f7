"""A report belongs to one try of a generation."""

from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.contracts.repair import ActionStatus, RepairState
from paceline.remediator.model import OrderAnswer, Reason
from tests.unit.remediator.conftest import Rig


def test_reports_of_an_older_try_do_not_count_for_the_newer_one(rig: Rig) -> None:
    rig.kill("m1")
    rig.answer("m2", OrderOutcome.FAILED)
    assert rig.job.action is not None
    assert rig.job.action.attempt_no == 1
    names = [seat.member for seat in rig.job.action.seats]
    for name in names:  # they had met and made a step before the second try
        assert rig.phase(name, RecoveryPhase.FIRST_STEP, attempt_no=0).reason is Reason.OLD_GENERATION
    done = OrderAnswer(rig.new_id(), rig.now_s, "m0", 1, "cmd-1-0", OrderOutcome.DONE, "")
    assert rig.feed(done).reason is Reason.OLD_GENERATION
    assert (rig.job.state, rig.job.action.status) == (RepairState.REBUILDING, ActionStatus.DISPATCHED)
    for name in names:
        rig.phase(name, RecoveryPhase.FIRST_STEP, attempt_no=1)
    assert rig.job.state is RepairState.RESUMED


def test_who_does_not_say_the_try_is_believed_as_before(rig: Rig) -> None:
    rig.kill("m1")
    rig.answer("m2", OrderOutcome.FAILED)
    rig.finish()
    assert rig.job.state is RepairState.RESUMED
