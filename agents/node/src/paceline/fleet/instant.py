"""The job at one instant: what all pages hold when each node reads them at its own time.

Members of one communicator are therefore seen at different instants, as in life.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.fleet.counters import Counters
from paceline.fleet.engine import Engine
from paceline.fleet.history import F64, KindView
from paceline.fleet.layout import CommKind
from paceline.fleet.pairs import PairView, view_pairs

U32_MAX = 0xFFFFFFFF


@dataclass(eq=False)
class Instant:
    """The job as read at `at` (seconds of the job, (stages, ranks)); `before` is the last reading."""

    at: F64
    before: F64
    views: dict[CommKind, KindView]
    pairs: PairView | None
    counters: dict[CommKind, Counters]


def read_instant(engine: Engine, at: F64, before: F64) -> Instant:
    """State of every communicator; the engine must have advanced beyond every time in `at`."""
    views = {kind: history.view(at) for kind, history in engine.histories.items()}
    pairs = view_pairs(engine.pairs, at) if CommKind.PP in engine.topology.groups else None
    counters = {kind: Counters.read(engine.totals[kind], view, at) for kind, view in views.items()}
    return Instant(at, before, views, pairs, counters)


def millis(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.uint32]:
    """Whole milliseconds as the agent writes them; negative and infinite values are cut."""
    return np.clip(seconds * 1000.0, 0.0, float(U32_MAX)).astype(np.uint32)
