"""What the registry's silence means: a connection that has ended is no death."""

from paceline.contracts.commands import CommandKind
from paceline.contracts.repair import RepairState
from paceline.remediator.model import ProcessStopped, Reason
from tests.unit.remediator.conftest import Rig, make_member


def stop(rig: Rig, name: str) -> None:
    member = rig.members[name]
    rig.feed(ProcessStopped(rig.new_id(), rig.now_s, member.rank, member.child_pid, False))


def kinds(rig: Rig) -> list[CommandKind]:
    return [order.kind for order in rig.sent]


def test_a_member_whose_connection_ends_during_a_rebuild_is_fenced_before_it_is_replaced(rig: Rig) -> None:
    rig.kill("m1")
    rig.change("m2", left=True)
    rig.tick()
    rig.tick(0.6)
    assert kinds(rig) == [CommandKind.REBUILD]
    assert rig.tick(6).reason is Reason.FENCE
    assert rig.sent[-1].members == ("m2",)
    assert rig.answer("m2").reason is Reason.REBUILD
    assert "m2" not in rig.sent[-1].arguments["members"]


def test_a_member_that_comes_back_in_time_is_kept(rig: Rig) -> None:
    rig.kill("m1")
    for _ in range(2):
        rig.change("m2", left=True)
        rig.tick()
        rig.tick(5)
        rig.change("m2", left=False)
        rig.tick(0.2)
    assert kinds(rig) == [CommandKind.REBUILD]
    assert rig.job.state is RepairState.REBUILDING


def test_a_member_without_a_connection_is_waited_for_before_a_recovery_begins(rig: Rig) -> None:
    rig.change("m2", left=True)
    rig.kill("m1")
    assert rig.tick().reason is Reason.WAIT_SETTLED
    rig.tick(3)
    rig.change("m2", left=False)
    rig.tick(0.2)
    assert "m2" in rig.sent[-1].arguments["members"]


def test_the_third_freeze_of_a_job_is_not_taken_for_a_pause(rig: Rig) -> None:
    for number, name in enumerate(("m1", "m2", "m3")):
        rig.members[f"t{number}"] = make_member(f"t{number}", -1, f"n{7 + number}")
        stop(rig, name)
        assert rig.tick(4.1).reason is Reason.FENCE, name
        rig.kill(name)
        rig.finish()
        rig.members = {
            each: member
            if member.rank < 0
            else make_member(
                each, member.rank, member.node, step=member.step + 5, generation=member.generation
            )
            for each, member in rig.members.items()
        }
        rig.change(name, rank=-1, child_pid=7000 + number, child_pid_start=number + 1)
        rig.now_s += 60


def test_a_member_that_freezes_during_a_recovery_is_replaced_when_it_does_not_come(rig: Rig) -> None:
    rig.kill("m1")
    stop(rig, "m2")
    assert rig.tick(15.1).reason is Reason.FENCE
    assert rig.sent[-1].members == ("m2",)
    assert rig.answer("m2").reason is Reason.REBUILD
    assert rig.sent[-1].generation == 2
    assert "m2" not in rig.sent[-1].arguments["members"]
