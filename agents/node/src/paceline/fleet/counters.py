"""Send and receive counts and waits of the members, consistent with where an operation stands.

Ring of n, C slices a step: a member d places behind one that does not move has sent d steps more
than it and received d - 1 (ring data dependency), and nobody runs further ahead than the buffers of
the members in between allow. Trees are in `trees`: every link carries the same, so only counts
normalised by role (number of links) compare. Shapes of slow links are
those of a ring under backpressure: the receiver starves, the sender is blocked, and the members in
between share the wait by their distance (docs/adr/0018-fleet-simulator.md).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import Algorithm, Function
from paceline.fleet import trees
from paceline.fleet.history import F64, Ints, KindView, Op, Stuck
from paceline.fleet.layout import CommKind, Groups, Topology
from paceline.fleet.noise import Noise
from paceline.fleet.profiles import Profile
from paceline.fleet.tree_reading import Trees, read_trees, uses_tree

SLICES = 4  # per ring step
BUFFER = 16  # slices between two neighbours
Bools = npt.NDArray[np.bool_]
_GATHERS = frozenset({Function.ALL_GATHER, Function.REDUCE_SCATTER, Function.ALL_TO_ALL})


def ring_slices(function: Function, size: int) -> int:
    """Slices that each member sends, and receives, in one operation over a ring."""
    if function is Function.ALL_REDUCE:
        return 2 * (size - 1) * SLICES
    return (size - 1) * SLICES if function in _GATHERS else SLICES


class Totals:
    """Counts and waits of one kind of communicator over all operations that are over."""

    def __init__(self, groups: Groups, topology: Topology, profile: Profile, noise: Noise) -> None:
        self.groups, self._noise = groups, noise
        shape = (topology.pp, topology.stage_ranks)
        self.sends, self.receives = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.send_wait, self.recv_wait = np.zeros(shape), np.zeros(shape)
        # Of operations over trees: slices of each link, and waits, which are among those above as well.
        self.per_link = np.zeros(shape, np.int64)
        self.tree_send_wait, self.tree_recv_wait = np.zeros(shape), np.zeros(shape)
        self.active = profile.network_counts
        self.sees_sends, self.sees_receives = _visible(groups, topology, profile)
        self.sees_inside_node = profile.local_counts
        self.node_of = topology.node_of
        self.visible = self._whole()

    def sees(self, owner: Ints, peer: Ints) -> Bools:
        """Whether the link between two ranks is counted."""
        if not self.active or self.sees_inside_node:
            return np.full(len(owner), self.active)
        seen: Bools = self.node_of[owner] != self.node_of[peer]
        return seen

    def _whole(self) -> Bools:
        """(N,) members of which every link that they use is seen."""
        both: Bools = self.sees_sends & self.sees_receives
        if not self.has_trees:
            return both
        # The world runs nothing but all-reduce, so that its ring is not used.
        seen = np.full(both.shape, self.active) if self.groups.kind is CommKind.WORLD else both
        for tree in range(trees.TREES):
            parents = trees.parents_of(self.groups.size, tree)
            child, parent = (
                self.groups.members[:, parents >= 0],
                self.groups.members[:, parents[parents >= 0]],
            )
            dark = ~self.sees(child.reshape(-1), parent.reshape(-1))
            seen[child.reshape(-1)[dark]] = seen[parent.reshape(-1)[dark]] = False
        return seen

    @property
    def has_trees(self) -> bool:
        return self.groups.algorithm is Algorithm.TREE

    def settle(self, op: Op) -> None:
        """Add an operation that is over everywhere."""
        if not self.active:
            return
        self.add(self.sends, self.receives, op)
        send_wait, recv_wait = self.waits(op)
        self.send_wait[op.stages] += send_wait
        self.recv_wait[op.stages] += recv_wait
        if uses_tree(self.groups, op.call.function):
            self.per_link[op.stages] += trees.SLICES
            self.tree_send_wait[op.stages] += send_wait
            self.tree_recv_wait[op.stages] += recv_wait

    def add(self, sends: Ints, receives: Ints, op: Op) -> None:
        """Add the slices of a whole operation to both counts."""
        tree = uses_tree(self.groups, op.call.function)
        total = self.expected(op) if tree else ring_slices(op.call.function, self.groups.size)
        sends[op.stages] += total
        receives[op.stages] += total

    def expected(self, op: Op) -> Ints:
        """Slices of the whole operation, (stages, ranks)."""
        shape = op.enter.shape
        if uses_tree(self.groups, op.call.function):
            return self.spread(trees.links_of(self.groups.size) * trees.SLICES, shape)
        return np.full(shape, ring_slices(op.call.function, self.groups.size), np.int64)

    def waits(self, op: Op) -> tuple[F64, F64]:
        """Seconds that each member waited inside the operation after the pipeline had filled."""
        shape = op.enter.shape
        unit = 0.01 * op.call.base_s
        send = np.abs(self._noise.normal(shape)) * unit
        receive = np.abs(self._noise.normal(shape)) * unit
        size = self.groups.size
        for comm, place, excess in op.slow:
            members = self.groups.members[comm]
            flat = self.flat(op, members)
            distance = (np.arange(size) - place) % size
            share = distance / max(size - 1, 1)
            if uses_tree(self.groups, op.call.function):
                share = np.where(distance == 0, 0.0, 0.5)
            receive.reshape(-1)[flat] += excess * (1.0 - share)
            send.reshape(-1)[flat] += excess * share
        return send, receive

    def flat(self, op: Op, members: Ints) -> Ints:
        """Positions of global ranks in the arrays of `op`."""
        ranks_per_stage = op.enter.shape[1]
        stage, place = np.divmod(members, ranks_per_stage)
        order: Ints = np.searchsorted(op.stages, stage) * ranks_per_stage + place
        return order

    def spread(self, per_place: Ints, shape: tuple[int, ...]) -> Ints:
        """A value for each place, laid out like the arrays of one operation."""
        _, outer, size, inner = self.groups.shape
        grid = np.broadcast_to(per_place[None, None, :, None], (1, outer, size, inner))
        if self.groups.kind is CommKind.WORLD:
            return grid.reshape(shape).copy()
        return np.broadcast_to(grid.reshape(1, -1), shape).copy()


def _visible(groups: Groups, topology: Topology, profile: Profile) -> tuple[Bools, Bools]:
    """Members whose outgoing, and incoming, ring edge the profile counts."""
    ranks = topology.ranks
    if not profile.network_counts:
        return np.zeros(ranks, np.bool_), np.zeros(ranks, np.bool_)
    if profile.local_counts:
        return np.ones(ranks, np.bool_), np.ones(ranks, np.bool_)
    node = topology.node_of[groups.members]
    leaves, arrives = np.zeros(ranks, np.bool_), np.zeros(ranks, np.bool_)
    leaves[groups.members] = node != np.roll(node, -1, axis=1)
    arrives[groups.members] = node != np.roll(node, 1, axis=1)
    return leaves, arrives


@dataclass(eq=False)
class Counters:
    """Cumulative slices of every rank in one kind of communicator at one instant, flat (N,).

    `ring_sends` and `ring_receives` are what of them went over the ring.
    """

    visible: Bools
    sends: Ints
    receives: Ints
    ring_sends: Ints
    ring_receives: Ints
    trees: Trees | None = None

    @staticmethod
    def read(totals: Totals, view: KindView, at: F64) -> "Counters":
        """Counts of operations that are over, and of those under way."""
        if not totals.active:
            nothing = np.zeros(at.size, np.int64)
            return Counters(np.zeros(at.size, np.bool_), nothing, nothing, nothing, nothing)
        groups = totals.groups
        sends, receives = totals.sends.copy(), totals.receives.copy()
        if totals.has_trees:
            over = totals.per_link * totals.spread(trees.links_of(groups.size), at.shape)
            sends, receives = sends - over, receives - over
        from_s, until_s = float(at.min()), float(at.max())
        for op in view.ops:
            if op.over or op.first_s > until_s or uses_tree(groups, op.call.function):
                continue
            if op.latest <= from_s:
                totals.add(sends, receives, op)
                continue
            sent, received = _under_way(totals, op, at[op.stages])
            sends[op.stages] += sent
            receives[op.stages] += received
        ring = sends.reshape(-1), receives.reshape(-1)
        if not totals.has_trees:
            return Counters(totals.visible, *ring, *ring)
        found = read_trees(groups, totals.per_link, view, at)
        sent, received = found.totals(at.size)
        return Counters(totals.visible, ring[0] + sent, ring[1] + received, *ring, found)


def _under_way(totals: Totals, op: Op, at: F64) -> tuple[Ints, Ints]:
    """Slices sent and received by each member in `op` at its own time."""
    total = totals.expected(op)
    done, started = op.complete <= at, op.start <= at
    if not started.any():
        return np.zeros_like(total), np.zeros_like(total)
    if done.all():
        return total, total
    groups = totals.groups
    _, outer, size, inner = groups.shape
    shape = (-1, outer, size, inner)
    if not op.call.synchronising:
        sent = np.where(started, np.minimum(BUFFER // 4, total), 0)
        received = sent.copy()
    else:
        sent, received = _ring(started.reshape(shape), op.start.reshape(shape), total.reshape(shape))
        sent, received = sent.reshape(total.shape), received.reshape(total.shape)
    share = _share(op, started, at, shape)
    sent = sent + ((total - sent) * share).astype(np.int64)
    received = received + ((total - received) * share).astype(np.int64)
    for stuck in op.stuck:
        flat = totals.flat(op, groups.members[stuck.comm])
        place = _stuck_counts(groups, op, stuck)
        for out, counts in zip((sent, received), place, strict=True):
            out.reshape(-1)[flat] = np.where(started.reshape(-1)[flat], counts, out.reshape(-1)[flat])
    sent, received = np.where(started, sent, 0), np.where(started, received, 0)
    return np.where(done, total, sent), np.where(done, total, received)


def _share(op: Op, started: Bools, at: F64, shape: tuple[int, int, int, int]) -> F64:
    """How far a transfer is that all members take part in, 0 to 1."""
    start, complete = op.start.reshape(shape), op.complete.reshape(shape)
    ready = start.max(axis=2, keepdims=True)
    with np.errstate(invalid="ignore"):
        share = (at.reshape(shape) - ready) / np.maximum(complete - ready, 1e-9)
    share = np.where(np.isfinite(complete), np.clip(np.nan_to_num(share, nan=0.0), 0.0, 1.0), 0.0)
    return np.where(started, share.reshape(started.shape), 0.0)


def _ring(started: Bools, start: F64, total: Ints) -> tuple[Ints, Ints]:
    """Counts while members are missing: by the distance from the nearest of them, on both sides.

    Once all have started, the last one to start counts as the missing one, so counts only grow.
    """
    size = started.shape[2]
    missing = ~started
    nobody = ~missing.any(axis=2, keepdims=True)
    if nobody.any():
        last = start == start.max(axis=2, keepdims=True)
        missing = np.where(nobody, last, missing)
    behind, ahead = distance(missing, 1), distance(missing, -1)
    sent = np.minimum(behind * SLICES, ahead * BUFFER)
    received = np.minimum(np.maximum(behind - 1, 0) * SLICES, (ahead + 1) * BUFFER)
    received = np.where(behind == 0, 0, received)
    limit = total[:, :, :1] if size else total
    return np.minimum(sent, limit), np.minimum(received, limit)


def distance(missing: Bools, direction: int) -> Ints:
    """Places to the nearest missing member against (1) or along (-1) the ring; 0 for itself."""
    size = missing.shape[2]
    if direction < 0:
        return np.flip(distance(np.flip(missing, axis=2), 1), axis=2)
    index = np.arange(2 * size, dtype=np.int64)[None, None, :, None]
    twice = np.concatenate([missing, missing], axis=2)
    nearest = np.maximum.accumulate(np.where(twice, index, -(4 * size)), axis=2)
    found: Ints = np.minimum((index - nearest)[:, :, size:], size)
    return found


def _stuck_counts(groups: Groups, op: Op, stuck: Stuck) -> tuple[Ints, Ints]:
    """(sent, received) of each place of one communicator that stands still."""
    size = groups.size
    if stuck.place < 0:
        return np.zeros(size, np.int64), np.zeros(size, np.int64)
    total = ring_slices(op.call.function, size)
    # Beyond this somebody would have received everything and left the operation.
    room = (size - 1) * SLICES if op.call.function is Function.ALL_REDUCE else SLICES
    base = min(int(stuck.done * room), room - 1)
    behind = (np.arange(size) - stuck.place) % size
    ahead = np.where(behind == 0, size, size - behind)
    sent = np.minimum(base + np.minimum(behind * SLICES, ahead * BUFFER), total)
    received = np.minimum(
        base + np.minimum(np.maximum(behind - 1, 0) * SLICES, (ahead + 1) * BUFFER), total - 1
    )
    sent[stuck.place] = base
    received[stuck.place] = min(base + SLICES, total - 1) if stuck.link else max(base - 1, 0)
    return sent.astype(np.int64), received.astype(np.int64)
