"""What keeps a wait from being a stall: phases, warm-up, ends of jobs, people at work."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.analysis.detection import DecisionKind, DetectionPolicy, Gate, Reason, StallPolicy
from paceline.contracts.codes import ExitKind, FrameFlag, Function, HostWait, Phase, ProcessState

STALLED, CLEAR, ENDED = DecisionKind.STALLED, DecisionKind.CLEAR, DecisionKind.ENDED


def stalls(decisions: Any) -> Any:
    return [decision for decision in decisions if decision.kind is STALLED]


class TestMustBeShown:
    def test_ten_healthy_minutes_with_declared_pauses(self, fake_job: Any, watch: Any) -> None:
        job = fake_job(comms={7: range(8), 9: [0, 1, 2, 3], 11: [4, 5, 6, 7]})
        for process in job.process.values():
            process.step = 0
        seen = watch(job, healthy=2)
        job.hang(7, missing=[5])  # first step: rank 5 compiles for 45 s, undeclared
        assert seen.idle(45) == []
        job.release(7)
        for process in job.process.values():
            process.step = 1
        seen.healthy(180)
        for phase, rank in ((Phase.CHECKPOINT, 2), (Phase.EVALUATE, 0)):
            job.process[rank].phase = phase
            job.hang(7, missing=[rank])
            seen.idle(40)
            job.process[rank].phase = Phase.TRAIN
            seen.idle(1)  # a sample between the end of the phase and the next round
            job.release(7)
            seen.healthy(150)
        assert seen.decisions == []

    def test_undeclared_pause_is_one_stall_that_resolves_by_itself(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job, healthy=30)
        job.hang(7, missing=[3])
        seen.idle(40)
        job.release(7)
        seen.healthy(60)
        assert {decision.round for decision in seen.decisions} == {seen.decisions[0].round}
        assert seen.kinds().count(CLEAR) == 1
        assert seen.kinds()[-1] is CLEAR


class TestPhases:
    @pytest.mark.parametrize(
        "phase", [Phase.INIT, Phase.COMPILE, Phase.CHECKPOINT, Phase.EVALUATE, Phase.DATA, Phase.FINISH]
    )
    def test_any_declared_phase_gates_every_communicator(self, fake_job: Any, watch: Any, phase: Any) -> None:
        job = fake_job(comms={7: range(8), 9: [4, 5]})
        seen = watch(job)
        job.process[0].phase = phase
        job.hang(9, missing=[5])
        assert seen.idle(60) == []
        assert seen.block.gate.gate is Gate.PHASE

    def test_phase_has_a_limit_of_its_own(self, fake_job: Any, watch: Any) -> None:
        limits = {**StallPolicy().phase_limit_s, Phase.CHECKPOINT: 30.0}
        job = fake_job()
        seen = watch(job, DetectionPolicy(stall=StallPolicy(phase_limit_s=limits)))
        job.process[3].phase = Phase.CHECKPOINT
        job.hang(7, missing=[3])
        assert seen.idle(29) == []
        assert stalls(seen.idle(3))[0].reason is Reason.PHASE_LIMIT

    def test_wait_begun_under_a_phase_is_timed_from_its_end(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[3].phase = Phase.CHECKPOINT
        job.hang(7, missing=[3])
        seen.idle(40)
        job.process[3].phase = Phase.TRAIN
        assert seen.idle(4) == []
        assert stalls(seen.idle(3))

    def test_dead_member_is_a_stall_in_any_phase(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[0].phase = Phase.CHECKPOINT
        job.process[3].exit_kind, job.process[3].exit_code = ExitKind.SIGNAL, -9
        job.hang(7, missing=[3])
        assert stalls(seen.idle(5))[0].reason is Reason.MEMBER_DEAD

    def test_process_that_is_back_in_the_same_attempt_ends_the_episode(
        self, fake_job: Any, watch: Any
    ) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[3].exit_kind, job.process[3].exit_code = ExitKind.SIGNAL, -9
        assert stalls(seen.idle(5))
        job.process[3].exit_kind, job.process[3].exit_code = ExitKind.NONE, 0
        seen.decisions.clear()
        seen.healthy(1)
        assert seen.kinds() == []  # once is not yet back
        seen.healthy(3)
        assert seen.kinds() == [DecisionKind.CLEAR]

    def test_unknown_phase_counts_as_training(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[0].phase = Phase.UNKNOWN
        job.hang(7, missing=[3])
        assert stalls(seen.idle(8))


class TestWarmup:
    def make(self, fake_job: Any, watch: Any) -> Any:
        job = fake_job()
        for process in job.process.values():
            process.step = 0
        return job, watch(job, healthy=2)

    def test_first_step_may_take_two_minutes_and_no_more(self, fake_job: Any, watch: Any) -> None:
        job, seen = self.make(fake_job, watch)
        job.hang(7, missing=[3])
        assert seen.idle(118) == []
        assert stalls(seen.idle(5))[0].reason is Reason.WARMUP_LIMIT

    def test_ranks_well_past_the_first_step_end_the_warmup(self, fake_job: Any, watch: Any) -> None:
        job, seen = self.make(fake_job, watch)
        for rank in range(1, 8):
            job.process[rank].step = 3
        job.run(1.0)
        job.hang(7, missing=[0])
        assert stalls(seen.idle(8))

    def test_rounds_again_and_again_end_the_warmup_of_a_job_without_steps(
        self, fake_job: Any, watch: Any
    ) -> None:
        """As NCCL's plugin alone shows a job that hangs half a minute after its start."""
        job, seen = self.fresh(fake_job, watch)
        seen.healthy(25)
        job.hang(7, missing=[3])
        found = stalls(seen.idle(8))
        assert found[0].reason is Reason.NO_PROGRESS

    @pytest.mark.parametrize("change", ["few rounds", "one burst", "broadcasts"])
    def test_setup_is_no_evidence_of_training(self, fake_job: Any, watch: Any, change: str) -> None:
        job, seen = self.fresh(fake_job, watch)
        if change == "broadcasts":
            job.function = Function.BROADCAST
            seen.healthy(25)
        elif change == "one burst":
            job.run(1.0, rounds=500)
            seen.idle(25)
        else:
            job.run(1.0, rounds=19)
            seen.tick()
        job.hang(7, missing=[3])
        assert seen.idle(60) == []

    def test_messages_alone_end_it_after_a_minute(self, fake_job: Any, watch: Any) -> None:
        job, seen = self.fresh(fake_job, watch)
        for _ in range(62):
            for member in job.member.values():
                member.send_count += 1
            job.run(1.0, rounds=0)
            seen.tick()
        for rank in (2, 3):
            job.peers[7, rank] = [(5 - rank, 0, job.now_s)]
        assert stalls(seen.idle(8))

    def test_a_detector_that_comes_late_sees_that_the_setup_is_long_past(
        self, fake_job: Any, watch: Any
    ) -> None:
        job, seen = self.fresh(fake_job, watch)
        for member in job.member.values():
            member.entered = member.completed = 50_000
        job.hang(7, missing=[3])
        assert stalls(seen.idle(8))

    def fresh(self, fake_job: Any, watch: Any) -> Any:
        """Nobody counts steps, and no round was called yet."""
        job = fake_job()
        for process in job.process.values():
            process.step = 0
        for member in job.member.values():
            member.entered = member.completed = 0
        return job, watch(job, healthy=0)

    def test_stepless_job_is_warm_after_a_minute_of_rounds(self, fake_job: Any, watch: Any) -> None:
        job, seen = self.make(fake_job, watch)
        seen.healthy(62)
        job.hang(7, missing=[3])
        assert stalls(seen.idle(8))


class TestProcesses:
    def test_killed_member_shortens_the_floor(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[3].exit_kind, job.process[3].exit_code = ExitKind.SIGNAL, -9
        job.hang(7, missing=[3])
        found = stalls(seen.idle(3))
        assert found[0].reason is Reason.MEMBER_DEAD

    @pytest.mark.parametrize(
        "change", [{"state": ProcessState.STOPPED}, {"native_age_ms": 3500}], ids=["stopped", "no heartbeat"]
    )
    def test_frozen_member_shortens_the_floor(self, fake_job: Any, watch: Any, change: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[3] = replace(job.process[3], **change)
        job.hang(7)  # the frozen rank is inside the operation, too
        assert stalls(seen.idle(3))[0].reason is Reason.MEMBER_FROZEN

    def test_death_nobody_waits_for_is_a_stall(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        for process in job.process.values():  # peers fail at once and end in error, too
            process.exit_kind, process.exit_code = ExitKind.ERROR, 1
        job.process[3].exit_kind, job.process[3].exit_code = ExitKind.SIGNAL, -9
        assert stalls(seen.idle(4))[0].reason is Reason.PROCESS_DEAD
        assert ENDED not in seen.kinds()

    def test_suspended_job_is_no_stall_and_neither_is_its_return(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.hang(7, missing=[3])
        for process in job.process.values():
            process.state = ProcessState.STOPPED
        assert seen.idle(60) == []
        for rank in range(4):
            job.process[rank].state = ProcessState.SLEEPING
        seen.idle(1)  # half of the samples still say stopped
        for process in job.process.values():
            process.state = ProcessState.SLEEPING
        job.release(7)
        seen.healthy(5)
        assert seen.decisions == []

    def test_traced_process_is_no_stall(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[3].state = ProcessState.TRACED
        job.hang(7, missing=[3])
        assert seen.idle(120) == []

    def test_host_wait_beyond_the_backstop(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[0].host_wait, job.process[0].host_wait_age_ms = HostWait.STORE, 299_000
        assert seen.tick() == []
        job.process[0].host_wait_age_ms = 301_000
        assert stalls(seen.tick())[0].reason is Reason.HOST_WAIT
        job.process[0].host_wait = HostWait.NONE
        assert [decision.kind for decision in seen.tick()] == [CLEAR]


class TestEnds:
    def test_ragged_end_is_no_stall(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.process[0].finished, job.process[0].exit_kind = True, ExitKind.CLEAN
        job.hang(7, missing=[0])
        assert stalls(seen.idle(60)) == []

    @pytest.mark.parametrize("code", [-15, -2, 143, 130, 0])
    def test_cancelled_job_ends_without_a_stall(self, fake_job: Any, watch: Any, code: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.hang(7, missing=[1, 2, 3, 4, 5])
        for rank in (1, 2, 3, 4, 5):  # the others hang in their handlers for some seconds
            job.process[rank].exit_kind, job.process[rank].exit_code = ExitKind.SIGNAL, code
        seen.idle(8)
        for process in job.process.values():
            process.exit_kind, process.exit_code = ExitKind.SIGNAL, code
        seen.idle(8)
        assert seen.kinds() == [ENDED]

    def test_orderly_end_forgets_the_job(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        for process in job.process.values():
            process.finished, process.exit_kind = True, ExitKind.CLEAN
        seen.idle(7)
        assert seen.kinds() == [ENDED]
        assert seen.decisions[0].reason is Reason.JOB_ENDED

    def test_end_in_a_stall_clears_it(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.hang(7, missing=[3])
        assert stalls(seen.idle(8))
        for process in job.process.values():
            process.exit_kind, process.exit_code = ExitKind.SIGNAL, -15
        seen.idle(8)
        assert seen.kinds()[-2:] == [CLEAR, ENDED]


class TestProgress:
    def test_run_ahead_is_no_progress(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.hang(7, missing=[3])
        found = []
        for _ in range(8):
            for rank in (0, 1):
                job.member[7, rank].entered += 5
            found += seen.idle(1)
        assert stalls(found)

    def test_slices_on_the_way_are_progress(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.hang(7)
        found = []
        for _ in range(60):
            job.member[7, 2].send_count += 1
            found += seen.idle(1)
        assert found == []

    def test_backstop_needs_no_stillness(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.hang(7, missing=[3])
        found = []
        for _ in range(302):
            job.member[7, 3].completed += 1
            found += seen.idle(1)
        assert stalls(found)[0].reason is Reason.BACKSTOP
        assert len(found) < 4

    def test_closed_communicator_has_no_head(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.hang(7, missing=[3])
        for rank in range(8):
            job.member[7, rank].flags = FrameFlag.CLOSED
        assert seen.idle(60) == []

    def test_point_to_point_wait(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.peers[7, 2] = [(3, 1, job.now_s)]
        found = seen.idle(8)
        assert (found[0].reason, found[0].round) == (Reason.P2P_NO_PROGRESS, 0)
        job.peers.clear()
        seen.healthy(4)
        assert seen.kinds()[-1] is CLEAR

    def test_server_that_receives_from_anybody_may_wait(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.peers[7, 0] = [(-2, 1, job.now_s)]
        assert seen.idle(120) == []

    def test_waits_that_are_usual_raise_the_limit(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        for _ in range(20):
            job.record_round(7, [8.0] * 3 + [0.01] + [8.0] * 4)
            seen.idle(1)
        job.hang(7, missing=[3])
        assert seen.idle(22) == []
        assert stalls(seen.idle(5))[0].reason is Reason.LEARNED_LIMIT


class TestRendezvous:
    def test_rank_that_never_arrives_is_a_stall_of_the_warm_up(self, fake_job: Any, watch: Any) -> None:
        """Also where the script declares the phase `init`, which is no reason to wait for ever."""
        job = fake_job()
        for rank, process in job.process.items():
            process.step, process.phase = 0, Phase.INIT
            if rank != 3:
                process.host_wait, process.host_wait_age_ms = HostWait.BOOTSTRAP, 118_000
        seen = watch(job)
        assert stalls(seen.idle(1)) == []
        for process in job.process.values():
            process.host_wait_age_ms = 121_000 if process.host_wait else 0
        assert [decision.reason for decision in stalls(seen.idle(2))][:1] == [Reason.HOST_WAIT]
