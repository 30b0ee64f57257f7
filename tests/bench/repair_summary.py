"""Runs of `repair_platform` in figures, and the bars that they have to reach. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RECOVERED_SHARE_MIN = 0.95  # of each kind; whatever is left has to fall back explicitly


@dataclass(frozen=True)
class Run:
    """Seconds since the fault; None where it did not happen."""

    kind: str
    fault: str
    total_s: float | None
    detected_s: float | None
    times: Mapping[str, float]
    recovered: bool
    replayed: int
    different: str
    fell_back: str
    orders: int
    actions: list[str]
    at_once: int  # recoveries of the job that began before another one had ended
    replaced: list[list[int]]  # ranks that changed hands with each generation
    expected: list[list[int]]
    step_s: float | None


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return {
        "median": round(statistics.median(known), 3),
        "min": round(known[0], 3),
        "max": round(known[-1], 3),
        "p90": round(known[max(0, -(-len(known) * 9 // 10) - 1)], 3),  # nearest rank
        "n": len(known),
    }


def counts(runs: Sequence[Run], asked: int) -> dict[str, int]:
    """How the runs of one kind ended; each is in one of the first four."""
    given_up = sum(bool(run.fell_back) for run in runs)
    recovered = sum(run.recovered for run in runs)
    silent = sum(bool(run.different) and not run.fell_back for run in runs)
    return {
        "of": asked,
        "recovered": recovered,
        "fell_back_explicitly": given_up,
        "silently_different": silent,
        "lost_without_a_word": asked - recovered - given_up - silent,
        "recoveries_at_once": sum(run.at_once for run in runs),
        "other_topology": sum(run.replaced != run.expected and not run.fell_back for run in runs),
    }


def missed_bars(kind: str, found: Mapping[str, int]) -> list[str]:
    """Of the counts of one kind."""
    none = ("silently_different", "lost_without_a_word", "recoveries_at_once", "other_topology")
    missed = [f"{kind}: {found[name]} {name}, bar 0" for name in none if found[name]]
    if found["recovered"] < RECOVERED_SHARE_MIN * found["of"]:
        missed.append(
            f"{kind}: {found['recovered']} of {found['of']} recovered, bar {RECOVERED_SHARE_MIN:.0%}"
        )
    return missed


def summary(runs: Sequence[Run], asked: int) -> dict[str, Any]:
    """Of the runs of one kind."""
    names = sorted({name for run in runs for name in run.times})
    return {
        **counts(runs, asked),
        "fault_to_first_full_step_s": spread([run.total_s for run in runs if run.recovered]),
        "detect_s": spread([run.detected_s for run in runs]),
        "detected_to_first_full_step_s": spread(
            [run.total_s - run.detected_s for run in runs if run.total_s and run.detected_s is not None]
        ),
        "replayed_max": max((run.replayed for run in runs), default=-1),
        "fell_back": [f"{run.fault}: {run.fell_back}" for run in runs if run.fell_back],
        "different": [f"{run.fault}: {run.different}" for run in runs if run.different],
        "topologies": [
            f"{run.fault}: {run.replaced}, expected {run.expected}; {run.actions}"
            for run in runs
            if run.replaced != run.expected
        ],
        "more_than_one_order": [
            f"{run.fault}: {run.orders}" for run in runs if run.orders > len(run.expected)
        ],
        "step_s": spread([run.step_s for run in runs]),
        "parts_s": {name: spread([run.times.get(name) for run in runs]) for name in names},
    }
