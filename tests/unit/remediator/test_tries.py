"""A report belongs to one try of a generation."""

from dataclasses import replace

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.contracts.repair import ActionStatus, RepairState
from paceline.remediator.model import MemberError, OrderAnswer, Reason
from paceline.remediator.planning import current_seats
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


def error(rig: Rig, name: str, generation: int) -> None:
    rig.feed(MemberError(rig.new_id(), rig.now_s, name, generation, "CUDA error"))


def meet(rig: Rig) -> list[str]:
    assert rig.job.action is not None
    names = [seat.member for seat in rig.job.action.seats]
    for name in names:
        rig.phase(name, RecoveryPhase.RENDEZVOUS, attempt_no=rig.job.action.attempt_no)
    return names


def test_an_error_before_the_first_step_begins_the_next_try_at_once_within_the_bound(rig: Rig) -> None:
    rig.kill("m1")
    tries: list[tuple[int, int]] = []
    states = []
    for _ in range(6):
        names = meet(rig)
        for name in names:  # of one cause, all of them
            error(rig, name, rig.job.generation)
        rig.tick(0.6)
        assert rig.job.action is not None
        tries.append((rig.job.generation, rig.job.action.attempt_no))
        for name in names:  # what is said of the try before ends not the next one
            error(rig, name, tries[-1][0])
        assert rig.tick(0.6).effects == ()
        states.append(rig.job.state)
    assert tries[:5] == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert states == [RepairState.REBUILDING] * 5 + [RepairState.FALLBACK]
    assert rig.steps[-1].job.action is not None
    assert rig.steps[-1].job.action.reason is Reason.REBUILDS_EXHAUSTED


def test_the_exit_of_a_peer_explains_an_error_before_the_first_step(rig: Rig) -> None:
    rig.kill("m1")
    meet(rig)
    error(rig, "m0", 1)
    rig.now_s += 0.3
    assert rig.kill("m2").reason is Reason.REBUILD
    rig.tick(1)
    assert [(order.kind, order.generation, order.attempt_no) for order in rig.sent] == [
        (CommandKind.REBUILD, 1, 0), (CommandKind.REBUILD, 2, 0),
    ]  # fmt: skip


def test_who_lives_in_a_newer_generation_than_the_row_has_the_seat(rig: Rig) -> None:
    rig.kill("m1")
    rig.finish()
    before = current_seats(rig.job, rig.world().members)
    assert [seat.member for seat in before] == ["m0", "s1", "m2", "m3"]
    # Somebody else has led the job meanwhile, or the table was restored from a copy.
    rig.members["x1"] = replace(
        rig.members["s1"], member="x1", generation=2, child_pid=55, child_pid_start=56
    )
    rig.change("s1", child_pid=0, child_pid_start=0)
    after = current_seats(rig.job, rig.world().members)
    assert [seat.member for seat in after] == ["m0", "x1", "m2", "m3"]
    rig.change("x1", left=True)
    assert current_seats(rig.job, rig.world().members) == before, "who has left claims nothing"
    rig.change("x1", left=False)
    assert rig.kill("x1").reason is Reason.REBUILD
    assert rig.sent[-1].generation == 3
