"""Ratios of paired blocks and their interval: pure and seeded."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

import numpy as np

from paceline.contracts.codes import DetailLevel

RESAMPLES = 10_000
CONFIDENCE = 0.95
PAIRS_MIN = 6  # of five pairs the widest bootstrap interval of a median covers less than 95 %


@dataclass(frozen=True)
class Block:
    """One stretch of time at one level; two blocks with one `pair` are compared."""

    pair: int
    level: DetailLevel
    is_base: bool


class Finding(str, Enum):
    """What the interval says."""

    TOO_FEW = "too_few"
    NO_DIFFERENCE_SEEN = "no_difference_seen"
    SLOWER = "slower"
    FASTER = "faster"  # seldom an effect; look for something that changed meanwhile


@dataclass(frozen=True)
class Estimate:
    """`ratio` is time raised / time base, the median over pairs; `low` to `high` its interval."""

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def finding(self) -> Finding:
        if self.pairs < PAIRS_MIN:
            return Finding.TOO_FEW
        if self.low > 1.0:
            return Finding.SLOWER
        return Finding.FASTER if self.high < 1.0 else Finding.NO_DIFFERENCE_SEEN


def draw_blocks(base: DetailLevel, raised: DetailLevel, pairs: int, seed: int) -> list[Block]:
    """`pairs` times two blocks. Which comes first is drawn for each pair, as often one as the other (the odd
    pair is drawn), so that neither a drift nor a rhythm of the job falls on one level."""
    draw = random.Random(seed)
    base_first = [place % 2 == 0 for place in range(pairs - pairs % 2)] + [draw.random() < 0.5] * (pairs % 2)
    draw.shuffle(base_first)
    blocks: list[Block] = []
    for pair, first in enumerate(base_first):
        both = [Block(pair, base, is_base=True), Block(pair, raised, is_base=False)]
        blocks += both if first else both[::-1]
    return blocks


def estimate(pairs: Sequence[tuple[float, float]], seed: int) -> Estimate | None:
    """Median of raised/base over pairs of (base, raised), with the percentile bootstrap over pairs; None
    without a pair. All times in one unit and above 0."""
    ratios = np.array([raised / base for base, raised in pairs if base > 0 and raised > 0])
    if len(ratios) == 0:
        return None
    draw = np.random.default_rng(seed)
    chosen = draw.integers(0, len(ratios), (RESAMPLES, len(ratios)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(ratios[chosen], axis=1), [tail, 1 - tail])
    return Estimate(median(ratios.tolist()), float(low), float(high), len(ratios))
