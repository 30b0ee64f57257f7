"""How far the wall clocks of recorders are apart, by what they have in common: the rounds of shared groups.

A round completes everywhere at nearly the same moment, so when two recorders saw the same count tells their
clocks apart. Only what would change the order of judgement is corrected; a node whose clock is minutes off
would else seem silent while the others go on.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import SECOND_NS
from paceline.analysis.facts import RecordedSamples
from paceline.contracts.batch import BATCH_BYTES_MAX, Batch, BatchError, RowKind, decode_batch

POINTS_MAX = 256  # of each recorder, evenly spread
COMMUNICATORS_MAX = 64  # of each recorder
POINTS_MIN = 8  # in common
OFFSET_S_MIN = 3.0  # less only blurs what ticks of a second blur as well
SPREAD_S_MAX = 2.0  # median distance from the median: more, and it is no constant difference
Curve = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # counts, and seconds when first seen


def clock_offsets(parts: Sequence[RecordedSamples]) -> dict[str, int]:
    """Nanoseconds by which a recorder's clock is ahead of most others; only those that matter."""
    of_recorder: dict[str, list[RecordedSamples]] = defaultdict(list)
    for part in parts:
        of_recorder[part.recorder].append(part)
    if len(of_recorder) < 2:
        return {}
    curves = {recorder: _curves(mine) for recorder, mine in of_recorder.items()}
    first = max(curves, key=lambda recorder: (len(curves[recorder]), recorder))
    offsets, known = {first: 0.0}, dict(curves[first])
    left = [recorder for recorder in curves if recorder != first]
    while left:
        found = {each: offset for each in left if (offset := _offset(curves[each], known)) is not None}
        if not found:
            break
        for recorder, offset in found.items():
            offsets[recorder] = offset
            for comm, (counts, times) in curves[recorder].items():
                known.setdefault(comm, (counts, times - offset))
        left = [recorder for recorder in left if recorder not in found]
    usual = sorted(offsets.values())[(len(offsets) - 1) // 2]  # most clocks are right
    ahead = {each: offset - usual for each, offset in offsets.items()}
    return {each: int(offset * SECOND_NS) for each, offset in ahead.items() if abs(offset) >= OFFSET_S_MIN}


def _offset(mine: Mapping[int, Curve], known: Mapping[int, Curve]) -> float | None:
    """Seconds that `mine` is ahead; None where too little is shared, or it is no constant."""
    gaps: list[npt.NDArray[np.float64]] = []
    for comm, (counts, times) in mine.items():
        if comm not in known:
            continue
        theirs, their_times = known[comm]
        shared = (counts > theirs[0]) & (counts < theirs[-1])
        gaps.append(times[shared] - np.interp(counts[shared], theirs, their_times))
    together = np.concatenate(gaps) if gaps else np.zeros(0)
    if len(together) < POINTS_MIN:
        return None
    middle = float(np.median(together))
    return middle if float(np.median(np.abs(together - middle))) <= SPREAD_S_MAX else None


def _curves(parts: Sequence[RecordedSamples]) -> dict[int, Curve]:
    """When each communicator's count of completed rounds was first seen, at some moments."""
    points: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for time_s, batch in _some(parts):
        rows = batch.table(RowKind.STATE)
        for comm in np.unique(rows["comm"])[:COMMUNICATORS_MAX].tolist():
            if comm in points or len(points) < COMMUNICATORS_MAX:
                count = float(rows["completed"][rows["comm"] == comm].max())
                points[comm].append((count, time_s))
    curves: dict[int, Curve] = {}
    for comm, found in points.items():
        table = np.array(found, np.float64)
        counts, at = np.unique(np.maximum.accumulate(table[:, 0]), return_index=True)
        if len(counts) > 1:
            curves[comm] = (counts, table[at, 1])
    return curves


def _some(parts: Sequence[RecordedSamples]) -> Iterator[tuple[float, Batch]]:
    """Samples of one recorder, evenly spread, with their time in seconds."""
    total = sum(len(part.samples) for part in parts)
    wanted = set(np.linspace(0, total - 1, min(total, POINTS_MAX)).astype(int).tolist()) if total else set()
    number = 0
    for part in parts:
        for row in part.samples:
            if number in wanted:
                try:
                    packed = part.read(int(row["offset"]), int(row["size"]))
                    batch = decode_batch(zlib.decompressobj().decompress(packed, BATCH_BYTES_MAX + 1))
                    yield int(row["time_ns"]) / SECOND_NS, batch
                except (OSError, zlib.error, BatchError):
                    pass
            number += 1
