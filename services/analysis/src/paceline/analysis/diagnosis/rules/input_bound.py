"""One log that gives the time spent on input beside the time of the step: the job waits for its data."""

from collections import defaultdict

import numpy as np

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, complaining, origins_of
from paceline.analysis.diagnosis.slow_shifts import period_of
from paceline.analysis.facts import SampleRow
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

ROWS_MIN = 6
INPUT_SHARE = 0.3  # of the time of all steps but the first
STALL_SHARE = 0.5  # of one step


def waits_for_input(case: Case) -> Finding | None:
    """Input takes a large part of the time, always, from some step on, or in single steps."""
    by_place: dict[object, list[SampleRow]] = defaultdict(list)
    for row in case.of(SampleRow):
        if row.kind == "steps" and "data_s" in row.numbers and {"step_s", "own_s"} & set(row.numbers):
            by_place[case.rank_of(row), row.origin.file].append(row)
    found = [rows for rows in by_place.values() if len(rows) >= ROWS_MIN and _is_bound(rows)]
    if complaining(case) or not found or len(found) * 2 < len(by_place):
        return None
    rows = found[0][1:]
    data, whole = _times(rows)
    stalls = np.flatnonzero(data >= STALL_SHARE * whole)
    period = period_of(stalls.tolist()) if len(stalls) < len(rows) / 2 else 0
    share = float(data.sum() / whole.sum())
    every = f" every {period} lines" if period else ""
    return Finding(
        reason="waits_for_input",
        verdict_class=VerdictClass.S1,
        sub_reason=SubReason.LATE_RANK,
        roots=(
            Blame(
                RootKind.NONE, name="all ranks together: data loading (input bound)", why="no rank differs"
            ),
        ),
        victims=(),
        phase=f"input (data loading) before the step{every}",
        owner=Owner.STORAGE,
        action=Action(ActionKind.FIX_CONFIGURATION, "", "data loader: workers, prefetch, storage"),
        confidence=0.75,
        grounds=(Ground("input", f"{share:.0%} of the time goes into input{every}", origins_of(rows)),),
        summary=f"The job waits for its data: {share:.0%} of the time goes into input{every}; "
        "no communication fault, and no rank stands out",
    )


def _is_bound(rows: list[SampleRow]) -> bool:
    data, whole = _times(rows[1:])
    return bool(whole.sum() > 0 and data.sum() >= INPUT_SHARE * whole.sum())


def _times(rows: list[SampleRow]) -> tuple[np.ndarray, np.ndarray]:
    """Input and whole step; a time that is shorter than the input does not include it."""
    data = np.array([row.numbers["data_s"] for row in rows])
    step = np.array([row.numbers.get("step_s", row.numbers.get("own_s", 0.0)) for row in rows])
    return data, np.where(step < data, step + data, step)
