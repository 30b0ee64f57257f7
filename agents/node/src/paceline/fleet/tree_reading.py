"""The trees of all communicators of one kind at one instant: counts, states and waits of every link."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import Algorithm, Function, TransferState
from paceline.fleet import trees
from paceline.fleet.history import F64, Ints, KindView, Op, Stuck
from paceline.fleet.layout import Groups

Bools = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]
# Ends of a link: whether its owner is the child, whether it sends.
_ENDS = (("up", "sent", True), ("up", "taken", False), ("down", "sent", False), ("down", "taken", True))
_WAITS = (TransferState.SEND_WAIT, TransferState.SEND_PEER_WAIT, TransferState.RECV_WAIT)


def uses_tree(groups: Groups, function: int) -> bool:
    """NCCL runs only all-reduce over trees."""
    return groups.algorithm is Algorithm.TREE and function == Function.ALL_REDUCE


@dataclass(eq=False)
class End:
    """One end of a link of each rank to its parent, flat (N,); zero where there is no link."""

    owner: Ints  # rank at this end, -1 no link
    peer: Ints
    is_send: bool
    count: Ints  # cumulative slices
    state: U8
    wait_s: F64  # of the operation that is going on


@dataclass(eq=False)
class Trees:
    """All ends of all links, tree by tree."""

    ends: tuple[tuple[int, End], ...]  # (tree, end)

    def totals(self, ranks: int) -> tuple[Ints, Ints]:
        """Slices that each rank has sent and received over its links."""
        sums = np.zeros((2, ranks), np.int64)
        for _, end in self.ends:
            at = end.owner >= 0
            np.add.at(sums[0 if end.is_send else 1], end.owner[at], end.count[at])
        return sums[0], sums[1]


def read_trees(groups: Groups, settled: Ints, view: KindView, at: F64) -> Trees:
    """`settled`: slices that each link has carried in operations that are over, (stages, ranks)."""
    ranks = at.size
    ends = []
    carried = settled.reshape(-1)
    for tree in range(trees.TREES):
        parent = _parent_ranks(groups, tree, ranks)
        linked = parent >= 0
        for _, side, is_child in _ENDS:
            mine, other = np.arange(ranks, dtype=np.int64), np.maximum(parent, 0)
            owner, peer = (mine, other) if is_child else (other, mine)
            count = np.where(linked, carried, 0)
            state, wait = np.zeros(ranks, np.uint8), np.zeros(ranks)
            ends.append((tree, End(np.where(linked, owner, -1), peer, side == "sent", count, state, wait)))
    until_s = float(at.max())
    for index, op in enumerate(view.ops):
        if not op.over and op.first_s <= until_s and uses_tree(groups, op.call.function):
            heads = view.head[op.stages] == index
            _add(groups, op, at[op.stages], heads, ends)
    return Trees(tuple(ends))


def _parent_ranks(groups: Groups, tree: int, ranks: int) -> Ints:
    parents = trees.parents_of(groups.size, tree)
    found = np.full(ranks, -1, np.int64)
    found[groups.members] = np.where(parents < 0, -1, groups.members[:, np.maximum(parents, 0)])
    return found


def _add(groups: Groups, op: Op, at: F64, heads: Bools, ends: list[tuple[int, End]]) -> None:
    """What `op` has done so far, each end as its owner sees it at its own time."""
    where = _places(groups, op)  # (communicators of the operation, size): positions in its arrays
    ranks = (op.stages[:, None] * at.shape[1] + np.arange(at.shape[1])).reshape(-1)[where]

    def take(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values.reshape(-1)[where]

    start, now = take(op.start), take(at)
    complete = take(op.complete)
    started, done = start <= now, complete <= now
    if not started.any():
        return
    open_here = take(heads) & started
    age = np.where(started, now - np.where(started, start, 0.0), 0.0)
    share = _share(start, complete, now)
    for tree in range(trees.TREES):
        up, down = _flows(groups, op, ranks, started, start, tree)
        parents = trees.parents_of(groups.size, tree)
        above = np.maximum(parents, 0)
        moving = started.all(axis=1) & ~_stuck_rows(op, groups, ranks)
        mine = ends[len(_ENDS) * tree : len(_ENDS) * (tree + 1)]
        for (direction, side, is_child), (_, end) in zip(_ENDS, mine, strict=True):
            flow = up if direction == "up" else down
            pick = _chooser(is_child, above)
            count = getattr(flow, side)
            state = flow.sends if side == "sent" else flow.receives
            part = pick(share)
            count = count + ((trees.SLICES - count) * np.where(moving[:, None], part, 0.0)).astype(np.int64)
            count = np.where(pick(done), trees.SLICES, np.where(pick(started), count, 0))
            state = np.where(moving[:, None], np.uint8(TransferState.MOVING), state)
            state = np.where(pick(open_here), state, 0)
            linked = np.broadcast_to(parents >= 0, count.shape)
            end.count[ranks[linked]] += count[linked]
            shown = linked & pick(open_here)
            end.state[ranks[shown]] = state[shown]
            end.wait_s[ranks[shown]] = np.where(np.isin(state, _WAITS), pick(age), 0.0)[shown]


def _chooser(is_child: bool, above: Ints) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Values of the members that own an end: the child itself, or its parent."""
    return (lambda values: values) if is_child else (lambda values: values[:, above])


def _flows(
    groups: Groups, op: Op, ranks: Ints, started: Bools, start: F64, tree: int
) -> tuple[trees.Flow, trees.Flow]:
    """Flows of one tree in every communicator. Once all have started, the last one to do so counts as
    the missing one, so that counts only grow."""
    idle = np.where(started.all(axis=1, keepdims=True), start == start.max(axis=1, keepdims=True), ~started)
    up, down = trees.missing(idle, tree)
    for stuck in op.stuck:
        row = int(np.flatnonzero(ranks[:, 0] == groups.members[stuck.comm][0])[0])
        for flow, one in zip((up, down), _of_stuck(groups.size, stuck, tree), strict=True):
            for name in trees.Flow.__dataclass_fields__:
                getattr(flow, name)[row] = getattr(one, name)[0]
    return up, down


def _of_stuck(size: int, stuck: Stuck, tree: int) -> tuple[trees.Flow, trees.Flow]:
    if stuck.place < 0:
        return trees.nobody_moves(size)
    if stuck.link:
        return trees.cut(size, stuck.place, stuck.far, stuck.done, tree)
    return trees.stuck(size, stuck.place, stuck.done, tree)


def _stuck_rows(op: Op, groups: Groups, ranks: Ints) -> Bools:
    first = [int(groups.members[stuck.comm][0]) for stuck in op.stuck]
    return np.isin(ranks[:, 0], np.array(first, np.int64))


def _places(groups: Groups, op: Op) -> Ints:
    _, outer, size, inner = groups.shape
    grid = np.arange(op.enter.size, dtype=np.int64).reshape(-1, outer, size, inner)
    return np.moveaxis(grid, 2, 3).reshape(-1, size)


def _share(start: F64, complete: F64, now: F64) -> F64:
    """How far a transfer is that all members take part in, as each sees it, 0 to 1."""
    ready = start.max(axis=1, keepdims=True)
    ends = np.isfinite(complete) & np.isfinite(ready)
    length = np.where(ends, complete - np.where(ends, ready, 0.0), 1.0)
    share = np.where(ends, (now - np.where(ends, ready, now)) / np.maximum(length, 1e-9), 0.0)
    return np.clip(share, 0.0, 1.0)
