"""Newest state of every (communicator, rank), sorted by communicator, so that a step is `reduceat`.

Arrays are kept in that order and rebuilt only when a member appears (start of a job). A sender's
rows come in the same order each time, so their positions are cached per sender and only verified.
"""

import numpy as np

from paceline.analysis.detection.arrays import U8, U16, U32, U64, Ints, Rows
from paceline.analysis.detection.placing import Table, address, placing_of
from paceline.contracts.batch import STATE_ROW

_WORDS = STATE_ROW.itemsize // 8
STILL_MAX = 255


class Members:
    """Membership table of one job shard. Times are ns of the block's own time."""

    def __init__(self, members_max: int, communicators_max: int) -> None:
        self.members_max = members_max
        self.communicators_max = communicators_max
        self.generation = 0  # grows when positions change
        self.comms: U64 = np.zeros(0, np.uint64)
        self.starts: Ints = np.zeros(1, np.int64)
        self.group: Ints = np.zeros(0, np.int64)
        self._keys: Ints = np.zeros(0, np.int64)
        self._allocate(0)

    def _allocate(self, count: int) -> None:
        self._words: U64 = np.zeros((count, _WORDS), np.uint64)
        self.comm: U64 = np.zeros(count, np.uint64)
        self.rank: U32 = np.zeros(count, np.uint32)
        self.completed: U64 = np.zeros(count, np.uint64)
        self.head_round: U64 = np.zeros(count, np.uint64)
        self.head_age_ms: U32 = np.zeros(count, np.uint32)
        self.idle_ms: U32 = np.zeros(count, np.uint32)
        self.flags: U16 = np.zeros(count, np.uint16)
        self.still: U8 = np.zeros(count, np.uint8)
        self.seen_ns: Ints = np.zeros(count, np.int64)

    def __len__(self) -> int:
        return len(self.comm)

    @property
    def rows(self) -> Rows:
        """All newest rows as STATE_ROW, a view."""
        return self._words.reshape(-1).view(STATE_ROW)

    def find_communicators(self, comm: U64) -> Ints:
        """Index of each communicator, -1 where unknown."""
        if len(self.comms) == 0:
            return np.full(len(comm), -1, np.int64)
        index = np.searchsorted(self.comms, comm)
        index[index == len(self.comms)] = 0
        return np.where(self.comms[index] == comm, index, -1)

    def locate(self, comm: U64, rank: U32) -> Ints:
        """Position of each (communicator, rank), -1 where unknown."""
        dense = self.find_communicators(comm)
        if len(self._keys) == 0:
            return np.full(len(comm), -1, np.int64)
        key = (dense << 32) | rank.astype(np.int64)
        position = np.searchsorted(self._keys, key)
        position[position == len(self._keys)] = 0
        return np.where((dense >= 0) & (self._keys[position] == key), position, -1)

    def verify(self, positions: Ints, comm: U64, rank: U32) -> bool:
        """Whether cached positions still name these members."""
        return bool(np.array_equal(self.comm[positions], comm) and np.array_equal(self.rank[positions], rank))

    def admit(self, comm: U64, rank: U32) -> tuple[int, int]:
        """Add unknown pairs within the bounds; returns (refused members, refused by communicators)."""
        pairs = np.unique(np.stack([comm, rank.astype(np.uint64)], axis=1), axis=0)
        new_comms = np.setdiff1d(pairs[:, 0], self.comms)
        room = max(self.communicators_max - len(self.comms), 0)
        refused_comms = new_comms[room:]
        kept = pairs[~np.isin(pairs[:, 0], refused_comms)]
        by_communicator = len(pairs) - len(kept)
        space = max(self.members_max - len(self), 0)
        by_member = max(len(kept) - space, 0)
        kept = kept[:space]
        if len(kept):
            self._insert(kept[:, 0], kept[:, 1].astype(np.uint32))
        return by_member, by_communicator

    def _insert(self, comm: U64, rank: U32) -> None:
        all_comm = np.concatenate([self.comm, comm])
        all_rank = np.concatenate([self.rank, rank])
        order = np.lexsort((all_rank, all_comm))
        old = self._columns()
        count = len(all_comm)
        self._allocate(count)
        source = order < len(old["comm"])
        for name, values in old.items():
            getattr(self, name)[source] = values[order[source]]
        self.comm, self.rank = all_comm[order], all_rank[order]
        fresh = np.flatnonzero(~source)
        rows = self.rows
        rows["comm"][fresh] = self.comm[fresh]
        rows["rank"][fresh] = self.rank[fresh]
        self._index()

    def _columns(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
        names = ("_words", "comm", "rank", "completed", "head_round",
                 "head_age_ms", "idle_ms", "flags", "still", "seen_ns")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def _index(self) -> None:
        self.comms, first = np.unique(self.comm, return_index=True)
        self.starts = np.append(first, len(self.comm)).astype(np.int64)
        self.group = np.repeat(np.arange(len(self.comms), dtype=np.int64), np.diff(self.starts))
        self._keys = (self.group << 32) | self.rank.astype(np.int64)
        self.generation += 1

    def apply_same(self, positions: Ints, rows: Rows, now_ns: int) -> bool:
        """As `apply`, for positions from a cache; False, and nothing applied, where a member is another."""
        placing = placing_of(rows, positions)
        if placing is not None and len(positions) == len(rows):
            numbers = (len(rows), address(positions), len(self), *map(address, self._places()), now_ns)
            if placing.place_states(address(rows), *numbers):
                return True
        before = self._words[positions]
        known = before.reshape(-1).view(STATE_ROW)
        if not (np.array_equal(known["comm"], rows["comm"]) and np.array_equal(known["rank"], rows["rank"])):
            return False
        self._apply(positions, rows, known, now_ns)
        return True

    def apply(self, positions: Ints, rows: Rows, now_ns: int) -> None:
        """Take newest rows of distinct members; `still` counts samples without progress.

        Entering a round behind an open one (run-ahead) is no progress; completing, a new head of
        line, a slice sent or received, and an idle time that shrank are.
        """
        self._apply(positions, rows, self._words[positions].reshape(-1).view(STATE_ROW), now_ns)

    def _apply(self, positions: Ints, rows: Rows, before: Rows, now_ns: int) -> None:
        """`before`: the rows at `positions`, gathered at once: one visit to memory for all their fields."""
        completed, head_round, idle = rows["completed"], rows["head_round"], rows["idle_ms"]
        moved = completed != before["completed"]
        moved |= head_round != before["head_round"]
        sums = rows["send_count"] + rows["recv_count"]
        moved |= sums != before["send_count"] + before["recv_count"]
        moved |= idle < before["idle_ms"]
        still = self.still[positions]
        np.add(still, 1, out=still, where=still < STILL_MAX)
        still[moved | (self.seen_ns[positions] == 0)] = 0
        self.still[positions] = still
        self.completed[positions] = completed
        self.head_round[positions] = head_round
        self.idle_ms[positions] = idle
        self.head_age_ms[positions] = rows["head_age_ms"]
        self.flags[positions] = rows["flags"]
        self.seen_ns[positions] = now_ns
        packed = np.ascontiguousarray(rows)
        self._words[positions] = packed.view(np.uint64).reshape(-1, _WORDS)

    def _places(self) -> list[Table]:
        return [self._words, self.completed, self.head_round, self.idle_ms, self.head_age_ms, self.flags,
                self.still, self.seen_ns]  # fmt: skip

    def restore(self, rows: Rows, still: U8, seen_ns: Ints) -> None:
        """Replace everything by saved rows."""
        self._allocate(0)
        if len(rows) == 0:
            self._index()
            return
        self._insert(rows["comm"].astype(np.uint64), rows["rank"].astype(np.uint32))
        positions = self.locate(rows["comm"].astype(np.uint64), rows["rank"].astype(np.uint32))
        self.apply(positions, rows, 1)
        self.still[positions] = still
        self.seen_ns[positions] = seen_ns
