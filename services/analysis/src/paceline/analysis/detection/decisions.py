"""What a block of the detector decides to say."""

from dataclasses import dataclass
from enum import IntEnum

from paceline.analysis.detection.reasons import Reason


class DecisionKind(IntEnum):
    STALLED = 1
    SLOW = 2
    STATE = 3
    CLEAR = 4
    HEARTBEAT_LOST = 5
    HEARTBEAT_BACK = 6
    ENDED = 7  # the block may be dropped
    SCALING = 8  # a window of iterations is full


@dataclass(frozen=True)
class Decision:
    """What to publish, and why."""

    kind: DecisionKind
    reason: Reason
    communicator: int = 0  # that opened the episode
    round: int = 0
    slow: bool = False  # an episode of slow rounds, not of a stall
    node: str = ""  # heartbeats
    node_seq: int = 0  # last sequence number heard of that node
