"""Rings and trees that move slices until a rank stops or a link breaks: exact counts and waits.

Every sender hands slices to a queue of `DEPTH` places towards its receiver. With `delivered` a slice
counts as sent once the receiver's side holds it (NCCL's proxy, acknowledged bytes), else once it is
in the queue (what a kernel sees).
"""

import random
from dataclasses import dataclass, field

import numpy as np

from paceline.analysis.evidence import Ints, Mask
from paceline.analysis.transfers import Transfers

DEPTH = 4
Link = tuple[int, int]


@dataclass
class Network:
    """Queues of all links, and what stands still."""

    links: list[Link]
    delivered: bool
    frozen: int = -1
    broken: Link = (-1, -1)
    posted: dict[Link, int] = field(default_factory=dict)
    taken: dict[Link, int] = field(default_factory=dict)
    arrived: dict[Link, int] = field(default_factory=dict)
    waiting: set[tuple[int, Link]] = field(default_factory=set)
    inside: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))  # who has not done all it has to do

    def __post_init__(self) -> None:
        for table in (self.posted, self.taken, self.arrived):
            table.update(dict.fromkeys(self.links, 0))

    def has_room(self, link: Link) -> bool:
        return self.posted[link] - self.taken[link] < DEPTH

    def has_data(self, link: Link) -> bool:
        return self.arrived[link] > self.taken[link]

    def put(self, link: Link) -> None:
        self.posted[link] += 1
        if link != self.broken:
            self.arrived[link] = self.posted[link]

    def transfers(self, waits: bool = True, history: int = 0) -> Transfers:
        """As the edge rows of all members say it; `history` slices were carried before by each link."""
        sent = self.arrived if self.delivered else self.posted

        def says(end: int, link: Link) -> int:
            return -1 if not waits else int((end, link) in self.waiting)

        return Transfers(
            np.array([link[0] for link in self.links]),
            np.array([link[1] for link in self.links]),
            np.array([history + sent[link] for link in self.links]),
            np.array([history + self.taken[link] for link in self.links]),
            np.array([says(link[0], link) for link in self.links]),
            np.array([says(link[1], link) for link in self.links]),
        )


def stall_ring(size: int, seed: int, link: bool, delivered: bool) -> tuple[Network, int]:
    """A ring all-reduce of several slices per hop; rank k stops, or the link from k to k + 1 breaks."""
    rng = random.Random(seed)
    network = Network([(k, (k + 1) % size) for k in range(size)], delivered)
    own, guilty = rng.choice((2, 4)), rng.randrange(size)
    total = 2 * (size - 1) * own
    stop_at = rng.randrange(own, total - 2 * own)
    sent, received = [0] * size, [0] * size
    moved = True
    while moved:
        moved = False
        for k in rng.sample(range(size), size):
            if network.frozen < 0 and network.broken[0] < 0 and sum(received) >= stop_at * size:
                network.frozen = -1 if link else guilty
                network.broken = network.links[guilty] if link else (-1, -1)
            into, out = network.links[k - 1], network.links[k]
            if k == network.frozen:
                continue
            if sent[k] < min(total, own + received[k]) and network.has_room(out):
                network.put(out)
                sent[k], moved = sent[k] + 1, True
            elif received[k] < total and network.has_data(into):
                network.taken[into] += 1
                received[k], moved = received[k] + 1, True
    done = np.minimum(sent, received) >= total
    network.inside = ~done
    for k in range(size):
        if k != network.frozen:
            may_send = sent[k] < min(total, own + received[k])
            unconfirmed = delivered and network.posted[network.links[k]] > network.arrived[network.links[k]]
            if may_send or unconfirmed:
                network.waiting.add((k, network.links[k]))
            elif received[k] < total:
                network.waiting.add((k, network.links[k - 1]))
    return network, guilty


def random_tree(size: int, rng: random.Random) -> Ints:
    """Parents with at most two children each, -1 for the root."""
    order = list(range(size))
    rng.shuffle(order)
    parents = np.full(size, -1, np.int64)
    children = [0] * size
    for index, rank in enumerate(order[1:], 1):
        free = [other for other in order[:index] if children[other] < 2]
        parents[rank] = rng.choice(free)
        children[parents[rank]] += 1
    return parents


def stall_tree(size: int, seed: int, link: str, delivered: bool) -> tuple[Network, Ints, int]:
    """A tree all-reduce, up and down at once; `link` is "", "up" or "down" of rank k."""
    rng = random.Random(seed)
    parents = random_tree(size, rng)
    root = int(np.flatnonzero(parents < 0)[0])
    below = [[int(c) for c in np.flatnonzero(parents == k)] for k in range(size)]
    ups = [(k, int(parents[k])) for k in range(size) if k != root]
    network = Network(ups + [(b, a) for a, b in ups], delivered)
    guilty = rng.choice([k for k in range(size) if not link or k != root])
    total, sent_up, sent_down = 40, [0] * size, [0] * size
    stop_at, moved = rng.randrange(5, 30), True
    while moved:
        moved = False
        for k in rng.sample(range(size), size):
            if sent_up[root] >= stop_at:
                network.frozen = -1 if link else guilty
                pair = (guilty, int(parents[guilty])) if link else (-1, -1)
                network.broken = pair if link == "up" else (pair[1], pair[0])
            if k != network.frozen:
                moved |= _step_up(network, k, int(parents[k]), below[k], sent_up, total)
                moved |= _step_down(network, k, int(parents[k]), below[k], sent_up, sent_down)
    network.inside = np.array(sent_down) < total
    _note_tree_waits(network, parents, below, sent_up, total)
    return network, parents, guilty


def _step_up(
    network: Network, k: int, parent: int, children: list[int], sent_up: list[int], total: int
) -> bool:
    into = [(child, k) for child in children]
    if sent_up[k] >= total or not all(network.has_data(edge) for edge in into):
        return False
    if parent >= 0 and not network.has_room((k, parent)):
        return False
    for edge in into:
        network.taken[edge] += 1
    sent_up[k] += 1
    if parent >= 0:
        network.put((k, parent))
    return True


def _step_down(
    network: Network, k: int, parent: int, children: list[int], sent_up: list[int], sent_down: list[int]
) -> bool:
    source = sent_up[k] if parent < 0 else network.arrived[(parent, k)]
    down = [(k, child) for child in children]
    if sent_down[k] >= source or not all(network.has_room(edge) for edge in down):
        return False
    sent_down[k] += 1
    if parent >= 0:
        network.taken[(parent, k)] += 1
    for edge in down:
        network.put(edge)
    return True


def _note_tree_waits(
    network: Network, parents: Ints, below: list[list[int]], sent_up: list[int], total: int
) -> None:
    for k, children in enumerate(below):
        if k == network.frozen:
            continue
        if sent_up[k] < total:
            missing = [(c, k) for c in children if not network.has_data((c, k))]
            full = [] if parents[k] < 0 else [(k, int(parents[k]))]
            network.waiting |= {(k, edge) for edge in missing or full}
        if parents[k] >= 0:
            into = (int(parents[k]), k)
            full = [(k, c) for c in children if not network.has_room((k, c))]
            network.waiting |= {(k, into)} if not network.has_data(into) else {(k, edge) for edge in full}
        elif any(not network.has_room((k, c)) for c in children):
            network.waiting |= {(k, (k, c)) for c in children if not network.has_room((k, c))}
        if network.delivered:
            for edge in network.links:
                if edge[0] == k and network.posted[edge] > network.arrived[edge]:
                    network.waiting.add((k, edge))
