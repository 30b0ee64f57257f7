"""A job's id is used again: who belongs to which run."""

from dataclasses import replace

from paceline.contracts.repair import ActionStatus, RepairState
from paceline.remediator.model import (
    NOT_COUNTED,
    Closed,
    JobOver,
    JobRepair,
    Member,
    MemberError,
    NodeLost,
    Policies,
    Reason,
    Seat,
)
from paceline.remediator.moves import RECONNECT_S
from paceline.remediator.runs import SILENT_S, Counted, count_in
from tests.unit.remediator.conftest import NOW, Rig, make_member


def new_member(name: str, rank: int, told_s: float = NOW, **changes: object) -> Member:
    return make_member(
        name, rank, "n7", run=NOT_COUNTED, registered_s=NOW, told_s=told_s, heard_s=told_s, **changes
    )


def meet(rig: Rig, *new: Member) -> Counted:
    members = [*rig.members.values(), *new]
    return count_in(rig.job, members, {each.member for each in members}, rig.world().policies, rig.now_s)


def end_all(rig: Rig) -> None:
    for name in rig.members:
        rig.change(name, child_pid=0, child_pid_start=0, left=True)


def test_the_next_run_begins_when_nobody_of_the_known_one_is_left(rig: Rig) -> None:
    rig.kill("m1")
    rig.finish()
    assert (rig.job.generation, len(rig.job.seats)) == (1, 4)
    assert meet(rig, new_member("x1", 1)).names == ()  # somebody has its rank, and lives
    end_all(rig)
    found = meet(rig, new_member("x1", 1))
    assert (found.names, found.job.run, found.job.seats) == (("x1",), 1, ())
    assert (found.job.generation, found.job.floor) == (1, 1)
    assert [each.member for each in found.members] == ["x1"]
    rig.job, rig.members = found.job, {"x1": replace(new_member("x1", 1), run=1)}
    assert meet(rig, new_member("x0", 0)).names == ("x0",)
    assert meet(rig, new_member("x0", 0)).job is rig.job


def test_ranks_of_a_run_that_register_one_after_another_are_one_run(rig: Rig) -> None:
    job, members = JobRepair("train", "a1"), []
    for rank in range(4):
        members.append(new_member(f"x{rank}", rank))
        names = {each.member for each in members}
        found = count_in(job, members, names, Policies(), NOW)
        assert (found.names, found.job) == ((f"x{rank}",), job)
        members = [replace(each, run=0) for each in members]


def test_after_the_end_of_the_job_or_a_fallback_nobody_is_waited_for(rig: Rig) -> None:
    for ended in (replace(rig.job, over=True), replace(rig.job, state=RepairState.FALLBACK)):
        rig.job = ended
        found = meet(rig, new_member("x1", 1))
        assert (found.job.run, found.job.over, found.job.state) == (1, False, RepairState.HEALTHY)
        assert sorted(found.names) == ["s0", "s1", "x1"]  # standbys that live serve the next run


def test_a_node_that_is_lost_holds_up_the_next_run_for_some_repeats_only(rig: Rig) -> None:
    end_all(rig)
    rig.change("m2", child_pid=5, left=False, told_s=NOW - 50)  # its agent is gone: nobody says its end
    assert meet(rig, new_member("x1", 1, NOW + SILENT_S - 1)).names == ()
    assert meet(rig, new_member("x1", 1, NOW + SILENT_S)).job.run == 1
    rig.change("m2", told_s=NOW + SILENT_S - 10)  # it is heard of: it lives
    assert meet(rig, new_member("x1", 1, NOW + SILENT_S)).names == ()


def test_a_connection_that_ends_begins_no_run_before_it_may_have_come_back(rig: Rig) -> None:
    for name in rig.members:
        rig.change(name, left=True, heard_s=NOW)
    rig.now_s = NOW + RECONNECT_S - 1
    assert meet(rig, new_member("x1", 1)).names == ()
    rig.now_s = NOW + RECONNECT_S
    assert meet(rig, new_member("x1", 1)).job.run == 1


def test_late_words_of_the_old_run_take_no_seat_and_end_nothing(rig: Rig) -> None:
    rig.job = replace(rig.job, run=1, began_s=NOW - 10, resumed_s=NOW - 10)
    for name in rig.members:
        rig.change(name, run=1)
    old = [
        new_member("o1", 1, generation=3),
        new_member("o2", 2),
        new_member("o3", 3, left=True),
        new_member("o4", 0, child_pid=0),
        new_member("o5", 5, world_size=8),  # of a job of another size
    ]
    rig.change("m0", world_size=4)
    found = meet(rig, *old)
    assert (found.names, found.job) == ((), rig.job)
    assert [each.member for each in found.members] == sorted(rig.members)
    assert rig.feed(JobOver("over", NOW - 11, True, "")).reason is Reason.STALE
    assert rig.feed(NodeLost("lost", NOW - 11, "n0")).reason is Reason.STALE
    assert not rig.job.over
    assert rig.kill("m1").reason is Reason.REBUILD


def test_what_the_old_run_left_open_is_closed_and_counts(rig: Rig) -> None:
    rig.kill("m1")
    assert rig.job.state is RepairState.REBUILDING
    end_all(rig)
    found = meet(rig, new_member("x1", 1))
    (closed,) = found.effects
    assert isinstance(closed, Closed)
    assert (closed.action.status, closed.action.reason) == (ActionStatus.FAILED, Reason.NEW_RUN)
    assert (found.job.action, found.job.failures, len(found.job.acted)) == (None, 1, 1)


def test_an_error_of_a_run_that_has_opened_no_generation_is_retried(rig: Rig) -> None:
    rig.job = replace(rig.job, run=1, generation=3, floor=3)
    rig.feed(MemberError("e1", rig.now_s, "m1", 0, "timed out"))
    assert rig.tick(1.0).reason is Reason.REBUILD
    assert rig.job.generation == 4
    assert rig.feed(MemberError("e2", rig.now_s, "m1", 0, "late")).reason is Reason.OLD_GENERATION


def test_standbys_alone_begin_no_run(rig: Rig) -> None:
    end_all(rig)
    rig.job = replace(rig.job, seats=(Seat(0, "m0", 1, 1),))
    found = meet(rig, new_member("s9", -1))
    assert (found.names, found.job) == (("s9",), rig.job)
