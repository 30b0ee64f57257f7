"""Iterations of a window: what each rank waited in each step, and what each communicator needs in it.

Rows are only collected while they arrive and summed up now and then, so a tick pays nothing for them.
Kept rounds are the same on every rank: a step of which all rounds are kept is summed, of one with many
rounds a few kept ones stand for all. Of a large job whole nodes are followed, the same ones in every
shard. Rounds of a communicator whose members are not all followed give waits, but no transfer.
"""

import zlib
from dataclasses import dataclass, field

import numpy as np

from paceline.analysis.detection.arrays import SECOND_NS, Rows, join_rows
from paceline.analysis.detection.iteration_sums import (
    LEAST_ROW,
    MARK_ROW,
    SUM_ROW,
    last_of_each,
    least_of,
    marks_of,
    merge_least,
    merge_marks,
    merge_sums,
    sums_of,
)
from paceline.analysis.detection.iteration_window import WindowSums
from paceline.analysis.detection.members import Members
from paceline.contracts.batch import Batch, RowKind
from paceline.contracts.codes import OpKind, OpState

WINDOW_S = 60.0
WINDOW_S_MAX = 600.0  # of a job with long steps
WINDOW_STEPS_MIN = 40  # of fewer iterations nothing can be said
RANKS_MAX = 512
PENDING_BYTES_MAX = 4 << 20
SUMS_MAX = 262_144  # (communicator, rank, step): 12 MB
LEAST_MAX = 1_048_576  # (communicator, round): 34 MB
MARKS_MAX = 524_288  # (rank, step): 512 ranks for ten minutes at a sample a second, 15 MB
MARKS_KEPT_MAX = 8_192  # ranks whose newest mark begins the next window: a hostile node may name many
_NEWEST_ONLY = 255


@dataclass
class IterationWatch:
    """Rounds and step marks of one block since the last window. Not part of a snapshot: begins anew."""

    ranks: int = 0  # of the job, 0 = not yet known: nobody is followed
    since_ns: int = 0  # block time, 0 = not yet begun
    last_step: int = -1  # newest step of the last window
    dropped_rows: int = 0
    _rounds: list[Rows] = field(default_factory=list)
    _processes: list[tuple[Rows, int]] = field(default_factory=list)
    _pending_bytes: int = 0
    _sums: Rows = field(default_factory=lambda: np.zeros(0, SUM_ROW))
    _least: Rows = field(default_factory=lambda: np.zeros(0, LEAST_ROW))
    _marks: Rows = field(default_factory=lambda: np.zeros(0, MARK_ROW))
    _gated: list[tuple[int, int]] = field(default_factory=list)  # steps that a pause touches, both included

    def follows(self, node: str) -> bool:
        """Whether the rows of a node are wanted: the same nodes in every shard and after a restart, and
        whole ones, because places are compared."""
        return zlib.crc32(node.encode()) / 2**32 * self.ranks < RANKS_MAX if self.ranks else False

    def take(self, batch: Batch) -> None:
        """Keep the rows of one record of a node that is followed."""
        self.take_rows(batch.table(RowKind.ROUND), batch.table(RowKind.PROCESS), batch.sampled_ns)

    def take_rows(self, rounds: Rows, processes: Rows, sampled_ns: int) -> None:
        """Keep the ROUND and PROCESS rows of one record."""
        if len(rounds):
            self._rounds.append(rounds)
        if len(processes):
            self._processes.append((processes, sampled_ns))
        self._pending_bytes += rounds.nbytes + processes.nbytes
        if self._pending_bytes > PENDING_BYTES_MAX:
            self._sum_up()

    def skip(self, slowest_step: int, fastest_step: int) -> None:
        """A gate holds (pause, checkpoint, compilation): the steps that it touches are no iterations."""
        first = max(slowest_step - 1, 0)
        if self._gated and first <= self._gated[-1][1] + 1:
            self._gated[-1] = (self._gated[-1][0], max(self._gated[-1][1], fastest_step + 1))
        else:
            self._gated.append((first, fastest_step + 1))
            del self._gated[:-64]

    def due(self, now_ns: int, step: float) -> bool:
        """Whether a window is full, said once; `step` is the newest of the job."""
        self.since_ns = self.since_ns or now_ns
        passed_s = (now_ns - self.since_ns) / SECOND_NS
        if passed_s < WINDOW_S:
            return False
        full = passed_s >= WINDOW_S_MAX or step - max(self.last_step, 0) > WINDOW_STEPS_MIN
        if full:
            self.since_ns = now_ns
        return full

    def close(self, members: Members) -> dict[RowKind, Rows]:
        """The rows of the window, and begin the next one; empty where no step is whole."""
        self._sum_up()
        found = WindowSums.of(self._sums, self._least, self._marks, members, self.last_step)
        self._marks = self._marks[last_of_each(self._marks["rank"])]
        self.dropped_rows += max(len(self._marks) - MARKS_KEPT_MAX, 0)
        self._marks = self._marks[:MARKS_KEPT_MAX]
        if found is None:
            self._sums, self._least = self._sums[:0], self._least[:0]
            return {}
        gated = [(first, last) for first, last in self._gated if last > self.last_step]
        rows = found.rows(gated)
        self.last_step = found.last_step
        self._sums = self._sums[self._sums["step"] > found.last_step]
        self._least = self._least[self._least["step"] > found.last_step]
        self._gated = [(first, last) for first, last in gated if last > found.last_step]
        return rows

    def take_dropped(self) -> int:
        """Rows left out since the last call."""
        taken, self.dropped_rows = self.dropped_rows, 0
        return taken

    def _sum_up(self) -> None:
        rounds, processes = self._rounds, self._processes
        self._rounds, self._processes, self._pending_bytes = [], [], 0
        if processes and len(self._marks) >= MARKS_MAX:
            self.dropped_rows += sum(len(rows) for rows, _ in processes)
        elif processes:
            tables = [rows for rows, _ in processes]
            at_ns = np.repeat([at_ns for _, at_ns in processes], [len(rows) for rows in tables])
            self._marks = merge_marks([self._marks, marks_of(join_rows(tables), at_ns)])
        if not rounds:
            return
        rows = join_rows(rounds)
        usable = (rows["round"] > 0) & (rows["duration_ns"] > 0) & (rows["state"] == OpState.COMPLETED)
        usable &= (rows["kind"] == OpKind.COLLECTIVE) & (rows["level"] != _NEWEST_ONLY)
        usable &= rows["step"].astype(np.int64) > self.last_step
        rows = rows[usable]
        if len(self._sums) >= SUMS_MAX or len(self._least) >= LEAST_MAX:
            self.dropped_rows += len(rows)
            return
        self._sums = merge_sums([self._sums, sums_of(rows)])
        self._least = merge_least([self._least, least_of(rows)])
