"""The verdict: which rank, link or setting is the one first cause, and why we say so.

Plain dataclasses, so that the pure analysis needs no third-party package; `schemas` validates and
describes them with pydantic. Ranks are global ranks. Times are own-clock durations in seconds.
"""

from dataclasses import dataclass, field
from enum import Enum


class VerdictClass(str, Enum):
    """The six classes of CCL-D and what lies around them (docs/adr/0005-verdict.md)."""

    NONE = "NONE"
    H1 = "H1"  # a member never entered
    H2 = "H2"  # members disagree about the operation
    H3 = "H3"  # entered alike, no progress
    S1 = "S1"  # a late rank
    S2 = "S2"  # a slow link
    S3 = "S3"  # both
    DEADLOCK = "DEADLOCK"
    INIT = "INIT"  # stuck before the first collective
    DEAD_PROCESS = "DEAD_PROCESS"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def is_slow(self) -> bool:
        return self in SLOW


class SubReason(str, Enum):
    """Finer word for the same verdict; empty where the class says it all."""

    NONE = ""
    MISSING_ENTER = "missing_enter"
    DELAYED_ENTER = "delayed_enter"
    OPERATION_MISMATCH = "operation_mismatch"
    SIZE_MISMATCH = "size_mismatch"
    DTYPE_MISMATCH = "dtype_mismatch"
    REDUCE_OP_MISMATCH = "reduce_op_mismatch"
    ROOT_MISMATCH = "root_mismatch"
    PEER_MISMATCH = "peer_mismatch"
    P2P_MISSING_COUNTERPART = "p2p_missing_counterpart"
    MISSING_EXIT = "missing_exit"
    ALL_RANKS_STUCK = "all_ranks_stuck"
    FROZEN_PROCESS = "frozen_process"
    GIL_HELD = "gil_held"
    HOST_WAIT = "host_wait"
    PROCESS_EXITED = "process_exited"
    PROCESS_KILLED = "process_killed"
    NODE_LOST = "node_lost"
    HARDWARE_EVENT = "hardware_event"
    ORDER_INVERSION = "order_inversion"
    QUEUE_EXHAUSTION = "queue_exhaustion"
    BOOTSTRAP = "bootstrap"
    LAZY_CONNECT = "lazy_connect"
    LATE_RANK = "late_rank"
    SLOW_LINK = "slow_link"
    SHARED_PATH = "shared_path"
    ROTATING_STRAGGLER = "rotating_straggler"
    DEVICE_QUEUE = "device_queue"
    MISSING_EVIDENCE = "missing_evidence"
    NO_MAJORITY = "no_majority"


class Owner(str, Enum):
    """Whom to call."""

    USER_CODE = "user_code"
    FRAMEWORK = "framework"
    HOST = "host"
    GPU = "gpu"
    FABRIC = "fabric"
    STORAGE = "storage"
    UNKNOWN = "unknown"


class RootKind(str, Enum):
    RANK = "rank"
    NODE = "node"
    GPU = "gpu"
    LINK = "link"
    DOMAIN = "domain"
    CONFIGURATION = "configuration"
    VERSION = "version"
    ROTATING = "rotating"
    GROUP = "group"
    NONE = "none"


class Role(str, Enum):
    """What a named rank did to the incident."""

    INITIATING = "initiating"
    CASCADE = "cascade"
    TEARDOWN = "teardown"
    UNKNOWN = "unknown"


class ActionKind(str, Enum):
    NONE = "none"
    COLLECT = "collect"
    WAIT = "wait"
    FIX_CODE = "fix_code"
    FIX_CONFIGURATION = "fix_configuration"
    RESTART_PROCESS = "restart_process"
    RESET_GPU = "reset_gpu"
    REPLACE_NODE = "replace_node"
    NETWORK_TICKET = "network_ticket"


SLOW = frozenset({VerdictClass.S1, VerdictClass.S2, VerdictClass.S3})


@dataclass(frozen=True)
class Root:
    """One first cause. `peer_rank` is the far end of a link, `ranks` the members of a group."""

    kind: RootKind
    rank: int | None = None
    node: str | None = None
    gpu: int | None = None
    peer_rank: int | None = None
    name: str | None = None
    ranks: tuple[int, ...] = ()
    role: Role = Role.INITIATING


@dataclass(frozen=True)
class Operation:
    """The operation a hang stands in, or the slow key."""

    communicator: str  # 16 hex digits, empty where none
    communicator_name: str
    function: str  # lower-case name of `codes.Function`
    round: int  # 0 for point-to-point
    size: int = 0  # members of the communicator
    detail: str = ""  # for example "float32 x 1048576, sum"


@dataclass(frozen=True)
class Evidence:
    """One rule that spoke: what it saw, the threshold, what follows. `supports` False = against."""

    rule: str
    statement: str
    inputs: dict[str, str] = field(default_factory=dict)
    threshold: str = ""
    supports: bool = True


@dataclass(frozen=True)
class Coverage:
    """What the verdict could see; every gap lowers confidence."""

    ranks_expected: int
    ranks_reporting: int
    communicators_expected: int
    communicators_complete: int
    operations_dropped: int = 0
    sources: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        return self.ranks_reporting / self.ranks_expected if self.ranks_expected else 0.0


@dataclass(frozen=True)
class Action:
    """What we would do next; never more than the evidence carries."""

    kind: ActionKind
    target: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Regain:
    """What-if: how much faster the job would step were this one root as healthy as it was."""

    root: Root
    ratio: float | None  # 0.25 = a quarter more steps in the same time; null = not known
    at_most: bool  # an upper bound: what was lost in collectives may have overlapped with computation
    reason: str  # the inputs it comes from, or those that are missing


@dataclass(frozen=True)
class SlowLoss:
    """What a slow fault takes from each step, as judged; durations are medians over ranks."""

    share: float | None  # of the duration of a step, 0 to 1; null = not known
    at_most: bool  # as in `Regain`
    step_s: float  # 0 = not known
    usual_step_s: float  # before the fault; 0 = not known
    reason: str
    regains: tuple[Regain, ...]  # one for each initiating root, at most REGAINS_MAX


@dataclass(frozen=True)
class Verdict:
    """One judgement of one stall episode of one job attempt."""

    verdict_class: VerdictClass
    sub_reason: SubReason
    roots: tuple[Root, ...]
    victims: tuple[int, ...]  # ranks that only wait; bounded, `victims_count` is the truth
    victims_count: int
    operation: Operation | None
    owner: Owner
    action: Action
    confidence: float  # 0 to 1
    coverage: Coverage
    evidence: tuple[Evidence, ...]
    summary: str  # one sentence
    stalled_s: float = 0.0  # age of the head of line when judged
    communicators_waiting: int = 0
    would_decide: str = ""  # INCONCLUSIVE: what would decide it
    loss: SlowLoss | None = None  # slow classes only


@dataclass(frozen=True)
class VerdictRecord:
    """A verdict on `paceline.verdicts.v1`: identity, episode and the judged snapshot."""

    id: str
    job: str
    attempt: str
    episode: str  # id of the stall episode; incidents are keyed by (job, attempt, episode)
    revision: int  # grows when better evidence revises the verdict of the same episode
    verdict: Verdict
    stalled_unix_s: float  # wall clock of the judged node, for people
    judged_unix_s: float
    resolved: bool = False  # progress has resumed; class and roots are those of the episode
    evidence_bundle: str = ""  # base64 of the compressed evidence, bounded; empty if too large


VICTIMS_MAX = 256
REGAINS_MAX = 8
EVIDENCE_BUNDLE_BYTES_MAX = 512 * 1024
