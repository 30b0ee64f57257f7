"""Who is connected with whom: channels of rings and trees over logical slots.

A slot is a logical rank; which member (process) and machine fill it may change, the shape does not.
Shapes are derived from slots and from which slots share a machine, never from names, so a topology
after a replacement has the shape of the one before.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

SLOTS_MAX = 1 << 20
CHANNELS_MAX = 64  # as NCCL's MAXCHANNELS


class Member(NamedTuple):
    """A training process: an id that is stable for its life, and the machine it runs on."""

    id: str
    machine: str


class Link(NamedTuple):
    """One direction between two members in one channel. `wire`: it leaves the machine."""

    channel: int
    source: str
    target: str
    wire: bool


@dataclass(frozen=True)
class Channel:
    """A ring: `order` visits every slot once and closes. A tree: `parents` holds each slot's parent, -1
    at the root, and data goes both ways. Exactly one of both is given."""

    order: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()

    @cached_property
    def _position(self) -> dict[int, int]:
        return {slot: at for at, slot in enumerate(self.order)}

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        children: dict[int, list[int]] = {}
        for slot, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(slot)
        return {parent: tuple(slots) for parent, slots in children.items()}

    def edges_of(self, slot: int) -> Iterator[tuple[int, int]]:
        """Directed edges (from slot, to slot) that touch `slot`."""
        if self.order:
            at, size = self._position[slot], len(self.order)
            if size > 1:
                yield self.order[at - 1], slot
                yield slot, self.order[(at + 1) % size]
            return
        parent = self.parents[slot]
        for other in (*((parent,) if parent >= 0 else ()), *self._children.get(slot, ())):
            yield slot, other
            yield other, slot

    def check(self, slots: int) -> None:
        """ValueError where this is neither a ring nor a tree over `slots` slots."""
        if bool(self.order) == bool(self.parents):
            raise ValueError("a channel has either an order (ring) or parents (tree)")
        if self.order:
            if sorted(self.order) != list(range(slots)):
                raise ValueError(f"a ring visits each of {slots} slots once, got {len(self.order)} entries")
            return
        if len(self.parents) != slots or any(not -1 <= parent < slots for parent in self.parents):
            raise ValueError(f"a tree names a parent in -1..{slots - 1} for each of {slots} slots")
        seen = {-1}
        frontier = list(self._children.get(-1, ()))
        if len(frontier) != 1:
            raise ValueError(f"a tree has one root, got {len(frontier)}")
        while frontier:
            seen.update(frontier)
            frontier = [child for slot in frontier for child in self._children.get(slot, ())]
        if len(seen) != slots + 1:
            raise ValueError("a tree reaches every slot from its root")


@dataclass(frozen=True)
class Topology:
    """`members[slot]` fills a slot; all channels span all slots."""

    generation: int
    members: tuple[Member, ...]
    channels: tuple[Channel, ...]

    def check(self) -> None:
        """ValueError where a member appears twice or a channel does not span the slots."""
        if not 1 <= len(self.members) <= SLOTS_MAX or not 1 <= len(self.channels) <= CHANNELS_MAX:
            raise ValueError(
                f"{len(self.members)} members and {len(self.channels)} channels, "
                f"expected 1 to {SLOTS_MAX} and 1 to {CHANNELS_MAX}"
            )
        if len({member.id for member in self.members}) != len(self.members):
            raise ValueError("a member fills two slots")
        for channel in self.channels:
            channel.check(len(self.members))

    def link(self, channel: int, source: int, target: int) -> Link:
        one, other = self.members[source], self.members[target]
        return Link(channel, one.id, other.id, one.machine != other.machine)

    def links(self) -> frozenset[Link]:
        """Every link of every channel: what a full rebuild opens."""
        return frozenset(
            self.link(number, source, target)
            for number, channel in enumerate(self.channels)
            for slot in range(len(self.members))
            for source, target in channel.edges_of(slot)
        )

    def slots_on(self, machine: str) -> tuple[int, ...]:
        return tuple(slot for slot, member in enumerate(self.members) if member.machine == machine)

    def digest(self) -> str:
        """The same for everybody who sees the same topology."""
        return digest_of(
            [
                self.generation,
                self.members,
                [[channel.order, channel.parents] for channel in self.channels],
            ]
        )


def digest_of(value: object) -> str:
    """64 hex digits of a canonical text."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":"), sort_keys=True).encode()).hexdigest()


def derive_topology(
    members: Sequence[Member], *, rings: int, trees: int = 0, generation: int = 0
) -> Topology:
    """What a full rebuild makes of `members` (index = slot): `rings` ring channels, then `trees` tree
    channels. Machines are taken in the order of their lowest slot. Ring c enters each machine at another
    local slot, so that rings leave by different devices; odd trees are the mirror of even ones."""
    machines: dict[str, list[int]] = {}
    for slot, member in enumerate(members):
        machines.setdefault(member.machine, []).append(slot)
    blocks = list(machines.values())
    channels = [Channel(order=_ring(blocks, number)) for number in range(rings)]
    channels += [Channel(parents=_tree(blocks, number, len(members))) for number in range(trees)]
    topology = Topology(generation, tuple(members), tuple(channels))
    topology.check()
    return topology


def _ring(blocks: Sequence[Sequence[int]], number: int) -> tuple[int, ...]:
    order: list[int] = []
    for block in blocks:
        shift = number % len(block)
        order += [*block[shift:], *block[:shift]]
    return tuple(order)


def _tree(blocks: Sequence[Sequence[int]], number: int, slots: int) -> tuple[int, ...]:
    """A binary tree over machines by their index, a chain inside each from the slot that has the wire."""
    order = list(blocks) if number % 2 == 0 else list(reversed(blocks))
    heads = [block[number % len(block)] for block in order]
    parents = [-1] * slots
    for at, block in enumerate(order):
        parents[heads[at]] = heads[(at - 1) // 2] if at else -1
        shift = number % len(block)
        chain = [*block[shift:], *block[:shift]]
        for above, below in pairwise(chain):
            parents[below] = above
    return tuple(parents)
