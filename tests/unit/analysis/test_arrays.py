"""Numpy helpers give what the plain calls give."""

import numpy as np
import pytest

from paceline.analysis.arrays import CELLS_MIN, fold_at, number_cells


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("how", [np.minimum, np.maximum])
def test_fold_at_is_ufunc_at(how: np.ufunc, is_sorted: bool) -> None:
    rng = np.random.default_rng(1)
    at, values = rng.integers(0, 20, 200), rng.integers(0, 1000, 200)
    at = np.sort(at) if is_sorted else at
    found, expected = np.full(25, 500), np.full(25, 500)
    fold_at(how, found, at, values)
    how.at(expected, at, values)
    assert found.tolist() == expected.tolist()
    fold_at(how, found, at[:0], values[:0])
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("far", [0, 40, 1 << 63])
def test_cells_are_equal_where_group_and_number_are(far: int) -> None:
    rng = np.random.default_rng(2)
    group = rng.integers(0, 9, 300)
    number = rng.integers(0, 7, 300).astype(np.uint64) + np.uint64(far)
    number[::3] += np.uint64(CELLS_MIN if far == 40 else 0)  # too far apart for an array
    cells = number_cells(group, number)
    names = list(zip(group.tolist(), number.tolist(), strict=True))
    assert len(set(zip(names, cells.tolist(), strict=True))) == len(set(names)) == len(set(cells.tolist()))
    assert cells.min() >= 0
