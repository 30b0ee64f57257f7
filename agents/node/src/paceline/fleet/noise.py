"""Noise from one seed: a pool of normal values, read at random places, because drawing is slow."""

import math

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
POOL_MIN = 1 << 16


class Noise:
    """The same seed gives the same values in the same order of calls."""

    def __init__(self, seed: int, ranks: int) -> None:
        self._random = np.random.default_rng([seed, 29])
        size = max(POOL_MIN, 4 * ranks)
        self._pool = np.clip(self._random.standard_normal(size), -3.0, 3.0)

    def normal(self, shape: tuple[int, ...]) -> F64:
        """Standard normal values cut at 3 sigma, a view: not to be written."""
        count = math.prod(shape)
        first = int(self._random.integers(len(self._pool) - count))
        return self._pool[first : first + count].reshape(shape)

    def poisson(self, mean: float) -> int:
        return int(self._random.poisson(mean)) if mean > 0 else 0

    def integer(self, below: int) -> int:
        return int(self._random.integers(below))

    def exponential(self, mean: float) -> float:
        return float(self._random.exponential(mean))
