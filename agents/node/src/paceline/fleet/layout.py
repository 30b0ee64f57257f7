"""Who is where: ranks, nodes and communicators of a job of TP x PP x DP (x EP, x CP).

Ranks are numbered as Megatron does: tp fastest, then cp, dp, and pp slowest, so a pipeline stage is
a contiguous range of ranks. Expert groups are `ep` neighbours in dp. All communicators of one kind
are one array: shape (stages, outer, size, inner), members along axis 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import Algorithm
from paceline.contracts.ids import communicator_id, format_ranks

Ints = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
RANKS_MAX = 131_072


class CommKind(str, Enum):
    """What a communicator is for; also `CommunicatorRecord.kind`. The order is that of frame slots."""

    WORLD = "world"
    TP = "tp"
    CP = "cp"
    EP = "ep"
    DP = "dp"
    PP = "pp"


@dataclass(frozen=True, eq=False)
class Groups:
    """All communicators of one kind: C communicators of `size` members each."""

    kind: CommKind
    size: int
    shape: tuple[int, int, int, int]  # of the ranks of all stages; members along axis 2
    members: Ints  # (C, size), global ranks in communicator order
    comm_of: Ints  # (N,), index of the communicator of each rank
    place_of: Ints  # (N,), rank inside the communicator
    ids: U64  # (C,)
    names: tuple[str, ...]
    algorithm: Algorithm


@dataclass(frozen=True)
class Topology:
    """Sizes of a job. `tree` are the kinds whose collectives run over a tree instead of a ring.

    ValueError for sizes that do not fit together.
    """

    tp: int
    pp: int
    dp: int
    ep: int = 1
    cp: int = 1
    ranks_per_node: int = 8
    tree: tuple[CommKind, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep", "cp", "ranks_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more")
        if self.dp % self.ep:
            raise ValueError(f"ep is {self.ep}, expected a divisor of dp {self.dp}")
        if not 2 <= self.ranks <= RANKS_MAX:
            raise ValueError(f"the job has {self.ranks} ranks, expected 2 to {RANKS_MAX}")

    @staticmethod
    def for_ranks(ranks: int) -> "Topology":
        """A usual shape for a number of ranks; ValueError where there is none."""
        tp = next(size for size in (8, 4, 2, 1) if ranks % size == 0 and (ranks > size or size == 1))
        stages = 8 if ranks >= 2048 else 4 if ranks >= 128 else 2 if ranks >= 32 else 1
        pp = next(size for size in (stages, 4, 2, 1) if size <= stages and ranks % (tp * size) == 0)
        return Topology(tp=tp, pp=pp, dp=ranks // (tp * pp))

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp * self.cp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.tp * self.dp * self.cp

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.ranks_per_node)

    @cached_property
    def node_of(self) -> Ints:
        return np.arange(self.ranks, dtype=np.int64) // self.ranks_per_node

    def node_name(self, node: int) -> str:
        return f"node-{node:05d}"

    def coordinates(self, rank: int) -> dict[str, int]:
        """{"tp": .., "pp": .., "dp": ..} of one rank, with cp and ep where the job has them."""
        stage, rest = divmod(rank, self.stage_ranks)
        data, rest = divmod(rest, self.cp * self.tp)
        context, tensor = divmod(rest, self.tp)
        found = {"tp": tensor, "pp": stage, "dp": data}
        if self.cp > 1:
            found["cp"] = context
        if self.ep > 1:
            found["ep"] = data % self.ep
        return found

    def size(self, kind: CommKind) -> int:
        sizes = {"world": self.ranks, "tp": self.tp, "cp": self.cp, "ep": self.ep, "dp": self.dp}
        return sizes.get(kind.value, self.pp)

    @cached_property
    def kinds(self) -> tuple[CommKind, ...]:
        """Kinds with more than one member, in the order of frame slots."""
        return tuple(kind for kind in CommKind if self.size(kind) > 1)

    @cached_property
    def groups(self) -> dict[CommKind, Groups]:
        return {kind: self._groups(kind) for kind in self.kinds}

    def _groups(self, kind: CommKind) -> Groups:
        inner = self.cp * self.tp
        shapes: dict[CommKind, tuple[int, int, int, int]] = {
            CommKind.WORLD: (1, 1, self.ranks, 1),
            CommKind.TP: (self.pp, self.dp * self.cp, self.tp, 1),
            CommKind.CP: (self.pp, self.dp, self.cp, self.tp),
            CommKind.EP: (self.pp, self.dp // self.ep, self.ep, inner),
            CommKind.DP: (self.pp, 1, self.dp, inner),
            CommKind.PP: (1, 1, self.pp, self.stage_ranks),
        }
        shape = shapes[kind]
        grid = np.arange(self.ranks, dtype=np.int64).reshape(shape)
        members = np.ascontiguousarray(np.moveaxis(grid, 2, 3)).reshape(-1, shape[2])
        comm_of, place_of = np.empty(self.ranks, np.int64), np.empty(self.ranks, np.int64)
        comm_of[members] = np.arange(len(members), dtype=np.int64)[:, None]
        place_of[members] = np.arange(shape[2], dtype=np.int64)
        names = tuple(
            kind.value if kind is CommKind.WORLD else f"{kind.value}_{i}" for i in range(len(members))
        )
        ids = [communicator_id(name, _as_list(row)) for name, row in zip(names, members, strict=True)]
        algorithm = Algorithm.TREE if kind in self.tree else Algorithm.RING
        return Groups(
            kind, shape[2], shape, members, comm_of, place_of, np.array(ids, np.uint64), names, algorithm
        )


def _as_list(ranks: Ints) -> Sequence[int]:
    listed: list[int] = ranks.tolist()
    return listed


def ranks_text(ranks: Ints) -> str:
    """`ids.format_ranks` of one row of `Groups.members`."""
    return format_ranks(_as_list(ranks))


def tree_parents(size: int) -> Ints:
    """Parent of each place in the (heap-ordered, binary) tree of a communicator, -1 for its root."""
    parents = (np.arange(size, dtype=np.int64) - 1) // 2
    parents[0] = -1
    return parents
