"""Which groups a rank is a member of, as every rank knows it from the calls of new_group."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.trainer.groups.errors import OtherGroups


@dataclass(frozen=True)
class GroupSpec:
    """One call of new_group: global ranks in group order; `occurrence` counts equal rank lists from 0."""

    name: str
    description: str
    ranks: tuple[int, ...]
    occurrence: int
    world: bool = False
    timeout_s: float = 1800.0  # of its operations; torch's own default, which a sub-group does not inherit

    @property
    def key(self) -> str:
        """The same on every member, and different for every group of a job."""
        if self.world:
            return "world"
        digest = hashlib.sha256(",".join(map(str, self.ranks)).encode()).hexdigest()[:16]
        return f"{digest}-{self.occurrence}"


def same_place(specs: Sequence[GroupSpec], old_rank: int, new_rank: int) -> dict[int, int]:
    """Where a process that was `old_rank` and becomes `new_rank` finds the group for each one it holds.

    The i-th group of the old rank becomes the i-th group of the new one with as many members and the
    same description (names such as `dp` tell axes apart where the sizes do not). OtherGroups where the
    new rank is a member of other kinds of groups: then no process can take its place.
    """
    old = [index for index, spec in enumerate(specs) if old_rank in spec.ranks]
    new = [index for index, spec in enumerate(specs) if new_rank in spec.ranks]
    if old_rank == new_rank:
        return {index: index for index in old}
    found: dict[int, int] = {}
    if len(old) != len(new):
        raise OtherGroups(
            f"rank {new_rank} is a member of {len(new)} groups, and rank {old_rank}, as which this standby "
            f"was warmed up, of {len(old)}; warm it up as a rank with the same kinds of groups"
        )
    for mine, theirs in zip(old, new, strict=True):
        if len(specs[mine].ranks) != len(specs[theirs].ranks):
            raise OtherGroups(
                f"group {specs[theirs].name!r} of rank {new_rank} has {len(specs[theirs].ranks)} members, "
                f"and the one at its place of rank {old_rank} {len(specs[mine].ranks)}"
            )
        found[mine] = theirs
    return found
