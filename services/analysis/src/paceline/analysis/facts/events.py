"""Facts about failures, reports, machines and settings."""

from dataclasses import dataclass
from enum import Enum

from paceline.analysis.facts.model import Fact, Group, Work


class ProcessFaultKind(str, Enum):
    """What a process said about its own failure."""

    EXCEPTION = "exception"  # Python
    CUDA_MEMORY = "cuda_memory"  # out of memory
    CUDA_ECC = "cuda_ecc"
    CUDA_CONTAINED = "cuda_contained"  # NVLink peer or contained memory error
    CUDA_ILLEGAL = "cuda_illegal"  # illegal instruction, address
    CUDA_OTHER = "cuda_other"
    CUDA_SETUP = "cuda_setup"  # driver, fabric manager or visible devices: nothing ran before
    HOST_MEMORY = "host_memory"
    ABORTED = "aborted"  # stopped by somebody else: coordinator, signal, peer's abort
    SEGFAULT = "segfault"


@dataclass(frozen=True, kw_only=True)
class ProcessFault(Fact):
    """An error that the speaker's process raised by itself."""

    kind: ProcessFaultKind
    text: str
    exception: str = ""  # type name
    frames: tuple[str, ...] = ()  # "file:line function", innermost last


@dataclass(frozen=True, kw_only=True)
class ProcessEnd(Fact):
    """A launcher, agent or scheduler reports the end of a process."""

    exit_code: int | None = None
    signal: int | None = None
    called_first: bool = False  # torchelastic's "first observed failure": often a victim
    clean: bool = False
    node_lost: bool = False  # the machine is gone, `speaker.host` says which
    name: str = ""  # of the pod or actor
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class HostKill(Fact):
    """The kernel killed a process (out of memory)."""

    name: str = ""
    text: str = ""


@dataclass(frozen=True)
class Side:
    """What one rank of a mismatch runs. `rank` is that of the text: inside the group where it says so."""

    rank: int
    work: Work


@dataclass(frozen=True, kw_only=True)
class OperationMismatch(Fact):
    """Two ranks run different operations. The first is the one that complains, not the guilty one."""

    group: Group
    sides: tuple[Side, Side]
    aspects: tuple[str, ...] = ()  # "sequence number", "op type", "tensor shapes", ...
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class DesyncReport(Fact):
    """torch's desync report: its numbering is not the watchdog's sequence."""

    group: Group
    lagging: tuple[int, ...] = ()  # finished `finished`, never joined the next one
    finished: int | None = None
    stuck: tuple[int, ...] = ()  # joined and did not finish
    never_joined: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()  # stand in a later one than those that are stuck
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class BarrierReport(Fact):
    """A monitored or coordinated barrier lists who did not arrive; healthy ranks may be on the list."""

    missing: tuple[int, ...] = ()
    ready: tuple[int, ...] = ()  # ranks that did arrive, where the report names these instead
    arrived: int | None = None
    expected: int | None = None
    text: str = ""


class GlooKind(str, Enum):
    TIMEOUT = "timeout"  # the speaker waited
    CLOSED = "closed"  # end of file: the peer's process ended
    RESET = "reset"
    CONNECT = "connect"
    CASCADE = "cascade"  # closed because another operation of the same process failed


@dataclass(frozen=True, kw_only=True)
class GlooFailure(Fact):
    kind: GlooKind
    direction: str = ""  # "send", "recv"
    peer: str = ""  # address:port
    timeout_ms: int | None = None


class NetworkKind(str, Enum):
    COMPLETION = "completion"  # InfiniBand work completion with an error status
    PORT = "port"  # async event of a port, device or queue
    CLOSED = "closed"  # socket
    TRUNCATED = "truncated"  # the peer sent another size: a mismatch, not a network fault
    MISMATCH = "mismatch"  # NCCL's own size check
    OPEN = "open"  # a device could not be opened
    TIMEOUT = "timeout"
    RENDEZVOUS = "rendezvous"  # store or coordinator not reached


@dataclass(frozen=True, kw_only=True)
class NetworkFailure(Fact):
    kind: NetworkKind
    status: int | None = None  # ibv_wc_status: 12 = retries exceeded
    peer: str = ""
    device: str = ""  # mlx5_4
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceEvent(Fact):
    """Xid, SXid, a GPU off the bus, or an event of another vendor's or the bus's driver, which has a `label`
    and code 0. `speaker.gpu` and `speaker.host` say which."""

    code: int  # Xid; of a switch the SXid
    label: str = ""  # "uncorrectable hardware error"; empty for Xid and SXid
    follows: bool = False  # resets and the like: something has happened before
    of_application: bool = False  # page faults and the like, of what has no Xid
    is_switch: bool = False
    implied: bool = False  # the line has no number (fallen off the bus)
    process: str = ""  # who asked; seldom who is guilty
    link: int | None = None
    severity: str = ""  # "Fatal", "Nonfatal"
    recovery: str = ""  # Xid 154: the driver's own action
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class StackSeen(Fact):
    """One thread of one process; frames as "function (file:line)", innermost first."""

    frames: tuple[str, ...]
    thread: str = ""
    active: bool = True
    native: bool = False


@dataclass(frozen=True, kw_only=True)
class Membership(Fact):
    """Which rank is where: NCCL init, launcher lines, topology files."""

    group: Group
    rank_in_group: int | None = None
    complete: bool | None = None  # NCCL init: False = started, True = done
    stage: str = ""  # of an init that stands still


@dataclass(frozen=True, kw_only=True)
class SettingSeen(Fact):
    """A setting of host, library or job that can be a cause: versions, ACS, HCAs, endpoints, clocks."""

    name: str
    value: str
    text: str = ""
