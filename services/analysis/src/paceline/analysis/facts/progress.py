"""Facts about how far ranks have come: works, counts, phases, measured rows."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from paceline.analysis.facts.model import Fact, Group, Work


@dataclass(frozen=True, kw_only=True)
class WorkTimeout(Fact):
    """A watchdog gave up on one operation of its own rank; the speaker waits, it need not be guilty."""

    group: Group
    work: Work
    ran_ms: int | None = None  # time minus this is when it entered; may exceed the timeout by hours
    timeout_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class GroupStatus(Fact):
    """Sequence numbers of one rank in one group; -1 nothing yet, None not said."""

    group: Group
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    failed: int | None = None
    asked_by: int | None = None  # rank whose dump signal made this rank speak


@dataclass(frozen=True, kw_only=True)
class WatchdogStuck(Fact):
    """The monitor of a watchdog found it blocked: driver, GIL or a lock, not a collective."""

    group: Group
    stuck_s: int
    works_left: int | None = None


@dataclass(frozen=True, kw_only=True)
class CallSeen(Fact):
    """An operation was called (NCCL_DEBUG_SUBSYS=COLL, issue orders, own instrumentation)."""

    group: Group
    work: Work
    returned: bool = False


@dataclass(frozen=True, kw_only=True)
class Counted(Fact):
    """How many operations of a group a rank has launched or completed (RAS, Inspector, counters).

    `ranks_alike` > 1: the text gives the count for that many ranks and does not name them.
    """

    group: Group
    function: str = ""  # empty: all functions together
    launched: int | None = None
    completed: int | None = None
    sends: int | None = None  # network slices handed over inside the open operation
    receives: int | None = None
    ranks_alike: int = 1
    missing: str = ""  # "unresponsive", "dead", "no_data": the rank was asked and did not answer
    snapshot: int = 0  # same number = taken together
    given_up: bool = False  # a profiler let go of the last launched operation: it had not ended


class PhaseKind(str, Enum):
    INIT = "init"
    DATA = "data"  # data set preparation, data loading
    COMPILE = "compile"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    OFFLOAD = "offload"
    LOAD = "load"  # weights
    COLLECT = "collect"  # garbage collection
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class PhaseSeen(Fact):
    """The job or a rank began (`ended` False) or ended something that is not a training step."""

    kind: PhaseKind
    ended: bool
    text: str = ""
    duration_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProgressSeen(Fact):
    """A step, or `done` of `total` of a progress bar."""

    done: int
    total: int | None = None
    what: str = ""  # "iteration", or the words before the bar
    step_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SampleRow(Fact):
    """One measured row (JSON line, benchmark table). Names and units of known fields are those of
    `adapters.row_fields` (times in seconds), others are as found; `kind` is listed in `adapters.rows`."""

    kind: str  # steps, telemetry, counters, ...: by its fields, never by the file's name
    numbers: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


FLIGHT_ENTRY = np.dtype(
    [
        ("group", np.int16),  # index into FlightDump.groups
        ("is_p2p", np.bool_),
        ("sequence", np.int64),  # collective_seq_id, or p2p_seq_id
        ("record", np.int64),
        ("work", np.int32),  # index into FlightDump.works
        ("state", np.uint8),  # 0 scheduled, 1 started, 2 completed; as the backend means it
        ("retired", np.bool_),
        ("created_ns", np.int64),
        ("started_ns", np.int64),  # 0: not seen
        ("completed_ns", np.int64),
    ]
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FlightDump(Fact):
    """One rank's Flight Recorder: entries oldest first; `speaker.rank` from content, else file name.

    `works` holds each distinct operation once (function, shapes, dtypes; sequence None).
    """

    version: str
    groups: tuple[Group, ...]
    works: tuple[Work, ...]
    entries: npt.NDArray[np.void]  # FLIGHT_ENTRY
    # By name of the group: enqueued, started, completed.
    status: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    overwritten: int = 0  # records older than the ring
    library_version: str = ""
    backend: str = "nccl"
    gaps: int = 0  # records between the first and the last that the dump does not have
    only_active: bool = False  # completed operations were left out, so absence of history says nothing
    timeout_ms: int | None = None  # of the oldest open operation
    notes: tuple[str, ...] = ()  # cut, entries that could not be read
    folded: object | None = None  # by `diagnosis.flight_fold`: then `entries` may be the newest ones only
