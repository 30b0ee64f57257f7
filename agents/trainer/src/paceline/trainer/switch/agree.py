"""When everybody switches: the boundary that all can reach, and their votes there.

The sum of the votes is the same bits on every rank, so all decide alike at the same step. Ranks that polled a
store instead could read it before and after the last one is ready, and switch at different steps
(docs/adr/0045-planned-switch.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

NO_BOUNDARY = -1  # of a participant that cannot switch, and of an agreement that has none
VOTERS_MAX = 1 << 24  # whole numbers up to this are exact in float32, in which votes travel


class Decision(Enum):
    SWITCH = "switch: everybody is ready"
    CANCEL = "cancel: somebody cannot switch"
    UNREADABLE = "cancel: the sum of votes is no number of ranks"


@dataclass(frozen=True)
class Ballot:
    """Float32 votes of `voters` ranks, added up by the all-reduce (sum, not mean)."""

    voters: int

    def __post_init__(self) -> None:
        if not 1 <= self.voters <= VOTERS_MAX:
            raise ValueError(f"voters is {self.voters}, expected 1 to {VOTERS_MAX}")

    def vote(self, ready: bool) -> float:
        """One refusal outweighs everybody who is ready."""
        return 1.0 if ready else -float(self.voters)

    def decide(self, total: float) -> Decision:
        """Of the sum, on every rank alike. One that votes cannot give cancels."""
        if total == self.voters:
            return Decision.SWITCH
        return Decision.CANCEL if -(self.voters**2) <= total < 0 else Decision.UNREADABLE


def agreed_boundary(proposals: Sequence[int]) -> int:
    """The step at whose end all can switch, of the first one that each can reach; NO_BOUNDARY where one of
    them cannot switch at all. Whoever has proposed a step does not pass it before the agreement is known."""
    return NO_BOUNDARY if not proposals or min(proposals) < 0 else max(proposals)
