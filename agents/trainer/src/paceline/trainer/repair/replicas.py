"""Which of the named objects are equal on other ranks, and on which: as DDP keeps them."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RanksOf = Callable[[Any], Sequence[int]]


@dataclass(frozen=True)
class Replicas:
    """`group`: the process group in which DDP keeps parameters equal, None where no object says so.

    `own`: names of objects whose tensors may differ within it; they travel to the neighbour.
    """

    group: Any
    own: frozenset[str]
    shares: bool = False  # some object is equal within it

    @property
    def size(self) -> int:
        """Ranks that hold the same parameters, this one included."""
        return int(self.group.size()) if self.group is not None else 1

    def name(self, ranks_of: RanksOf) -> str:
        """The same on all ranks of the group and on no others; to be asked anew in each generation."""
        if self.group is None:
            return "alone"
        return hashlib.sha256(",".join(map(str, sorted(ranks_of(self.group)))).encode()).hexdigest()[:12]


def replicas_of(objects: Mapping[str, Any], ranks_of: RanksOf) -> Replicas:
    """Of the largest group of a DDP module. Modules of other groups, modules that DDP does not know and
    their optimizers count as this rank's alone: nothing says that they are equal anywhere."""
    wrapped = [thing for thing in objects.values() if is_ddp(thing)]
    if not wrapped:
        return Replicas(None, frozenset())
    group = max((thing.process_group for thing in wrapped), key=lambda each: int(each.size()))
    ranks = sorted(ranks_of(group))
    equal = {
        id(parameter)
        for thing in wrapped
        if sorted(ranks_of(thing.process_group)) == ranks and not getattr(thing, "parameters_to_ignore", ())
        for parameter in thing.parameters()
    }
    own = {
        name
        for name, thing in objects.items()
        if any(id(parameter) not in equal for parameter in parameters_of(thing))
    }
    shares = any(is_ddp(thing) and name not in own for name, thing in objects.items())
    return Replicas(group, frozenset(own), shares and int(group.size()) > 1)


def is_ddp(thing: object) -> bool:
    """Whether `thing` is torch's DistributedDataParallel, told without importing it."""
    return type(thing).__name__ == "DistributedDataParallel" and hasattr(thing, "process_group")


def torch_ranks_of(group: Any) -> list[int]:
    """Global ranks of a group of torch, as of the present generation."""
    import torch.distributed as dist

    return list(dist.get_process_group_ranks(group))


def parameters_of(thing: Any) -> Iterable[Any]:
    """Of a module, or of an optimizer; none of anything else."""
    if callable(getattr(thing, "parameters", None)):
        return list(thing.parameters())
    groups = getattr(thing, "param_groups", None)
    if isinstance(groups, list):
        return [parameter for group in groups for parameter in group.get("params", ())]
    return []
