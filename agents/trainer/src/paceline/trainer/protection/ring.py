"""Who keeps whose shard, and who tells whom what is committed: pure functions of the members."""

from collections import Counter
from collections.abc import Sequence

from paceline.trainer.protection.identity import Member

TREE_WIDTH = 16


def holders(members: Sequence[Member]) -> dict[int, int]:
    """For each rank the rank that keeps its shard; everyone keeps exactly one.

    Members stand domain by domain, the largest domain first, and each one's holder is as many places
    further as the largest domain has members: in another domain wherever the sizes allow one at all.
    Empty with fewer than two members.
    """
    if len(members) < 2:
        return {}
    sizes = Counter(member.failure_domain for member in members)
    order = sorted(members, key=lambda each: (-sizes[each.failure_domain], each.failure_domain, each.rank))
    shift = max(sizes.values())
    shift = shift if shift < len(order) else 1
    return {member.rank: order[(index + shift) % len(order)].rank for index, member in enumerate(order)}


def unprotected(members: Sequence[Member]) -> list[int]:
    """Ranks whose holder is in their own failure domain, or that have none."""
    domains = {member.rank: member.failure_domain for member in members}
    held = holders(members)
    return sorted(rank for rank in domains if rank not in held or domains[held[rank]] == domains[rank])


def parent(ranks: Sequence[int], rank: int) -> int | None:
    """The rank above `rank` in the tree over the sorted ranks; None at its root."""
    order = sorted(ranks)
    index = order.index(rank)
    return None if index == 0 else order[(index - 1) // TREE_WIDTH]


def children(ranks: Sequence[int], rank: int) -> list[int]:
    """The ranks right below `rank`."""
    order = sorted(ranks)
    first = order.index(rank) * TREE_WIDTH + 1
    return order[first : first + TREE_WIDTH]
