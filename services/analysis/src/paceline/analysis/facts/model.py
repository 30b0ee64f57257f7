"""Where a fact stands, who said it and when; one line of a log; one operation."""

from dataclasses import dataclass, field
from enum import Enum


class Clock(str, Enum):
    """What a time counts from. Times of different clocks, or of two hosts, are not compared."""

    NONE = "none"
    UNIX = "unix"  # seconds since 1970, in the zone of the host that wrote it
    DAY = "day"  # seconds since midnight: the line has no date
    START = "start"  # seconds since boot or since the start of the job


@dataclass(frozen=True)
class Origin:
    """A place in the input. `line` is 1-based; of a document it is the record, 0 the whole."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True)
class Speaker:
    """Who wrote it, as far as the text itself says. Three rank numbers exist and must not be mixed.

    `rank` is global, `group_rank` the rank inside the process group of the message, `local_rank` the
    rank on its node. `gpu` is a PCI address as `0000:9b:00`.
    """

    rank: int | None = None
    group_rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    gpu: str = ""


@dataclass(frozen=True)
class Line:
    """One line without its launcher's prefixes; `speaker` and time come from these and from the file."""

    origin: Origin
    text: str
    speaker: Speaker = field(default_factory=Speaker)
    time_s: float | None = None
    clock: Clock = Clock.NONE
    attempt: int = 0  # 0-based; grows where a log shows that the job was started again
    repeated: int = 1  # lines that a launcher folded into this one
    thread: int | None = None  # of NCCL's own prefix


@dataclass(frozen=True)
class Group:
    """A process group or communicator as its tool names it; empty where the text does not say."""

    name: str = ""  # torch: "0", NCCL: hash, RAS: hash
    description: str = ""  # torch: default_pg, mesh_tp
    size: int = 0
    ranks: tuple[int, ...] = ()  # global ranks in group order


@dataclass(frozen=True)
class Work:
    """One operation as far as a line describes it."""

    function: str = ""  # lower case, as `codes.Function` names it: all_reduce, broadcast, send
    sequence: int | None = None
    count_in: int | None = None  # elements
    count_out: int | None = None
    shapes: str = ""
    dtype: str = ""
    reduce_op: str = ""
    root: int | None = None  # rank inside the group
    peer: int | None = None  # of a send or receive, rank inside the group


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Base of all facts."""

    origin: Origin
    speaker: Speaker = field(default_factory=Speaker)
    time_s: float | None = None
    clock: Clock = Clock.NONE
    attempt: int = 0
