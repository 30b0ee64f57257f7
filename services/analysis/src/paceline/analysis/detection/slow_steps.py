"""How long a step takes, whether that has risen, and how much of it each rank spends on its own.

Durations are differences of one rank's own clock between two of its step marks. Own time needs no
clock at all: waited time per step from two samples of one process, taken from the time of a step.
It is never guessed: where waits are not observed, or are more than the step (communication beside
computation), the row says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.arrays import F32, MS, SECOND_NS, U64, Bools, Ints, Rows
from paceline.analysis.detection.keys import Weights
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.policy import SlowPolicy
from paceline.analysis.detection.processes import Processes
from paceline.analysis.detection.senders import Sender
from paceline.analysis.detection.slow_change import ChangePolicy, Changes
from paceline.contracts.batch import STEP_ROW, StepFlag

PILOTS_MAX = 16  # ranks whose step marks are followed
WINDOW_S = 10.0  # own time is a mean over so long ...
WINDOW_STEPS = 5  # ... and so many steps
BASE_S, BASE_STEPS_MIN = 20.0, 8  # the usual duration is learned for so long, and from so many values
_ONE = (np.zeros(1, np.int64),)


@dataclass
class _Pilot:
    step: int
    start_ns: int  # of that step, sender's clock


@dataclass
class StepWatch:
    """Steps of one block. `step_ns` is 0 while unknown."""

    policy: SlowPolicy
    changes: Changes = field(init=False)
    alarm: bool = False
    step: float = 0.0  # newest of the pilots
    _pilots: dict[str, _Pilot] = field(default_factory=dict)
    _marks: dict[str, _Pilot] = field(default_factory=dict)  # at the start of the window
    _window_ns: int = 0
    _recent_ns: float = 0.0
    _generation: int = -1

    def __post_init__(self) -> None:
        self.changes = Changes((1,), ChangePolicy())
        self._allocate(0)
        self.rounds_per_step: F32 = np.zeros(0, np.float32)
        self._completed: U64 = np.zeros(0, np.uint64)
        self._completed_step = 0.0

    def _allocate(self, ranks: int) -> None:
        self._progress: npt.NDArray[np.float64] = np.zeros(ranks)  # steps and parts of one
        self._waited: U64 = np.zeros(ranks, np.uint64)
        self.own_ns: F32 = np.full(ranks, -1, np.float32)  # newest window; negative = unobserved
        self.base_own_ns: F32 = np.zeros(ranks, np.float32)
        self._own_before_ns: F32 = np.full(ranks, -1, np.float32)  # the window before
        self.steps: F32 = np.zeros(ranks, np.float32)
        self.base_windows: Ints = np.zeros(ranks, np.int64)

    @property
    def step_ns(self) -> float:
        """Usual duration of a step, from the third value on."""
        return float(self.changes.mean[0]) if self.changes.samples[0] >= 3 else 0.0

    @property
    def rising(self) -> bool:
        """Alone not enough to raise anything, but it agrees with other evidence."""
        return self.alarm or float(self.changes.score[0]) >= 0.4 * self.changes.policy.limit

    @property
    def recent_ns(self) -> float:
        """Duration of a step in the newest window."""
        return self._recent_ns or self.step_ns

    def tick(
        self,
        senders: Mapping[str, Sender],
        processes: Processes,
        members: Members,
        now_ns: int,
        *,
        learn: bool,
    ) -> None:
        """Look at the newest samples; while a gate holds, the steps under it are left out."""
        if not learn:
            self._pilots.clear()
            self._marks.clear()
            self._window_ns = 0
            return
        found = self._read_pilots(senders, processes)
        if found:
            durations = np.array([duration for duration, _ in found], np.float32)
            weight = float(np.median([count for _, count in found]))
            value = np.array([np.median(durations)], np.float32)
            # a rise that costs nothing is not worth a word
            matters = self.policy.step_rise_min * float(self.changes.mean[0])
            over = bool(self.changes.observe(_ONE, value, matters, weight, enough=self._enough())[0])
            kept = self.alarm and float(self.changes.score[0]) >= 0.5 * self.changes.policy.limit
            self.alarm = over or kept
        self._count_rounds(members)
        if self._window_ns == 0 or now_ns - self._window_ns >= WINDOW_S * SECOND_NS:
            self._account(processes, now_ns)

    def weights(self, comms: int) -> Weights:
        """What lateness costs in each communicator."""
        fits = len(self.rounds_per_step) == comms
        rounds = self.rounds_per_step if fits else np.zeros(comms, np.float32)
        return Weights(self.step_ns, rounds, (rounds > 0) & (self.step_ns > 0))

    def rows(self, processes: Processes, wanted: npt.NDArray[np.uint32]) -> Rows:
        """STEP rows of the ranks of `wanted`."""
        at = processes.locate(wanted)
        at = at[at >= 0]
        rows = np.zeros(len(at), STEP_ROW)
        rows["rank"] = processes.rank[at]
        rows["step_us"], rows["base_step_us"] = int(self.recent_ns / 1e3), int(self.step_ns / 1e3)
        if len(self.own_ns) != len(processes):
            rows["flags"] = StepFlag.OWN_UNOBSERVED | StepFlag.NO_BASE
            return rows
        seen = (self.steps[at] > 0) & (self.own_ns[at] >= 0)
        based = seen & (self.base_windows[at] > 0)
        rows["flags"] = np.where(seen, 0, int(StepFlag.OWN_UNOBSERVED)) | np.where(based, 0, StepFlag.NO_BASE)
        rise, before = self.own_ns[at] - self.base_own_ns[at], self._own_before_ns[at] - self.base_own_ns[at]
        rows["flags"] |= np.where(based & (rise > 0) & (before < 0.5 * rise), StepFlag.ONCE, 0).astype(
            np.uint32
        )
        rows["steps"] = self.steps[at]
        rows["base_steps"] = self.base_windows[at] * WINDOW_STEPS
        rows["own_us"] = np.where(seen, self.own_ns[at] / 1e3, 0)
        rows["base_own_us"] = np.where(based, self.base_own_ns[at] / 1e3, 0)
        return rows

    # ------------------------------------------------------------------ parts of a tick

    def _read_pilots(self, senders: Mapping[str, Sender], processes: Processes) -> list[tuple[float, float]]:
        """(ns per step, steps) of each pilot that has ended a step since the last look."""
        names = list(senders)[:: max(len(senders) // PILOTS_MAX, 1)][:PILOTS_MAX]
        found, steps = [], []
        for name in names:
            sender = senders[name]
            at = int(processes.locate(sender.ranks[:1])[0]) if len(sender.ranks) else -1
            if at < 0 or sender.silent:
                continue
            row = processes.rows[at]
            step = int(row["step"])
            start_ns = sender.sampled_ns - int(row["step_age_ms"]) * MS
            steps.append(step)
            before = self._pilots.get(name)
            if before is not None and step == before.step:
                continue
            self._pilots[name] = _Pilot(step, start_ns)
            if before is not None and step > before.step > 0 and start_ns > before.start_ns:
                found.append(((start_ns - before.start_ns) / (step - before.step), float(step - before.step)))
        for name in set(self._pilots) - set(names):
            del self._pilots[name]
        if steps:
            self.step = float(np.median(steps))
        return found

    def _enough(self) -> F32:
        """Values to learn from: those of BASE_S, and never few."""
        fitting = BASE_S * SECOND_NS / max(self.step_ns, 1.0)
        values: F32 = np.clip([fitting], BASE_STEPS_MIN, self.changes.policy.base_values).astype(np.float32)
        return values

    def _count_rounds(self, members: Members) -> None:
        """Rounds of each communicator in a step, from its first member's counter."""
        if len(members) == 0:
            return
        completed = members.completed[members.starts[:-1]]
        if len(completed) != len(self._completed):
            self.rounds_per_step = np.zeros(len(completed), np.float32)
            self._completed, self._completed_step = completed, self.step
            return
        passed = self.step - self._completed_step
        if passed < WINDOW_STEPS:
            if passed < 0:
                self._completed, self._completed_step = completed, self.step
            return
        forward = np.where(completed >= self._completed, completed - self._completed, np.uint64(0))
        newest = (forward / passed).astype(np.float32)
        known = self.rounds_per_step > 0
        self.rounds_per_step = np.where(
            known, self.rounds_per_step + 0.3 * (newest - self.rounds_per_step), newest
        ).astype(np.float32)
        self._completed, self._completed_step = completed, self.step

    def _account(self, processes: Processes, now_ns: int) -> None:
        """Close the window: mean own time of every rank over the same steps."""
        step_ns = self._window_step_ns()
        if step_ns <= 0 and self._window_ns:
            return  # too few steps yet, the window goes on
        fits = processes.generation == self._generation and len(self._waited) == len(processes)
        rows = processes.rows
        waited = rows["waited_ms"].astype(np.uint64)
        scale = MS / (step_ns or self.step_ns or np.inf)
        progress = rows["step"] + np.minimum(rows["step_age_ms"] * scale, 1.0)
        if fits and step_ns > 0:
            self._recent_ns = step_ns
            passed = progress - self._progress
            spent_ms = (waited - self._waited) & np.uint64(0xFFFFFFFF)  # the counter wraps
            with np.errstate(divide="ignore", invalid="ignore"):
                own = step_ns - spent_ms * MS / passed
            due = passed >= WINDOW_STEPS - 1
            blind = (waited == 0) | ~(own >= 0)
            self._own_before_ns = self.own_ns
            self.own_ns = np.where(due & ~blind, own, -1).astype(np.float32)
            self.steps = np.where(due, passed, 0).astype(np.float32)
            if not self.alarm and float(self.changes.score[0]) < 0.5 * self.changes.policy.limit:
                self._learn_own(due & ~blind)
        elif not fits:
            base, windows = self.base_own_ns, self.base_windows
            self._allocate(len(processes))
            if len(base) == len(processes):
                self.base_own_ns, self.base_windows = base, windows
            self._generation = processes.generation
        self._progress, self._waited = progress, waited
        self._marks = dict(self._pilots)
        self._window_ns = now_ns

    def _window_step_ns(self) -> float:
        """Mean duration of the steps of the open window, 0 before WINDOW_STEPS of them."""
        found = []
        for name, mark in self._marks.items():
            pilot = self._pilots.get(name)
            if pilot is not None and pilot.step - mark.step >= WINDOW_STEPS:
                found.append((pilot.start_ns - mark.start_ns) / (pilot.step - mark.step))
        return float(np.median(found)) if found else 0.0

    def _learn_own(self, mask: Bools) -> None:
        windows = self.base_windows[mask]
        share = np.maximum(1 / (windows + 1), 0.1).astype(np.float32)
        self.base_own_ns[mask] += share * (self.own_ns[mask] - self.base_own_ns[mask])
        self.base_windows[mask] += 1

    # ------------------------------------------------------------------ snapshot

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        return {
            **self.changes.arrays("step_"),
            "own_base": self.base_own_ns,
            "own_windows": self.base_windows,
            "rounds_per_step": self.rounds_per_step,
        }

    @staticmethod
    def array_dtypes() -> dict[str, np.dtype[np.generic]]:
        numbers = dict.fromkeys(
            [*(f"step_{name}" for name in Changes.NAMES), "own_base", "rounds_per_step"], np.dtype("<f4")
        )
        return {**numbers, "own_windows": np.dtype("<i8")}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Inverse of `arrays`; ValueError where the sizes do not fit."""
        for name in Changes.NAMES:
            getattr(self.changes, name)[...] = arrays[f"step_{name}"]
        own = arrays["own_base"]
        self._allocate(len(own))
        self.base_own_ns[...], self.base_windows[...] = own, arrays["own_windows"]
        self.rounds_per_step = arrays["rounds_per_step"].astype(np.float32)
        self._completed = np.zeros(0, np.uint64)
