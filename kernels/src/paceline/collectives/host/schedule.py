"""Who sends which part of the array to whom, in which order: pure.

A program is a list of steps that one rank carries out strictly in order, as a GPU block does: each
step waits for its slices, reduces or copies them, and passes them on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from paceline.contracts.codes import Algorithm

TREES_MAX = 2


class Direction(IntEnum):
    """As in `edge.direction` of the probe page."""

    SEND = 0
    RECEIVE = 1


@dataclass(frozen=True)
class Edge:
    """One directed link of a rank, in the terms of the probe page."""

    peer: int  # rank of the communicator
    direction: Direction
    group: int  # 0 ring, 1 first tree, 2 second tree
    channel: int
    peer_slot: int  # ring: 0; tree: 0 up, 1 to 3 down


@dataclass(frozen=True)
class Step:
    """Elements `start` to `stop`: received from all of `receives`, then sent to all of `sends`."""

    receives: tuple[Edge, ...]
    sends: tuple[Edge, ...]
    start: int
    stop: int
    reduce: bool  # add to what is there; else replace it


Program = tuple[Step, ...]


@dataclass(frozen=True)
class Topology:
    """How the ranks of a communicator are linked. The same on every member.

    `order`: ranks of the communicator along the ring, or in heap order of the first tree (the children
    of position i stand at 2i + 1 and 2i + 2). The second tree is the first one backwards, so that who
    forwards in one is a leaf of the other (Sanders, Speck, Traeff 2009). ValueError names what is wrong.
    """

    algorithm: Algorithm
    order: tuple[int, ...]
    trees: int = 1

    def __post_init__(self) -> None:
        if self.algorithm not in (Algorithm.RING, Algorithm.TREE):
            raise ValueError(f"algorithm {self.algorithm!r}, expected RING or TREE")
        if sorted(self.order) != list(range(len(self.order))) or not self.order:
            raise ValueError(f"order {self.order}, expected each rank from 0 once")
        if not 1 <= self.trees <= TREES_MAX:
            raise ValueError(f"trees {self.trees}, expected 1 to {TREES_MAX}")

    @property
    def size(self) -> int:
        return len(self.order)

    @property
    def channels(self) -> int:
        return self.trees if self.algorithm is Algorithm.TREE else 1

    def edges(self, rank: int) -> tuple[Edge, ...]:
        """All directed links of `rank`."""
        if self.size == 1:
            return ()
        if self.algorithm is Algorithm.RING:
            return self._ring_edges(rank)
        return tuple(edge for tree in range(self.trees) for edge in self._tree_edges(rank, tree))

    def _ring_edges(self, rank: int) -> tuple[Edge, Edge]:
        at = self.order.index(rank)
        after, before = self.order[(at + 1) % self.size], self.order[at - 1]
        return Edge(after, Direction.SEND, 0, 0, 0), Edge(before, Direction.RECEIVE, 0, 0, 0)

    def tree_order(self, tree: int) -> tuple[int, ...]:
        """Ranks in heap order of tree 0 or 1."""
        return self.order if tree == 0 else self.order[::-1]

    def parents(self, tree: int) -> tuple[int, ...]:
        """Parent of each rank, -1 for the root."""
        order = self.tree_order(tree)
        parents = [-1] * self.size
        for at in range(1, self.size):
            parents[order[at]] = order[(at - 1) // 2]
        return tuple(parents)

    def _tree_edges(self, rank: int, tree: int) -> tuple[Edge, ...]:
        """Up first: send and receive of the parent, then of each child."""
        order = self.tree_order(tree)
        at = order.index(rank)
        peers = [(0, order[(at - 1) // 2])] if at else []
        peers += [(1 + i, order[c]) for i, c in enumerate((2 * at + 1, 2 * at + 2)) if c < self.size]
        return tuple(
            Edge(peer, direction, 1 + tree, tree, slot) for slot, peer in peers for direction in Direction
        )


@dataclass(frozen=True)
class Cut:
    """How an array is cut: `slice_elements` go over a link at once, `chunk_slices` of them make a chunk."""

    slice_elements: int
    chunk_slices: int = 1


@dataclass(frozen=True)
class Schedule:
    """What one rank does for one array. `fill`: slices on each edge before the pipeline is full."""

    programs: tuple[Program, ...]
    fill: dict[Edge, int]
    counts: dict[Edge, int]  # slices in all
    sends: tuple[frozenset[Edge], ...]  # of each program


def make_schedule(topology: Topology, rank: int, count: int, cut: Cut) -> Schedule:
    """All-reduce of `count` elements as `rank` carries it out."""
    if topology.size == 1 or count == 0:
        return Schedule((), {}, {}, ())
    if topology.algorithm is Algorithm.RING:
        programs: tuple[Program, ...] = (tuple(_ring_steps(topology, rank, count, cut)),)
        first = topology.size * cut.chunk_slices + cut.chunk_slices
    else:
        programs = tuple(
            program
            for tree in range(topology.trees)
            for program in _tree_programs(topology, rank, tree, _share(count, topology.trees, tree), cut)
        )
        first = 2 * topology.size.bit_length() * cut.chunk_slices
    counts: dict[Edge, int] = {}
    for program in programs:
        for step in program:
            for edge in (*step.receives, *step.sends):
                counts[edge] = counts.get(edge, 0) + 1
    # papers.md 1.4 rule 5: waits count after N*K + K receives, or in the second half of the operation
    fill = {edge: min(first, slices // 2) for edge, slices in counts.items()}
    sends = tuple(frozenset(edge for step in program for edge in step.sends) for program in programs)
    return Schedule(programs, fill, counts, sends)


def _share(count: int, parts: int, index: int) -> tuple[int, int]:
    return count * index // parts, count * (index + 1) // parts


def _ring_steps(topology: Topology, rank: int, count: int, cut: Cut) -> Iterator[Step]:
    """Reduce-scatter and all-gather, loop by loop; a loop is one chunk for each rank."""
    size = topology.size
    send, receive = topology._ring_edges(rank)  # noqa: SLF001  (same module)
    at = topology.order.index(rank)
    loop_elements = size * cut.chunk_slices * cut.slice_elements
    for offset in range(0, count, loop_elements):
        length = min(loop_elements, count - offset)
        for hop in range(2 * size - 1):
            begin, end = _share(length, size, (at - hop) % size)
            for piece in range(cut.chunk_slices):
                start, stop = _share(end - begin, cut.chunk_slices, piece)
                yield Step(
                    receives=(receive,) if hop else (),
                    sends=(send,) if hop < 2 * size - 2 else (),
                    start=offset + begin + start,
                    stop=offset + begin + stop,
                    reduce=hop < size,
                )


def _tree_programs(
    topology: Topology, rank: int, tree: int, part: tuple[int, int], cut: Cut
) -> tuple[Program, ...]:
    """Up and down run beside each other; at the root they are one."""
    edges = topology._tree_edges(rank, tree)  # noqa: SLF001  (same module)
    is_root = all(edge.peer_slot for edge in edges)
    up = tuple(edge for edge in edges if edge.peer_slot == 0 and edge.direction is Direction.SEND)
    above = tuple(edge for edge in edges if edge.peer_slot == 0 and edge.direction is Direction.RECEIVE)
    below = tuple(edge for edge in edges if edge.peer_slot and edge.direction is Direction.RECEIVE)
    down = tuple(edge for edge in edges if edge.peer_slot and edge.direction is Direction.SEND)
    begin, end = part
    slices = [
        (start, min(start + cut.slice_elements, end)) for start in range(begin, end, cut.slice_elements)
    ]
    if is_root:
        return (tuple(Step(below, down, start, stop, True) for start, stop in slices),)
    return (
        tuple(Step(below, up, start, stop, True) for start, stop in slices),
        tuple(Step(above, down, start, stop, False) for start, stop in slices),
    )
