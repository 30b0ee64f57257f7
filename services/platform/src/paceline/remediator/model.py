"""What the state machine of one job looks at, remembers and asks for. Plain values, no clock, no I/O.

Times are unix seconds of the service that decides. `at_s` of an event is another clock's: only staleness,
which has minutes, looks at it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from paceline.contracts.commands import CommandKind
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, Support
from paceline.contracts.repair import (
    ActionStatus,
    RepairCause,
    RepairKind,
    RepairLimits,
    RepairMode,
    RepairState,
)

HANDLED_MAX = 128
INCIDENTS_MAX = 512
THAWED_MAX = 64
LATER_MAX = 32
ACTED_MAX = 64
NOT_COUNTED = -1  # the run of a supervisor that is new
TRANSIENTS_MAX = 16


class Reason(str, Enum):
    """Why an event did what it did, or why a proposal waits for a person."""

    # Nothing follows.
    DUPLICATE = "duplicate"
    STALE = "stale"  # older than what an event may be
    UNKNOWN_MEMBER = "unknown_member"  # no supervisor: nothing here can repair it
    FOREIGN = "foreign"  # said by a node where that member is not
    OTHER_PROCESS = "other_process"  # a process that has already been replaced
    OLD_GENERATION = "old_generation"
    ALREADY_UNDER_WAY = "already_under_way"
    ALREADY_REPAIRED = "already_repaired"
    FINISHED_IN_ORDER = "finished_in_order"
    NOT_FOR_REPAIR = "not_for_repair"
    JOB_OVER = "job_over"
    NOTHING_DUE = "nothing_due"
    NOTED = "noted"
    NEW_RUN = "new_run"  # the job's name is used again: what was left of the old run has ended
    # A proposal, and what it waits for.
    OBSERVED_ONLY = "observed_only"
    NEEDS_APPROVAL = "needs_approval"
    STOP_SWITCH = "stop_switch"
    BLAST_RADIUS = "blast_radius"
    RATE_LIMIT = "rate_limit"
    CIRCUIT_BREAKER = "circuit_breaker"
    FLEET_BREAKER = "fleet_breaker"  # repairs of several jobs have failed: one cause, and not in this job
    NOT_VERIFIED = "not_verified"  # the job's kind of parallelism was never tried
    NOT_FENCED = "not_fenced"  # nothing proves that a lost node has stopped, and no lease will
    WAIT_STANDBY = "wait_standby"
    WAIT_EVIDENCE = "wait_evidence"
    WAIT_SETTLED = "wait_settled"  # whether it is what it looks like
    TOO_LARGE = "too_large"  # no order can name all of its ranks
    MEMBERS_UNKNOWN = "members_unknown"  # not every rank of the job has a supervisor
    # What is done.
    PROPOSED = "proposed"
    SUPERSEDED = "superseded"  # by a fault that may be repaired now, or that must not wait
    MERGED = "merged"  # a second fault before anything was done: one action for both
    PREPARED = "prepared"
    FENCE = "fence"
    REBUILD = "rebuild"
    REBUILD_AGAIN = "rebuild_again"
    SWITCH = "switch"
    RESTORING = "restoring"
    RESUMED = "resumed"
    CAPTURE = "capture"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled_back"
    WENT_AWAY = "went_away"  # the fault ended by itself
    # Explicit fallbacks.
    NO_STANDBY = "no_standby"
    STATE_LOST = "state_lost"
    FENCE_FAILED = "fence_failed"
    REBUILDS_EXHAUSTED = "rebuilds_exhausted"
    NO_PROGRESS = "no_progress"
    SAME_ERROR_ON_MANY = "same_error_on_many"
    UNNAMED_TRANSIENTS = "unnamed_transients"  # too many, and all of them told of their peers
    REFUSED_LAYOUT = "refused_layout"


@dataclass(frozen=True)
class Policy:
    mode: RepairMode = RepairMode.OBSERVE
    stopped: bool = False
    limits: RepairLimits = field(default_factory=RepairLimits)


@dataclass(frozen=True)
class Policies:
    """The policy of one job for each cause."""

    default: Policy = field(default_factory=Policy)
    by_cause: Mapping[RepairCause, Policy] = field(default_factory=dict)
    may_act: bool = True  # there is a key to sign with

    def of(self, cause: RepairCause) -> Policy:
        return self.by_cause.get(cause, self.default)

    @property
    def all(self) -> tuple[Policy, ...]:
        return (self.default, *self.by_cause.values())


@dataclass(frozen=True)
class Member:
    """A supervisor as the registry has it."""

    member: str
    node: str
    role: Role
    rank: int
    child_pid: int  # 0: its training process is gone
    child_pid_start: int
    generation: int
    step: int
    store: str
    replica: str
    failure_domain: str
    ready: bool
    support: Support
    lease_s: float
    left: bool
    world_size: int = 0
    run: int = 0
    registered_s: float = 0.0  # its agent's clock
    told_s: float = 0.0  # its agent's clock
    heard_s: float = 0.0  # ours

    @property
    def lives(self) -> bool:
        return not self.left and self.child_pid != 0


@dataclass(frozen=True)
class Seat:
    """Who has a rank in a generation, and the process it was given to."""

    rank: int
    member: str
    child_pid: int
    child_pid_start: int


@dataclass(frozen=True)
class Ground:
    """Why one member is to leave; it may be withdrawn by itself. `member` is empty where nobody leaves."""

    member: str
    cause: RepairCause
    kind: RepairKind
    not_before_s: float
    message: str
    node: str = ""  # that was lost with it: nobody there can kill it
    incident: str = ""


@dataclass(frozen=True)
class Action:
    """One proposal and what became of it."""

    id: str
    kind: RepairKind
    cause: RepairCause
    status: ActionStatus
    mode: RepairMode
    reason: Reason  # the last decision about it
    message: str
    source: str  # the event it comes from
    created_s: float
    expires_s: float
    grounds: tuple[Ground, ...] = ()  # one for each leaver that a fault has named, the newest last
    incident: str = ""
    leavers: tuple[Seat, ...] = ()
    joiners: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()  # leavers whose end is proven
    fences: tuple[tuple[str, str], ...] = ()  # (member, command) of every try: only these answers count
    generation: int = 0  # that it has opened
    attempt_no: int = 0
    rebuilds: int = 0
    seats: tuple[Seat, ...] = ()
    store: str = ""
    deadline_s: float = 0.0  # of the present phase
    dispatched_s: float = 0.0
    done: tuple[str, ...] = ()  # members that carried the present order out
    reached: tuple[str, ...] = ()  # members that met on the new group
    stepped: tuple[str, ...] = ()  # members that finished a step on it
    step: int = -1
    replayed: int = 0
    lost_since_s: float = 0.0  # since when the registry shows a seat without its process
    cancelled: bool = False  # somebody asked for it
    requeue: bool = True  # of a fallback
    instead_of: RepairKind | None = None  # what a fallback was proposed as, and is again once it can be
    plain: str = ""  # the message of that proposal
    wanting_s: float = 0.0  # since when the next generation lacks a standby

    @property
    def leaver_names(self) -> frozenset[str]:
        return frozenset(seat.member for seat in self.leavers)

    @property
    def named(self) -> frozenset[str]:
        """Members that a fault has named; other leavers only had no living process at the last look."""
        return frozenset(ground.member for ground in self.grounds if ground.member)

    @property
    def not_before_s(self) -> float:
        return max((ground.not_before_s for ground in self.grounds), default=0.0)

    @property
    def on_lost_nodes(self) -> frozenset[str]:
        return frozenset(ground.member for ground in self.grounds if ground.node)


@dataclass(frozen=True)
class Repaired:
    """The newest action that is over."""

    action: str
    ranks: tuple[int, ...]
    at_s: float


@dataclass(frozen=True)
class JobRepair:
    """The state machine of one attempt of a job. `generation` never falls, also from one run to the next."""

    job: str
    attempt: str
    state: RepairState = RepairState.HEALTHY
    generation: int = 0
    seats: tuple[Seat, ...] = ()  # of the newest generation that resumed
    seated: int = 0  # that generation; 0 in a row that does not say
    action: Action | None = None
    last: Repaired | None = None
    transients: tuple[float, ...] = ()
    accused: tuple[tuple[float, str], ...] = ()  # when a member told one in words that are not of a peer
    acted: tuple[float, ...] = ()  # when something was dispatched
    error_exits: tuple[tuple[float, str], ...] = ()  # when, member
    finished: tuple[str, ...] = ()  # members whose process ended with status 0
    frozen: tuple[str, ...] = ()  # members whose process is stopped now
    failures: int = 0  # in a row
    failed_s: float = 0.0
    no_progress: int = 0
    best_step: int = -1
    handled: tuple[str, ...] = ()
    incidents: tuple[str, ...] = ()  # that have led to something: a revised verdict leads to nothing more
    resumed_s: float = 0.0  # when the newest generation had proven itself
    thawed: tuple[tuple[str, float], ...] = ()  # members that went on after a stop, and when
    later: tuple["ProcessStopped | NodeLost", ...] = ()  # that came while an action was under way
    over: bool = False
    run: int = 0  # grows each time the job's name is used again
    began_s: float = 0.0  # when it did, by the clock of a member's agent; 0 for the first
    floor: int = 0  # the newest generation of the runs before

    @property
    def said_generation(self) -> int:
        """What members call the newest generation: a run begins at 0, whatever was opened before it."""
        return self.generation if self.generation > self.floor else 0


# ---------------------------------------------------------------------- events


@dataclass(frozen=True)
class ProcessExit:
    id: str
    at_s: float
    rank: int | None
    member: str  # empty where no supervisor reported it
    pid: int
    pid_start: int | None
    code: int | None
    node: str = ""  # of the agent that says so


@dataclass(frozen=True)
class ProcessStopped:
    """A process was stopped by a signal, or goes on."""

    id: str
    at_s: float
    rank: int | None
    pid: int
    resumed: bool
    node: str = ""  # of the agent that says so


@dataclass(frozen=True)
class NodeLost:
    id: str
    at_s: float
    node: str
    back: bool = False


@dataclass(frozen=True)
class Judged:
    """An incident as repair sees it (`faults.py`)."""

    id: str
    at_s: float
    incident: str
    cause: RepairCause | None  # None: not for repair
    planned: bool
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    message: str
    opened_s: float
    resolved: bool = False
    reopened: bool = False


@dataclass(frozen=True)
class MemberError:
    id: str
    at_s: float
    member: str
    generation: int
    message: str
    node: str = ""  # of the agent that says so


@dataclass(frozen=True)
class OrderAnswer:
    id: str
    at_s: float
    member: str
    generation: int
    command: str
    outcome: OrderOutcome
    message: str
    node: str = ""  # of the agent that says so


@dataclass(frozen=True)
class PhaseDone:
    id: str
    at_s: float
    member: str
    generation: int
    phase: RecoveryPhase
    step: int
    replayed: int
    node: str = ""  # of the agent that says so
    attempt_no: int = -1  # -1: not said


@dataclass(frozen=True)
class JobOver:
    id: str
    at_s: float
    cancelled: bool
    message: str


@dataclass(frozen=True)
class Tick:
    """Time has passed, the registry or the action's row has changed."""


Event = (
    ProcessExit | ProcessStopped | NodeLost | Judged | MemberError | OrderAnswer | PhaseDone | JobOver | Tick
)

# ---------------------------------------------------------------------- effects


@dataclass(frozen=True)
class SendOrder:
    """To the supervisors of `members`, through their nodes."""

    kind: CommandKind
    members: tuple[str, ...]
    generation: int
    attempt_no: int
    valid_s: float
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class Page:
    """A person has to know."""

    message: str


@dataclass(frozen=True)
class LinkIncident:
    action: str
    incident: str


@dataclass(frozen=True)
class Capture:
    """Record the capture of stacks that the incident has asked for, beside whatever else goes on."""

    action: Action


@dataclass(frozen=True)
class Closed:
    """An action that was current and is over; `job.action` no longer holds it."""

    action: Action


Effect = SendOrder | Page | LinkIncident | Capture | Closed


@dataclass(frozen=True)
class RepairEnd:
    """How the repair of some job of the cluster ended."""

    job: str
    at_s: float
    failed: bool  # else it has succeeded


@dataclass(frozen=True)
class World:
    """What one decision may look at besides the state."""

    members: tuple[Member, ...]
    policies: Policies
    now_s: float
    evidence_pending: bool = False
    heard_s: float = math.inf  # what was written to the topics before it has been read
    fleet: tuple[RepairEnd, ...] = ()  # of all jobs, those of late

    @property
    def known_s(self) -> float:
        """Until when it is known what has happened. What waits in a topic may say that a deadline was kept or
        that a loss was none, so nothing is late and nobody is missed by any other time."""
        return min(self.now_s, self.heard_s)

    def get(self, name: str) -> Member | None:
        return next((member for member in self.members if member.member == name), None)


@dataclass(frozen=True)
class Step:
    """One decision."""

    job: JobRepair
    effects: tuple[Effect, ...]
    reason: Reason
