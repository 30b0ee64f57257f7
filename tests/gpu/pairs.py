"""A against B in turn, and what may be said of the ratio: pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# 97.5 % quantiles of Student's t by degrees of freedom; 2 beyond 10.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True)
class Phase:
    """One piece of the plan and its expected length, s."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of B / A over pairs, with its 95 % interval; infinite where one pair says nothing."""

    mean: float
    low: float
    high: float
    pairs: int


def ratio_of(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Of paired step times, s. ValueError where they are no pairs or not positive."""
    if len(a) != len(b) or not a:
        raise ValueError(f"{len(a)} and {len(b)} times, expected the same number of both")
    if min(*a, *b) <= 0:
        raise ValueError("a time is not positive")
    logs = [math.log(second / first) for first, second in zip(a, b, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(mean), 0.0, math.inf, 1)
    t = _T[len(logs) - 2] if len(logs) - 2 < len(_T) else 2.0
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def turns(pairs: int) -> list[str]:
    """A B B A A B B A ...: a drift of the machine's speed falls on both alike."""
    order: list[str] = []
    for pair in range(pairs):
        order += ["A", "B"] if pair % 2 == 0 else ["B", "A"]
    return order


def why_not(phase: Phase, left_s: float) -> str | None:
    """None where the phase fits into what is left of the time."""
    if phase.seconds <= left_s:
        return None
    return f"needs about {phase.seconds:.0f} s, {max(left_s, 0):.0f} s are left"
