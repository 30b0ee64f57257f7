"""Sums of kept rounds by step, smallest T by round, step marks by rank: merged as they come."""

import numpy as np

from paceline.analysis.detection.arrays import MS, Ints, Rows

SUM_ROW = np.dtype(
    [
        ("comm", "<u8"), ("rank", "<u4"), ("step", "<u4"), ("rounds", "<u4"), ("gaps", "<u4"),
        ("waited_ns", "<f8"), ("period_ns", "<f8"),
    ]
)  # fmt: skip
LEAST_ROW = np.dtype(
    [("comm", "<u8"), ("round", "<u8"), ("step", "<u4"), ("members", "<u4"), ("t_min_ns", "<f8")]
)
MARK_ROW = np.dtype(
    [("rank", "<u4"), ("step", "<u4"), ("start_ns", "<i8"), ("at_ns", "<i8"), ("waited_ms", "<u4")]
)


def sums_of(rows: Rows) -> Rows:
    sums = np.zeros(len(rows), SUM_ROW)
    for name in ("comm", "rank", "step"):
        sums[name] = rows[name]
    sums["rounds"], sums["gaps"] = 1, rows["gap_ns"] > 0
    sums["waited_ns"] = rows["duration_ns"]
    sums["period_ns"] = rows["duration_ns"].astype(np.float64) + rows["gap_ns"]
    return sums


def least_of(rows: Rows) -> Rows:
    least = np.zeros(len(rows), LEAST_ROW)
    for name in ("comm", "round", "step"):
        least[name] = rows[name]
    least["members"], least["t_min_ns"] = 1, rows["duration_ns"]
    return least


def marks_of(rows: Rows, sampled_ns: Ints) -> Rows:
    """`sampled_ns` of each row, its sender's own clock: durations only."""
    marks = np.zeros(len(rows), MARK_ROW)
    for name in ("rank", "step", "waited_ms"):
        marks[name] = rows[name]
    marks["start_ns"] = sampled_ns - rows["step_age_ms"].astype(np.int64) * MS
    marks["at_ns"] = sampled_ns
    return marks


def _sorted_groups(rows: Rows, major: str, minor: str, last: str = "") -> tuple[Rows, Ints]:
    """Rows ordered by the fields, and where each group of equal ones begins."""
    fine = rows[minor].astype(np.uint64)
    if last:  # both have 32 bits: one sort less
        fine = (fine << np.uint64(32)) | rows[last]
    order = np.lexsort((fine, rows[major]))
    rows, fine = rows[order], fine[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = (rows[major][1:] != rows[major][:-1]) | (fine[1:] != fine[:-1])
    return rows, np.flatnonzero(new)


def merge_sums(parts: list[Rows]) -> Rows:
    rows, starts = _sorted_groups(np.concatenate(parts), "comm", "rank", "step")
    merged = rows[starts]
    if len(starts) < len(rows):
        for name in ("rounds", "gaps", "waited_ns", "period_ns"):
            merged[name] = np.add.reduceat(rows[name], starts)
    return merged


def merge_least(parts: list[Rows]) -> Rows:
    rows, starts = _sorted_groups(np.concatenate(parts), "comm", "round")
    merged = rows[starts]
    if len(starts) < len(rows):
        merged["members"] = np.add.reduceat(rows["members"], starts)
        merged["t_min_ns"] = np.minimum.reduceat(rows["t_min_ns"], starts)
    return merged


def merge_marks(parts: list[Rows]) -> Rows:
    """First mark of each step, and the newest of each rank."""
    rows = np.concatenate(parts)
    rows = rows[np.lexsort((rows["at_ns"], rows["step"], rows["rank"]))]
    keep = np.ones(len(rows), np.bool_)
    keep[1:] = (rows["rank"][1:] != rows["rank"][:-1]) | (rows["step"][1:] != rows["step"][:-1])
    keep[last_of_each(rows["rank"])] = True
    return rows[keep]


def last_of_each(sorted_values: Rows) -> Ints:
    """Positions of the last of each run of equal values."""
    if len(sorted_values) == 0:
        return np.zeros(0, np.int64)
    return np.append(np.flatnonzero(sorted_values[1:] != sorted_values[:-1]), len(sorted_values) - 1)
