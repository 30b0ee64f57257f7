"""Repair on the wire between agents and the remediator, and the words that tables and API share.

`MemberRecord` stands on `paceline.jobs.v1` (key `job:member:ID`), `RecoveryReport` on
`paceline.command-results.v1` beside the results of commands (docs/adr/0043-remediation.md). Standard
library only.
"""

from dataclasses import dataclass
from enum import Enum

from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, Support


class RepairState(str, Enum):
    """Where a job stands; one recovery at a time."""

    HEALTHY = "healthy"
    PREPARING = "preparing"  # a standby is waited for, or a planned switch gets ready
    READY = "ready"  # everything is there: approval, evidence or the switch is waited for
    FENCING = "fencing"
    REBUILDING = "rebuilding"
    RESTORING = "restoring"
    RESUMED = "resumed"  # every member has finished a step of the new generation
    FALLBACK = "fallback"  # explicitly given up: the checkpoint on disk, and a person


class ActionStatus(str, Enum):
    """What became of a proposal."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    REJECTED = "rejected"
    EXPIRED = "expired"
    DISPATCHED = "dispatched"
    OBSERVING = "observing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"

    @property
    def is_over(self) -> bool:
        return self not in (
            ActionStatus.PROPOSED,
            ActionStatus.APPROVED,
            ActionStatus.DISPATCHED,
            ActionStatus.OBSERVING,
        )

    @property
    def is_under_way(self) -> bool:
        return self in (ActionStatus.DISPATCHED, ActionStatus.OBSERVING)


class RepairMode(str, Enum):
    OBSERVE = "observe"  # says what it would do
    APPROVE = "approve"  # does it once a person agrees
    AUTO = "auto"


class RepairCause(str, Enum):
    """Classes of faults, to which policies give modes."""

    PROCESS_EXIT = "process_exit"
    NODE_LOST = "node_lost"
    FROZEN = "frozen"
    HARDWARE = "hardware"
    HANG = "hang"  # no progress, and nothing says that hardware is why
    TRANSIENT = "transient"
    SLOW = "slow"
    SOFTWARE = "software"  # H1, H2, a deadlock: stacks and an owner, never a swap
    REQUESTED = "requested"  # by a person or a program


class RepairKind(str, Enum):
    SWAP = "swap"  # a standby takes the place of a member that is gone
    PLANNED_SWAP = "planned_swap"  # it takes the place of a living one, at a step boundary
    RETRY = "retry"  # the same members on a new generation
    STACK_CAPTURE = "stack_capture"
    FALLBACK = "fallback"


@dataclass(frozen=True)
class RepairLimits:
    """Bounds of one job's repair; policies change them per job and cause."""

    ranks_max: int = 8  # replaced by one action without a person
    per_hour_max: int = 6  # actions without a person
    failures_max: int = 3  # in a row, then the circuit breaker opens
    breaker_s: float = 1800.0
    fleet_failures_max: int = 5  # different jobs of the cluster within `fleet_s`, then nothing goes by itself
    fleet_s: float = 1800.0
    no_progress_max: int = 3  # recoveries without a new step
    transient_max: int = 2  # retries in place within `transient_s` (papers: the third is permanent)
    transient_s: float = 600.0
    proposal_s: float = 900.0  # until nobody waits for an answer any more
    event_s_max: float = 120.0  # an older event is history: Kafka replays
    told_to_stop_s: float = 2.0  # after SIGTERM: a whole job that is cancelled ends one rank after another
    error_s: float = 0.5  # after an error without an exit: the exit of a peer explains it
    frozen_s: float = 4.0  # a stop shorter than this is none
    evidence_s: float = 3.0  # that collecting may hold up a kill
    standby_s: float = 30.0  # for a standby that is getting ready
    fence_s: float = 5.0  # for one try: a late fence costs seconds, one given up costs the job
    rebuild_s: float = 15.0  # from the order to the rendezvous of all
    restore_s: float = 120.0  # from there to the first step of all
    prepare_s: float = 300.0
    fallback_s: float = 15.0
    tries_max: int = 2  # within one generation
    rebuilds_max: int = 3  # generations that one action may open


@dataclass(frozen=True)
class MemberRecord:
    """A supervisor as its node's agent knows it; `left` once it is gone."""

    job: str
    attempt: str
    member: str
    node: str
    role: Role
    rank: int
    pid: int
    child_pid: int
    child_pid_start: int
    generation: int
    step: int
    store: str
    replica: str
    failure_domain: str
    ready: bool
    world_size: int
    support: Support
    lease_s: float  # it stops its child so long after the last word of the agent; 0: it never does
    left: bool
    at_unix_s: float
    uid: int = -1  # of the supervisor, as the kernel told the agent; -1 from an agent that does not say


class ReportKind(str, Enum):
    RESULT = "result"
    PHASE = "phase"
    ERROR = "error"  # the training process lives and met an error


@dataclass(frozen=True)
class RecoveryReport:
    """What one member says of one order, of one phase, or of an error. Fields that do not belong to the kind
    are empty."""

    id: str
    kind: ReportKind
    node: str
    job: str
    attempt: str
    member: str
    rank: int
    generation: int
    at_unix_s: float
    command: str = ""  # that the order came with
    outcome: OrderOutcome | None = None
    phase: RecoveryPhase | None = None
    duration_ms: float = 0.0
    step: int = -1
    replayed: int = 0
    bytes: int = 0
    message: str = ""
    attempt_no: int = -1  # of a phase: the try within the generation; -1 from an agent that does not say


def member_key(job: str, member: str) -> str:
    """Key of a `MemberRecord`; no node and no communicator has such a name."""
    return f"{job}:member:{member}"
