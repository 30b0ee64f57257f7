"""Array types and the two grouped reductions that everything here uses."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U16 = npt.NDArray[np.uint16]
U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

T = TypeVar("T", bound=np.generic)

MS = 1_000_000  # ns
SECOND_NS = 1_000_000_000


def join_rows(tables: Sequence[Rows]) -> Rows:
    """All rows of tables of one dtype; `np.concatenate` takes 80 us a table for structured rows."""
    if len(tables) == 1:
        return tables[0]
    try:
        joined = b"".join(tables)  # type: ignore[arg-type]  # arrays are buffers
    except BufferError:  # a view with gaps
        joined = b"".join([table.tobytes() for table in tables])
    return np.frombuffer(joined, tables[0].dtype)


def group_max(values: npt.NDArray[T], starts: Ints) -> npt.NDArray[T]:
    """Maximum of each group; `starts` has one entry per group (all non-empty) and one more at the end."""
    if len(starts) <= 1:
        return values[:0]
    result: npt.NDArray[T] = np.maximum.reduceat(values, starts[:-1])
    return result


def group_min(values: npt.NDArray[T], starts: Ints) -> npt.NDArray[T]:
    """Minimum of each group."""
    if len(starts) <= 1:
        return values[:0]
    result: npt.NDArray[T] = np.minimum.reduceat(values, starts[:-1])
    return result


def group_sum(values: F32, starts: Ints) -> npt.NDArray[np.float64]:
    """Sum of each group, in double precision: a communicator may have 100,000 members."""
    if len(starts) <= 1:
        return np.zeros(0, np.float64)
    result: npt.NDArray[np.float64] = np.add.reduceat(values, starts[:-1], dtype=np.float64)
    return result


def group_any(values: Bools, starts: Ints) -> Bools:
    """Whether any value of the group is true."""
    if len(starts) <= 1:
        return values[:0]
    result: Bools = np.logical_or.reduceat(values, starts[:-1])
    return result
