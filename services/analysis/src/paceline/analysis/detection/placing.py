"""A faster way to put rows into the tables, where the owner of a block has one; it decides nothing.

`install` is called once, by a service that has the native module at hand. Without it, and for any rows that
it refuses, numpy does the same in more passes over memory.
"""

from typing import Any, Protocol

import numpy as np

from paceline.analysis.detection.arrays import Ints, Rows

Table = np.ndarray[Any, Any]


class Placing(Protocol):
    """`paceline.probe._native`: addresses and numbers, in the order of `kernels/native/intake.cc`."""

    def place_states(self, *numbers: int) -> bool:
        """False where nothing has been done."""

    def place_rounds(self, *numbers: int) -> int:
        """Rows that found no cell; -1 where nothing has been done."""


_installed: list[Placing] = []


def install(placing: Placing | None) -> None:
    """Use `placing` from now on; None: numpy."""
    _installed[:] = [] if placing is None else [placing]


def placing_of(rows: Rows, positions: Ints) -> Placing | None:
    """What can take these rows: they have to lie in memory as they are declared."""
    if not _installed or not len(rows):
        return None
    fits = rows.flags.c_contiguous and positions.flags.c_contiguous and positions.dtype == np.int64
    return _installed[0] if fits and rows.ctypes.data % 8 == 0 else None


def address(table: Table) -> int:
    """Where a table begins, for as long as the caller holds it; ValueError where it has gaps."""
    if not table.flags.c_contiguous:
        raise ValueError(f"table with strides {table.strides}, expected one piece")
    return int(table.ctypes.data)
