"""The core over a log of records: signals, attempts, bounds, replay."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.analysis.detection import DetectionPolicy, Reason, suspicion
from paceline.analysis.detection.evidence import split_batch
from paceline.contracts.batch import BatchFlag, BatchKind, RowKind, decode_batch, encode_batch
from paceline.contracts.registry import HealthEvent, HealthKind, JobRecord, JobState
from paceline.detector.core import BlockKey, DetectorCore, Forgotten, Signal


def job_record(state: JobState = JobState.RUNNING, attempt: str = "a1", world_size: int = 8) -> JobRecord:
    return JobRecord("train", attempt, "c", "t", "u", "n", world_size, 1, state, "declared", "declared", 0.0)


def hang(log: Any, job: Any, seconds: int = 8) -> None:
    for _ in range(5):
        log.second(job)
    job.hang(7, missing=[3])
    for _ in range(seconds):
        log.second(job, moving=False)


class TestSignals:
    def test_stalled_signal_carries_all_state_of_the_job(self, log: Any, fake_job: Any) -> None:
        hang(log, fake_job())
        first = log.signals()[0].batch
        assert first.kind is BatchKind.STALLED
        assert first.flags & BatchFlag.SUSPECT
        assert sorted(first.table(RowKind.STATE)["rank"]) == list(range(8))
        assert sorted(first.table(RowKind.PROCESS)["rank"]) == list(range(8))
        assert first.episode.startswith("epi_")

    def test_signals_of_one_episode_share_its_id_and_count_up(self, log: Any, fake_job: Any) -> None:
        hang(log, fake_job(), seconds=12)
        batches = [signal.batch for signal in log.signals()]
        assert len({batch.episode for batch in batches}) == 1
        assert [batch.seq for batch in batches] == list(range(1, len(batches) + 1))

    def test_clear_follows_progress(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        hang(log, job)
        job.release(7)
        for _ in range(4):
            log.second(job)
        last = log.signals()[-1]
        assert (last.batch.kind, last.reason) == (BatchKind.CLEAR, Reason.PROGRESS)
        assert last.batch.flags is BatchFlag.PROGRESS

    def test_signal_survives_the_wire_in_chunks(self, log: Any, fake_job: Any) -> None:
        hang(log, fake_job())
        batch = log.signals()[0].batch
        parts = [decode_batch(encode_batch(part)) for part in split_batch(batch, 2200)]
        assert len(parts) > 1
        assert {part.chunks for part in parts} == {len(parts)}
        joined = np.concatenate([part.table(RowKind.STATE) for part in parts])
        assert joined.tobytes() == batch.table(RowKind.STATE).tobytes()

    def test_other_shard_in_suspicion_gets_our_state(self, log: Any, fake_job: Any) -> None:
        job = fake_job(shards=2, comms={2: range(8), 3: range(8)})
        for _ in range(3):
            log.second(job)
        log.core.note_signal(replace(job.batch("node0", 1), kind=BatchKind.STALLED, shard=1))
        log.second(job)
        assert [signal.batch.kind for signal in log.signals()] == [BatchKind.STATE]

    def test_own_shard_in_suspicion_is_no_news(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        log.second(job)
        log.core.note_signal(replace(job.batch("node0"), kind=BatchKind.STALLED))
        log.second(job)
        assert log.signals() == []


class TestAttempts:
    def test_new_attempt_on_the_same_nodes_replaces_the_old_one(self, log: Any, fake_job: Any) -> None:
        old, new = fake_job(), fake_job(attempt="a2", now_s=2000.0)
        hang(log, old)
        for _ in range(3):
            log.second(new)
            log.tick()
        assert [key.attempt for key in log.core.held] == ["a2"]
        assert [s.reason for s in log.signals() if s.batch.kind is BatchKind.CLEAR] == [
            Reason.ATTEMPT_REPLACED
        ]

    def test_two_jobs_on_one_node_do_not_mix(self, log: Any, fake_job: Any) -> None:
        one, two = fake_job(), fake_job(job="other")
        for _ in range(5):
            log.feed(one.sample())
            log.second(two)
            one.run(1.0)
        one.hang(7, missing=[3])
        for _ in range(8):
            one.wait(1.0)
            log.feed(one.sample())
            log.second(two)
        assert {signal.batch.job for signal in log.signals()} == {"train"}

    @pytest.mark.parametrize("state", [JobState.FINISHED, JobState.ENDED, JobState.CANCELLED])
    def test_end_in_the_registry_clears_and_forgets(self, log: Any, fake_job: Any, state: Any) -> None:
        job = fake_job()
        hang(log, job)
        outputs = log.core.note_job(job_record(state))
        assert [type(output) for output in outputs] == [Signal, Forgotten]
        assert outputs[0].batch.kind is BatchKind.CLEAR
        log.feed(job.sample())
        assert log.core.held == {}
        assert log.core.refused["attempt_over"] == 2

    def test_what_was_refused_is_told_once_over_all_blocks(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        sample = job.sample()
        log.feed(sample)
        log.feed(sample)
        log.core.note_job(job_record(JobState.FINISHED, attempt="a0"))
        log.feed([replace(job.batch("node0"), attempt="a0")])
        assert log.core.take_refused() == {"attempt_over": 1, "duplicate": len(sample)}
        assert log.core.take_refused() == {}

    def test_what_a_block_leaves_out_is_told_by_reason(
        self, log: Any, fake_job: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(suspicion, "TRACKED_MAX", 1)
        job = fake_job(comms={7: range(8), 8: range(8)})
        hang(log, job, seconds=0)
        job.hang(8, missing=[3])
        for _ in range(8):
            log.second(job, moving=False)
        assert log.core.take_refused()["suspects_full"] > 0

    def test_failed_job_keeps_its_suspicion(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        hang(log, job)
        assert log.core.note_job(job_record(JobState.FAILED)) == []
        for _ in range(20):
            log.tick()
        assert list(log.core.held) == [BlockKey("train", "a1", 0)]

    def test_rank_beyond_the_registered_world_is_refused(self, log: Any, fake_job: Any) -> None:
        log.core.note_job(job_record(world_size=6))
        log.second(fake_job())
        block = log.core.held[BlockKey("train", "a1", 0)].block
        assert len(block.members) == 6
        assert sum(block.refused.values()) > 0


class TestSilence:
    def test_silent_agent_loses_its_heartbeat_once_and_gets_it_back(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        for _ in range(3):
            log.second(job)
        job.silent = {"node1"}
        for _ in range(15):
            log.second(job)
        job.silent = set()
        log.second(job)
        events = [output for output in log.outputs if isinstance(output, HealthEvent)]
        assert [(event.kind, event.node) for event in events] == [
            (HealthKind.HEARTBEAT_LOST, "node1"),
            (HealthKind.HEARTBEAT_BACK, "node1"),
        ]

    def test_pause_of_the_detector_is_no_silence(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        for _ in range(3):
            log.second(job)
        log.tick(seconds=600.0)
        assert log.outputs == []

    def test_mute_job_is_forgotten_without_claiming_progress(self, new_log: Any, fake_job: Any) -> None:
        log = new_log(idle_job_s_max=60.0)
        hang(log, fake_job())
        for _ in range(70):
            log.tick()
        assert log.core.held == {}
        assert BatchKind.CLEAR not in [signal.batch.kind for signal in log.signals()]


class TestBounds:
    def test_jobs_beyond_the_bound_are_counted(self, new_log: Any, fake_job: Any) -> None:
        log = new_log(jobs_max=2)
        for name in ("a", "b", "c"):
            log.feed(fake_job(job=name).sample())
        assert len(log.core.held) == 2
        assert log.core.refused["jobs_full"] == 2


class TestReplay:
    def test_replay_gives_identical_signals(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        hang(log, job, seconds=10)
        job.release(7)
        for _ in range(5):
            log.second(job)
        again = DetectorCore("d1", DetectionPolicy())
        outputs = again.apply(log.records)
        assert [wire(o) for o in outputs] == [wire(o) for o in log.outputs]
        assert len(log.signals()) > 2

    def test_batching_of_the_consumer_does_not_matter(self, log: Any, fake_job: Any) -> None:
        hang(log, fake_job(), seconds=10)
        again = DetectorCore("d1", DetectionPolicy())
        outputs = [output for record in log.records for output in again.apply([record])]
        assert [wire(o) for o in outputs] == [wire(o) for o in log.outputs]

    def test_records_seen_twice_change_nothing(self, log: Any, fake_job: Any) -> None:
        hang(log, fake_job(), seconds=10)
        assert log.core.apply(log.records) == []


def wire(output: Any) -> Any:
    return encode_batch(output.batch) if isinstance(output, Signal) else output


class TestSlow:
    def test_slow_signal_and_its_clear_share_an_episode(self, log: Any, fake_job: Any) -> None:
        job = fake_job()
        for second in range(60):
            lag = 0.3 if 20 <= second < 45 else 0.0
            for _ in range(2):
                job.record_round(7, [0.004 + lag * (rank != 5) for rank in range(8)])
            job.now_s += 1.0
            log.feed(job.sample())
            log.tick()
        kinds = [signal.batch.kind for signal in log.signals()]
        assert kinds[0] is BatchKind.SLOW
        assert kinds[-1] is BatchKind.CLEAR
        assert len({signal.batch.episode for signal in log.signals()}) == 1
        first = log.signals()[0].batch
        assert len(first.table(RowKind.BASELINE)) == 1
        assert len(first.table(RowKind.ROUND)) == 40
