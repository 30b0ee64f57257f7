"""One window of iterations: from sums to the rows that a detector publishes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import U32, U64, Bools, Ints, Rows
from paceline.analysis.detection.iteration_sums import last_of_each
from paceline.analysis.detection.members import Members
from paceline.contracts.batch import ITERATION_ROW, STEP_ROW, TRANSFER_ROW, RowKind, StepFlag

STEPS_MAX = 120  # published of one window, the newest
SAMPLED_MIN = 4  # kept rounds that may stand for all rounds of a step
FULL_SHARE = 0.9  # of the steps: a communicator whose rounds are all kept times the steps
EACH_STEP = 0.9  # rounds per step: less is an operation that not every step has
CELLS_MAX = 2_097_152  # steps times ranks or communicators: 16 MB a table; a hostile node may name many
U32_MAX = 0xFFFFFFFF

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WindowSums:
    """Sums of whole steps: those that every rank has left behind."""

    sums: Rows
    least: Rows
    marks: Rows
    last_step: int
    comms: U64  # ids, sorted
    sizes: Ints  # members that the job has
    per_step: F64  # rounds per step of each communicator
    steps: Ints  # sorted
    kept: Ints  # comms x steps: kept rounds

    @classmethod
    def of(
        cls, sums: Rows, least: Rows, marks: Rows, members: Members, after_step: int
    ) -> "WindowSums | None":
        if len(sums) == 0:
            return None
        ranks = np.unique(sums["rank"], return_inverse=True)[1]
        newest = np.zeros(int(ranks.max()) + 1, np.int64)
        np.maximum.at(newest, ranks, sums["step"])
        last = int(newest.min()) - 1  # the newest step may still be under way
        sums, least = sums[sums["step"] <= last], least[least["step"] <= last]
        steps = np.unique(sums["step"]).astype(np.int64)
        if after_step < 0:
            steps = steps[1:]  # of the first one we saw only the end
        comms = np.unique(sums["comm"])
        fitting = CELLS_MAX // max(len(newest), len(comms))
        steps = steps[max(len(steps) - fitting, 0) :]
        if len(steps) < 2:
            return None
        at = members.find_communicators(comms)
        sizes = np.where(at >= 0, np.diff(members.starts)[at] if len(members.comms) else 0, 0)
        column = np.searchsorted(steps, least["step"])
        column = np.where(np.isin(least["step"], steps), column, -1)
        row = np.searchsorted(comms, least["comm"])
        kept = np.zeros((len(comms), len(steps)), np.int64)
        np.add.at(kept, (row[column >= 0], column[column >= 0]), 1)
        per_step = _rounds_per_step(row, least, len(comms))
        return cls(sums, least, marks, last, comms, sizes, per_step, steps, kept)

    def rows(self, gated: list[tuple[int, int]]) -> dict[RowKind, Rows]:
        """ITERATION, TRANSFER and STEP rows of the newest steps outside `gated`."""
        wanted = np.ones(len(self.steps), np.bool_)
        for first, last in gated:
            wanted &= (self.steps < first) | (self.steps > last)
        wanted[: max(len(wanted) - STEPS_MAX, 0)] = False
        # Counters have no steps: they are compared from the end of the last pause on.
        after = max((last for first, last in gated if first <= self.last_step), default=-1)
        iterations = self._iterations(wanted)
        return {
            RowKind.STEP: self._means(iterations, after),
            RowKind.ITERATION: iterations,
            RowKind.TRANSFER: self._transfers(wanted),
        }

    @property
    def _regular(self) -> Bools:
        regular: Bools = self.per_step >= EACH_STEP
        return regular

    @property
    def _whole(self) -> Bools:
        """Comms x steps: all rounds of the step are kept."""
        whole: Bools = self.kept >= np.maximum(self.per_step - 0.5, 1)[:, None]
        return whole

    @property
    def _factor(self) -> F64:
        """Comms x steps: what sums of the kept rounds are multiplied by; 0 where too few are kept."""
        enough = self._whole | (self.kept >= SAMPLED_MIN)
        scaled = np.where(self._whole, 1.0, self.per_step[:, None] / np.maximum(self.kept, 1))
        factor: F64 = np.where(self._regular[:, None], np.where(enough, scaled, 0.0), self.kept > 0)
        return factor

    def _iterations(self, wanted: Bools) -> Rows:
        sums, factor = self.sums, self._factor
        sums = sums[np.isin(sums["step"], self.steps[wanted])]
        ranks, rank_at = np.unique(sums["rank"], return_inverse=True)
        comm_at, step_at = (
            np.searchsorted(self.comms, sums["comm"]),
            np.searchsorted(self.steps, sums["step"]),
        )
        cell = rank_at * len(self.steps) + step_at
        cells = len(ranks) * len(self.steps)
        scale = factor[comm_at, step_at]
        waited = np.bincount(cell, sums["waited_ns"] * scale, cells)
        regular = self._regular[comm_at]
        seen = np.bincount(cell, regular & (scale > 0), cells)
        pairs = np.unique(rank_at[regular] * len(self.comms) + comm_at[regular]) // len(self.comms)
        needed = np.repeat(np.bincount(pairs, minlength=len(ranks)), len(self.steps))
        good = (needed > 0) & (seen >= needed)
        period = self._periods(sums, rank_at, comm_at, step_at, cell, ranks)
        at = np.flatnonzero(good)
        rows = np.zeros(len(at), ITERATION_ROW)
        rows["step"], rows["rank"] = self.steps[at % len(self.steps)], ranks[at // len(self.steps)]
        rows["step_us"] = np.clip(period[at] / 1e3, 0, U32_MAX)
        rows["waited_us"] = np.clip(waited[at] / 1e3, 0, U32_MAX)
        return rows

    def _periods(
        self, sums: Rows, rank_at: Ints, comm_at: Ints, step_at: Ints, cell: Ints, ranks: U32
    ) -> F64:
        """Duration of each step on each rank: between the ends of the last rounds of a communicator all of
        whose rounds are kept, the one with the fewest; else between two step marks; 0 where neither is."""
        whole = self._whole
        times = self._regular & (whole.mean(axis=1) >= FULL_SHARE)
        order = np.where(times, self.per_step, np.inf)
        place = np.argsort(np.argsort(order, kind="stable"), kind="stable")
        best = np.full(len(ranks), len(self.comms), np.int64)
        np.minimum.at(best, rank_at[times[comm_at]], place[comm_at][times[comm_at]])
        mine = times[comm_at] & (place[comm_at] == best[rank_at]) & whole[comm_at, step_at]
        mine &= sums["gaps"] == sums["rounds"]
        period = np.zeros(len(ranks) * len(self.steps))
        period[cell[mine]] = sums["period_ns"][mine]
        marks = self.marks[np.isin(self.marks["rank"], ranks)]
        first = np.ones(len(marks), np.bool_)
        first[1:] = (marks["rank"][1:] != marks["rank"][:-1]) | (marks["step"][1:] != marks["step"][:-1])
        marks = marks[first]
        follows = (marks["rank"][1:] == marks["rank"][:-1]) & (marks["step"][1:] == marks["step"][:-1] + 1)
        begun = marks[:-1][follows]
        lasted = np.diff(marks["start_ns"])[follows]
        known = np.isin(begun["step"], self.steps)
        where = np.searchsorted(ranks, begun["rank"][known]) * len(self.steps)
        where += np.searchsorted(self.steps, begun["step"][known])
        blank = period[where] == 0
        period[where[blank]] = lasted[known][blank]
        return period

    def _transfers(self, wanted: Bools) -> Rows:
        least = self.least
        at = np.searchsorted(self.comms, least["comm"])
        here = (least["members"] == self.sizes[at]) & np.isin(least["step"], self.steps[wanted])
        least, at = least[here], at[here]
        column = np.searchsorted(self.steps, least["step"])
        cell = at * len(self.steps) + column
        cells = self.kept.size
        total = np.bincount(cell, least["t_min_ns"], cells).reshape(self.kept.shape) * self._factor
        known = np.bincount(cell, minlength=cells).reshape(self.kept.shape) == self.kept
        known &= (self._factor > 0) & self._regular[:, None] & (total > 0)
        comm, column = np.nonzero(known)
        rows = np.zeros(len(comm), TRANSFER_ROW)
        rows["comm"], rows["step"] = self.comms[comm], self.steps[column]
        rows["transfer_us"] = np.clip(total[comm, column] / 1e3, 0, U32_MAX)
        return rows

    def _means(self, iterations: Rows, after_step: int) -> Rows:
        """Mean own time of each rank by the counter of its process, which knows receives as well."""
        timed = iterations["step_us"] > 0
        step_us = float(np.median(iterations["step_us"][timed])) if timed.any() else 0.0
        if step_us <= 0:
            return np.zeros(0, STEP_ROW)
        ranks = np.unique(iterations["rank"])
        mine = np.isin(self.marks["rank"], ranks) & (self.marks["step"].astype(np.int64) > after_step)
        marks = self.marks[mine]
        newest = last_of_each(marks["rank"])
        oldest = np.append(0, newest[:-1] + 1)[: len(newest)]
        old, new = marks[oldest], marks[newest]
        passed = new["step"].astype(np.float64) - old["step"]
        for mark, sign in ((new, 1), (old, -1)):
            passed += sign * np.minimum((mark["at_ns"] - mark["start_ns"]) / (step_us * 1e3), 1.0)
        spent_ms = (new["waited_ms"].astype(np.int64) - old["waited_ms"]) & U32_MAX
        with np.errstate(divide="ignore", invalid="ignore"):
            own = step_us - spent_ms * 1e3 / passed
        seen = (new["waited_ms"] > 0) & (passed >= 1) & (own >= 0)
        rows = np.zeros(len(new), STEP_ROW)
        rows["rank"], rows["steps"], rows["step_us"] = new["rank"], np.maximum(passed, 0), int(step_us)
        rows["own_us"] = np.where(seen, own, 0)
        rows["flags"] = np.where(seen, 0, int(StepFlag.OWN_UNOBSERVED)) | int(StepFlag.NO_BASE)
        return rows


def _rounds_per_step(row: Ints, least: Rows, comms: int) -> F64:
    """Slope of round over step of each communicator, 0 where only one step has any."""
    first = np.full((comms, 2), np.inf)
    last = np.full((comms, 2), -np.inf)
    for column, name in enumerate(("step", "round")):
        values = least[name].astype(np.float64)
        np.minimum.at(first[:, column], row, values)
        np.maximum.at(last[:, column], row, values)
    # From the last round of the first step, so that whole steps are between the two.
    opening = np.zeros(comms)
    of_first = least["step"] == first[row, 0]
    np.maximum.at(opening, row[of_first], least["round"][of_first].astype(np.float64))
    passed = last[:, 0] - first[:, 0]
    return np.where(passed > 0, (last[:, 1] - opening) / np.maximum(passed, 1), 0.0)
