"""Read and write models of repair."""

from datetime import datetime
from enum import Enum
from typing import Annotated

from pydantic import Field

from paceline.api.schemas import ReadModel, WriteModel
from paceline.api.text import JobText
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, Support
from paceline.contracts.repair import (
    ActionStatus,
    RepairCause,
    RepairKind,
    RepairMode,
    RepairState,
    ReportKind,
)

NOTE_LENGTH_MAX = 1000
Count = Annotated[int | None, Field(ge=0, le=1_000_000)]
Seconds = Annotated[float | None, Field(ge=0, le=1e6)]


class Preconditions(ReadModel):
    """What holds now: who is there to take over, and what the last successful repair of the job cost."""

    standbys_ready: int
    members_known: int
    least_support: Support | None
    blast_ranks: int
    replayed_steps_at_most: int
    expected_pause_s: float | None  # median of the job's earlier recoveries; null before the first


class RepairActionRead(ReadModel):
    """A proposal and what became of it. `reason` names the last decision; `version` is for If-Match."""

    id: str
    job: str
    attempt: str
    incident_id: str | None
    kind: RepairKind
    cause: RepairCause
    status: ActionStatus
    mode: RepairMode
    reason: str
    message: str
    ranks: str
    leavers: list[str]
    joiners: list[str]
    generation: int
    step: int
    replayed: int
    requested_by: str
    decided_by: str
    note: str
    cancel_requested: bool
    created_at: datetime
    expires_at: datetime
    decided_at: datetime | None
    dispatched_at: datetime | None
    ended_at: datetime | None
    version: int


class CheckName(str, Enum):
    """What an action has to pass, in the order in which it is asked."""

    MEMBERS = "members"  # every rank has a supervisor
    STANDBY = "standby"
    POLICY = "policy"
    STOP_SWITCH = "stop_switch"
    LAYOUT = "layout"
    APPROVAL = "approval"
    VERIFIED = "verified"  # this one and the next four: only without a person
    BLAST_RADIUS = "blast_radius"
    CIRCUIT_BREAKER = "circuit_breaker"
    FLEET_BREAKER = "fleet_breaker"  # of all jobs of the cluster
    RATE_LIMIT = "rate_limit"
    FENCE = "fence"  # the end of what leaves can be proven
    SETTLED = "settled"  # the fault is what it looks like
    EVIDENCE = "evidence"  # what a kill would destroy has been collected


class CheckState(str, Enum):
    MET = "met"
    WAITS = "waits"
    REFUSED = "refused"
    NOT_ASKED = "not_asked"  # something before it holds the action up


class CheckRead(ReadModel):
    """`reason` is the remediator's name for what holds the action up, empty where this does not."""

    name: CheckName
    state: CheckState
    reason: str
    detail: str


class PlaceRead(ReadModel):
    """One rank that changes hands; null where nobody is known (yet)."""

    rank: int
    leaver: str | None
    leaver_node: str | None
    joiner: str | None
    joiner_node: str | None


class RepairActionDetail(RepairActionRead):
    """`checks` is empty once the action cannot be decided any more; `places` are the first 64 of `ranks`."""

    preconditions: Preconditions
    checks: list[CheckRead]
    places: list[PlaceRead]


class ProposalCreate(WriteModel):
    """Ask for a planned replacement of one rank. It waits for an approval unless a policy says otherwise."""

    job: JobText
    rank: int = Field(ge=0, lt=1_000_000)
    note: str = Field(default="", max_length=NOTE_LENGTH_MAX, pattern=r"^[^\x00]*$")


class DecisionCreate(WriteModel):
    note: str = Field(default="", max_length=NOTE_LENGTH_MAX, pattern=r"^[^\x00]*$")


class PhaseRead(ReadModel):
    """What one member said of a phase or of an order, with the duration by its own clock."""

    member: str
    rank: int
    kind: ReportKind
    phase: RecoveryPhase | None
    outcome: OrderOutcome | None
    duration_ms: float
    step: int
    replayed: int
    bytes_count: int
    message: str
    at: datetime


class SeatRead(ReadModel):
    rank: int
    member: str


class RecoveryRead(ReadModel):
    """One generation that was opened, and the proof of what happened in it."""

    id: str
    action_id: str
    job: str
    attempt: str
    generation: int
    attempt_no: int
    state: RepairState
    seats: list[SeatRead]
    step: int
    replayed: int
    reason: str
    started_at: datetime
    ended_at: datetime | None
    phases: list[PhaseRead]


class RepairMemberRead(ReadModel):
    """A supervisor: of a rank, or a standby (rank -1)."""

    job: str
    attempt: str
    member: str
    node: str
    role: Role
    rank: int
    generation: int
    step: int
    failure_domain: str
    ready: bool
    alive: bool
    support: Support
    lease_s: float
    told_at: datetime


class RepairStateRead(ReadModel):
    """Where a job's repair stands."""

    job: str
    attempt: str
    state: RepairState
    generation: int
    action_id: str | None
    standbys_ready: int
    updated_at: datetime


class LimitsRead(ReadModel):
    """Limits that a policy changes; null where the service's own hold."""

    ranks_max: int | None
    per_hour_max: int | None
    failures_max: int | None
    breaker_s: float | None
    fleet_failures_max: int | None
    fleet_s: float | None
    no_progress_max: int | None
    transient_max: int | None
    transient_s: float | None
    proposal_s: float | None
    event_s_max: float | None
    told_to_stop_s: float | None
    error_s: float | None
    frozen_s: float | None
    evidence_s: float | None
    standby_s: float | None
    fence_s: float | None
    rebuild_s: float | None
    restore_s: float | None
    prepare_s: float | None
    fallback_s: float | None
    tries_max: int | None
    rebuilds_max: int | None


class LimitsWrite(WriteModel):
    """Limits to change; what is left out keeps the service's own value."""

    ranks_max: Count = None
    per_hour_max: Count = None
    failures_max: Count = None
    breaker_s: Seconds = None
    fleet_failures_max: Count = None
    fleet_s: Seconds = None
    no_progress_max: Count = None
    transient_max: Count = None
    transient_s: Seconds = None
    proposal_s: Seconds = None
    event_s_max: Seconds = None
    told_to_stop_s: Seconds = None
    error_s: Seconds = None
    frozen_s: Seconds = None
    evidence_s: Seconds = None
    standby_s: Seconds = None
    fence_s: Seconds = None
    rebuild_s: Seconds = None
    restore_s: Seconds = None
    prepare_s: Seconds = None
    fallback_s: Seconds = None
    tries_max: Count = None
    rebuilds_max: Count = None


class PolicyRead(ReadModel):
    """`job` and `cause` are null where the policy is for all of them; `mode` is null for the stop switch
    alone."""

    job: str | None
    cause: RepairCause | None
    mode: RepairMode | None
    stopped: bool
    limits: LimitsRead
    version: int
    updated_by: str
    updated_at: datetime


class PolicyWrite(WriteModel):
    job: JobText | None = None
    cause: RepairCause | None = None
    mode: RepairMode | None = None
    stopped: bool | None = None  # left out: the stop switch stays as it is
    limits: LimitsWrite = Field(default_factory=LimitsWrite)


class StopWrite(WriteModel):
    """The stop switch of a job, or of everything: nothing new is dispatched while it is on."""

    job: JobText | None = None
    stopped: bool
    note: str = Field(default="", max_length=NOTE_LENGTH_MAX, pattern=r"^[^\x00]*$")
