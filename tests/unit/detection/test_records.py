"""Late, repeated, torn, hostile and restarted senders; bounds; silence."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.analysis.detection import Bounds, DecisionKind, DetectionPolicy, JobBlock
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.reasons import Refusal
from paceline.contracts.batch import (
    ROW_DTYPES,
    STATE_ROW,
    Batch,
    BatchError,
    BatchKind,
    RowKind,
    decode_batch,
)
from paceline.contracts.codes import ExitKind

STALLED = DecisionKind.STALLED


def block_of(**bounds: Any) -> JobBlock:
    return JobBlock(DetectionPolicy(bounds=Bounds(**bounds)))


class TestSenders:
    def test_repeated_record_counts_no_stillness(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        batches = job.sample()
        for _ in range(5):
            seen.block.apply(batches)
        assert seen.block.members.still.max() <= 1
        assert seen.block.refused[Refusal.DUPLICATE] == 8

    def test_late_record_does_not_undo_a_newer_one(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        old = job.batch("node0")
        job.run(1.0)
        seen.block.apply([job.batch("node0"), old])
        assert seen.block.members.completed[0] == job.member[7, 0].completed

    def test_restarted_agent_is_heard(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.seq = dict.fromkeys(job.seq, 0)
        job.run(1.0)
        seen.tick()
        assert seen.block.refused[Refusal.SENDER_RESTARTED] == 2
        assert seen.block.members.completed[0] == job.member[7, 0].completed

    def test_rebooted_node_is_heard(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.run(1.0)
        later = replace(job.batch("node0"), seq=1, sampled_ns=1)
        later = replace(later, sampled_unix_ns=later.sampled_unix_ns + 60 * 10**9)
        seen.block.apply([later])
        assert seen.block.members.completed[0] == job.member[7, 0].completed

    def test_gap_is_counted(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.batch("node0")  # never arrives
        job.run(1.0)
        seen.tick()
        assert seen.block.refused[Refusal.SEQUENCE_GAP] == 1

    def test_chunks_of_one_sample_are_one_sample(self, fake_job: Any) -> None:
        job = fake_job()
        job.peers[7, 0] = [(1, 0, 990.0), (2, 0, 990.0)]
        whole = job.batch("node0")
        state, peers = whole.table(RowKind.STATE), whole.table(RowKind.PEER)
        block = block_of()
        block.apply(
            [
                replace(whole, rows={RowKind.STATE: state[:2], RowKind.PEER: peers[:1]}, chunk=0, chunks=2),
                replace(whole, rows={RowKind.STATE: state[2:], RowKind.PEER: peers[1:]}, chunk=1, chunks=2),
            ]
        )
        assert len(block.members) == 4
        assert len(block.senders["node0"].extras[RowKind.PEER]) == 2

    def test_evidence_of_the_sample_before_is_replaced(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        job.peers[7, 0] = [(1, 0, 990.0)]
        seen = watch(job)
        job.peers.clear()
        seen.healthy(1)
        assert seen.block.senders["node0"].extras == {}

    def test_node_that_leaves_with_its_processes_is_not_silent(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        for rank in job.ranks_of("node1"):
            job.process[rank].finished, job.process[rank].exit_kind = True, ExitKind.CLEAN
        seen.idle(1)
        job.silent = {"node1"}
        seen.idle(20)
        assert DecisionKind.HEARTBEAT_LOST not in seen.kinds()

    def test_slow_sampler_is_not_silent_and_its_stall_is_found(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        for second in range(120):
            job.run(1.0)
            seen.tick(job.sample() if second % 10 == 0 else [])
        job.hang(7, missing=[3])
        for second in range(45):
            job.wait(1.0)
            seen.tick(job.sample() if second % 10 == 0 else [])
        assert {decision.kind for decision in seen.decisions} == {STALLED}

    def test_members_of_a_silent_node_do_not_hide_a_stall(self, fake_job: Any, watch: Any) -> None:
        job = fake_job()
        seen = watch(job)
        job.silent = {"node1"}
        job.hang(7, missing=[5])
        found = seen.idle(16)
        assert {STALLED, DecisionKind.HEARTBEAT_LOST} <= {decision.kind for decision in found}


class TestBounds:
    def test_rank_beyond_the_bound_is_refused_and_the_rest_is_taken(self, fake_job: Any) -> None:
        block = block_of(ranks_max=6)
        block.apply(fake_job().sample())
        assert (len(block.members), len(block.processes)) == (6, 6)
        assert block.refused[Refusal.RANK_OUT_OF_RANGE] == 4

    def test_communicators_beyond_the_bound(self, fake_job: Any) -> None:
        block = block_of(communicators_max=2)
        block.apply(fake_job(comms={7: range(8), 8: [0, 1], 9: [2, 3]}).sample())
        assert len(block.members.comms) == 2
        assert block.refused[Refusal.COMMUNICATORS_FULL] == 2

    def test_members_beyond_the_bound(self, fake_job: Any) -> None:
        block = block_of(members_max=5)
        block.apply(fake_job().sample())
        assert len(block.members) == 5
        assert block.refused[Refusal.MEMBERS_FULL] == 3

    def test_nodes_beyond_the_bound(self, fake_job: Any) -> None:
        block = block_of(nodes_max=1)
        block.apply(fake_job().sample())
        assert list(block.senders) == ["node0"]
        assert block.refused[Refusal.NODES_FULL] == 1

    def test_evidence_rows_beyond_the_bound(self, fake_job: Any) -> None:
        job = fake_job()
        job.peers[7, 0] = [(peer, 0, 990.0) for peer in range(1, 8)]
        block = block_of(extra_rows_max=3)
        block.apply(job.sample())
        assert len(block.senders["node0"].extras[RowKind.PEER]) == 3
        assert block.refused[Refusal.EXTRA_ROWS_FULL] == 4

    def test_same_member_twice_in_one_record(self, fake_job: Any) -> None:
        batch = fake_job().batch("node0")
        state = np.concatenate([batch.table(RowKind.STATE)] * 2)
        block = block_of()
        block.apply([replace(batch, rows={RowKind.STATE: state})])
        assert len(block.members) == 4


def hostile(kind: Any) -> Any:
    """Rows of random bytes of one kind."""
    size = ROW_DTYPES[kind].itemsize
    return st.binary(min_size=size, max_size=size * 6).map(
        lambda data: np.frombuffer(data[: len(data) // size * size], ROW_DTYPES[kind])
    )


class TestProperties:
    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.fixed_dictionaries(
            {},
            optional={
                kind: hostile(kind)
                for kind in (RowKind.STATE, RowKind.ROUND, RowKind.PROCESS, RowKind.PEER, RowKind.EDGE)
            },
        ),
        seqs=st.lists(st.integers(0, 2**63), min_size=1, max_size=4),
    )
    def test_hostile_rows_never_raise(self, rows: Any, seqs: Any) -> None:
        block = block_of(ranks_max=2**31)
        for index, seq in enumerate(seqs):
            batch = Batch(BatchKind.FRAMES, "j", "a", "n", 0, 1, seq, index * 10**9, index * 10**9, rows)
            block.apply([batch])
            for _ in range(3):
                block.tick("d", index * 10**9)
        assert len(block.members) <= 6

    @settings(max_examples=40, deadline=None)
    @given(st.binary(max_size=300))
    def test_garbage_is_a_batch_error(self, data: Any) -> None:
        with pytest.raises(BatchError):
            decode_batch(data)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=40))
    def test_members_table_is_a_dictionary(self, pairs: Any) -> None:
        members, expected = Members(1000, 1000), {}
        for step, (comm, rank) in enumerate(pairs, 1):
            row = np.zeros(1, STATE_ROW)
            row["comm"], row["rank"], row["completed"] = comm, rank, step
            if members.locate(row["comm"], row["rank"])[0] < 0:
                members.admit(row["comm"], row["rank"])
            members.apply(members.locate(row["comm"], row["rank"]), row, step)
            expected[comm, rank] = step
        found = {
            (int(c), int(r)): int(n)
            for c, r, n in zip(members.comm, members.rank, members.completed, strict=True)
        }
        assert found == expected
        assert list(members.starts) == [
            0, *np.cumsum([sum(c == comm for c, _ in expected) for comm in members.comms])
        ]  # fmt: skip

    @settings(max_examples=20, deadline=None)
    @given(order=st.permutations(list(range(12))), missing=st.integers(0, 7))
    def test_order_of_nodes_within_a_second_does_not_matter(self, order: Any, missing: Any) -> None:
        FakeJob: Any = sys.modules["paceline_tests_fake_job"].FakeJob

        outcomes = []
        for arrangement in (list(range(12)), order):
            job = FakeJob(ranks=12, per_node=1)
            block, decisions = block_of(), []
            for second in range(14):
                if second == 4:
                    job.hang(7, missing=[missing])
                job.wait(1.0) if second >= 4 else job.run(1.0)
                batches = job.sample()
                block.apply([batches[index] for index in arrangement])
                decisions += block.tick("d", (5 + second) * 10**9)
            outcomes.append(decisions)
        assert outcomes[0] == outcomes[1]
        assert outcomes[0]
