"""Measured rows of steps or operations as tables by step and place, in seconds."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.analysis.facts import Origin, SampleRow

CELLS_MAX = 1 << 22
_WARM_UP = 2.0  # times the median: a first step that compiles or fills caches
USUAL_OPERATION = 25  # %: of an operation alone the slow ones may be most of its rows
_FIT = 0.02  # of a step: its parts add up so well
Table = npt.NDArray[np.float64]
Place = int | str  # rank, or the node where rows name no rank
RankOf = Callable[[SampleRow], int | None]


@dataclass(frozen=True, eq=False)
class Steps:
    """`own` before a collective, `wait` in it, `data` the part of `own` that reads input; NaN: no row.

    `whole` is the step as the job sees it; `reference` the time that thresholds are shares of.
    `measured` False: own times are taken from how long others waited in the collective.
    """

    steps: Sequence[int]
    places: Sequence[Place]
    own: Table
    wait: Table | None
    data: Table | None
    whole: Table
    reference: float
    origins: tuple[Origin, ...]
    measured: bool = True
    what: str = "collective of the step"

    @property
    def ranks(self) -> list[int]:
        return [place for place in self.places if isinstance(place, int)]

    @property
    def transfer(self) -> Table | None:
        """Time of the last one to come, who waits for nobody: what is left is the transfer."""
        return None if self.wait is None else np.asarray(np.fmin.reduce(self.wait, axis=1))


@dataclass
class _Cells:
    """Values by name, step and place while they are collected."""

    names: tuple[str, ...]
    values: dict[tuple[int, Place], dict[str, float]] = field(default_factory=dict)
    seen: Counter[Place] = field(default_factory=Counter)
    origins: list[Origin] = field(default_factory=list)

    def add(self, step: int | None, place: Place, row: SampleRow) -> None:
        at = step if step is not None else self.seen[place]
        self.seen[place] += 1
        self.values[at, place] = {n: row.numbers[n] for n in self.names if row.numbers.get(n, -1.0) >= 0}
        if len(self.origins) < 64:
            self.origins.append(row.origin)

    def tables(self) -> tuple[list[int], list[Place], dict[str, Table]] | None:
        """Steps that at least half of the places have; None with fewer than two places or three steps."""
        places = sorted(
            {place for _, place in self.values}, key=lambda place: (isinstance(place, str), place)
        )
        count = Counter(step for step, _ in self.values)
        steps = sorted(step for step, times in count.items() if times * 2 >= len(places))
        if len(places) < 2 or len(steps) < 3 or len(places) * len(steps) > CELLS_MAX:
            return None
        row, column = {s: i for i, s in enumerate(steps)}, {p: i for i, p in enumerate(places)}
        tables = {name: np.full((len(steps), len(places)), np.nan) for name in self.names}
        for (step, place), values in self.values.items():
            if step in row:
                for name, value in values.items():
                    tables[name][row[step], column[place]] = value
        return steps, places, {name: t for name, t in tables.items() if np.isfinite(t).mean() >= 0.5}


_STEP_NAMES = (
    "own_s", "collective_s", "wait_s", "tail_s", "data_s", "step_s", "forward_s", "backward_s", "optimizer_s",
)  # fmt: skip


def read_steps(rows: Iterable[SampleRow], rank_of: RankOf) -> list[Steps]:
    """Up to two tables: work before the collective, and work queued behind it where rows show that."""
    cells = _Cells(_STEP_NAMES)
    for row in rows:
        place = _place(row, rank_of)
        if row.kind == "steps" and place is not None:
            cells.add(int(row.numbers["step"]) if "step" in row.numbers else None, place, row)
    built = cells.tables()
    if built is None:
        return []
    steps, places, tables = built
    found = []
    parts = _parts(tables)
    if parts is not None:
        own, wait, whole = parts
        found.append(_finish(steps, places, own, wait, tables.get("data_s"), whole, cells.origins))
    if "tail_s" in tables:
        tail, wait = tables["tail_s"], tables.get("wait_s")
        whole = _whole(
            tables, tail if wait is None else tail + wait + tables.get("collective_s", np.zeros(1))
        )
        found.append(
            _finish(steps, places, tail, wait, None, whole, cells.origins, "work behind the collective")
        )
    return found


def read_operations(rows: Iterable[SampleRow], rank_of: RankOf) -> list[Steps]:
    """A table for each operation of each communicator: its rounds by rank, in order of appearance."""
    every: dict[tuple[str, str, float], _Cells] = {}
    for row in rows:
        place = _place(row, rank_of)
        if row.kind != "operations" or place is None:
            continue
        key = (row.words.get("op", ""), row.words.get("comm", ""), row.numbers.get("size", 0.0))
        if key not in every and len(every) >= 64:
            continue
        cells = every.setdefault(key, _Cells(("collective_s", "duration_s")))
        number = row.numbers.get("sequence", row.numbers.get("step"))
        cells.add(int(number) if number is not None else None, place, row)
    found = []
    for (op, _, _), cells in every.items():
        built = cells.tables()
        if built is None:
            continue
        steps, places, tables = built
        took = tables.get("collective_s", tables.get("duration_s"))
        if took is not None:
            own, whole = np.fmax.reduce(took, axis=1, keepdims=True) - took, np.fmax.reduce(took, axis=1)
            found.append(
                _finish(
                    steps, places, own, took, None, whole, cells.origins, op or "collective", measured=False
                )
            )
    return found


def _place(row: SampleRow, rank_of: RankOf) -> Place | None:
    rank = rank_of(row)
    return rank if rank is not None else (row.speaker.host or None)


def _parts(tables: dict[str, Table]) -> tuple[Table, Table | None, Table] | None:
    """Own time, time in collectives and the whole step, from the fields that are there."""
    wait = _sum(tables, ("collective_s",) if "tail_s" in tables else ("collective_s", "wait_s"))
    own = tables.get("own_s")
    if own is None and wait is not None:
        own = _sum(tables, ("forward_s", "backward_s", "optimizer_s"))
    step, data = tables.get("step_s"), tables.get("data_s")
    if own is not None and data is not None and not _adds_up(own, wait, step, data):
        own = own + data
    if own is None and step is not None:
        own = step if wait is None else step - wait
    if own is None and data is not None:
        own = data
    if own is None:
        if wait is None or "tail_s" in tables:
            return None
        return (
            np.fmax.reduce(wait, axis=1, keepdims=True) - wait,
            wait,
            np.asarray(np.fmax.reduce(wait, axis=1)),
        )
    if wait is None and step is not None and step is not own:
        wait = np.maximum(step - own, 0.0)
    return own, wait, _whole(tables, own if wait is None else own + wait)


def _adds_up(own: Table, wait: Table | None, step: Table | None, data: Table) -> bool:
    """Whether a step is own and waiting time alone, so that reading input is part of own.

    By the sum over all steps: input that is read quickly in most of them is seen where it stalls.
    """
    if step is None or wait is None:
        return False
    rest = step - own - wait
    if np.nanmedian(np.abs(rest)) > _FIT * np.nanmedian(step):
        return False
    return bool(np.nansum(np.abs(rest)) <= np.nansum(np.abs(rest - data)))


def _whole(tables: dict[str, Table], parts: Table) -> Table:
    step = tables.get("step_s")
    return np.asarray(np.fmax.reduce(parts if step is None else step, axis=1))


def _sum(tables: dict[str, Table], names: Sequence[str]) -> Table | None:
    found = [tables[name] for name in names if name in tables]
    return np.asarray(sum(found[1:], found[0])) if found else None


def _finish(
    steps: list[int],
    places: list[Place],
    own: Table,
    wait: Table | None,
    data: Table | None,
    whole: Table,
    origins: list[Origin],
    what: str = "collective of the step",
    measured: bool = True,
) -> Steps:
    """Without rows that nobody has, and without a first step that only warms up."""
    keep = np.isfinite(own).sum(axis=1) * 2 >= len(places)
    if wait is not None:
        keep &= np.isfinite(wait).any(axis=1)
    if keep.sum() > 3 and whole[keep][0] > _WARM_UP * np.nanmedian(whole[keep][1:]):
        keep[np.flatnonzero(keep)[0]] = False
    usual = 50 if measured else USUAL_OPERATION
    reference = float(np.nanpercentile(whole[keep], usual)) if keep.any() else 0.0
    return Steps(
        steps=[step for step, kept in zip(steps, keep.tolist(), strict=True) if kept],
        places=places,
        own=own[keep],
        wait=None if wait is None else wait[keep],
        data=None if data is None else data[keep],
        whole=whole[keep],
        reference=reference,
        origins=tuple(origins),
        measured=measured and not (wait is not None and own is whole),
        what=what,
    )
