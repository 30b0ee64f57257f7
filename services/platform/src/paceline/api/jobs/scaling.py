"""How well a job scales: judged windows, and the failure modes that the newest ones show."""

from collections.abc import Sequence
from statistics import median

from paceline.api.jobs.schemas import (
    FindingInput,
    ScalingFindingRead,
    ScalingModeRead,
    ScalingRead,
    ScalingWindowRead,
)
from paceline.contracts.scaling import ScalingMode
from paceline.store.base import JsonObject
from paceline.store.models.scaling import ScalingWindow

CURRENT_WINDOWS = 10  # what older ones show may be over


def build_scaling(job: str, attempt: str, rows: Sequence[ScalingWindow]) -> ScalingRead:
    """Rows newest first."""
    items = [_window(row) for row in rows]
    return ScalingRead(job=job, attempt=attempt, items=items, modes=build_modes(items[:CURRENT_WINDOWS]))


def build_modes(windows: Sequence[ScalingWindowRead]) -> list[ScalingModeRead]:
    """Each mode once, with its newest finding."""
    found = []
    for mode in ScalingMode:
        shown = [(w, f) for w in windows for f in w.findings if f.mode is mode]
        if not shown:
            continue
        newest = shown[0][1]
        found.append(
            ScalingModeRead(
                mode=mode,
                windows=len(shown),
                first_judged_at=shown[-1][0].judged_at,
                last_judged_at=shown[0][0].judged_at,
                cost_share=newest.cost_share,
                statement=newest.statement,
                ranks=newest.ranks,
                place=newest.place,
            )
        )
    return sorted(found, key=lambda mode: -mode.cost_share)


def _window(row: ScalingWindow) -> ScalingWindowRead:
    return ScalingWindowRead(
        id=row.id,
        first_step=row.first_step,
        last_step=row.last_step,
        iterations=row.iterations,
        ranks=row.ranks,
        ranks_expected=row.ranks_expected,
        step_s=row.step_s,
        cv=median(row.cv) if row.cv else None,
        cvs=row.cv,
        findings=[_finding(finding) for finding in row.findings],
        refused=row.refused,
        judged_at=row.judged_at,
    )


def _finding(found: JsonObject) -> ScalingFindingRead:
    inputs = [FindingInput(name=name, value=value) for name, value in found["inputs"].items()]
    return ScalingFindingRead(**{**found, "inputs": inputs})
