"""Only the node of a member speaks for it."""

from paceline.contracts.recovery import OrderOutcome, RecoveryPhase
from paceline.remediator.model import OrderAnswer, PhaseDone, ProcessExit, ProcessStopped, Reason
from tests.unit.remediator.conftest import Rig


def test_words_of_another_node_are_not_believed(rig: Rig) -> None:
    member = rig.members["m1"]
    for name in ("m1", ""):
        event = ProcessExit(
            rig.new_id(), rig.now_s, 1, name, member.child_pid, member.child_pid_start, -9, "n9"
        )
        assert rig.feed(event).reason is Reason.FOREIGN
    stop = ProcessStopped(rig.new_id(), rig.now_s, 1, member.child_pid, False, "n9")
    assert rig.feed(stop).reason is Reason.FOREIGN
    rig.kill("m1")
    for name in ("m0", "s1", "m2", "m3"):
        step = PhaseDone(rig.new_id(), rig.now_s, name, 1, RecoveryPhase.FIRST_STEP, 41, 1, "n9")
        assert rig.feed(step).reason is Reason.FOREIGN
    answer = OrderAnswer(rig.new_id(), rig.now_s, "x9", 1 << 40, "c", OrderOutcome.REFUSED, "", "n9")
    assert rig.feed(answer).reason is Reason.UNKNOWN_MEMBER
    assert [order.generation for order in rig.sent] == [1]
