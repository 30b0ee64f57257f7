"""When everybody switches: one more number in the all-reduce that training does anyway.

Each rank adds its vote; the sum is the same bits on every rank, so all decide alike at the same step.
Ranks that polled a store instead could read it before and after the last one is ready, and switch at
different steps (docs/adr/0045-planned-switch.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

NO_BOUNDARY = -1  # of a participant that cannot switch, and of an agreement that has none
VOTERS_MAX = 1 << 24  # whole numbers up to this are exact in float32, in which votes travel


class Preparing(Enum):
    """Of one rank."""

    IDLE = "idle"  # no switch is asked for
    BUILDING = "building"
    READY = "ready"
    FAILED = "failed"


class Decision(Enum):
    GO_ON = "go on: not everybody is ready"
    SWITCH = "switch: everybody is ready"
    CANCEL = "cancel: somebody could not prepare"
    UNREADABLE = "cancel: the sum of votes is no number of ranks"


@dataclass(frozen=True)
class Ballot:
    """Float32 votes of `voters` ranks, added up by the all-reduce (sum, not mean)."""

    voters: int

    def __post_init__(self) -> None:
        if not 1 <= self.voters <= VOTERS_MAX:
            raise ValueError(f"voters is {self.voters}, expected 1 to {VOTERS_MAX}")

    def vote(self, state: Preparing) -> float:
        """1 for ready, 0 for not yet; one failure outweighs everybody who is ready."""
        if state is Preparing.FAILED:
            return -float(self.voters)
        return 1.0 if state is Preparing.READY else 0.0

    def decide(self, total: float) -> Decision:
        """Of the sum, on every rank alike. A sum that votes cannot give cancels: a rank whose gradients
        hold NaN may not make others switch."""
        if total != total or total != int(max(min(total, 1e9), -1e9)):
            return Decision.UNREADABLE
        if total < 0:
            return Decision.CANCEL
        if total > self.voters:
            return Decision.UNREADABLE
        return Decision.SWITCH if total == self.voters else Decision.GO_ON


def agreed_boundary(proposals: Sequence[int]) -> int:
    """The step at whose end all can switch, of the first one that each can reach; NO_BOUNDARY where one of
    them cannot switch at all. Whoever has proposed a step does not pass it before the agreement is known."""
    return NO_BOUNDARY if not proposals or min(proposals) < 0 else max(proposals)
