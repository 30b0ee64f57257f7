"""Which links of a slow communicator are slow: by how long each end waits, on its own clock.

Ring: the receiver of a slow link starves, its sender is blocked instead of starving, so receive waits
rise most from the one to the other (papers.md 1.4 rule 5). Where the sender's receive wait is not
seen (no counts inside a node), its send wait decides: a sender that is blocked while its receiver
starves has the slow link between them. Where that is not seen either, or its sender is blocked much
less than it starves, the answer is the stretch of the ring between the last member that was seen to
be fed and the one that starves.

Tree: a slow link is waited for at both its ends, any other link at one of them, so the lesser of the
two waits decides where both are seen and messages are large enough to block a sender. That holds
beside a late rank as well, whom others wait for at one end: a link that stands out is slow even where
its delay hides behind the lateness. Else: what a member passes on it first has to get. A receive wait
counts only as far as it exceeds the receive waits of its sender in the same direction of flow; results
that come down depend on everything that goes up. Two ranks may be neighbours in both of two trees,
which do not wait for each other: each tree is judged by its own waits.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints, Mask
from paceline.contracts.batch import Rows
from paceline.contracts.codes import Algorithm

Times = npt.NDArray[np.float64]
Waiting = dict[tuple[int, int], float]  # (reporter, peer), places -> wait per slice
_SAME_STEP = 0.6  # of the largest rise: another link as slow as the slowest
_RISE_MIN = 0.2  # of what the rounds lose; less is noise of waits that are alike
_BLOCKED_MIN = 0.5  # of the time that its receiver starves; a sender blocked less is itself starved
# The lesser wait of both ends against the largest wait of any end, and how far above that of any other
# link: late ranks leave at most 0.14 on real sockets, slow links beside late ranks 0.25 to 0.65.
_DISTINCT_MIN = 0.2
_DISTINCT_TIMES = 3.0
_FED = 0.8  # of a wait: the same wait, one link further on


@dataclass(frozen=True)
class Waits:
    """Waits of a key's slow rounds (rounds x members, us) and what each member does not see."""

    receive: Times
    send: Times
    receive_unseen: Mask
    send_unseen: Mask


@dataclass(frozen=True)
class Slow:
    """Links as (sender, receiver), slowest first, or the ranks of the stretch that contains them.

    `distinct`: both ends of the link wait for it, and of no other link: it is slow whoever is late.
    `even`: the waits of all members are seen, and no link stands out.
    """

    links: tuple[tuple[int, int], ...] = ()
    stretch: tuple[int, ...] = ()
    distinct: bool = False
    even: bool = False


NONE = Slow()


def find_links(
    waits: Waits, ranks: Ints, edges: Rows, algorithm: int, lost_us: float, order: Ints | None = None
) -> Slow:
    """Slow links among `ranks` (communicator order); `edges` are those of the communicator.

    `order`: global ranks in ring order by the registry, None where it names none.
    """
    receives = edges[edges["direction"] == 1]
    if algorithm == Algorithm.TREE or (len(receives) and not (receives["group"] == 0).any()):
        sends = edges[edges["direction"] == 0]
        return _tree(waits, sends, receives, ranks, lost_us) if len(receives) else NONE
    sources = _ring_sources(receives, len(ranks)) if order is None else _named_sources(order, ranks)
    return _ring(waits, ranks, sources, lost_us)


def _named_sources(order: Ints, ranks: Ints) -> Ints:
    """Place of the sender of each member in a ring of known order; members without rounds are left out."""
    by_rank = np.argsort(ranks)
    places = by_rank[np.searchsorted(ranks[by_rank], order[np.isin(order, ranks)])]
    sources = np.empty(len(ranks), np.int64)
    sources[places] = np.roll(places, 1)
    return sources


def _ring_sources(receives: Rows, size: int) -> Ints:
    """Place of the sender of each member: as the edges say, else the member before."""
    sources = (np.arange(size, dtype=np.int64) - 1) % size
    ring = receives[(receives["group"] == 0) & (receives["peer"] >= 0) & (receives["peer"] < size)]
    ring = ring[ring["comm_rank"] < size]
    places, counts = np.unique(ring["comm_rank"], return_counts=True)
    if len(places) == size and (counts == 1).all():
        sources[ring["comm_rank"].astype(np.int64)] = ring["peer"]
    return sources


def _ring(waits: Waits, ranks: Ints, sources: Ints, lost_us: float) -> Slow:
    seen = ~waits.receive_unseen
    if not seen.any() or not waits.receive[:, seen].any():
        return NONE
    rise = _rise(waits, sources)
    middle = np.median(rise, axis=0)
    known = ~np.isnan(middle)
    best = float(np.nanmax(middle)) if known.any() else 0.0
    if best < _RISE_MIN * lost_us:
        return Slow(even=True) if seen.all() else _stretch(waits, ranks, sources, lost_us)
    votes = Counter(np.nanargmax(rise[:, known], axis=1).tolist())
    first = int(np.flatnonzero(known)[votes.most_common(1)[0][0]])
    high = np.flatnonzero(known & (np.nan_to_num(middle, nan=-np.inf) >= _SAME_STEP * best))
    places = high[np.argsort(-middle[high])].tolist()
    alike = [first, *(at for at in places if at != first)]
    return Slow(tuple((int(ranks[sources[at]]), int(ranks[at])) for at in alike))


def _rise(waits: Waits, sources: Ints) -> Times:
    """Evidence for the link into each member, NaN where it cannot be judged."""
    blocked = np.minimum(waits.receive, waits.send[:, sources])
    blocked[:, waits.send_unseen[sources]] = np.nan
    blocked[:, np.median(blocked, axis=0) < _BLOCKED_MIN * np.median(waits.receive, axis=0)] = 0.0
    rise = waits.receive - waits.receive[:, sources]
    rise = np.where(waits.receive_unseen[sources][None, :], blocked, rise)
    rise[:, waits.receive_unseen] = np.nan
    return rise


def _stretch(waits: Waits, ranks: Ints, sources: Ints, lost_us: float) -> Slow:
    """From the last member that was seen to be fed to the one that starves most, through unseen ones."""
    starving = np.where(waits.receive_unseen, 0.0, np.median(waits.receive, axis=0))
    at = int(starving.argmax())
    if starving[at] < _RISE_MIN * lost_us or not waits.receive_unseen[sources[at]]:
        return NONE
    places = [at]
    while len(places) < len(ranks):
        at = int(sources[at])
        places.append(at)
        if not waits.receive_unseen[at]:
            break
    return Slow((), tuple(sorted(int(ranks[place]) for place in places)))


def _tree(waits: Waits, sends: Rows, receives: Rows, ranks: Ints, lost_us: float) -> Slow:
    """By wait per slice, because edges of different nodes are sampled over different times."""
    trees = [
        tuple(_per_slice(rows[rows["group"] == group], len(ranks)) for rows in (receives, sends))
        for group in np.unique(receives["group"])
    ]
    seen = all((sender, receiver) in sent for wait, sent in trees for receiver, sender in wait)
    both = _join(_lesser(wait, sent) for wait, sent in trees) if seen else {}
    distinct = _is_distinct(both, trees, waits, lost_us)
    starved = max((value for wait, _ in trees for value in wait.values()), default=0.0)
    held = max((value for _, sent in trees for value in sent.values()), default=0.0)
    best = max(both.values(), default=0.0)
    if seen and held >= _BLOCKED_MIN * starved > 0 and best < _DISTINCT_MIN * max(held, starved):
        return Slow(even=True)  # messages do block senders, and at no link do both ends wait
    is_blocked = distinct or best >= _BLOCKED_MIN * starved > 0
    rise = both if is_blocked else _join(_unfed(wait) for wait, _ in trees)
    best = max(rise.values(), default=0.0)
    if best <= 0:
        return NONE
    alike = sorted((edge for edge, v in rise.items() if v >= _SAME_STEP * best), key=lambda e: -rise[e])
    if len(alike) > max(len(rise) // 2, 1):
        return Slow(even=seen)  # hosts short of CPU slow every link
    return Slow(tuple((int(ranks[sender]), int(ranks[receiver])) for receiver, sender in alike), (), distinct)


def _is_distinct(both: Waiting, trees: list[tuple[Waiting, ...]], waits: Waits, lost_us: float) -> bool:
    """Whether both ends of one link wait for it much longer than those of any other.

    Against the waits of others, and against what a round loses: the receiver's wait in a round, by this
    link's part in it.
    """
    if not both:
        return False
    (receiver, sender), best = max(both.items(), key=lambda item: item[1])
    second = max((value for edge, value in both.items() if edge != (receiver, sender)), default=0.0)
    most = max(value for tree in trees for part in tree for value in part.values())
    received = sum(value for wait, _ in trees for (to, _), value in wait.items() if to == receiver)
    if best <= 0 or best < _DISTINCT_MIN * most or best < _DISTINCT_TIMES * second:
        return False
    in_round_us = float(np.median(waits.receive[:, receiver])) * best / received
    return in_round_us >= _DISTINCT_MIN * lost_us


def _join(parts: Iterable[Waiting]) -> Waiting:
    """The larger value of each edge."""
    joined: Waiting = {}
    for part in parts:
        for edge, value in part.items():
            joined[edge] = max(joined.get(edge, 0.0), value)
    return joined


def _per_slice(rows: Rows, size: int) -> Waiting:
    """Wait of each edge as (reporter, peer)."""
    wait: Waiting = {}
    for row in rows:
        edge = (int(row["comm_rank"]), int(row["peer"]))
        if max(edge) < size and min(edge) >= 0:
            value = float(row["wait_ns"]) / max(float(row["count"]), 1.0)
            wait[edge] = max(wait.get(edge, 0.0), value)
    return wait


def _lesser(wait: Waiting, sent: Waiting) -> Waiting:
    """The lesser wait of each edge's two ends; no sender is blocked by small messages.

    0 where the sender itself starves as much by such an edge: blocked while it waited for a late rank,
    starved while its own data came slowly, which are two waits one after the other.
    """
    lesser = {edge: min(value, sent[edge[1], edge[0]]) for edge, value in wait.items()}
    into: dict[int, list[tuple[int, int]]] = {}
    for edge in lesser:
        into.setdefault(edge[0], []).append(edge)
    fed = {
        edge
        for edge, value in lesser.items()
        for other in into.get(edge[1], ())
        if other[1] != edge[0] and lesser[other] >= _FED * value and wait[other] >= _FED * wait[edge]
    }
    return {edge: 0.0 if edge in fed else value for edge, value in lesser.items()}


def _unfed(wait: Waiting) -> Waiting:
    """How far each receive wait exceeds what its sender itself waited for."""
    parent = _parents(wait)
    upward = {edge: value for edge, value in wait.items() if parent.get(edge[1]) == edge[0]}
    most_upward = max(upward.values(), default=0.0)
    rise = {}
    for (receiver, sender), value in wait.items():
        if (receiver, sender) in upward:
            fed = max((v for (to, _), v in upward.items() if to == sender), default=0.0)
        else:
            fed = max(most_upward, wait.get((sender, parent.get(sender, -1)), 0.0))
        rise[receiver, sender] = value - fed
    return rise


def _parents(wait: Waiting) -> dict[int, int]:
    """Parent of each place, found by peeling leaves; the last one left is the root."""
    neighbours: dict[int, set[int]] = {}
    for a, b in wait:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    left = {place: set(others) for place, others in neighbours.items()}
    parent: dict[int, int] = {}
    while len(left) > 1:
        leaves = [place for place, others in left.items() if len(others) <= 1]
        if not leaves:
            break  # not a tree: double trees have a group each, damaged rows may be anything
        for leaf in leaves:
            others = left.pop(leaf)
            if others and len(left):
                (above,) = others
                parent[leaf] = above
                left[above].discard(leaf)
            if len(left) <= 1:
                break
    return parent
