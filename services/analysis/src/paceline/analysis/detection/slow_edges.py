"""Traffic and waits of single neighbours, as differences over the time in which a key is slow.

Edge counters are cumulative since the start of the job and sampled at different instants on every
node. So the first sample of a slow communicator is kept and subtracted from the newest, and who
compares ranks has to divide by the count, which grows with the same length of time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.analysis.detection.arrays import U64, Rows, join_rows
from paceline.contracts.batch import EDGE_ROW

ROWS_MAX = 65_536  # of all slow communicators together, first and newest apart
_KEY = ("comm", "rank", "peer", "group", "direction")
_COUNTERS = ("count", "bytes", "wait_ns")


def _empty() -> Rows:
    return np.zeros(0, EDGE_ROW)


@dataclass
class EdgeWatch:
    """Edges of slow communicators."""

    first: Rows = field(default_factory=_empty)
    newest: Rows = field(default_factory=_empty)
    dropped_rows: int = 0

    def apply(self, tables: Sequence[Rows], slow: U64) -> None:
        """Take EDGE rows of the communicators of `slow`."""
        if not tables or len(slow) == 0:
            return
        rows = join_rows(tables)
        rows = rows[np.isin(rows["comm"], slow)]
        self.newest = self._bound(_merge(self.newest, rows))
        self.first = self._bound(_merge(rows, self.first))

    def keep(self, slow: U64) -> None:
        """Forget what is not slow any more."""
        if len(self.newest):
            self.first = self.first[np.isin(self.first["comm"], slow)]
            self.newest = self.newest[np.isin(self.newest["comm"], slow)]

    def rows(self) -> Rows:
        """Differences; edges without traffic in between are left out."""
        if len(self.newest) == 0:
            return _empty()
        order = {tuple(key): at for at, key in enumerate(self.first[list(_KEY)].tolist())}
        at = np.array([order.get(tuple(key), -1) for key in self.newest[list(_KEY)].tolist()], np.int64)
        rows = self.newest[at >= 0].copy()
        before = self.first[at[at >= 0]]
        grown = np.ones(len(rows), np.bool_)
        for name in _COUNTERS:
            grown &= rows[name] >= before[name]
            rows[name] = np.where(rows[name] >= before[name], rows[name] - before[name], 0)
        return rows[grown & ((rows["count"] > 0) | (rows["bytes"] > 0))]

    def _bound(self, rows: Rows) -> Rows:
        self.dropped_rows += max(len(rows) - ROWS_MAX, 0)
        return rows[:ROWS_MAX]


def _merge(old: Rows, new: Rows) -> Rows:
    """One row of each edge; those of `new` win."""
    if len(old) == 0 or len(new) == 0:
        return new if len(old) == 0 else old
    rows = np.concatenate([old, new])
    table = {tuple(key): at for at, key in enumerate(rows[list(_KEY)].tolist())}
    merged: Rows = rows[sorted(table.values())]
    return merged
