"""Why a job that is not broken scales badly: findings on `paceline.findings.v1`.

A finding explains lost throughput. It accuses nobody and never opens an incident
(docs/adr/0024-scaling-findings.md, 0025-scaling-on-the-wire.md).
"""

from dataclasses import dataclass, field
from enum import Enum

RANKS_MAX = 64  # that one finding names
CV_MAX = 64  # figures of one record
FINDINGS_MAX = 3  # one of each mode


class ScalingMode(str, Enum):
    SYNC_AMPLIFICATION = "sync_amplification"  # everybody pauses now and then, and all wait each time
    FABRIC_CONTENTION = "fabric_contention"  # several communicators are slow at the same times
    LOCALITY_VARIANCE = "locality_variance"  # what shares a place is always slower


@dataclass(frozen=True)
class ScalingFinding:
    """One failure mode. `cost_share` is what it takes from the mean iteration."""

    mode: ScalingMode
    statement: str
    cost_share: float
    inputs: dict[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()  # LOCALITY_VARIANCE: the slow ones, never as a cause
    place: str = ""  # what they share, or the nodes that the slow communicators share


@dataclass(frozen=True)
class ScalingRecord:
    """One judged window of iterations of one attempt."""

    id: str
    job: str
    attempt: str
    first_step: int
    last_step: int
    iterations: int  # judged, between first_step and last_step
    ranks: int  # that showed their waits ...
    ranks_expected: int  # ... of so many
    step_s: float  # mean iteration, 0 = not known
    cv: tuple[float, ...]  # of the iteration time, one per 20 iterations, oldest first
    findings: tuple[ScalingFinding, ...]
    refused: str  # why nothing could be judged; empty where it was
    judged_unix_s: float  # end of the window, the detector's wall clock
