"""Read models of jobs."""

from datetime import datetime

from paceline.api.schemas import ReadModel
from paceline.contracts.events import Severity
from paceline.contracts.registry import CoordinateSource, JobState
from paceline.contracts.scaling import ScalingMode
from paceline.store.rank_states import RankState


class JobSummary(ReadModel):
    """One line of the list; state and attempt are those of the newest attempt."""

    id: str
    name: str
    attempt: str
    cluster: str
    tenant: str
    user: str
    state: JobState
    world_size: int
    nodes_count: int
    communicators_count: int
    open_incidents_count: int
    worst_severity: Severity | None
    started_at: datetime
    ended_at: datetime | None
    end_reason: str
    updated_at: datetime


class AttemptRead(ReadModel):
    attempt: str
    state: JobState
    world_size: int
    started_at: datetime
    ended_at: datetime | None
    end_reason: str


class AxisRead(ReadModel):
    """A coordinate such as tp and how many values of it were seen."""

    name: str
    size: int


class VersionRead(ReadModel):
    name: str
    version: str


class JobRead(JobSummary):
    """`axes` in the order tp, cp, ep, pp, dp, then by name; attempts newest first."""

    shards: int
    id_source: str
    attempt_source: str
    coordinate_source: CoordinateSource
    axes: list[AxisRead]
    versions: list[VersionRead]
    attempts: list[AttemptRead]
    open_incident_ids: list[str]


class CoordinateRead(ReadModel):
    axis: str
    value: int


class RankRead(ReadModel):
    """`verdict_role` comes from the open incidents, `step` is null where nobody reports it."""

    rank: int
    node: str
    local_rank: int
    gpu: int | None
    pid: int
    coordinates: list[CoordinateRead]
    state: RankState
    verdict_role: str | None
    incident_id: str | None
    step: int | None


class RanksRead(ReadModel):
    """Ranks in order. A rank that no node has registered is missing from `items`."""

    job: str
    attempt: str
    world_size: int
    items: list[RankRead]
    next_cursor: str | None


class CommunicatorRead(ReadModel):
    """`waiting_count` members wait, `roots` of them are a first cause, in open incidents."""

    communicator: str
    name: str
    kind: str
    backend: str
    ranks: str
    size: int
    instance: int
    shard: int
    closed: bool
    waiting_count: int
    roots: list[int]
    incident_id: str | None
    updated_at: datetime


class FindingInput(ReadModel):
    name: str
    value: str


class ScalingFindingRead(ReadModel):
    """`cost_share` of the mean iteration, 0.1 is a tenth. `ranks` are those that are always slower (at most
    64), `place` what they share, or the nodes that the slow communicators share. None of them is accused."""

    mode: ScalingMode
    statement: str
    cost_share: float
    ranks: list[int]
    place: str
    inputs: list[FindingInput]


class ScalingWindowRead(ReadModel):
    """One judged window. `cv` of the iteration time: the median of `cvs`, which has one for each 20
    iterations, oldest first; null where there were fewer. `refused` says why nothing could be judged."""

    id: str
    first_step: int
    last_step: int
    iterations: int
    ranks: int
    ranks_expected: int
    step_s: float
    cv: float | None
    cvs: list[float]
    findings: list[ScalingFindingRead]
    refused: str
    judged_at: datetime


class ScalingModeRead(ReadModel):
    """A failure mode that the newest windows show; statement and figures are those of the newest one."""

    mode: ScalingMode
    windows: int
    first_judged_at: datetime
    last_judged_at: datetime
    cost_share: float
    statement: str
    ranks: list[int]
    place: str


class ScalingRead(ReadModel):
    """Windows newest first; `modes` over the last ten of them, the costliest first."""

    job: str
    attempt: str
    items: list[ScalingWindowRead]
    modes: list[ScalingModeRead]


class EconomicsParameterRead(ReadModel):
    """One number that the simulation uses; `source` says whether it was measured, published or assumed."""

    name: str
    value: float
    unit: str
    source: str


class EconomicsOutcomeRead(ReadModel):
    """One policy, mean over the runs. `ettr` is useful time over wall time; `lost_hours` are GPU hours and
    the sum of the five causes after it. `replayed_steps_most` was the most at one failure in any run."""

    policy: str
    title: str
    ettr: float
    ettr_least: float
    ettr_most: float
    wall_hours: float
    lost_hours: float
    down_hours: float
    replay_hours: float
    reduced_hours: float
    overhead_hours: float
    standby_hours: float
    failures: float
    fallbacks: float
    replayed_steps: float
    replayed_steps_most: int


class EconomicsRead(ReadModel):
    """What failures would cost a long job of this size and step time under three policies: simulated, never
    measured. `refused` says why nothing could be simulated; then `outcomes` is empty."""

    job: str
    attempt: str
    seeds: int
    parameters: list[EconomicsParameterRead]
    outcomes: list[EconomicsOutcomeRead]
    refused: str
