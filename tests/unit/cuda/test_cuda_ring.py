"""What the kernels compute, and what they leave in the probe pages while they run and afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.agent.pages import view_of
from paceline.agent.rows import Facts, RowMemory, RowPolicy, reduce_page
from paceline.analysis.builder import build_evidence
from paceline.analysis.judge import judge
from paceline.analysis.policy import JudgePolicy
from paceline.collectives.cuda.memory import Member, RingMemory, Shape, mark_of
from paceline.contracts.batch import Batch, BatchKind
from paceline.contracts.codes import FrameFlag, ProcessState, TransferState
from paceline.contracts.ids import format_communicator, format_ranks
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState, NodeRecord, RankRecord
from paceline.contracts.verdicts import Verdict, VerdictClass
from tests.unit.cuda.conftest import COMM, TAG
from tests.waiting import until

if TYPE_CHECKING:
    from tests.unit.cuda.conftest import MakeRing, Ring

STILL_NS = 50_000_000


def slices_sent(place: int, size: int, count: int, width: int) -> int:
    """Slices that hold an element, of the 2 (size - 1) that a place sends in each loop."""
    sent = 0
    for base in range(0, count, size * width):
        for step in range(2 * (size - 1)):
            sent += base + (place - step) % size * width < count
    return sent


@pytest.mark.parametrize(("size", "count"), [(2, 1), (3, 50), (4, 1024), (4, 1000), (5, 333)])
def test_sum_and_counts_are_exact(make_ring: MakeRing, size: int, count: int) -> None:
    ring = make_ring(size, 16)
    for number in range(3):
        arrays = [np.arange(count) + rank * (number + 1) for rank in range(size)]
        ring.run(count, arrays.__getitem__)
        expected = size * np.arange(count) + (number + 1) * size * (size - 1) // 2
        for seat in ring.seats:
            np.testing.assert_array_equal(seat.array, expected.astype(np.float32))
    for place, seat in enumerate(ring.seats):
        frame, edges = seat.frame, seat.detail.edges
        sent = 3 * slices_sent(place, size, count, 16)
        received = 3 * slices_sent((place - 1) % size, size, count, 16)
        assert (frame["send_count"], frame["recv_count"]) == (sent, received)
        assert (frame["send_posted"], frame["recv_posted"]) == (sent, received)
        assert (frame["channel"]["sends"][0], frame["channel"]["recvs"][0]) == (sent, received)
        assert edges["count"].tolist() == [sent, received]
        assert edges["bytes"].tolist() == [frame["send_bytes"], frame["recv_bytes"]]
        assert (frame["kernels_started"], frame["kernels_done"], frame["completed"]) == (3, 3, 3)
        assert frame["gpu_arrive"] == frame["gpu_leave"] == mark_of(TAG, 3)
        assert not frame["flags"] & (FrameFlag.COUNTS_UNOBSERVABLE | FrameFlag.PARTIAL)
        assert (frame["channel"]["send_state"][0], frame["channel"]["kernel_state"][0]) == (0, 0)
    assert sum(int(seat.frame["send_bytes"]) for seat in ring.seats) == 3 * 8 * (size - 1) * count


def test_broadcast_reaches_everybody_from_any_root(make_ring: MakeRing) -> None:
    ring = make_ring(4, 8, window=2)
    for root in range(4):
        ring.run(100, lambda rank: np.arange(100) * (rank + 1), kernel=1, root=root)
        for seat in ring.seats:
            np.testing.assert_array_equal(seat.array, np.arange(100) * (root + 1))
    counts = [(int(seat.frame["send_count"]), int(seat.frame["recv_count"])) for seat in ring.seats]
    assert counts == [(3 * 13, 3 * 13)] * 4  # each is the last once, and the root once


def test_counts_and_waits_show_while_a_block_stands_still(make_ring: MakeRing) -> None:
    """Rank 2 stops in mid-operation: 1 waits for room in its window, 3 for data; then all goes on."""
    ring = make_ring(4, 16, window=2)
    ring.enter(4 * 16 * 8, lambda rank: np.ones(4 * 16 * 8), still_ns=STILL_NS)
    ring.hold(2, 60)
    ring.launch()

    def states() -> list[tuple[int, int]]:
        channels = [seat.frame["channel"][0] for seat in ring.seats]
        return [(int(channel["send_state"]), int(channel["recv_state"])) for channel in channels]

    waits, moves = TransferState.PEER_WAIT, TransferState.MOVING
    until(lambda: ring.held() == 2)  # before that, any of them may wait for a moment
    until(lambda: states()[1][0] == waits and states()[3][1] == waits)
    assert states()[2] == (moves, moves)
    frozen = ring.seats[2].frame
    until(lambda: ring.seats[3].detail.edges["wait_ns"][1] > 2 * STILL_NS)
    assert ring.seats[2].frame["send_count"] == frozen["send_count"] > 0
    sent = [int(seat.frame["send_count"]) for seat in ring.seats]
    assert sent[2] == min(sent)
    assert [int(seat.frame["gpu_leave"]) for seat in ring.seats] == [0] * 4
    ring.hold(-1, 0)
    ring.join()
    assert {int(seat.frame["completed"]) for seat in ring.seats} == {1}
    assert states() == [(TransferState.IDLE, TransferState.IDLE)] * 4


def judged(ring: Ring, now_ns: int) -> Verdict:
    batches = []
    for rank, seat in enumerate(ring.seats):
        facts = Facts(rank=rank, pid=100 + rank, pid_start=7, state=ProcessState.SLEEPING)
        rows = reduce_page(
            view_of(seat.reader.read()), facts, RowMemory(), now_ns, RowPolicy(), detail=True
        ).rows
        batches.append(Batch(BatchKind.FRAMES, "job", "a1", f"n{rank}", 0, 1, 1, now_ns, now_ns, rows))
    size = len(ring.seats)
    job = JobRecord(
        "job", "a1", "lab", "t", "u", "train", size, 1, JobState.RUNNING, "declared", "declared", 0.0
    )
    nodes = [
        NodeRecord("job", "a1", f"n{rank}", "agent", (RankRecord(rank, 0, 100 + rank, 7, 0),))
        for rank in range(size)
    ]
    world = CommunicatorRecord(
        "job", "a1", format_communicator(COMM), "world", format_ranks(range(size)), 0, 0, "paceline", "world"
    )
    return judge(build_evidence(batches, job, nodes, [world]), JudgePolicy())


def test_stuck_gpu_is_h3_of_that_rank(make_ring: MakeRing) -> None:
    ring = make_ring(4, 16, window=2)
    ring.run(256, lambda rank: np.ones(256))
    ring.enter(4 * 16 * 8, lambda rank: np.ones(4 * 16 * 8), still_ns=STILL_NS)
    ring.hold(2, 60)
    ring.launch()
    until(lambda: ring.held() == 2)
    until(lambda: ring.seats[3].detail.edges["wait_ns"][1] > STILL_NS)
    until(lambda: ring.seats[1].detail.edges["wait_ns"][0] > STILL_NS)
    verdict = judged(ring, int(ring.seats[0].frame["entered_ns"]) + 60_000_000_000)
    assert verdict.verdict_class is VerdictClass.H3, verdict
    assert [root.rank for root in verdict.roots] == [2]


def test_block_that_never_begins_is_in_the_queue_of_its_device(make_ring: MakeRing) -> None:
    ring = make_ring(4, 16, window=2)
    ring.run(256, lambda rank: np.ones(256))
    ring.enter(256, lambda rank: np.ones(256), still_ns=STILL_NS)
    ring.launch(only={0, 1, 3})
    until(lambda: all(ring.seats[rank].frame["gpu_arrive"] == mark_of(TAG, 2) for rank in (0, 1, 3)))
    until(lambda: ring.seats[3].detail.edges["wait_ns"][1] > STILL_NS)
    verdict = judged(ring, int(ring.seats[0].frame["entered_ns"]) + 60_000_000_000)
    assert verdict.verdict_class is VerdictClass.H3, verdict
    assert [root.rank for root in verdict.roots] == [2]
    assert verdict.sub_reason == "device_queue"


def test_stop_ends_every_wait_and_leaves_the_operation_open(make_ring: MakeRing) -> None:
    ring = make_ring(3, 16, window=2)
    ring.enter(960, lambda rank: np.ones(960))
    ring.launch(only={0, 1})
    until(lambda: ring.seats[1].frame["channel"]["recv_state"][0] == TransferState.PEER_WAIT)
    ring.memory.stop()
    for rank in (0, 1):
        thread = ring.seats[rank].thread
        assert thread is not None
        thread.join(20.0)
        assert not thread.is_alive()
        frame = ring.seats[rank].frame
        assert (frame["kernels_started"], frame["kernels_done"], frame["gpu_leave"]) == (1, 0, 0)
        assert frame["head_round"] == 1


@pytest.mark.parametrize(
    ("shape", "what"), [((0, 1, 1), "size"), ((2, 0, 1), "slice_elements"), ((2, 1, 65), "window")]
)
def test_shape_names_what_is_out_of_range(shape: tuple[int, int, int], what: str) -> None:
    with pytest.raises(ValueError, match=f"{what} is"):
        Shape(*shape)


def test_memory_names_what_does_not_fit() -> None:
    shape = Shape(2, 16)
    with pytest.raises(ValueError, match="expected uint8 of"):
        RingMemory(np.zeros(8, np.uint8), 0, shape)
    memory = RingMemory(np.zeros(shape.bytes, np.uint8), 0, shape)
    with pytest.raises(ValueError, match="1 members"):
        memory.prepare([Member(0, 0, 0)], 1, 1)
    with pytest.raises(ValueError, match="tag is 0"):
        mark_of(0, 1)
