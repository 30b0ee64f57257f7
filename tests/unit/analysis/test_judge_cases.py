"""Single situations: ends of jobs, deaths, host waits, phases, hardware, counts, stale and hostile rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.analysis import BundleError, JudgePolicy, build_evidence, dump_bundle, load_bundle
from paceline.analysis.health_bound import fresh_health
from paceline.analysis.judge import explain, judge
from paceline.contracts.batch import ROW_DTYPES, Batch, BatchKind, RowKind, Rows
from paceline.contracts.codes import ExitKind, HostWait, Phase, ProcessState
from paceline.contracts.registry import HealthEvent, HealthKind, JobState
from paceline.contracts.verdicts import ActionKind, Owner, RootKind, SubReason, VerdictClass
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import ATTEMPT, JOB, Shape, SimulatedJob

SHAPE = Shape(4, 2, 1)


def hung(seed: int = 3) -> tuple[SimulatedJob, int]:
    injection = inject("h1", SimulatedJob(SHAPE, seed))
    return injection.job, injection.ranks[0]


def health(kind: HealthKind, **fields: object) -> HealthEvent:
    plain = {"id": "e", "node": "node0", "job": JOB, "attempt": ATTEMPT, "rank": None, "pid": None}
    return HealthEvent(kind=kind, at_unix_s=0.0, **{**plain, **fields})  # type: ignore[arg-type]


class TestNoIncident:
    def reason(self, job: SimulatedJob) -> str:
        judgement = explain(job.evidence())
        assert judgement.verdict.verdict_class is VerdictClass.NONE
        return judgement.reason

    @pytest.mark.parametrize(
        ("state", "reason"), [("cancelled", "cancelled"), ("finished", "finished"), ("ended", "finished")]
    )
    def test_job_that_is_over(self, state: str, reason: str) -> None:
        job, _ = hung()
        job.job_state = JobState(state)
        assert self.reason(job) == reason

    def test_most_ranks_told_to_stop(self) -> None:
        job, _ = hung()
        for rank in range(6):
            job.process[rank] = {"exit_kind": ExitKind.SIGNAL, "exit_code": -15}
        assert self.reason(job) == "cancelled"

    def test_all_processes_stopped(self) -> None:
        job, _ = hung()
        for rank in range(8):
            job.process[rank] = {"process_state": ProcessState.STOPPED, "native_age_ms": 9000}
        assert self.reason(job) == "suspended"

    def test_debugger(self) -> None:
        job, rank = hung()
        job.process[rank] = {"process_state": ProcessState.TRACED, "native_age_ms": 9000}
        assert self.reason(job) == "traced"

    def test_ragged_end_but_not_for_ever(self) -> None:
        job, rank = hung()
        job.process[rank] = {"finished": 1, "exit_kind": ExitKind.CLEAN, "process_state": ProcessState.GONE}
        assert self.reason(job) == "ragged_end"
        impatient = judge(job.evidence(), JudgePolicy(ragged_patience_s=1.0))
        assert impatient.verdict_class is not VerdictClass.NONE

    def test_declared_checkpoint_but_not_for_ever(self) -> None:
        job, rank = hung()
        job.process[rank] = {"phase": Phase.CHECKPOINT}
        assert self.reason(job) == "declared_phase"
        impatient = judge(job.evidence(), JudgePolicy(phase_patience_s=1.0))
        assert [root.rank for root in impatient.roots] == [rank]

    def test_young_waits(self) -> None:
        job, _ = hung()
        judgement = explain(job.evidence(), JudgePolicy(stall_age_s=3600))
        assert judgement.reason == "nothing_stalled"

    def test_nothing_at_all(self) -> None:
        assert judge(build_evidence([])).verdict_class is VerdictClass.NONE


class TestProcesses:
    def test_host_wait_gives_the_owner(self) -> None:
        job, rank = hung()
        job.process[rank] = {"host_wait": HostWait.DATALOADER, "host_wait_age_ms": 8000}
        verdict = judge(job.evidence())
        assert (verdict.sub_reason, verdict.owner) == (SubReason.HOST_WAIT, Owner.STORAGE)
        assert [root.rank for root in verdict.roots] == [rank]

    def test_host_wait_for_a_rank_is_followed(self) -> None:
        job, waiter = hung()
        other = (waiter + 4) % 8
        job.process[waiter] = {
            "host_wait": HostWait.STORE, "host_wait_rank": other, "host_wait_age_ms": 8000
        }  # fmt: skip
        verdict = judge(job.evidence())
        assert waiter not in [root.rank for root in verdict.roots]

    def test_frozen_heartbeat_without_a_stop(self) -> None:
        job, rank = hung()
        job.process[rank] = {"native_age_ms": 9000, "python_age_ms": 9000}
        verdict = judge(job.evidence())
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.H1, SubReason.FROZEN_PROCESS)
        assert verdict.action.kind is ActionKind.RESTART_PROCESS

    def test_dead_process_beats_its_victims_and_teardown_is_told_apart(self) -> None:
        job, rank = hung()
        job.process[rank] = {"exit_kind": ExitKind.SIGNAL, "exit_code": -9}
        job.process[(rank + 1) % 8] = {"exit_kind": ExitKind.ERROR, "exit_code": 1}
        job.process[(rank + 2) % 8] = {"exit_kind": ExitKind.SIGNAL, "exit_code": -15}
        verdict = judge(job.evidence())
        assert verdict.verdict_class is VerdictClass.DEAD_PROCESS
        assert [root.rank for root in verdict.roots] == [rank]
        assert "teardown" in {item.rule for item in verdict.evidence}

    def test_process_that_vanished_while_others_wait(self) -> None:
        job, rank = hung()
        job.process[rank] = {"exit_kind": ExitKind.UNKNOWN, "process_state": ProcessState.GONE}
        verdict = judge(job.evidence())
        assert verdict.verdict_class is VerdictClass.DEAD_PROCESS
        assert [root.rank for root in verdict.roots] == [rank]

    def test_mismatch_behind_a_death_is_the_cause(self) -> None:
        injection = inject("h2_size", SimulatedJob(Shape(4, 4, 1), 7))
        (rank,) = injection.ranks
        injection.job.process[rank] = {"exit_kind": ExitKind.SIGNAL, "exit_code": -6}
        verdict = judge(injection.job.evidence())
        assert verdict.verdict_class is VerdictClass.H2
        assert [root.rank for root in verdict.roots] == [rank]

    @pytest.mark.parametrize(
        ("code", "action"),
        [(79, ActionKind.REPLACE_NODE), (95, ActionKind.RESET_GPU), (31, ActionKind.RESTART_PROCESS)],
    )
    def test_hardware_event_comes_first(self, code: int, action: ActionKind) -> None:
        job, rank = hung()
        job.health.append(health(HealthKind.XID, gpu=rank, code=code))
        verdict = judge(job.evidence())
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.H3, SubReason.HARDWARE_EVENT)
        assert verdict.roots[0].kind is RootKind.GPU
        assert verdict.action.kind is action

    def test_hardware_event_of_a_victim_or_a_consequence_is_no_cause(self) -> None:
        job, rank = hung()
        job.health.append(health(HealthKind.XID, gpu=(rank + 1) % 8, code=79))
        job.health.append(health(HealthKind.XID, gpu=rank, code=45))
        assert judge(job.evidence()).verdict_class is VerdictClass.H1

    def test_a_link_keeps_nobody_from_entering(self) -> None:
        job, _ = hung()
        job.health.append(health(HealthKind.LINK, device="mlx5_0/1", message="is DOWN"))
        assert judge(job.evidence()).verdict_class is VerdictClass.H1

    def test_what_was_taken_back_is_no_cause(self) -> None:
        job, rank = hung()
        job.health.append(health(HealthKind.GPU_SILENT, gpu=rank, rank=rank))
        silent = judge(job.evidence())
        assert (silent.sub_reason, silent.owner) == (SubReason.HARDWARE_EVENT, Owner.GPU)
        assert (silent.action.kind, silent.roots[0].gpu) == (ActionKind.RESET_GPU, rank)
        job.health.append(health(HealthKind.GPU_ANSWERS, gpu=rank, rank=rank, id="f"))
        assert judge(job.evidence()).sub_reason is not SubReason.HARDWARE_EVENT

    def test_a_driver_that_answers_about_no_gpu_does_not_say_which_is_at_fault(self) -> None:
        job, rank = hung()
        for gpu in (rank, (rank + 1) % 8):
            job.health.append(health(HealthKind.GPU_SILENT, gpu=gpu, id=f"e{gpu}"))
        (root,) = judge(job.evidence()).roots
        assert (root.kind, root.gpu) == (RootKind.NODE, None)
        job.health.append(health(HealthKind.XID, gpu=rank, code=119, id="xid"))
        (root,) = judge(job.evidence()).roots  # what says more comes first
        assert (root.kind, root.gpu) == (RootKind.GPU, rank)

    @pytest.mark.parametrize("kind", [HealthKind.GPU_SPINNING, HealthKind.LINK_ERRORS, HealthKind.THERMAL])
    def test_remarks_decide_nothing_and_are_said(self, kind: HealthKind) -> None:
        job, rank = hung()
        plain = judge(job.evidence())
        job.health.append(health(kind, gpu=rank, rank=rank, message="odd"))
        job.health.append(health(kind, gpu=(rank + 1) % 8, rank=(rank + 1) % 8, message="of a victim"))
        remarked = judge(job.evidence())
        assert (remarked.verdict_class, remarked.roots, remarked.action) == (
            plain.verdict_class, plain.roots, plain.action
        )  # fmt: skip
        (said,) = [item for item in remarked.evidence if item.rule == "seen_beside"]
        assert "odd" in said.statement
        assert said.supports is (kind is not HealthKind.GPU_SPINNING)  # its rank has launched something

    def test_a_process_that_the_kernel_killed_for_memory(self) -> None:
        job, rank = hung()
        job.process[rank] = {"exit_kind": ExitKind.SIGNAL, "exit_code": -9}
        words = "the kernel killed python to get memory"
        job.health.append(health(HealthKind.HOST_MEMORY, rank=rank, pid=7, message=words))
        verdict = judge(job.evidence())
        assert (verdict.verdict_class, verdict.owner) == (VerdictClass.DEAD_PROCESS, Owner.HOST)
        assert any(words in item.statement for item in verdict.evidence)

    def test_only_what_happened_lately_can_be_the_cause(self) -> None:
        events = [
            health(HealthKind.XID, code=31, id="old"),
            replace(health(HealthKind.XID, code=79, id="new"), at_unix_s=9_500.0),
            health(HealthKind.GPU_SILENT, id="state"),
            health(HealthKind.PROCESS_EXIT, id="exit"),
        ]
        assert [event.id for event in fresh_health(events, 10_000.0)] == ["new", "state", "exit"]


@pytest.mark.parametrize("kind", ["h1", "h1x2", "h2_op", "inversion", "gil"])
def test_software_faults_never_touch_a_machine(kind: str) -> None:
    verdict = judge(inject(kind, SimulatedJob(Shape(4, 4, 1), 5)).job.evidence())
    assert verdict.action.kind in (ActionKind.FIX_CODE, ActionKind.COLLECT)


class TestEvidence:
    def test_sentence(self) -> None:
        job, rank = hung()
        verdict = judge(job.evidence())
        assert verdict.operation is not None
        op = verdict.operation
        start = f"rank {rank} never entered {op.function} round {op.round} of {op.communicator_name}; "
        assert verdict.summary.startswith(start)
        assert verdict.summary.endswith(
            f"7 ranks wait on it through {verdict.communicators_waiting} communicator"
            + ("" if verdict.communicators_waiting == 1 else "s")
        )

    def test_stale_row_accuses_nobody(self) -> None:
        """A rank that the others left two rounds behind in operations that need everybody."""
        job, rank = hung()
        evidence = job.evidence()
        mine = evidence.member_rank == rank
        evidence.state["entered"][mine] = np.maximum(evidence.state["entered"][mine].astype(int) - 2, 0)
        evidence.state["completed"][mine] = evidence.state["entered"][mine]
        verdict = judge(evidence)
        assert verdict.verdict_class is VerdictClass.INCONCLUSIVE
        assert f"rank {rank}" in verdict.would_decide

    def test_communicator_nobody_registered_is_inferred_and_trusted_less(self) -> None:
        job, rank = hung()
        record, nodes, _ = job.registry()
        evidence = build_evidence(job.batches(), record, nodes)
        assert evidence.inferred.all()
        verdict = judge(evidence)
        assert verdict.coverage.communicators_complete == 0
        assert verdict.confidence < judge(job.evidence()).confidence
        assert {root.rank for root in verdict.roots} <= {rank}

    def test_dropped_operations_weaken_absence(self) -> None:
        job, rank = hung()
        sure = judge(job.evidence()).confidence
        job.process[rank] = {"dropped": 3}
        verdict = judge(job.evidence())
        assert verdict.confidence < sure
        assert any(not item.supports for item in verdict.evidence)

    def test_rows_of_ranks_that_cannot_exist_are_counted(self) -> None:
        job, _ = hung()
        record, nodes, comms = job.registry()
        wild = np.zeros(3, ROW_DTYPES[RowKind.STATE])
        wild["comm"], wild["rank"] = job.ids["world"], [8, 4_000_000_000, 5_000]
        batch = Batch(BatchKind.STALLED, JOB, ATTEMPT, "d", 0, 1, 9, 1, 1, {RowKind.STATE: wild})
        evidence = build_evidence([*job.batches(), batch], record, nodes, comms)
        assert evidence.ignored_rows >= 3
        assert judge(evidence) == judge(job.evidence())

    def test_other_attempts_are_not_mixed_in(self) -> None:
        job, _ = hung()
        record, nodes, comms = job.registry()
        (old, *_) = job.batches()
        other = Batch(
            BatchKind.STALLED, JOB, "a0", "d", 0, 1, 9, 1, 1, {RowKind.STATE: old.table(RowKind.STATE)[:0]}
        )
        assert judge(build_evidence([other, *job.batches()], record, nodes, comms)) == judge(job.evidence())


class TestHostileRows:
    @given(seed=st.integers(0, 2**32 - 1))
    def test_any_rows_give_some_verdict(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        job, _ = hung()
        record, nodes, comms = job.registry()
        rows: dict[RowKind, Rows] = {}
        for kind in (
            RowKind.STATE,
            RowKind.PROCESS,
            RowKind.PEER,
            RowKind.ROUND,
            RowKind.EDGE,
            RowKind.BASELINE,
        ):
            table = np.frombuffer(rng.bytes(ROW_DTYPES[kind].itemsize * 40), ROW_DTYPES[kind]).copy()
            if "comm" in (table.dtype.names or ()):
                table["comm"] = rng.choice(list(job.ids.values()), 40)
            if "rank" in (table.dtype.names or ()):
                table["rank"] = rng.integers(0, 10, 40)
            for name in ("peer", "comm_rank"):
                if name in (table.dtype.names or ()):
                    table[name] = rng.integers(-3 if name == "peer" else 0, 9, 40)
            rows[kind] = table
        batch = Batch(BatchKind.STALLED, JOB, ATTEMPT, "d", 0, 1, 1, 1, 1, rows)
        evidence = build_evidence([*job.batches(), batch], record, nodes, comms)
        verdict = judge(evidence)
        assert 0.0 <= verdict.confidence <= 1.0
        assert judge(load_bundle(dump_bundle(evidence))) == verdict


class TestBundles:
    @given(data=st.binary(max_size=400))
    def test_garbage_is_a_bundle_error(self, data: bytes) -> None:
        with pytest.raises(BundleError):
            load_bundle(data)

    @given(at=st.integers(0, 10_000), value=st.integers(0, 255))
    def test_damaged_bundle_loads_or_is_a_bundle_error(self, at: int, value: int) -> None:
        job, _ = hung()
        packed = bytearray(dump_bundle(job.evidence()))
        packed[at % len(packed)] = value
        try:
            evidence = load_bundle(bytes(packed))
        except BundleError:
            return
        assert 0.0 <= judge(evidence).confidence <= 1.0

    def test_equal_evidence_gives_equal_bytes(self) -> None:
        assert dump_bundle(hung()[0].evidence()) == dump_bundle(hung()[0].evidence())

    def test_too_large_is_said(self) -> None:
        with pytest.raises(BundleError, match="exceeds 100"):
            dump_bundle(hung()[0].evidence(), 100)

    def test_completed_rounds_go_first(self) -> None:
        evidence = hung()[0].evidence()
        whole = dump_bundle(evidence)
        lean = load_bundle(dump_bundle(evidence, len(whole) - 1))
        assert 0 < len(lean.rounds) < len(evidence.rounds)
        assert judge(lean).roots == judge(evidence).roots
