"""Which links a rank waits on right now: the growth of its cumulative waits between two samples."""

import numpy as np

from paceline.analysis.detection.arrays import U64, Rows

US_MAX = 0xFFFFFFFF


def with_recent_waits(rows: Rows, before: Rows, passed_ns: int) -> Rows:
    """EDGE rows of one sender with what their waits grew by since `before`, its sample `passed_ns` ago.

    Rows that were not there before, and counters that went back (a new process), stay unknown.
    """
    result = rows.copy()
    if len(rows) == 0 or len(before) == 0:
        return result
    known = _keys(before)
    order = np.lexsort((known[:, 2], known[:, 1], known[:, 0]))
    both = np.concatenate([known[order], _keys(rows)])
    _, label = np.unique(both, axis=0, return_inverse=True)
    label = label.reshape(-1)
    old, new = label[: len(before)], label[len(before) :]
    at = np.minimum(np.searchsorted(old, new), len(old) - 1)
    same = old[at] == new
    was = before["wait_ns"][order][at]
    same &= rows["wait_ns"] >= was
    grown_us = np.where(same, rows["wait_ns"] - np.where(same, was, 0), 0) // np.uint64(1000)
    result["recent_wait_us"] = np.minimum(grown_us, US_MAX)
    result["recent_us"] = np.where(same, min(max(passed_ns // 1000, 1), US_MAX), 0)
    return result


def _keys(rows: Rows) -> U64:
    """Three numbers that name an edge of a rank."""
    where = (rows["peer"].astype(np.int64).view(np.uint64) << np.uint64(32)) | (
        rows["group"].astype(np.uint64) << np.uint64(16)
    )
    return np.stack([rows["comm"], rows["rank"].astype(np.uint64), where | rows["direction"]], axis=1)
