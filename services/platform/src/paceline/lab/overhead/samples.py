"""Times of steps, or of rounds where there are no steps, from the samples of agents: pure.

Every duration is between two instants of one process on its own clock; a median over processes is the
block's. The window of a block is in the wall clock of the node that answered its command.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import TypeVar

from paceline.contracts.batch import Batch, BatchKind, RowKind

STEPS_MIN = 3  # in a block, of one process
ROUNDS_MIN = 20
POINTS_MAX = 20_000  # of one process: five hours at one a second
TRACKS_MAX = 16_384  # processes, or communicators of processes: a median over so many is exact enough


class Unit(str, Enum):
    STEP = "step"
    ROUND = "round"


@dataclass(frozen=True)
class Point:
    """A process had done `count` at `own_ns` of its clock, at `unix_s` of its node's."""

    unix_s: float
    own_ns: int
    count: int


@dataclass(frozen=True)
class Window:
    begin_unix_s: float
    end_unix_s: float


Key = tuple[str, int]  # node, rank
CommKey = tuple[str, int, int]  # and communicator
AnyKey = TypeVar("AnyKey", Key, CommKey)


@dataclass
class Tracks:
    """What was seen of a job. Bounded; what found no room is counted."""

    job: str
    attempt: str
    steps: dict[Key, list[Point]] = field(default_factory=dict)
    rounds: dict[CommKey, list[Point]] = field(default_factory=dict)
    left_out: int = 0

    def add(self, batch: Batch) -> None:
        """One record of an agent; anything else is no news."""
        if (batch.kind, batch.job, batch.attempt) != (BatchKind.FRAMES, self.job, self.attempt):
            return
        unix_s = batch.sampled_unix_ns / 1e9
        for row in batch.table(RowKind.PROCESS):
            age_ms = int(row["step_age_ms"])
            if row["step"] and age_ms:
                point = Point(unix_s - age_ms / 1e3, batch.sampled_ns - age_ms * 1_000_000, int(row["step"]))
                self._put(self.steps, (batch.node, int(row["rank"])), point)
        for row in batch.table(RowKind.STATE):
            key = (batch.node, int(row["rank"]), int(row["comm"]))
            self._put(self.rounds, key, Point(unix_s, batch.sampled_ns, int(row["entered"])))

    def _put(self, table: dict[AnyKey, list[Point]], key: AnyKey, point: Point) -> None:
        if (key not in table and len(table) >= TRACKS_MAX) or len(table.get(key, ())) >= POINTS_MAX:
            self.left_out += 1
            return
        table.setdefault(key, []).append(point)

    @property
    def unit(self) -> Unit:
        return Unit.STEP if self.steps else Unit.ROUND

    def time_of(self, windows: Mapping[str, Window]) -> float | None:
        """Seconds per step (or round) of a block, its windows by node; None where too little was seen."""
        if self.unit is Unit.STEP:
            times = [_time(points, windows.get(node), STEPS_MIN) for (node, _), points in self.steps.items()]
        else:
            times = self._round_times(windows)
        known = [time for time in times if time is not None]
        return median(known) if known else None

    def _round_times(self, windows: Mapping[str, Window]) -> list[float | None]:
        """Of each process the communicator that has gone furthest."""
        busiest: dict[Key, list[Point]] = {}
        for (node, rank, _), points in self.rounds.items():
            best = busiest.get((node, rank))
            if best is None or points[-1].count > best[-1].count:
                busiest[node, rank] = points
        return [_time(points, windows.get(node), ROUNDS_MIN) for (node, _), points in busiest.items()]


def _time(points: Sequence[Point], window: Window | None, count_min: int) -> float | None:
    if window is None:
        return None
    inside = [point for point in points if window.begin_unix_s <= point.unix_s <= window.end_unix_s]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    done = last.count - first.count
    return (last.own_ns - first.own_ns) / 1e9 / done if done >= count_min else None


def pair_times(
    times: Iterable[tuple[int, bool, float | None]],
) -> list[tuple[float, float]]:
    """(pair, is base, seconds) of the blocks to (base, raised) of those pairs that have both."""
    found: dict[int, dict[bool, float]] = {}
    for pair, is_base, time in times:
        if time is not None:
            found.setdefault(pair, {})[is_base] = time
    return [(both[True], both[False]) for both in found.values() if len(both) == 2]
