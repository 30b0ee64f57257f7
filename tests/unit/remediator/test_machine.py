"""The state machine of a job: what kills lead to, what is refused, what is given up."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Support, parse_members
from paceline.contracts.repair import ActionStatus, RepairCause, RepairKind, RepairMode, RepairState
from paceline.remediator.model import (
    Action,
    Capture,
    Closed,
    JobOver,
    Judged,
    LinkIncident,
    MemberError,
    NodeLost,
    OrderAnswer,
    Page,
    ProcessExit,
    ProcessStopped,
    Reason,
    Step,
)
from tests.unit.remediator.conftest import Rig, make_member

MakeRig = Callable[..., Rig]


def closed(step: Step) -> Action:
    (found,) = [effect.action for effect in step.effects if isinstance(effect, Closed)]
    return found


def judged(rig: Rig, cause: RepairCause | None, *ranks: int, **changes: object) -> Judged:
    event = Judged(rig.new_id(), rig.now_s, "inc_1", cause, False, ranks, (), "verdict", rig.now_s)
    return replace(event, **changes)  # type: ignore[arg-type]


def stopped(rig: Rig, name: str, *, resumed: bool = False) -> ProcessStopped:
    member = rig.members[name]
    return ProcessStopped(rig.new_id(), rig.now_s, member.rank, member.child_pid, resumed)


class TestDeath:
    def test_a_standby_takes_the_place_and_the_proof_is_a_step_of_everybody(self, rig: Rig) -> None:
        step = rig.kill("m1")
        assert step.reason is Reason.REBUILD
        (order,) = rig.sent
        assert (order.kind, order.generation, order.attempt_no) == (CommandKind.REBUILD, 1, 0)
        # s1 stands on a node of its own; s0 shares one with two members.
        assert [row.member for row in parse_members(order.arguments["members"])] == ["m0", "s1", "m2", "m3"]
        assert order.arguments["store"] == "m0:1"
        assert rig.job.state is RepairState.REBUILDING
        last = rig.finish()
        assert (last.reason, rig.job.state, rig.job.action) == (Reason.RESUMED, RepairState.RESUMED, None)
        assert closed(last).status is ActionStatus.SUCCEEDED
        assert (closed(last).step, closed(last).replayed) == (41, 1)

    def test_the_death_of_rank_0_moves_the_store_to_the_lowest_survivor(self, rig: Rig) -> None:
        rig.kill("m0")
        assert rig.sent[0].arguments["store"] == "m1:1"

    def test_what_proves_nothing_is_no_success(self, rig: Rig) -> None:
        rig.kill("m1")
        for name in ("m0", "s1", "m2", "m3"):
            rig.answer(name)
        assert rig.job.action is not None
        assert rig.job.action.status is ActionStatus.OBSERVING
        for name in ("m0", "s1", "m2"):
            rig.phase(name, RecoveryPhase.FIRST_STEP)
        assert rig.job.action is not None
        rig.phase("m3", RecoveryPhase.FIRST_STEP, generation=0)
        assert rig.job.action is not None

    def test_the_same_exit_again_and_the_exit_of_a_former_process_change_nothing(self, rig: Rig) -> None:
        member = rig.members["m1"]
        event = ProcessExit("x", rig.now_s, 1, "m1", member.child_pid, member.child_pid_start, -9)
        rig.change("m1", child_pid=0, child_pid_start=0)
        rig.feed(event)
        assert rig.feed(event).reason is Reason.DUPLICATE
        rig.finish()
        before = rig.job
        assert rig.feed(replace(event, id="y")).reason is Reason.UNKNOWN_MEMBER
        unnamed = replace(event, id="z", member="")
        assert rig.feed(unnamed).reason is Reason.OTHER_PROCESS
        assert len(rig.sent) == 1
        assert rig.job.generation == before.generation

    def test_exits_in_order_are_no_fault_and_old_ones_are_history(self, rig: Rig) -> None:
        assert rig.kill("m1", 0).reason is Reason.FINISHED_IN_ORDER
        assert rig.sent == []
        old = ProcessExit("old", rig.now_s - 500, 2, "", rig.members["m2"].child_pid, None, -9)
        assert rig.feed(old).reason is Reason.STALE
        assert rig.job.action is None

    def test_when_all_have_finished_the_standbys_are_let_go(self, rig: Rig) -> None:
        for name in ("m0", "m1", "m2", "m3"):
            rig.kill(name, 0)
        (order,) = rig.sent
        assert order.kind is CommandKind.RELEASE
        assert {"s0", "s1"} <= set(order.members)

    def test_a_job_that_is_cancelled_is_not_repaired(self, rig: Rig) -> None:
        rig.kill("m1", -15)
        rig.kill("m2", 143)
        assert rig.sent == []
        rig.feed(JobOver("over", rig.now_s, True, "told to stop"))
        rig.tick(60)
        assert rig.job.action is None
        assert [order.kind for order in rig.sent] == [CommandKind.RELEASE]

    def test_a_rank_that_alone_was_told_to_stop_is_replaced_after_a_while(self, rig: Rig) -> None:
        rig.kill("m1", -15)
        assert rig.tick(2.1).reason is Reason.REBUILD

    def test_an_error_on_several_is_software_and_no_machine_is_blamed(self, rig: Rig) -> None:
        rig.kill("m1", 1)
        step = rig.kill("m2", 1)
        rig.tick(1.0)
        assert [order.kind for order in rig.sent] == [CommandKind.FALLBACK]
        assert rig.sent[0].arguments["requeue"] == "0"
        assert step.job.action is not None
        assert step.job.action.cause is RepairCause.SOFTWARE

    def test_two_at_once_are_one_recovery(self, rig: Rig) -> None:
        rig.kill("m1")
        rig.kill("m2")
        assert [order.generation for order in rig.sent] == [1, 2]
        rows = parse_members(rig.sent[-1].arguments["members"])
        assert [row.member for row in rows] == ["m0", "s1", "s0", "m3"]
        assert closed(rig.finish()).status is ActionStatus.SUCCEEDED


class TestGivingUp:
    def test_no_standby_is_an_explicit_fallback(self, rig: Rig) -> None:
        rig.change("s0", left=True)
        rig.change("s1", left=True)
        step = rig.kill("m1")
        assert step.reason is Reason.NO_STANDBY
        assert any(isinstance(effect, Page) for effect in step.effects)
        assert rig.sent[0].arguments["requeue"] == "1"
        for name in ("m0", "m2", "m3"):
            rig.change(name, child_pid=0)
        done = rig.tick()
        assert closed(done).status is ActionStatus.SUCCEEDED  # the fallback has happened
        assert rig.job.state is RepairState.FALLBACK

    def test_what_comes_after_a_fallback_starts_nothing_and_its_incident_pages(self, rig: Rig) -> None:
        for name in ("s0", "s1"):
            rig.change(name, left=True)
        rig.kill("m1")
        rig.tick(60)
        step = rig.feed(judged(rig, RepairCause.PROCESS_EXIT, 1))
        assert [type(effect) for effect in step.effects] == [LinkIncident]
        assert rig.feed(judged(rig, RepairCause.FROZEN, 2, incident="inc_2")).reason is Reason.JOB_OVER
        assert rig.kill("m2").reason is Reason.JOB_OVER
        assert rig.job.action is None

    def test_a_standby_that_is_getting_ready_is_waited_for(self, rig: Rig) -> None:
        rig.change("s0", left=True)
        rig.change("s1", ready=False)
        rig.kill("m1")
        assert rig.job.state is RepairState.PREPARING
        rig.change("s1", ready=True)
        assert rig.tick(1).reason is Reason.REBUILD

    def test_a_standby_that_dies_during_the_swap_is_replaced_by_the_next(self, rig: Rig) -> None:
        rig.kill("m1")
        rig.change("s1", child_pid=0, child_pid_start=0)
        rig.tick()
        assert rig.tick(0.6).reason is Reason.REBUILD
        assert rig.sent[-1].generation == 2
        assert "s0" in rig.sent[-1].arguments["members"]
        rig.change("s0", left=True, child_pid=0)
        rig.tick()
        assert rig.tick(0.6).reason is Reason.NO_STANDBY
        assert closed(rig.tick(60)).status is ActionStatus.FAILED

    def test_a_member_that_finishes_during_a_swap_is_not_lost(self, rig: Rig) -> None:
        rig.kill("m1")
        rig.change("m3", left=True, child_pid=0, child_pid_start=0)
        rig.tick()
        member = make_member("m3", 3, "n1")
        rig.feed(ProcessExit("end", rig.now_s, 3, "m3", member.child_pid, member.child_pid_start, 0))
        rig.tick(5)
        assert [order.kind for order in rig.sent] == [CommandKind.REBUILD]

    def test_a_job_that_ends_before_the_proof_is_read_was_repaired_all_the_same(self, rig: Rig) -> None:
        rig.kill("m1")
        rig.feed(JobOver("over", rig.now_s, False, "finished"))
        assert closed(rig.finish()).status is ActionStatus.SUCCEEDED

    def test_a_state_that_nobody_has_any_more_is_not_tried_twice(self, rig: Rig) -> None:
        rig.kill("m1")
        step = rig.answer("m2", OrderOutcome.LOST, "no copy of shard 1")
        assert step.reason is Reason.STATE_LOST
        assert [order.kind for order in rig.sent] == [CommandKind.REBUILD, CommandKind.FALLBACK]

    def test_a_member_that_knows_a_newer_generation_gets_one_above_it(self, rig: Rig) -> None:
        rig.kill("m1")
        refusal = OrderAnswer("r", rig.now_s, "m2", 7, "cmd-1-0", OrderOutcome.REFUSED, "older than 7")
        assert rig.feed(refusal).reason is Reason.REBUILD
        assert rig.sent[-1].generation == 8

    def test_a_rendezvous_that_fails_is_tried_again_within_a_bound(self, rig: Rig) -> None:
        rig.kill("m1")
        rig.answer("m2", OrderOutcome.FAILED)
        rig.feed(failed(rig, "m3", "cmd-1-0"))  # of the same try: it starts no other
        assert [(o.generation, o.attempt_no) for o in rig.sent] == [(1, 0), (1, 1)]
        for _ in range(10):
            rig.tick(20)
        assert rig.sent[-1].kind is CommandKind.FALLBACK
        opened = [(o.generation, o.attempt_no) for o in rig.sent[:-1]]
        assert opened == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]

    def test_recoveries_without_a_new_step_end(self, make_rig: MakeRig) -> None:
        rig = make_rig(no_progress_max=2, per_hour_max=100)
        for number in range(4):
            victim = rig.job.seats[1].member if rig.job.seats else "m1"
            rig.members = {name: replace(m, step=40) for name, m in rig.members.items()}
            rig.members[f"t{number}"] = make_member(f"t{number}", -1, "n9")
            step = rig.kill(victim)
            if step.reason is Reason.NO_PROGRESS:
                assert rig.sent[-1].arguments["requeue"] == "0"
                return
            rig.finish()
        pytest.fail("it went on for ever")


def failed(rig: Rig, name: str, command: str) -> OrderAnswer:
    return OrderAnswer(rig.new_id(), rig.now_s, name, 1, command, OrderOutcome.FAILED, "")


class TestHangs:
    def test_only_the_frozen_process_is_killed_and_first(self, rig: Rig) -> None:
        rig.feed(stopped(rig, "m2"))
        assert rig.sent == []
        step = rig.tick(4.1)
        assert step.reason is Reason.FENCE
        (order,) = rig.sent
        assert (order.kind, order.members) == (CommandKind.FENCE, ("m2",))
        assert order.arguments["pid"] == str(rig.members["m2"].child_pid)
        assert order.arguments["pid_start"] == str(rig.members["m2"].child_pid_start)
        assert rig.kill("m2").reason is Reason.REBUILD

    def test_a_fence_that_is_answered_goes_on_and_one_that_is_not_gives_up(self, rig: Rig) -> None:
        rig.feed(stopped(rig, "m2"))
        rig.tick(4.1)
        other = replace(rig.job, action=rig.job.action)
        assert rig.answer("m2").reason is Reason.REBUILD
        rig.job, rig.sent = other, []
        assert rig.tick(5.1).reason is Reason.FENCE
        assert rig.sent[-1].attempt_no == 1
        assert rig.tick(5.1).reason is Reason.FENCE_FAILED

    def test_a_short_stop_changes_no_topology(self, rig: Rig) -> None:
        rig.feed(stopped(rig, "m2"))
        rig.now_s += 1.0
        step = rig.feed(stopped(rig, "m2", resumed=True))
        assert closed(step).reason is Reason.WENT_AWAY
        rig.tick(60)
        assert rig.sent == []

    def test_a_job_that_somebody_has_paused_is_left_alone(self, rig: Rig) -> None:
        for name in ("m0", "m1", "m2", "m3"):
            rig.feed(stopped(rig, name))
        rig.tick(60)
        assert rig.sent == []

    def test_evidence_comes_before_a_kill_within_a_bound(self, rig: Rig) -> None:
        rig.evidence_pending = True
        assert rig.feed(judged(rig, RepairCause.HARDWARE, 2)).job.state is RepairState.READY
        assert rig.sent == []
        assert rig.tick(3.1).reason is Reason.FENCE

    def test_a_hang_without_hardware_to_blame_is_retried_in_place(self, rig: Rig) -> None:
        rig.feed(judged(rig, RepairCause.HANG, 2))
        (order,) = rig.sent
        assert order.kind is CommandKind.RETRY
        assert [row.member for row in parse_members(order.arguments["members"])] == ["m0", "m1", "m2", "m3"]

    def test_software_gets_stacks_and_an_owner_and_never_a_swap(self, rig: Rig) -> None:
        event = judged(rig, RepairCause.SOFTWARE, 2)
        step = rig.feed(event)
        (capture,) = step.effects
        assert isinstance(capture, Capture)
        assert capture.action.kind is RepairKind.STACK_CAPTURE
        assert rig.feed(replace(event, id="later")).reason is Reason.DUPLICATE
        rig.tick(600)
        assert (rig.sent, rig.job.action) == ([], None)

    def test_what_decides_nothing_does_nothing(self, rig: Rig) -> None:
        assert rig.feed(judged(rig, None, 2)).reason is Reason.NOT_FOR_REPAIR

    def test_a_verdict_on_what_is_repaired_finds_its_action(self, rig: Rig) -> None:
        rig.kill("m1")
        late = judged(rig, RepairCause.PROCESS_EXIT, 1)
        step = rig.feed(late)
        assert [type(effect) for effect in step.effects] == [LinkIncident]
        rig.finish()
        step = rig.feed(replace(late, id="update"))
        assert step.reason is Reason.ALREADY_REPAIRED
        assert len(rig.sent) == 1


class TestTransients:
    def error(self, rig: Rig, name: str = "m2") -> Step:
        return rig.feed(MemberError(rig.new_id(), rig.now_s, name, rig.job.generation, "CUDA error"))

    def test_twice_in_place_and_the_third_time_it_is_permanent(self, rig: Rig) -> None:
        kinds = []
        for _ in range(3):
            self.error(rig)
            rig.tick(0.6)
            kinds.append(rig.sent[-1].kind)
            if kinds[-1] is CommandKind.RETRY:
                rig.finish()
                rig.members = {name: replace(m, step=m.step + 5) for name, m in rig.members.items()}
                rig.now_s += 100
        assert kinds == [CommandKind.RETRY, CommandKind.RETRY, CommandKind.FENCE]
        assert rig.sent[-1].members == ("m2",)

    def test_seldom_ones_stay_transient(self, rig: Rig) -> None:
        for _ in range(4):
            self.error(rig)
            rig.tick(0.6)
            assert rig.sent[-1].kind is CommandKind.RETRY
            rig.finish()
            rig.members = {name: replace(m, step=m.step + 5) for name, m in rig.members.items()}
            rig.now_s += 400

    def test_the_exit_of_a_peer_explains_an_error(self, rig: Rig) -> None:
        self.error(rig, "m0")
        step = rig.kill("m1")
        assert step.reason is Reason.REBUILD
        assert [order.kind for order in rig.sent] == [CommandKind.REBUILD]

    def test_errors_of_an_older_generation_are_echoes(self, rig: Rig) -> None:
        rig.kill("m1")
        rig.finish()
        echo = MemberError(rig.new_id(), rig.now_s, "m2", 0, "connection closed")
        assert rig.feed(echo).reason is Reason.OLD_GENERATION


class TestNodes:
    def test_a_silent_node_without_a_lease_needs_a_person(self, rig: Rig) -> None:
        step = rig.feed(NodeLost(rig.new_id(), rig.now_s, "n0"))
        assert step.job.action is not None
        assert step.job.action.reason is Reason.NOT_FENCED
        back = rig.feed(NodeLost(rig.new_id(), rig.now_s, "n0", back=True))
        assert closed(back).reason is Reason.WENT_AWAY
        assert rig.sent == []

    def test_with_a_lease_its_end_is_the_fence(self, rig: Rig) -> None:
        for name in ("m0", "m1"):
            rig.change(name, lease_s=5.0)
        rig.feed(NodeLost(rig.new_id(), rig.now_s, "n0"))
        assert rig.job.state is RepairState.FENCING
        rig.tick(4.0)
        assert rig.sent == []
        assert rig.tick(1.1).reason is Reason.REBUILD


class TestGuards:
    @pytest.mark.parametrize(
        ("mode", "reason"),
        [(RepairMode.OBSERVE, Reason.OBSERVED_ONLY), (RepairMode.APPROVE, Reason.NEEDS_APPROVAL)],
    )
    def test_modes(self, make_rig: MakeRig, mode: RepairMode, reason: Reason) -> None:
        rig = make_rig(mode)
        rig.kill("m1")
        assert rig.job.action is not None
        assert rig.job.action.reason is reason
        assert rig.sent == []
        assert closed(rig.tick(901)).status is ActionStatus.EXPIRED

    def test_an_approval_is_carried_out_and_a_rejection_is_not(self, make_rig: MakeRig) -> None:
        for status, kinds in ((ActionStatus.APPROVED, [CommandKind.REBUILD]), (ActionStatus.REJECTED, [])):
            rig = make_rig(RepairMode.APPROVE)
            rig.kill("m1")
            assert rig.job.action is not None
            rig.job = replace(rig.job, action=replace(rig.job.action, status=status))
            rig.tick()
            assert [order.kind for order in rig.sent] == kinds

    def test_the_stop_switch_holds_whatever_was_approved(self, make_rig: MakeRig) -> None:
        rig = make_rig(RepairMode.APPROVE)
        rig.policy = replace(rig.policy, stopped=True)
        rig.kill("m1")
        assert rig.job.action is not None
        rig.job = replace(rig.job, action=replace(rig.job.action, status=ActionStatus.APPROVED))
        rig.tick()
        assert rig.sent == []
        rig.policy = replace(rig.policy, stopped=False)
        assert rig.tick().reason is Reason.REBUILD

    def test_blast_radius(self, make_rig: MakeRig) -> None:
        rig = make_rig(ranks_max=1)
        for name in ("m0", "m1"):
            rig.change(name, lease_s=1.0)
        rig.feed(NodeLost(rig.new_id(), rig.now_s, "n0"))
        assert rig.job.action is not None
        assert rig.job.action.reason is Reason.BLAST_RADIUS

    def test_rate_limit_and_circuit_breaker(self, rig: Rig) -> None:
        rig.job = replace(rig.job, acted=(rig.now_s - 5,) * 6)
        rig.kill("m1")
        assert rig.job.action is not None
        assert rig.job.action.reason is Reason.RATE_LIMIT
        rig.job = replace(rig.job, acted=(), failures=3, failed_s=rig.now_s)
        action = rig.tick().job.action
        assert action is not None
        assert action.reason is Reason.CIRCUIT_BREAKER
        assert rig.sent == []

    @pytest.mark.parametrize(
        ("support", "reason"),
        [
            (Support.EXPERIMENTAL, Reason.NOT_VERIFIED),
            (Support.REFUSED, Reason.REFUSED_LAYOUT),
        ],
    )
    def test_what_was_never_tried_is_not_done_alone(self, rig: Rig, support: Support, reason: Reason) -> None:
        rig.change("m3", support=support)
        rig.kill("m1")
        assert rig.job.action is not None
        assert rig.job.action.reason is reason
