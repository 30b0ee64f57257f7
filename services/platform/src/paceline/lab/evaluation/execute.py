"""Runs the cases that are not recorded yet, in processes of their own, and says how far it is."""

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from paceline.lab.evaluation.cases import SLOW_AT_S, Case
from paceline.lab.evaluation.records import code_version
from paceline.lab.evaluation.runner import SETTLE_S, Result, run_case

TASKS_MAX = 500  # of one process; then a new one, so that memory cannot grow with the run
REPORT_EVERY_S = 15.0
_VERDICT_S = 25.0  # roughly, from the fault to a settled verdict


class CodeChangedError(Exception):
    """A process that was started later has read other sources than the first ones."""


@dataclass
class Progress:
    """Lines on stderr. `clock` in seconds."""

    cases: Sequence[Case]
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    _spent: float = 0.0
    _told_s: float = field(init=False)
    _started_s: float = field(init=False)
    _whole: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_s = self._told_s = self.clock()
        self._whole = sum(expected_seconds(case) for case in self.cases)

    def note(self, case: Case) -> str | None:
        """One case is over; a line where it is time for one."""
        self.done += 1
        self._spent += expected_seconds(case)
        now_s = self.clock()
        if now_s - self._told_s < REPORT_EVERY_S:
            return None
        self._told_s = now_s
        passed_s = now_s - self._started_s
        left_s = passed_s * (self._whole - self._spent) / self._spent
        time_s = f"{passed_s / 60:.1f} min, about {left_s / 60:.0f} min left"
        return f"{self.done} of {len(self.cases)} jobs, {time_s}\n"


def expected_seconds(case: Case) -> float:
    """Simulated seconds that a case usually takes; only for the estimate of what is left."""
    if case.kind is None:
        return float(case.limit_s)
    return min(float(case.limit_s), SLOW_AT_S + _VERDICT_S + SETTLE_S)


def run_cases(cases: Sequence[Case], jobs: int) -> Iterator[tuple[Case, Result | None]]:
    """Each case with its result, as they end; with several processes not in their order."""
    progress = Progress(cases)
    for index, result in _run(cases, jobs):
        line = progress.note(cases[index])
        if line:
            sys.stderr.write(line)
            sys.stderr.flush()
        yield cases[index], result


def _run(cases: Sequence[Case], jobs: int) -> Iterator[tuple[int, Result | None]]:
    if jobs <= 1 or len(cases) <= 1:
        yield from map(_run_numbered, enumerate(cases))
        return
    context = multiprocessing.get_context("spawn")
    processes = min(jobs, len(cases))
    with context.Pool(processes, _begin, (code_version(),), maxtasksperchild=TASKS_MAX) as pool:
        yield from pool.imap_unordered(_run_numbered, enumerate(cases))


def _run_numbered(numbered: tuple[int, Case]) -> tuple[int, Result | None]:
    index, case = numbered
    if _Process.changed:
        raise CodeChangedError(
            "the code has changed since the run began; begin again, in a checkout of its own"
        )
    return index, run_case(case)


class _Process:
    """What one process of a pool knows."""

    changed = False


def _begin(version: str) -> None:
    """An interrupt from the terminal reaches all processes; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Process.changed = code_version() != version
