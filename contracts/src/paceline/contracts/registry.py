"""Registry records of `paceline.jobs.v1` (compacted), and health events of `paceline.health.v1`.

Keys, so that compaction loses nobody's part: `job`, `job:node`, `job:communicator`, and `job:member:ID` of
`contracts.repair`.
"""

from dataclasses import dataclass, field
from enum import Enum


class JobState(str, Enum):
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"  # every rank of rank 0's node exited with status 0
    ENDED = "ended"  # they ended without an error that we saw; the exit status of some is not known
    CANCELLED = "cancelled"  # all ranks were told to stop
    FAILED = "failed"

    @property
    def is_orderly_end(self) -> bool:
        """Whether the job is over and nothing says that it failed."""
        return self in (JobState.FINISHED, JobState.ENDED, JobState.CANCELLED)


class CoordinateSource(str, Enum):
    """Where the TP/PP/DP coordinates come from, best first."""

    DECLARED = "declared"
    DEVICE_MESH = "device_mesh"
    MEGATRON = "megatron"
    GROUP_NAME = "group_name"
    INFERRED = "inferred"
    NONE = "none"


@dataclass(frozen=True)
class JobRecord:
    """Key `job`: what holds for the whole attempt."""

    job: str
    attempt: str
    cluster: str
    tenant: str
    user: str
    name: str
    world_size: int
    shards: int
    state: JobState
    id_source: str  # declared, slurm, kubernetes, torchrun, generated
    attempt_source: str  # declared, store, restart_count, provisional
    started_unix_s: float
    ended_unix_s: float | None = None
    end_reason: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    coordinate_source: CoordinateSource = CoordinateSource.NONE


@dataclass(frozen=True)
class RankRecord:
    """One rank on one node."""

    rank: int
    local_rank: int
    pid: int
    pid_start: int
    gpu: int | None = None
    coordinates: dict[str, int] = field(default_factory=dict)  # {"tp": 1, "pp": 0, "dp": 1}


@dataclass(frozen=True)
class OrderPart:
    """What the ranks of one node know of the order of a communicator; ranks are those of the communicator.

    Keys are channels as `ids.format_ranks` text, empty for what holds for every one. A ring is written as
    chains, `3,0,1/5,6`, in which each rank sends to the one behind it; a tree as `rank>parent` pairs,
    `0>-1,1>0`, -1 above the root. With `refused`, a named reason, the node's sources contradict each other.
    """

    communicator: str  # 16 hex digits
    size: int
    rings: dict[str, str] = field(default_factory=dict)  # of NCCL's log
    trees: dict[str, str] = field(default_factory=dict)
    links: str = ""  # chains over which proxies were seen to send, of any channel
    refused: str = ""
    sources: tuple[str, ...] = ()  # nccl_log, proxies, graph_dump: who says so


@dataclass(frozen=True)
class NodeRecord:
    """Key `job:node`: the ranks that live there, and what they know of communicators on several nodes.

    The order of a communicator that is whole on one node stands in its own record.
    """

    job: str
    attempt: str
    node: str
    agent: str
    ranks: tuple[RankRecord, ...]
    left: bool = False
    orders: tuple[OrderPart, ...] = ()


@dataclass(frozen=True)
class CommunicatorRecord:
    """Key `job:communicator`: global ranks in communicator order, as `ids.format_ranks` text.

    `ring`: the global ranks in ring order, same text; rings that differ are separated by `;`.
    `tree`: for each member in communicator order the communicator rank of its parent, -1 for the root,
    separated by commas; trees (first, second) are separated by `;`. Both are empty where nobody knows.
    `order_sources`: who says so, as in `OrderPart.sources`.
    """

    job: str
    attempt: str
    communicator: str  # 16 hex digits
    name: str
    ranks: str
    instance: int
    shard: int
    backend: str
    kind: str = ""  # tp, pp, dp, ep, cp, world or empty
    ring: str = ""
    tree: str = ""
    closed: bool = False
    order_sources: tuple[str, ...] = ()


class HealthKind(str, Enum):
    PROCESS_EXIT = "process_exit"
    PROCESS_FROZEN = "process_frozen"
    PROCESS_RESUMED = "process_resumed"
    HEARTBEAT_LOST = "heartbeat_lost"
    HEARTBEAT_BACK = "heartbeat_back"
    CANCELLED = "cancelled"
    XID = "xid"
    ECC = "ecc"
    NVLINK = "nvlink"
    THERMAL = "thermal"
    LINK = "link"
    LINK_BACK = "link_back"  # takes back LINK of the same node and device
    LINK_ERRORS = "link_errors"  # counted, and transfers go on
    GPU_SILENT = "gpu_silent"  # the driver does not answer for this GPU
    GPU_ANSWERS = "gpu_answers"  # takes back GPU_SILENT
    GPU_SPINNING = "gpu_spinning"  # a kernel that only waits: busy, without memory traffic, at low power
    HOST_MEMORY = "host_memory"  # the kernel killed a process to get memory


@dataclass(frozen=True)
class HealthEvent:
    """Something that happened to a process, a GPU or a node."""

    id: str
    kind: HealthKind
    node: str
    job: str  # empty for a node event
    attempt: str
    rank: int | None
    pid: int | None
    at_unix_s: float
    exit_code: int | None = None  # status, or minus the signal
    gpu: int | None = None
    code: int | None = None  # for example the Xid
    message: str = ""
    device: str = ""  # of a port or switch: mlx5_0/1, nvswitch2
    member: str = ""  # the supervisor that reported the end of its child
    pid_start: int | None = None
