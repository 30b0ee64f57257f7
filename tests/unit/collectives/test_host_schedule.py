"""Schedules, carried out without sockets: every rank ends with the sum, whatever the sizes."""

from collections import deque

import numpy as np
import pytest

from paceline.collectives.host.schedule import (
    Cut,
    Direction,
    Edge,
    Schedule,
    Topology,
    make_schedule,
)
from paceline.contracts.codes import Algorithm


def carry_out(topology: Topology, arrays: list[np.ndarray], cut: Cut, window: int) -> None:
    """All ranks step by step, with queues of `window` slices for links; AssertionError on a deadlock."""
    schedules = [make_schedule(topology, rank, arrays[rank].size, cut) for rank in range(topology.size)]
    queues: dict[tuple[int, int, int], deque[np.ndarray]] = {}
    at = [[0] * len(schedule.programs) for schedule in schedules]

    def queue(rank: int, edge: Edge) -> "deque[np.ndarray]":
        ends = (rank, edge.peer) if edge.direction is Direction.SEND else (edge.peer, rank)
        return queues.setdefault((*ends, edge.group), deque())

    moved = True
    while moved:
        moved = False
        for rank, schedule in enumerate(schedules):
            for index, program in enumerate(schedule.programs):
                if at[rank][index] == len(program):
                    continue
                step = program[at[rank][index]]
                if not all(queue(rank, edge) for edge in step.receives):
                    continue
                if any(len(queue(rank, edge)) >= window for edge in step.sends):
                    continue
                part = arrays[rank][step.start : step.stop]
                for edge in step.receives:
                    incoming = queue(rank, edge).popleft()
                    assert incoming.shape == part.shape
                    part[:] = part + incoming if step.reduce else incoming
                for edge in step.sends:
                    queue(rank, edge).append(part.copy())
                at[rank][index] += 1
                moved = True
    for rank, schedule in enumerate(schedules):
        assert at[rank] == [len(program) for program in schedule.programs], f"rank {rank} is stuck"
    assert not any(queues.values())


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("count", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    ("algorithm", "trees"), [(Algorithm.RING, 1), (Algorithm.TREE, 1), (Algorithm.TREE, 2)]
)
def test_every_rank_ends_with_the_sum(size: int, count: int, algorithm: Algorithm, trees: int) -> None:
    random = np.random.default_rng(size * 1000 + count)
    order = tuple(int(rank) for rank in random.permutation(size))
    arrays = [random.integers(0, 100, count).astype(np.float64) for _ in range(size)]
    expected = sum(arrays)
    carry_out(Topology(algorithm, order, trees), arrays, Cut(8, 2), window=3)
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


def test_ring_of_eight_counts_what_the_papers_count() -> None:
    """2(N-1) chunks each way in each loop; the pipeline is full after N*K + K slices."""
    topology = Topology(Algorithm.RING, tuple(range(8)))
    schedule = make_schedule(topology, 3, 8 * 2 * 4 * 10, Cut(10, 2))  # four loops of 2-slice chunks
    send, receive = topology.edges(3)
    assert (send.peer, receive.peer) == (4, 2)
    assert schedule.counts == {send: 4 * 14 * 2, receive: 4 * 14 * 2}
    assert schedule.fill == {send: 18, receive: 18}


def test_single_loop_counts_waits_in_its_second_half() -> None:
    topology = Topology(Algorithm.RING, tuple(range(8)))
    schedule = make_schedule(topology, 0, 80, Cut(10))
    assert set(schedule.fill.values()) == {7}


def test_tree_peer_slots_are_up_and_down() -> None:
    topology = Topology(Algorithm.TREE, tuple(range(7)), trees=2)
    first = {(e.peer, e.peer_slot) for e in topology.edges(1) if e.group == 1}
    assert first == {(0, 0), (3, 1), (4, 2)}
    assert {e.peer_slot for e in topology.edges(1) if e.group == 2} == {0}  # a leaf of the second tree
    assert topology.parents(0) == (-1, 0, 0, 1, 1, 2, 2)
    assert topology.parents(1)[6] == -1
    assert {(e.channel, e.group) for e in topology.edges(1)} == {(0, 1), (1, 2)}


def test_both_ends_of_a_link_agree_on_its_slices() -> None:
    for topology in (
        Topology(Algorithm.RING, (2, 0, 1, 3)),
        Topology(Algorithm.TREE, (2, 0, 1, 3), trees=2),
    ):
        schedules = [make_schedule(topology, rank, 1001, Cut(16, 2)) for rank in range(4)]
        sent = {
            (rank, edge.peer, edge.group): count
            for rank, schedule in enumerate(schedules)
            for edge, count in schedule.counts.items()
            if edge.direction is Direction.SEND
        }
        received = {
            (edge.peer, rank, edge.group): count
            for rank, schedule in enumerate(schedules)
            for edge, count in schedule.counts.items()
            if edge.direction is Direction.RECEIVE
        }
        assert sent == received


def test_nothing_to_do_alone_or_with_an_empty_array() -> None:
    empty = Schedule((), {}, {}, ())
    assert make_schedule(Topology(Algorithm.RING, (0,)), 0, 10, Cut(4)) == empty
    assert make_schedule(Topology(Algorithm.TREE, (0, 1)), 0, 0, Cut(4)) == empty


@pytest.mark.parametrize(
    ("algorithm", "order", "trees", "named"),
    [
        (Algorithm.NVLS, (0, 1), 1, "algorithm"),
        (Algorithm.RING, (0, 0), 1, "order"),
        (Algorithm.RING, (), 1, "order"),
        (Algorithm.TREE, (0, 1), 3, "trees"),
    ],
)
def test_wrong_topology_is_named(
    algorithm: Algorithm, order: tuple[int, ...], trees: int, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        Topology(algorithm, order, trees)
