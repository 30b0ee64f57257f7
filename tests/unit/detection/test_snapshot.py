"""A block goes on after a restart as if nothing had happened."""

import random
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.analysis.detection import DecisionKind, DetectionPolicy, JobBlock
from paceline.analysis.detection.snapshot import (
    SnapshotError,
    dump_block,
    load_block,
    pack_chunks,
    read_chunk,
    unpack_chunks,
)

POLICY = DetectionPolicy()


def reload(block: JobBlock) -> JobBlock:
    raw = unpack_chunks(pack_chunks(dump_block(block, {}), snapshot_id=1, partition=2, saved_unix_s=3.0))
    return load_block(raw, POLICY)[0]


class TestRoundTrip:
    @pytest.mark.parametrize("moment", range(0, 22, 3))
    def test_decisions_after_a_restart_are_the_same(self, fake_job: Any, watch: Any, moment: Any) -> None:
        outcomes = []
        for restart in (False, True):
            job = fake_job()
            job.peers[7, 1] = [(2, 0, 999.0)]
            seen = watch(job)
            job.hang(7, missing=[3])
            for second in range(22):
                if restart and second == moment:
                    seen.block = reload(seen.block)
                if second == 12:
                    job.release(7)
                    job.peers.clear()
                job.run(1.0) if second >= 12 else job.wait(1.0)
                seen.tick()
            outcomes.append(seen.decisions)
        assert outcomes[0] == outcomes[1]
        assert outcomes[0][-1].kind is DecisionKind.CLEAR

    def test_base_lines_and_a_slow_episode_survive(self, fake_job: Any, watch: Any) -> None:
        rng = random.Random(1)
        job = fake_job()
        seen = watch(job)
        for second in range(45):
            lag = 0.3 if second > 20 else 0.0
            for _ in range(2):
                job.record_round(7, [0.004 * rng.uniform(0.9, 1.1) + lag * (rank != 2) for rank in range(8)])
            job.now_s += 1.0
            seen.tick()
        assert seen.block.slow.active
        again = reload(seen.block)
        np.testing.assert_array_equal(again.slow.keys.base_ns, seen.block.slow.keys.base_ns)
        seen.block = again
        assert seen.block.slow.active
        seen.decisions.clear()
        for _ in range(10):
            for _ in range(2):
                job.record_round(7, [0.004] * 8)
            job.now_s += 1.0
            seen.tick()
        assert seen.kinds() == [DecisionKind.CLEAR]

    def test_empty_block(self) -> None:
        assert len(reload(JobBlock(POLICY)).members) == 0

    def test_last_rows_of_a_dead_node_survive(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.silent = {"node1"}
        seen.idle(15)
        again = reload(seen.block)
        assert again.senders["node1"].silent
        assert again.members.rows.tobytes() == seen.block.members.rows.tobytes()
        assert again.processes.rows.tobytes() == seen.block.processes.rows.tobytes()


class TestChunks:
    def test_large_snapshot_is_cut_and_joined_in_any_order(self) -> None:
        raw = random.Random(0).randbytes(2_000_000)
        chunks = pack_chunks(raw, snapshot_id=9, partition=1, saved_unix_s=1.5)
        assert len(chunks) == 3
        assert {read_chunk(chunk).snapshot_id for chunk in chunks} == {9}
        assert unpack_chunks(chunks[::-1]) == raw

    def test_missing_chunk(self) -> None:
        chunks = pack_chunks(
            random.Random(0).randbytes(2_000_000), snapshot_id=9, partition=1, saved_unix_s=1
        )
        with pytest.raises(SnapshotError, match="2 chunks, expected 3"):
            unpack_chunks(chunks[:2])

    def test_chunks_of_two_snapshots(self) -> None:
        one, two = (
            pack_chunks(random.Random(0).randbytes(2_000_000), snapshot_id=i, partition=1, saved_unix_s=1)
            for i in (1, 2)
        )
        with pytest.raises(SnapshotError, match="different"):
            unpack_chunks([one[0], two[1], one[2]])


class TestGarbage:
    @settings(max_examples=60, deadline=None)
    @given(st.binary(max_size=400))
    def test_random_bytes(self, data: Any) -> None:
        with pytest.raises(SnapshotError):
            unpack_chunks([data])
        with pytest.raises(SnapshotError):
            load_block(data, POLICY)

    @settings(max_examples=80, deadline=None)
    @given(position=st.integers(0, 5000), value=st.integers(0, 255))
    def test_changed_byte_is_an_error_or_a_block(self, position: Any, value: Any) -> None:
        FakeJob: Any = sys.modules["paceline_tests_fake_job"].FakeJob

        block = JobBlock(POLICY)
        block.apply(FakeJob().sample())
        raw = bytearray(dump_block(block, {}))
        raw[position % len(raw)] = value
        try:
            loaded, _ = load_block(bytes(raw), POLICY)
        except SnapshotError:
            return
        loaded.tick("d", 10**9)

    @pytest.mark.parametrize("cut", [0, 3, 40, 300, -1])
    def test_truncated(self, fake_job: Any, cut: Any) -> None:
        block = JobBlock(POLICY)
        block.apply(fake_job().sample())
        with pytest.raises(SnapshotError):
            load_block(dump_block(block, {})[:cut], POLICY)
