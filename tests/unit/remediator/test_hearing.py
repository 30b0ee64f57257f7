"""What waits unread in a topic: until it is read nothing is late, and nobody is missed."""

import math

import pytest

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import RecoveryPhase
from paceline.contracts.repair import ActionStatus, RepairState
from paceline.remediator.hearing import AWAY_S, LOOK_EVERY_S, Hearing
from paceline.remediator.model import Closed, ProcessStopped, Reason
from paceline.runtime.clock import ManualClock
from tests.unit.remediator.conftest import Rig


def kinds(rig: Rig) -> list[CommandKind]:
    return [order.kind for order in rig.sent]


def lag(rig: Rig, seconds: float) -> None:
    """Time goes on, and nothing of it is read."""
    rig.heard_s = rig.now_s
    rig.now_s += seconds


@pytest.mark.parametrize("seconds", [15.1, 100.0])
def test_no_rendezvous_is_late_before_its_results_are_read(rig: Rig, seconds: float) -> None:
    rig.kill("m1")
    lag(rig, seconds)
    assert rig.tick().effects == ()
    rig.finish()
    assert kinds(rig) == [CommandKind.REBUILD]
    assert rig.job.state is RepairState.RESUMED


def test_it_is_late_once_all_is_read_that_was_written_in_its_time(rig: Rig) -> None:
    rig.kill("m1")
    lag(rig, 100)
    assert rig.tick().effects == ()
    rig.heard_s += 15.1
    assert rig.tick().reason is Reason.REBUILD_AGAIN


def test_a_loss_that_only_the_registry_shows_waits_for_what_is_unread(rig: Rig) -> None:
    rig.kill("m1")
    rig.change("m2", child_pid=0, child_pid_start=0)
    lag(rig, 1.0)
    rig.tick()
    assert rig.tick(30).effects == ()
    rig.heard_s = rig.now_s
    assert rig.tick().reason is Reason.REBUILD, "nothing that was unread has said why"


def test_a_job_that_ended_while_nobody_read_is_neither_rebuilt_nor_given_up(rig: Rig) -> None:
    rig.kill("m1")
    names = [seat.member for seat in (rig.job.action.seats if rig.job.action else ())]
    for name in names:
        rig.phase(name, RecoveryPhase.RENDEZVOUS)
    ended = {name: rig.members[name] for name in names}
    for name in names:
        rig.change(name, child_pid=0, child_pid_start=0)
    lag(rig, 400)
    rig.tick()
    assert rig.tick(1).effects == ()
    for name in names:
        rig.members[name] = ended[name]
        rig.kill(name, 0)
    assert rig.job.over
    assert kinds(rig) == [CommandKind.REBUILD, CommandKind.RELEASE]


def test_who_has_finished_ends_the_rebuilding(rig: Rig) -> None:
    """Its peers end as well: their processes are gone before anybody has said with what status."""
    rig.kill("m1")
    rig.kill("m0", 0)
    rig.change("m2", child_pid=0, child_pid_start=0)
    rig.tick()
    assert rig.tick(10).effects == ()
    step = rig.tick(10)
    (over,) = [effect.action for effect in step.effects if isinstance(effect, Closed)]
    assert (over.status, over.reason) == (ActionStatus.FAILED, Reason.FINISHED_IN_ORDER)
    assert rig.job.failures == 0, "nothing has failed: its breaker counts repairs"
    assert kinds(rig) == [CommandKind.REBUILD]


def test_a_death_among_those_who_finish_builds_no_generation_without_them(rig: Rig) -> None:
    rig.kill("m1")
    rig.kill("m0", 0)
    assert rig.kill("m3").reason is Reason.FINISHED_IN_ORDER
    assert kinds(rig) == [CommandKind.REBUILD]


def test_a_stop_has_lasted_only_if_nothing_unread_can_end_it(rig: Rig) -> None:
    member = rig.members["m1"]
    rig.feed(ProcessStopped(rig.new_id(), rig.now_s, 1, member.child_pid, False))
    lag(rig, 10)
    assert rig.tick().effects == ()
    rig.feed(ProcessStopped(rig.new_id(), rig.now_s, 1, member.child_pid, True))
    rig.heard_s = math.inf
    rig.tick(10)
    assert rig.sent == []


def test_a_standby_is_missed_only_if_nothing_unread_can_bring_it(rig: Rig) -> None:
    rig.change("s0", ready=False)
    rig.change("s1", ready=False)
    rig.kill("m1")
    lag(rig, 40)
    assert rig.tick().effects == ()
    rig.change("s1", ready=True)
    assert rig.tick().reason is Reason.REBUILD


def test_a_kill_is_repaired_at_once_whatever_is_unread(rig: Rig) -> None:
    rig.heard_s = 0.0
    assert rig.kill("m1").reason is Reason.REBUILD


class Group:
    """A consumer of which everything is said here."""

    def __init__(self, clock: ManualClock) -> None:
        self.lag_s = 0.0
        self.answers = True
        self.asked = 0
        self._clock = clock

    async def handled_until(self) -> float | None:
        self.asked += 1
        return self._clock.unix_s() - self.lag_s if self.answers else None


class TestHearing:
    async def test_the_slowest_group_says_until_when(self) -> None:
        clock = ManualClock()
        groups = [Group(clock), Group(clock)]
        hearing = Hearing(groups, clock)
        clock.advance(100)
        groups[1].lag_s = 30
        await hearing.look(needed=True)
        assert hearing.heard_s == clock.unix_s() - 30

    async def test_after_an_absence_of_kafka_what_agents_have_kept_is_waited_for(self) -> None:
        clock = ManualClock()
        group = Group(clock)
        hearing = Hearing([group], clock)
        await hearing.look(needed=True)
        assert hearing.heard_s == 0.0, "nobody knows what was before this service"
        clock.advance(AWAY_S)
        await hearing.look(needed=True)
        known_s = hearing.heard_s
        assert known_s == clock.unix_s()
        group.answers = False
        clock.advance(50)
        await hearing.look(needed=True)
        group.answers = True
        for _ in range(2):
            clock.advance(AWAY_S / 2 - 0.1)
            await hearing.look(needed=True)
            assert hearing.heard_s == known_s
        clock.advance(1)
        await hearing.look(needed=True)
        assert hearing.heard_s == clock.unix_s()

    async def test_it_asks_seldom_while_nothing_is_due(self) -> None:
        clock = ManualClock()
        group = Group(clock)
        hearing = Hearing([group], clock)
        for _ in range(3):
            await hearing.look(needed=False)
        assert group.asked == 1
        clock.advance(LOOK_EVERY_S)
        await hearing.look(needed=False)
        await hearing.look(needed=True)
        assert group.asked == 3
