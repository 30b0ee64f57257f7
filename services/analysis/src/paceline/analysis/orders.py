"""Ring and tree order of a communicator, joined from what its ranks know (docs/adr/0038).

A wrong order is worse than none: one that is incomplete, that sources contradict, or that differs between
channels is not used, and the reason has a name. Ranks here are those of the communicator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from paceline.contracts.ids import format_ranks, parse_ranks
from paceline.contracts.registry import OrderPart

MEMBERS_MAX = 16_384  # of a communicator whose order is joined
CHANNELS_MAX = 64
SOME, EVERY = -1, -2  # in place of a channel's number: of one channel or another, of each one
RINGS_MAX = 8  # rings that differ and are still written down
NCCL_LOG, PROXIES, GRAPH_DUMP = "nccl_log", "proxies", "graph_dump"  # sources, as the records name them


class OrderReason(str, Enum):
    """Why there is no order, or no single one."""

    NONE = ""
    UNKNOWN = "order_unknown"  # nobody said anything
    INCOMPLETE = "order_incomplete"
    CONTRADICTED = "order_contradicted"
    NOT_CLOSED = "order_not_closed"  # several circles, several roots, or a circle in a tree
    CHANNELS_DIFFER = "order_channels_differ"
    TOO_LARGE = "order_too_large"


class Contradiction(ValueError):
    """Two sources say what cannot both be true."""


@dataclass
class Known:
    """What is known so far; each `add` raises `Contradiction` where it cannot be."""

    size: int
    rings: dict[int, dict[int, int]] = field(default_factory=dict)  # channel or EVERY: sender: receiver
    trees: dict[int, dict[int, int]] = field(default_factory=dict)  # channel or EVERY: rank: parent
    links: dict[int, int] = field(default_factory=dict)  # of proxies, of SOME channel
    receivers: dict[int, dict[int, int]] = field(default_factory=dict)  # of `rings`, SOME: of `links`
    sources: set[str] = field(default_factory=set)

    def add_link(self, channel: int, sender: int, receiver: int) -> None:
        """`channel`: its number, SOME or EVERY."""
        if not (0 <= sender < self.size and 0 <= receiver < self.size) or sender == receiver:
            raise Contradiction(f"link {sender} to {receiver} of {self.size} ranks")
        links = self.links if channel == SOME else self.rings.setdefault(channel, {})
        froms = self.receivers.setdefault(channel, {})
        if links.setdefault(sender, receiver) != receiver or froms.setdefault(receiver, sender) != sender:
            raise Contradiction(f"channel {channel}: {sender} to {receiver}, and another link of one of them")

    def add_parent(self, channel: int, rank: int, parent: int) -> None:
        if not 0 <= rank < self.size or not -1 <= parent < self.size or rank == parent:
            raise Contradiction(f"parent {parent} of {rank} of {self.size} ranks")
        if self.trees.setdefault(channel, {}).setdefault(rank, parent) != parent:
            raise Contradiction(f"channel {channel}: two parents of {rank}")

    def merge(self, other: "Known") -> None:
        """What another source of the same ranks says of channels."""
        for channel, links in other.rings.items():
            for sender, receiver in links.items():
                self.add_link(channel, sender, receiver)
        for channel, parents in other.trees.items():
            for rank, parent in parents.items():
                self.add_parent(channel, rank, parent)
        self.sources |= other.sources

    def add_part(self, part: OrderPart) -> None:
        """ValueError (also `Contradiction`) for a part that cannot be read or does not fit."""
        if part.refused or part.size != self.size:
            raise Contradiction(part.refused or f"size {part.size}, expected {self.size}")
        for channels, text in part.rings.items():
            for channel in _channels(channels):
                for sender, receiver in read_chains(text):
                    self.add_link(channel, sender, receiver)
        for channels, text in part.trees.items():
            for channel in _channels(channels):
                for pair in filter(None, text.split(",")):
                    rank, _, parent = pair.partition(">")
                    self.add_parent(channel, int(rank), int(parent))
        for sender, receiver in read_chains(part.links):
            self.add_link(SOME, sender, receiver)


@dataclass(frozen=True)
class Order:
    """`rings`: ranks in the order of each ring that differs, from rank 0 on. `trees`: parents by rank."""

    rings: tuple[tuple[int, ...], ...] = ()
    trees: tuple[tuple[int, ...], ...] = ()
    ring_reason: OrderReason = OrderReason.NONE
    tree_reason: OrderReason = OrderReason.NONE

    @property
    def reasons(self) -> list[str]:
        """Both reasons that have something to say; a source that is missing is no news."""
        quiet = (OrderReason.NONE, OrderReason.UNKNOWN)
        return [reason.value for reason in (self.ring_reason, self.tree_reason) if reason not in quiet]

    def ring_text(self, members: Sequence[int]) -> str:
        """As `CommunicatorRecord.ring`; `members` are the global ranks in communicator order."""
        return ";".join(format_ranks([members[rank] for rank in ring]) for ring in self.rings)

    def tree_text(self) -> str:
        """As `CommunicatorRecord.tree`."""
        return ";".join(",".join(map(str, tree)) for tree in self.trees)


def join_parts(size: int, parts: Iterable[OrderPart]) -> Order:
    """The order that all parts of a communicator of `size` ranks give together."""
    if size > MEMBERS_MAX:
        return Order(ring_reason=OrderReason.TOO_LARGE, tree_reason=OrderReason.TOO_LARGE)
    known = Known(size)
    try:
        for part in parts:
            known.add_part(part)
    except ValueError:
        wrong = OrderReason.CONTRADICTED
        return Order(ring_reason=wrong, tree_reason=wrong)
    return find_order(known)


def find_order(known: Known) -> Order:
    """Rings and trees that are whole; a ring of the log that proxies contradict is none."""
    rings, ring_reason = _rings(known)
    trees, tree_reason = _trees(known)
    return Order(rings, trees, ring_reason, tree_reason)


def part_of(communicator: str, known: Known) -> OrderPart:
    """What is known so far as a part of the registry; channels that are alike are written once."""
    return OrderPart(
        communicator,
        known.size,
        rings=_by_text({channel: write_chains(links) for channel, links in known.rings.items()}),
        trees=_by_text(
            {
                channel: ",".join(f"{rank}>{parent}" for rank, parent in sorted(parents.items()))
                for channel, parents in known.trees.items()
            }
        ),
        links=write_chains(known.links),
        sources=tuple(sorted(known.sources)),
    )


def write_chains(links: Mapping[int, int]) -> str:
    """`3,0,1/5,6`: each rank sends to the one behind it; a circle begins and ends with its least rank."""
    left = dict(sorted(links.items()))
    receivers = set(links.values())
    heads = [sender for sender in left if sender not in receivers]
    chains: list[str] = []
    for start in [*heads, *left]:
        if start not in left:
            continue
        chain = [start]
        while chain[-1] in left:
            chain.append(left.pop(chain[-1]))
        chains.append(",".join(map(str, chain)))
    return "/".join(chains)


def read_chains(text: str) -> list[tuple[int, int]]:
    """Links of `write_chains`; ValueError where it is none."""
    chains = [[int(rank) for rank in chain.split(",")] for chain in text.split("/") if chain]
    return [pair for chain in chains for pair in pairwise(chain)]


def _channels(text: str) -> list[int]:
    return parse_ranks(text, CHANNELS_MAX + 1) if text else [EVERY]


def _by_text(channels: Mapping[int, str]) -> dict[str, str]:
    alike: dict[str, list[int]] = {}
    for channel, text in sorted(channels.items()):
        if channel != EVERY:
            alike.setdefault(text, []).append(channel)
    every = {"": channels[EVERY]} if EVERY in channels else {}
    return {**every, **{format_ranks(numbers): text for text, numbers in alike.items()}}


def _by_channel(known: Mapping[int, Mapping[int, int]]) -> dict[int, dict[int, int]]:
    """Each channel with what holds for every one; `Contradiction` where it says otherwise."""
    every = known.get(EVERY, {})
    channels = {channel: {**every, **known[channel]} for channel in sorted(known) if channel != EVERY}
    for own in channels.values():
        if any(own[rank] != other for rank, other in every.items()):
            raise Contradiction("one channel and every channel")
    return channels or ({EVERY: dict(every)} if every else {})


def _rings(known: Known) -> tuple[tuple[tuple[int, ...], ...], OrderReason]:
    try:
        numbered = _by_channel(known.rings)
    except Contradiction:
        return (), OrderReason.CONTRADICTED
    channels = [_filled(links, known.links) for links in numbered.values()] or [known.links]
    if not any(channels):
        return (), OrderReason.UNKNOWN
    found: list[tuple[int, ...]] = []
    for links in channels:
        if len(links) != known.size:
            return (), OrderReason.INCOMPLETE
        order = [0]
        while (following := links[order[-1]]) != 0 and len(order) < known.size:
            order.append(following)
        if following != 0 or len(order) != known.size:
            return (), OrderReason.NOT_CLOSED
        if tuple(order) not in found:
            found.append(tuple(order))
    for sender, receiver in known.links.items():
        if all(links[sender] != receiver for links in channels):
            return (), OrderReason.CONTRADICTED
    if len(found) > RINGS_MAX:
        return (), OrderReason.CHANNELS_DIFFER
    return tuple(found), OrderReason.CHANNELS_DIFFER if len(found) > 1 else OrderReason.NONE


def _filled(links: Mapping[int, int], carried: Mapping[int, int]) -> dict[int, int]:
    """The links of one channel, and where neither end has one those that proxies were seen to use: what a
    rank sends over the network goes to one peer, whatever the channel."""
    taken = set(links.values())
    return {**links, **{s: r for s, r in carried.items() if s not in links and r not in taken}}


def _trees(known: Known) -> tuple[tuple[tuple[int, ...], ...], OrderReason]:
    if not known.trees:
        return (), OrderReason.UNKNOWN
    try:
        channels = _by_channel(known.trees)
    except Contradiction:
        return (), OrderReason.CONTRADICTED
    found: list[tuple[int, ...]] = []
    for parents in channels.values():
        if len(parents) != known.size:
            return (), OrderReason.INCOMPLETE
        found.append(tuple(parents[rank] for rank in range(known.size)))
    if not all(_is_tree(parents) for parents in set(found)):
        return (), OrderReason.NOT_CLOSED
    if EVERY not in channels and sorted(channels) != list(range(len(found))):
        return (), OrderReason.INCOMPLETE
    # The channels of the second tree are those of the first once more (the plugin's edge groups as well).
    half = (len(found) + 1) // 2
    first, second = set(found[:half]), set(found[half:])
    if len(first) > 1 or len(second) > 1:
        return (), OrderReason.CHANNELS_DIFFER
    return tuple(dict.fromkeys((*first, *second))), OrderReason.NONE


def _is_tree(parents: Sequence[int]) -> bool:
    """One root, and every rank leads there."""
    if list(parents).count(-1) != 1:
        return False
    good = {parents.index(-1)}
    for rank in range(len(parents)):
        way: list[int] = []
        while rank not in good and len(way) <= len(parents):
            way.append(rank)
            rank = parents[rank]
        if len(way) > len(parents):
            return False
        good.update(way)
    return True
