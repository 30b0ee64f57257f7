"""All-reduce over two trees: what each of their links carries while something stands still.

Every member is in both trees, as NCCL builds them: the second is the first one backwards, so that who
has children in the one is a leaf of the other, and each carries half of the data. Slices go up while
they are reduced, the root turns them round, and they go down. Links have buffers of `DEPTH` slices. A
member takes a slice from its children together and hands it to both children together.

A member that does not move keeps everybody above it waiting for its data and everybody else waiting for
the result; who owes nothing to the ones that wait is blocked in sending once the buffers up to there are
full. A link that is down keeps what its sender has handed over; downwards this blocks the way up to the
root, and with the root everything that goes up.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import TransferState
from paceline.fleet.layout import Ints, tree_parents

TREES = 2
SLICES = 256  # over each link of each tree, in one direction
DEPTH = 4  # slices between two neighbours
UP, DOWN = 0, 1
_ROOM_MIN = 8
_T = TransferState
U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


@dataclass(eq=False)
class Flow:
    """One direction of all links of one tree, (communicators, size), each at the place of its child.

    The root has no link: its column means nothing.
    """

    sent: Ints  # delivered, by the sender
    taken: Ints  # by the receiver
    sends: U8  # TransferState of the sender
    receives: U8


@cache
def parents_of(size: int, tree: int) -> Ints:
    """Parent of each place in one tree, -1 for its root."""
    first = tree_parents(size)
    if tree == 0:
        return first
    second = first[::-1]
    return np.where(second < 0, -1, size - 1 - second)


@cache
def links_of(size: int) -> Ints:
    """Links of each place in both trees together."""
    found = np.zeros(size, np.int64)
    for tree in range(TREES):
        parents = parents_of(size, tree)
        found += np.bincount(parents[parents >= 0], minlength=size) + (parents >= 0)
    return found


def neighbours(size: int, place: int) -> tuple[int, ...]:
    """Places that share a link of some tree with `place`, ascending."""
    found: set[int] = set()
    for tree in range(TREES):
        parents = parents_of(size, tree)
        found |= {int(each) for each in np.flatnonzero(parents == place)}
        found |= {int(parents[place])} - {-1}
    return tuple(sorted(found))


def whole(shape: tuple[int, int]) -> tuple[Flow, Flow]:
    """A tree that has carried everything: up and down."""

    def one() -> Flow:
        full, idle = np.full(shape, SLICES, np.int64), np.zeros(shape, np.uint8)
        return Flow(full, full.copy(), idle, idle.copy())

    return one(), one()


def missing(idle: Bools, tree: int) -> tuple[Flow, Flow]:
    """Members of `idle` (communicators, size) have not begun; some of each communicator."""
    found = _stalled(_first_order(idle, tree), _first_order(idle, tree), 0)
    return _own_order(found, tree)


def stuck(size: int, place: int, done: float, tree: int) -> tuple[Flow, Flow]:
    """The member at `place` does not move any more after the share `done` of what it could have done."""
    at = place if tree == 0 else size - 1 - place
    idle = np.zeros((1, size), np.bool_)
    idle[0, at] = True
    base, lag = _base(size, done), min(2 * int(_depths(size)[at]), DEPTH)
    up, down = found = _stalled(idle, idle, base)
    # What comes down lags behind, so that the one that stands still had not taken all of it.
    below = _subtree(size, at)
    down.taken[0, below] = max(base - lag, 0)
    below[at] = False
    down.sent[0, below] = max(base - lag, 0)
    own = tree_parents(size) == at
    up.receives[0, own] = _T.RECV_GPU_WAIT
    return _own_order(found, tree)


def cut(size: int, sender: int, receiver: int, done: float, tree: int) -> tuple[Flow, Flow]:
    """The link between two places is down in that direction; a tree without it has carried everything."""
    parents = parents_of(size, tree)
    a, b = (sender, receiver) if tree == 0 else (size - 1 - sender, size - 1 - receiver)
    if parents[sender] == receiver:
        seed, nobody = np.zeros((1, size), np.bool_), np.zeros((1, size), np.bool_)
        seed[0, a] = True
        up, down = _stalled(seed, nobody, _base(size, done))
        up.sends[0, a] = _T.SEND_WAIT
    elif parents[receiver] == sender:
        up, down = _cut_below(size, a, b, _base(size, done))
    else:
        return whole((1, size))
    return _own_order((up, down), tree)


def nobody_moves(size: int) -> tuple[Flow, Flow]:
    """Everybody waits for data, and nobody has any."""
    zero = np.zeros((1, size), np.int64)

    def one() -> Flow:
        waits = np.full((1, size), int(_T.RECV_WAIT), np.uint8)
        return Flow(zero.copy(), zero.copy(), np.full((1, size), int(_T.SEND_GPU_WAIT), np.uint8), waits)

    return one(), one()


def _stalled(seed: Bools, idle: Bools, base: int) -> tuple[Flow, Flow]:
    """Flows in heap order: the subtrees of `seed` deliver nothing beyond `base`; `idle` takes nothing."""
    size = seed.shape[1]
    parents = tree_parents(size)
    above = np.maximum(parents, 0)
    owes = seed.copy()  # somewhere below, or here
    for low, high in reversed(_levels(size)):
        left, right, first = owes[:, low:high:2], owes[:, low + 1 : high : 2], int(above[low])
        owes[:, first : first + left.shape[1]] |= left
        owes[:, first : first + right.shape[1]] |= right
    hops = np.zeros(seed.shape, np.int64)  # to the first member above that waits
    for low, high in _levels(size):
        hops[:, low:high] = np.where(owes[:, low:high], 0, hops[:, above[low:high]] + 1)
    sent = np.minimum(base + DEPTH * hops, SLICES)
    blocked = ~owes & (sent < SLICES)
    starved = owes & ~idle[:, above]
    up = Flow(
        sent,
        np.minimum(base + DEPTH * hops[:, above], sent),
        np.where(blocked, _T.SEND_PEER_WAIT, _T.SEND_GPU_WAIT).astype(np.uint8),
        np.where(starved, _T.RECV_WAIT, _T.RECV_GPU_WAIT).astype(np.uint8),
    )
    level = np.full(seed.shape, base, np.int64)
    down = Flow(
        level,
        level.copy(),
        np.full(seed.shape, int(_T.SEND_GPU_WAIT), np.uint8),
        np.where(idle, _T.RECV_GPU_WAIT, _T.RECV_WAIT).astype(np.uint8),
    )
    return up, down


def _cut_below(size: int, sender: int, receiver: int, base: int) -> tuple[Flow, Flow]:
    """Heap order: nothing gets down from `sender` to its child any more."""
    parents = tree_parents(size)
    path = np.zeros(size, np.bool_)
    taken, at, slices = np.full(size, base, np.int64), sender, base
    while at >= 0:
        path[at], taken[at] = True, slices
        at, slices = int(parents[at]), slices + DEPTH
    for place in range(1, size):
        if not path[place]:  # takes all that its parent hands on
            taken[place] = base if place == receiver else taken[parents[place]]
    sent = taken[np.maximum(parents, 0)]
    sent[receiver] = base
    sends = np.where(path, _T.SEND_PEER_WAIT, _T.SEND_GPU_WAIT)
    sends[receiver] = _T.SEND_WAIT
    receives = np.where(path, _T.RECV_GPU_WAIT, _T.RECV_WAIT)
    down = Flow(sent[None], taken[None], sends.astype(np.uint8)[None], receives.astype(np.uint8)[None])
    # The root cannot turn anything round, so it takes nothing either.
    depth = _depths(size)
    risen = np.minimum(taken[0] + DEPTH * depth, SLICES)
    blocked = np.where(risen < SLICES, _T.SEND_PEER_WAIT, _T.SEND_GPU_WAIT).astype(np.uint8)
    up = Flow(
        risen[None],
        risen[np.maximum(parents, 0)][None],
        blocked[None],
        np.full((1, size), int(_T.RECV_GPU_WAIT), np.uint8),
    )
    return up, down


def _base(size: int, done: float) -> int:
    """Slices that were through when it stopped: so few that nobody can have left the operation."""
    deepest = int(_depths(size).max())
    room = max(SLICES - DEPTH * (2 * deepest + 1), _ROOM_MIN)
    return max(int(done * room), 1)


@cache
def _depths(size: int) -> Ints:
    return np.array([(place + 1).bit_length() - 1 for place in range(size)], np.int64)


@cache
def _levels(size: int) -> tuple[tuple[int, int], ...]:
    """First and last + 1 place of each level below the root, in heap order."""
    found, low = [], 1
    while low < size:
        found.append((low, min(2 * low + 1, size)))
        low = 2 * low + 1
    return tuple(found)


def _subtree(size: int, place: int) -> Bools:
    mask = np.zeros(size, np.bool_)
    mask[place] = True
    parents = tree_parents(size)
    for low, high in _levels(size):
        mask[low:high] |= mask[parents[low:high]]
    return mask


def _first_order(values: Bools, tree: int) -> Bools:
    return values if tree == 0 else values[:, ::-1]


def _own_order(flows: tuple[Flow, Flow], tree: int) -> tuple[Flow, Flow]:
    if tree == 0:
        return flows
    up, down = (
        Flow(*(np.ascontiguousarray(getattr(flow, name)[:, ::-1]) for name in Flow.__dataclass_fields__))
        for flow in flows
    )
    return up, down
