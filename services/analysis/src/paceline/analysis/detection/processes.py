"""Newest process row of every rank, and what it means for waiting."""

from collections.abc import Mapping
from enum import IntFlag

import numpy as np

from paceline.analysis.detection.arrays import U8, U16, U32, U64, Bools, Ints, Rows
from paceline.contracts.batch import PROCESS_ROW
from paceline.contracts.codes import ExitKind, Phase, ProcessState

# SIGINT and SIGTERM, as a signal (negative) and as a shell reports them
_TOLD_TO_STOP = np.array([-15, -2, 143, 130], np.int32)

_WORDS = PROCESS_ROW.itemsize // 8
_HELD = (ProcessState.GONE, ProcessState.ZOMBIE, ProcessState.STOPPED, ProcessState.TRACED)
_IS_ALIVE = ~np.isin(np.arange(256), _HELD)  # neither gone nor held


class Mark(IntFlag):
    """What a process is, beyond running."""

    NONE = 0
    FINISHED = 1  # orderly end
    TOLD_TO_STOP = 2  # ended by SIGTERM or SIGINT
    DEAD = 4  # ended in disorder
    VANISHED = 8  # ended, nobody can say how
    STOPPED = 16
    FROZEN = 32  # native heartbeat is old although the process exists
    TRACED = 64
    DECLARED = 128  # a phase other than training


GONE = Mark.FINISHED | Mark.TOLD_TO_STOP | Mark.DEAD | Mark.VANISHED


class Processes:
    """Rank table of one job shard, sorted by rank."""

    def __init__(self, phase_limit_s: Mapping[Phase, float], frozen_after_s: float) -> None:
        self._frozen_after_ms = int(frozen_after_s * 1000)
        self._declared: Bools = np.zeros(256, np.bool_)
        for phase in phase_limit_s:
            self._declared[phase] = True
        self.generation = 0
        self.rank: U32 = np.zeros(0, np.uint32)
        self._allocate(0)

    def _allocate(self, count: int) -> None:
        self.rows: Rows = np.zeros(count, PROCESS_ROW)
        self.marks: U16 = np.zeros(count, np.uint16)
        self.step: U64 = np.zeros(count, np.uint64)
        self.seen_ns: Ints = np.zeros(count, np.int64)
        self.host_wait: U8 = np.zeros(count, np.uint8)

    def __len__(self) -> int:
        return len(self.rank)

    def locate(self, rank: U32) -> Ints:
        """Position of each rank, -1 where unknown."""
        if len(self.rank) == 0:
            return np.full(len(rank), -1, np.int64)
        position = np.searchsorted(self.rank, rank)
        position[position == len(self.rank)] = 0
        return np.where(self.rank[position] == rank, position, -1)

    def verify(self, positions: Ints, rank: U32) -> bool:
        """Whether cached positions still name these ranks."""
        return bool(np.array_equal(self.rank[positions], rank))

    def admit(self, rank: U32) -> None:
        """Add unknown ranks; the caller has checked their range."""
        everyone = np.union1d(self.rank, rank).astype(np.uint32)
        kept = np.searchsorted(everyone, self.rank)
        rows, marks, step, seen = self.rows, self.marks, self.step, self.seen_ns
        host_wait = self.host_wait
        self._allocate(len(everyone))
        self.rank = everyone
        self.rows["rank"] = everyone
        self.rows[kept], self.marks[kept] = rows, marks
        self.step[kept], self.seen_ns[kept], self.host_wait[kept] = step, seen, host_wait
        self.generation += 1

    def apply(self, positions: Ints, rows: Rows, now_ns: int) -> None:
        """Take the newest rows of distinct ranks."""
        words = np.ascontiguousarray(rows).view(np.uint64).reshape(-1, _WORDS)
        self.rows.view(np.uint64).reshape(-1, _WORDS)[positions] = words
        self.marks[positions] = self._mark(rows)
        self.step[positions] = rows["step"]
        self.host_wait[positions] = rows["host_wait"]
        self.seen_ns[positions] = now_ns

    def restore(self, rows: Rows, seen_ns: Ints) -> None:
        """Replace everything by saved rows."""
        self.rank = np.zeros(0, np.uint32)
        self._allocate(0)
        self.admit(rows["rank"].astype(np.uint32))
        positions = self.locate(rows["rank"].astype(np.uint32))
        self.apply(positions, rows, 0)
        self.seen_ns[positions] = seen_ns

    def _mark(self, rows: Rows) -> U16:
        state, exit_kind = rows["process_state"], rows["exit_kind"]
        if not exit_kind.any() and not rows["finished"].any() and _IS_ALIVE[state].all():
            marks = np.where(rows["native_age_ms"] >= self._frozen_after_ms, Mark.FROZEN.value, 0)
            marks += np.where(self._declared[rows["phase"]], Mark.DECLARED.value, 0)
            return marks.astype(np.uint16)
        gone = (exit_kind != ExitKind.NONE) | (state == ProcessState.GONE) | (state == ProcessState.ZOMBIE)
        finished = (rows["finished"] != 0) | (exit_kind == ExitKind.CLEAN)
        # an agent that only has the process's own goodbye knows SIGNAL without a number
        unnumbered = (exit_kind == ExitKind.SIGNAL) & (rows["exit_code"] == 0)
        told = gone & ~finished & (np.isin(rows["exit_code"], _TOLD_TO_STOP) | unnumbered)
        explained = (exit_kind == ExitKind.ERROR) | (exit_kind == ExitKind.SIGNAL)
        dead = gone & ~finished & ~told & explained
        vanished = gone & ~finished & ~told & ~explained
        stopped = ~gone & (state == ProcessState.STOPPED)
        traced = ~gone & (state == ProcessState.TRACED)
        frozen = ~gone & ~stopped & ~traced & (rows["native_age_ms"] >= self._frozen_after_ms)
        declared = ~gone & self._declared[rows["phase"]]
        marks = np.zeros(len(rows), np.uint16)
        for mask, mark in (
            (finished, Mark.FINISHED),
            (told, Mark.TOLD_TO_STOP),
            (dead, Mark.DEAD),
            (vanished, Mark.VANISHED),
            (stopped, Mark.STOPPED),
            (frozen, Mark.FROZEN),
            (traced, Mark.TRACED),
            (declared, Mark.DECLARED),
        ):
            marks[mask] |= mark.value
        return marks
