"""What an agent recorded into files: samples that stay where they are until they are replayed."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from paceline.analysis.facts.model import Fact
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord

RECORDED_SAMPLE = np.dtype(
    [
        ("time_ns", np.int64),  # wall clock of the recorder
        ("offset", np.int64),
        ("size", np.int64),
        ("number", np.int64),  # of the record in its file, 1-based
    ]
)
Recorded = JobRecord | NodeRecord | CommunicatorRecord | HealthEvent
ReadBytes = Callable[[int, int], bytes]  # offset, size; raises OSError, may be short


@dataclass(frozen=True)
class RecordedEvent:
    """A record of the registry or of health, and when the recorder wrote it."""

    time_ns: int
    record: Recorded


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedSamples(Fact):
    """One file's share of one attempt; `origin` is the file, a sample's number is its line."""

    job: str
    run: str  # the attempt's own name
    recorder: str
    node: str
    segment: int
    samples: npt.NDArray[np.void]  # RECORDED_SAMPLE, in order of the file
    events: tuple[RecordedEvent, ...]
    read: ReadBytes
    dropped: dict[str, int] = field(default_factory=dict)  # by the recorder so far, by reason
    ended: str = ""  # why the recording ended; empty: it was cut, or goes on in another file
    bytes_damaged: int = 0
    unreadable: int = 0  # records whose content is none

    @property
    def first_ns(self) -> int:
        return min([*self.samples["time_ns"][:1].tolist(), *(e.time_ns for e in self.events[:1])], default=0)
