"""Episodes, revisions, resolution and replay of the localizer, without Kafka."""

import base64
from dataclasses import replace

import pytest

from paceline.analysis import load_bundle
from paceline.analysis.judge import judge
from paceline.contracts.batch import Batch, BatchFlag, BatchKind
from paceline.contracts.codes import ExitKind, ProcessState
from paceline.contracts.registry import HealthEvent, HealthKind, JobState
from paceline.contracts.verdicts import RootKind, SubReason, VerdictClass
from paceline.localizer.core import LocalizerCore, Published
from paceline.localizer.memory import MemoryBounds, Registry
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import ATTEMPT, JOB, Shape, SimulatedJob

SHAPE = Shape(4, 2, 1)
SECOND_NS = 1_000_000_000


def register(core: LocalizerCore, job: SimulatedJob) -> None:
    record, nodes, comms = job.registry()
    items: list[Registry] = [record, *nodes, *comms]
    for item in items:
        core.note_registry(item)


def at(batch: Batch, second: float, **changes: object) -> Batch:
    """The same signal, `second` seconds into the story; every signal has its own sequence number."""
    stamp = int(second * SECOND_NS)
    moved = {
        "sampled_ns": stamp,
        "sampled_unix_ns": 1_700_000_000 * SECOND_NS + stamp,
        "seq": int(second * 10),
    }
    return replace(batch, **{**moved, **changes})  # type: ignore[arg-type]


def feed(core: LocalizerCore, job: SimulatedJob, second: float = 10.0, **hide: object) -> list[Published]:
    """All signals of both shards."""
    return [out for batch in job.batches(2, **hide) for out in core.apply(at(batch, second))]  # type: ignore[arg-type]


def clear(second: float, shard: int = 0, episode: str = "e") -> Batch:
    return at(Batch(BatchKind.CLEAR, JOB, ATTEMPT, "d", shard, 2, 1, 1, 1, episode=episode), second)


@pytest.fixture
def hung() -> SimulatedJob:
    return inject("h1", SimulatedJob(SHAPE, 3)).job


def exit_event(rank: int, code: int | None, second: float = 0.0) -> HealthEvent:
    return HealthEvent(
        f"exit-{rank}", HealthKind.PROCESS_EXIT, "node0", JOB, ATTEMPT, rank, 1000 + rank, second, code
    )


class TestPublishing:
    def test_one_verdict_with_a_bundle_that_replays(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        (first,) = feed(core, hung)
        record = first.record
        assert record.verdict.verdict_class is VerdictClass.H1
        assert (record.revision, record.resolved, record.episode) == (1, False, "e")
        assert record.stalled_unix_s == pytest.approx(record.judged_unix_s - record.verdict.stalled_s)
        assert judge(load_bundle(base64.b64decode(record.evidence_bundle))) == record.verdict

    def test_the_same_again_is_not_published(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        feed(core, hung)
        assert feed(core, hung, 11.0) == []
        assert core.decisions["same"] >= 1

    def test_replay_gives_equal_records(self, hung: SimulatedJob) -> None:
        runs = []
        for _ in range(2):
            core = LocalizerCore()
            register(core, hung)
            runs.append([*feed(core, hung), *feed(core, hung, 12.0), *core.apply(clear(15.0))])
        assert runs[0] == runs[1]
        assert len(runs[0]) == 2

    def test_resolved_once_when_progress_resumes(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        (first,) = feed(core, hung)
        (end,) = core.apply(clear(20.0))
        assert end.record.resolved
        assert end.record.episode == first.record.episode
        assert end.record.revision >= first.record.revision
        assert end.record.verdict == first.record.verdict
        assert core.apply(clear(21.0)) == []
        assert core.open_episodes == 0

    def test_who_has_entered_after_all_was_late(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        (first,) = feed(core, hung)
        assert first.record.verdict.sub_reason is SubReason.MISSING_ENTER
        (end,) = core.apply(replace(clear(20.0), flags=BatchFlag.PROGRESS))
        assert end.record.resolved
        assert end.record.verdict.sub_reason is SubReason.DELAYED_ENTER
        assert "was late to enter" in end.record.verdict.summary
        assert end.record.verdict.roots == first.record.verdict.roots

    def test_clear_of_another_episode_ends_nothing(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        feed(core, hung)
        assert core.apply(clear(20.0, episode="other")) == []
        assert core.open_episodes == 1

    def test_shards_with_their_own_episodes_are_one(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        one, two = hung.batches(2)
        outputs = core.apply(at(one, 10.0, episode="first"))
        outputs += core.apply(at(two, 10.2, kind=BatchKind.STALLED, episode="second"))
        outputs += core.apply(at(one, 11.0, episode="first"))
        assert {out.record.episode for out in outputs} == {"first"}
        assert core.apply(clear(20.0, 0, "first")) == []
        (end,) = core.apply(clear(21.0, 1, "second"))
        assert end.record.episode == "first"
        assert end.record.resolved

    def test_stalls_again_in_the_same_round_is_a_new_episode(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        (first,) = feed(core, hung)
        core.apply(clear(20.0))
        (again,) = feed(core, hung, 30.0)
        assert again.record.episode != first.record.episode
        assert again.record.revision == 1


class TestBetterEvidence:
    def test_inconclusive_waits_for_better_evidence(self) -> None:
        injection = inject("h1", SimulatedJob(SHAPE, 3))
        job, (guilty,) = injection.job, injection.ranks
        core = LocalizerCore()
        register(core, job)
        assert feed(core, job, 10.0, hidden=[guilty]) == []
        assert core.decisions["settling"] >= 1
        (first,) = feed(core, job, 11.0)
        assert first.record.verdict.verdict_class is VerdictClass.H1
        assert first.record.revision == 1

    def test_inconclusive_is_published_after_its_grace_and_revised(self) -> None:
        injection = inject("h1", SimulatedJob(SHAPE, 3))
        job, (guilty,) = injection.job, injection.ranks
        core = LocalizerCore()
        register(core, job)
        feed(core, job, 10.0, hidden=[guilty])
        (unsure,) = feed(core, job, 13.5, hidden=[guilty])
        assert unsure.record.verdict.verdict_class is VerdictClass.INCONCLUSIVE
        (sure,) = feed(core, job, 15.0)
        assert sure.record.verdict.verdict_class is VerdictClass.H1
        assert (sure.record.revision, sure.record.episode) == (2, unsure.record.episode)

    def test_lost_evidence_takes_nothing_back(self) -> None:
        injection = inject("h1", SimulatedJob(SHAPE, 3))
        job, (guilty,) = injection.job, injection.ranks
        core = LocalizerCore()
        register(core, job)
        feed(core, job)
        assert feed(core, job, 20.0, hidden=[guilty]) == []
        assert core.decisions["worse"] >= 1

    def test_another_culprit_at_the_same_confidence_does_not_replace_the_first(self) -> None:
        core = LocalizerCore()
        first = inject("h1", SimulatedJob(SHAPE, 3)).job
        register(core, first)
        feed(core, first)
        other = next(
            job
            for seed in range(4, 40)
            if (job := inject("h1", SimulatedJob(SHAPE, seed)).job) and job.ranks[2].halted is False
        )
        assert feed(core, other, 12.0) == []
        assert core.decisions["worse"] >= 1

    def test_killing_a_hung_job_does_not_change_the_cause(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        feed(core, hung)
        hung.process[0] = {"exit_kind": ExitKind.SIGNAL, "exit_code": -9, "process_state": ProcessState.GONE}
        assert feed(core, hung, 30.0) == []
        assert core.decisions["teardown"] >= 1


class TestDeaths:
    def test_death_that_no_signal_reports(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        core.note_health(exit_event(5, -9), 100.0)
        core.note_health(exit_event(6, 1, 0.3), 100.2)
        assert core.tick(101.0) == []
        (death,) = core.tick(103.5)
        assert death.record.verdict.verdict_class is VerdictClass.DEAD_PROCESS
        assert [root.rank for root in death.record.verdict.roots] == [5]
        assert core.tick(110.0) == []

    @pytest.mark.parametrize(("code", "count"), [(0, 8), (-15, 8), (None, 8), (1, 1)])
    def test_ends_of_jobs_open_nothing(self, hung: SimulatedJob, code: int | None, count: int) -> None:
        core = LocalizerCore()
        register(core, hung)
        for rank in range(count):
            core.note_health(exit_event(rank, code), 100.0)
        assert core.tick(200.0) == []

    def test_cancelled_job_opens_nothing(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        core.note_health(
            HealthEvent("c", HealthKind.CANCELLED, "node0", JOB, ATTEMPT, None, None, 0.0), 100.0
        )
        assert feed(core, hung) == []

    def test_lost_node_is_named_when_everything_waits_for_it(self) -> None:
        job = inject("h1", SimulatedJob(Shape(8, 2, 1), 5)).job
        (guilty,) = [rank for rank, state in enumerate(job.ranks) if state.halted]
        node = f"node{guilty // 8}"
        core = LocalizerCore()
        register(core, job)
        core.note_health(
            HealthEvent("h", HealthKind.HEARTBEAT_LOST, node, JOB, ATTEMPT, None, None, 0.0), 0.0
        )
        assert feed(core, job) == []
        (lost,) = feed(core, job, 14.0)
        assert lost.record.verdict.sub_reason is SubReason.NODE_LOST
        assert [(root.kind, root.node) for root in lost.record.verdict.roots] == [(RootKind.NODE, node)]

    def test_node_that_is_back_is_believed_again(self) -> None:
        injection = inject("h1", SimulatedJob(Shape(8, 2, 1), 5))
        core = LocalizerCore()
        register(core, injection.job)
        for kind in (HealthKind.HEARTBEAT_LOST, HealthKind.HEARTBEAT_BACK):
            core.note_health(HealthEvent(kind.value, kind, "node0", JOB, ATTEMPT, None, None, 0.0), 0.0)
        (found,) = feed(core, injection.job)
        assert [root.rank for root in found.record.verdict.roots] == list(injection.ranks)


class TestRestart:
    def test_goes_on_with_the_published_revision(self, hung: SimulatedJob) -> None:
        before = LocalizerCore()
        register(before, hung)
        (first,) = feed(before, hung)
        after = LocalizerCore()
        register(after, hung)
        after.note_published(first.record)
        assert feed(after, hung, 12.0) == []
        (end,) = after.apply(clear(20.0))
        assert end.record.resolved
        assert end.record.episode == first.record.episode

    def test_clear_that_came_while_away_resolves(self, hung: SimulatedJob) -> None:
        before = LocalizerCore()
        register(before, hung)
        (first,) = feed(before, hung)
        after = LocalizerCore()
        after.note_published(first.record)
        (end,) = after.apply(clear(20.0))
        assert (end.record.resolved, end.record.episode) == (True, first.record.episode)

    def test_signals_that_come_again_after_the_end_open_nothing(self, hung: SimulatedJob) -> None:
        before = LocalizerCore()
        register(before, hung)
        feed(before, hung)
        (end,) = before.apply(clear(20.0))
        after = LocalizerCore()
        register(after, hung)
        after.note_published(end.record)
        assert feed(after, hung, 10.0) == []
        assert after.apply(clear(20.0)) == []
        assert after.decisions["replayed"] >= 1
        (again,) = feed(after, hung, 30.0)
        assert again.record.episode != end.record.episode

    def test_resolved_stays_resolved(self, hung: SimulatedJob) -> None:
        before = LocalizerCore()
        register(before, hung)
        feed(before, hung)
        (end,) = before.apply(clear(20.0))
        after = LocalizerCore()
        after.note_published(end.record)
        assert after.apply(clear(21.0)) == []


class TestBounds:
    def test_chunks_are_put_together(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        register(core, hung)
        (whole,) = hung.batches(1)
        parts = [
            replace(at(whole, 10.0), rows={kind: rows}, chunk=index, chunks=len(whole.rows), shards=1)
            for index, (kind, rows) in enumerate(whole.rows.items())
        ]
        assert [out for part in parts[:-1] for out in core.apply(part)] == []
        (found,) = core.apply(parts[-1])
        assert found.record.verdict.verdict_class is VerdictClass.H1

    def test_registry_of_too_many_jobs_is_forgotten_oldest_first(self, hung: SimulatedJob) -> None:
        core = LocalizerCore(bounds=MemoryBounds(jobs_max=3))
        record, _, _ = hung.registry()
        for index in range(5):
            core.note_registry(replace(record, job=f"job-{index}"))
        assert len(core.memory) == 3
        assert core.memory.dropped["job"] == 2
        assert core.memory.find("job-4", ATTEMPT) is not None
        assert core.memory.find("job-0", ATTEMPT) is None

    def test_rows_of_other_jobs_go_first(self, hung: SimulatedJob) -> None:
        core = LocalizerCore(bounds=MemoryBounds(signal_bytes_max=1))
        register(core, hung)
        (batch,) = hung.batches(1)
        core.apply(at(batch, 1.0, job="other"))
        (found,) = core.apply(at(batch, 2.0))
        assert found.record.job == JOB
        assert core.memory.dropped["signals"] == 1

    def test_unknown_job_is_not_blamed(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        outputs = feed(core, hung, 10.0)
        assert all(out.record.verdict.verdict_class is not VerdictClass.H3 for out in outputs)

    def test_frames_are_no_signals(self, hung: SimulatedJob) -> None:
        core = LocalizerCore()
        (batch,) = hung.batches(1)
        assert core.apply(at(batch, 1.0, kind=BatchKind.FRAMES)) == []

    def test_finished_job_opens_nothing(self, hung: SimulatedJob) -> None:
        hung.job_state = JobState.FINISHED
        core = LocalizerCore()
        register(core, hung)
        assert feed(core, hung) == []
