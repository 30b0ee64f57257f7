"""Robust statistics of slow rows: noise, lasting shifts, marks of single steps. Pure functions of arrays."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
SPLITS_MAX = 48  # onsets that are tried
BEFORE_MIN = 2  # steps before an onset
AFTER_MIN = 3  # and from it on: papers.md 1.4 rule 4, "3 of the last 5"
LASTING = 0.7  # of the steps after an onset lie on its far side
EPISODE_MIN = 8  # slow steps of one that ended; shorter ones are judged step by step
EPISODE_DENSE = 0.8  # of the steps between its first and its last are slow
EPISODE_SCORE_MIN = 12.0  # it is looked for at more places than a shift that stayed
SCORE_MIN = 6.0  # standard errors of a shift
ONSET_NOISE = 4.0
NOISE_FLOOR = 0.002  # of the reference: clocks and rounding
_SIGMA = 1.4826  # of a median deviation
_LOWER_QUARTER = 1.4  # deviations of a normal distribution between 5 and 25 %, with a margin for few values
_REGULAR = 0.6  # of the gaps between occurrences are alike


@dataclass(frozen=True)
class Shift:
    """A level that changed at row `at` and stayed; `size` in the unit of the column, `score` in its noise."""

    at: int
    size: float
    before: float
    score: float


def low_median(table: Table) -> Table:
    """Per row the lower of the two middle values: of two ranks the faster, and no straggler of a minority."""
    ordered = np.sort(table, axis=1)  # NaN last
    count = np.isfinite(table).sum(axis=1)
    at = np.maximum((count - 1) // 2, 0)
    return np.asarray(ordered[np.arange(len(table)), at])


def noise_of(column: Table, reference: float) -> float:
    """Standard deviation from successive differences: a few jumps do not count, levels do not either."""
    steps = np.abs(np.diff(column, axis=0))
    steps = steps[np.isfinite(steps)]
    found = float(np.median(steps)) * _SIGMA / np.sqrt(2.0) if len(steps) else 0.0
    return max(found, NOISE_FLOOR * reference)


def lower_noise(column: Table, reference: float) -> float:
    """As `noise_of`, also where jumps are as frequent as usual steps: from the lower quarter."""
    finite = column[np.isfinite(column)]
    if not len(finite):
        return NOISE_FLOOR * reference
    low, quarter = np.percentile(finite, [5, 25])
    below = max(float(quarter - low) * _LOWER_QUARTER, NOISE_FLOOR * reference)
    return min(below, noise_of(column, reference))


def find_shift(column: Table, noise: float, least: float) -> Shift | None:
    """The lasting rise of a series by at least `least`, None where there is none."""
    count = len(column)
    if count < BEFORE_MIN + AFTER_MIN:
        return None
    splits = np.unique(np.linspace(BEFORE_MIN, count - AFTER_MIN, SPLITS_MAX).astype(int))
    best: Shift | None = None
    for at in splits.tolist():
        before, after = column[:at], column[at:]
        before, after = before[np.isfinite(before)], after[np.isfinite(after)]
        if len(before) < BEFORE_MIN or len(after) < AFTER_MIN:
            continue
        low, high = float(np.median(before)), float(np.median(after))
        score = (high - low) / (1.2533 * noise * np.sqrt(1 / len(before) + 1 / len(after)))
        far = (after > (low + high) / 2).mean() >= LASTING and (before < (low + high) / 2).mean() >= LASTING
        if far and high - low >= least and score >= SCORE_MIN and (best is None or score > best.score):
            best = Shift(at, high - low, low, float(score))
    return best if best is None else _refined(column, best, noise)


def find_episode(column: Table, noise: float, least: float) -> Shift | None:
    """A rise that lasted and went away again: the shift at its begin, None where there is none."""
    rows = np.flatnonzero(rises(column, max(least, ONSET_NOISE * noise)))
    if len(rows) < EPISODE_MIN:
        return None
    end = int(rows[-1]) + 1
    if len(rows) < EPISODE_DENSE * (end - int(rows[0])) or end >= len(column):
        return None
    shift = find_shift(column[:end], noise, least)
    return shift if shift and shift.score >= EPISODE_SCORE_MIN else None


def _refined(column: Table, shift: Shift, noise: float) -> Shift:
    """The first row that is clearly above the level before, next to the onset that was found."""
    at = shift.at
    while at < len(column) - 1 and not column[at] > shift.before + shift.size / 2:
        at += 1
    bar = shift.before + min(ONSET_NOISE * noise, shift.size / 2)
    while at > 1 and column[at - 1] > bar:
        at -= 1
    return Shift(at, shift.size, shift.before, shift.score)


def rises(column: Table, least: float) -> Mask:
    """Rows above the usual level (the lower quartile) by `least`."""
    finite = column[np.isfinite(column)]
    usual = float(np.percentile(finite, 25)) if len(finite) else 0.0
    return np.asarray(column - usual >= least)


def period_of(steps: Sequence[int]) -> int:
    """The gap between occurrences where most gaps are alike, 0 where they are not or there are too few."""
    gaps = Counter(later - earlier for earlier, later in pairwise(steps))
    if sum(gaps.values()) < 2:
        return 0
    gap, times = gaps.most_common(1)[0]
    near = sum(count for other, count in gaps.items() if abs(other - gap) <= max(1, 0.05 * gap) and gap > 2)
    return gap if gap > 1 and max(times, near) >= _REGULAR * sum(gaps.values()) else 0
