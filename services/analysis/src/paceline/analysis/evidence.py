"""What one judgement sees of one job attempt, as flat arrays.

Members of all communicators stand in one table, communicator after communicator, each in
communicator order (`offsets` as in a CSR matrix), so that a rule is a few numpy calls whatever the
number of communicators. Ranks are global and index the per-rank arrays directly.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.contracts.batch import STEP_ROW, Rows
from paceline.contracts.codes import FrameFlag
from paceline.contracts.ids import format_communicator
from paceline.contracts.registry import HealthEvent

RANKS_MAX = 1 << 20
MEMBERS_MAX = 1 << 23
COMMUNICATORS_MAX = 1 << 20
HEALTH_MAX = 4096

_STATE_COLUMNS = (
    "entered", "completed", "head_round", "head_issue", "head_signature", "head_age_ms",
    "open_ops", "flags", "function", "state", "sources",
)  # fmt: skip
_CHUNK_ROWS = 4096  # of a hundred bytes: they stay in the cache while their columns are copied

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class JobEvidence:
    """Inputs of `judge`. K communicators, M members in all, W ranks.

    A member with `seen` False is unknown: no report, which is not the same as not entered.
    """

    job: str
    attempt: str
    job_name: str
    job_state: str  # registry.JobState value, empty where unknown
    world_size: int  # W
    nodes: tuple[str, ...]
    node_of: Ints  # W, index into nodes, -1 unknown
    local_rank: Ints  # W, -1 unknown
    gpu: Ints  # W, -1 unknown
    coordinates: dict[str, Ints]  # axis -> W, -1 unknown
    comm_ids: npt.NDArray[np.uint64]  # K, ascending
    comm_names: tuple[str, ...]
    comm_kinds: tuple[str, ...]
    comm_backends: tuple[str, ...]
    inferred: Mask  # K: no registry record, membership is what was seen and may be incomplete
    offsets: Ints  # K + 1
    member_rank: Ints  # M
    state: Rows  # M rows of STATE_ROW, zeros where not seen
    seen: Mask  # M
    processes: Rows  # W rows of PROCESS_ROW, zeros where not seen
    process_seen: Mask  # W
    peers: Rows
    rounds: Rows
    edges: Rows
    baselines: Rows
    health: tuple[HealthEvent, ...]  # in order of arrival
    ignored_rows: int = 0  # rows that contradict the registry or a bound
    steps: Rows = field(default_factory=lambda: np.zeros(0, STEP_ROW))  # own time of each rank
    comm_rings: tuple[str, ...] = ()  # K, or empty: registry text of the ring order
    comm_trees: tuple[str, ...] = ()  # K, or empty: registry text of the parents
    orders_refused: dict[str, int] = field(default_factory=dict)  # reason: communicators without that order

    @property
    def communicators(self) -> int:
        return len(self.comm_ids)

    @cached_property
    def comm_of(self) -> Ints:
        """M: index of the communicator of each member."""
        return np.repeat(np.arange(self.communicators, dtype=np.int64), np.diff(self.offsets))

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """M: what `values` (K) say of the communicator of each member."""
        return np.repeat(values, np.diff(self.offsets))

    @cached_property
    def frames_seen(self) -> Ints:
        """W: how many frames of each rank were reported."""
        return np.bincount(self.member_rank[self.seen], minlength=self.world_size)

    @cached_property
    def hidden_completion(self) -> Mask:
        """M: members whose source does not show when an operation is over."""
        hidden: Mask = self.seen & ((self.column("flags") & FrameFlag.COMPLETION_UNOBSERVABLE) != 0)
        return hidden

    @cached_property
    def round_comm(self) -> Ints:
        """Index of the communicator of each row of `rounds`, -1 where unknown."""
        return self.index_of_runs(self.round_columns["comm"])

    @cached_property
    def round_columns(self) -> dict[str, npt.NDArray[Any]]:
        """Columns of `rounds` that are read of all rows."""
        return take_columns(self.rounds, ("comm", "round", "signature"))

    @cached_property
    def measured(self) -> dict[object, Any]:
        """What `slow_keys.measure` has found, by baseline row and policy."""
        return {}

    @cached_property
    def _round_order(self) -> tuple[Rows, Ints]:
        """`rounds` by communicator, which is how the builder leaves them, and where each begins (K + 1)."""
        comm, rounds = self.round_comm, self.rounds
        if bool((comm[1:] < comm[:-1]).any()):
            order = np.argsort(comm, kind="stable")
            comm, rounds = comm[order], rounds[order]
        return rounds, np.searchsorted(comm, np.arange(self.communicators + 1))

    def rounds_of(self, comm: int) -> Rows:
        """Rows of `rounds` of communicator index `comm`, in their order."""
        rounds, first = self._round_order
        return rounds[first[comm] : first[comm + 1]]

    @cached_property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return take_columns(self.state, _STATE_COLUMNS)

    def column(self, name: str) -> npt.NDArray[Any]:
        """M: a column of `state` by itself; the rules read few columns many times, and a row is wide."""
        return self._columns[name]

    def members(self, comm: int) -> Ints:
        """Global ranks of communicator index `comm`, in communicator order."""
        return self.member_rank[self.offsets[comm] : self.offsets[comm + 1]]

    def comm_name(self, comm: int) -> str:
        return self.comm_names[comm] or format_communicator(int(self.comm_ids[comm]))

    def ring_of(self, comm: int) -> str:
        """Ring order of communicator index `comm` as the registry has it, empty where unknown."""
        return self.comm_rings[comm] if comm < len(self.comm_rings) else ""

    def tree_of(self, comm: int) -> str:
        """Trees of communicator index `comm` as the registry has them, empty where unknown."""
        return self.comm_trees[comm] if comm < len(self.comm_trees) else ""

    def index_of(self, comm_ids: npt.NDArray[np.uint64]) -> Ints:
        """Indices of communicator ids, -1 where unknown."""
        return find_sorted(self.comm_ids, comm_ids)

    @cached_property
    def _slots(self) -> tuple[Ints, Ints]:
        """Keys of all members in ascending order, and the member of each."""
        keys = self.comm_of * self.world_size + self.member_rank
        if bool((keys[1:] > keys[:-1]).all()):  # members of most jobs are listed in order
            return keys, np.arange(len(keys))
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def index_of_runs(self, comm_ids: npt.NDArray[np.uint64]) -> Ints:
        """As `index_of`, of a column in which rows of one communicator mostly stand together."""
        starts = np.flatnonzero(np.r_[len(comm_ids) > 0, comm_ids[1:] != comm_ids[:-1]])
        return np.repeat(self.index_of(comm_ids[starts]), np.diff(np.r_[starts, len(comm_ids)]))

    def slots_of(self, comm: Ints, rank: Ints) -> Ints:
        """Members that are `rank` of communicator index `comm`, -1 where there is none."""
        keys, members = self._slots
        at = find_sorted(keys, comm * self.world_size + rank)
        return np.where(at >= 0, members[at], -1) if len(keys) else at

    def node(self, rank: int) -> str | None:
        index = int(self.node_of[rank]) if 0 <= rank < self.world_size else -1
        return self.nodes[index] if index >= 0 else None

    def gpu_index(self, rank: int) -> int | None:
        gpu = int(self.gpu[rank]) if 0 <= rank < self.world_size else -1
        return gpu if gpu >= 0 else None


def find_sorted(keys: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Ints:
    """Positions of `wanted` in the ascending `keys`, -1 where absent."""
    if len(keys) == 0:
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1).astype(np.int64)


def take_columns(rows: Rows, names: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    """Columns of a table by themselves, in one pass over its memory."""
    columns = {name: np.empty(len(rows), rows.dtype[name]) for name in names}
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[start : start + _CHUNK_ROWS]
        for name, column in columns.items():
            column[start : start + len(chunk)] = chunk[name]
    return columns
