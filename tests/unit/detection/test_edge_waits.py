"""Waits of an interval from cumulative waits, per edge."""

import numpy as np

from paceline.analysis.detection.edge_waits import with_recent_waits
from paceline.contracts.batch import EDGE_ROW, Rows

MS = 1_000_000


def edges(*waits_ms: tuple[int, int, int]) -> Rows:
    """Rows of (rank, direction, cumulative wait)."""
    rows = np.zeros(len(waits_ms), EDGE_ROW)
    for row, (rank, direction, wait) in zip(rows, waits_ms, strict=True):
        row["comm"], row["rank"], row["peer"], row["direction"] = 7, rank, rank + 1, direction
        row["wait_ns"] = wait * MS
    return rows


def test_growth_is_matched_by_edge_in_any_order() -> None:
    before = edges((3, 0, 5000), (3, 1, 100), (4, 0, 70))
    after = with_recent_waits(edges((4, 0, 970), (3, 1, 100), (3, 0, 5000)), before, 1000 * MS)
    assert after["recent_wait_us"].tolist() == [900_000, 0, 0]
    assert after["recent_us"].tolist() == [1_000_000] * 3


def test_new_edges_and_counters_that_went_back_are_unknown() -> None:
    before = edges((3, 0, 5000))
    after = with_recent_waits(edges((3, 0, 4000), (9, 0, 800)), before, 1000 * MS)
    assert after["recent_us"].tolist() == [0, 0]
    assert after["recent_wait_us"].tolist() == [0, 0]


def test_first_sample_is_unknown() -> None:
    assert with_recent_waits(edges((3, 0, 5000)), edges(), 1000 * MS)["recent_us"].tolist() == [0]
