"""Detection: is a job stalled or slow right now? Pure, arrays in, named decisions out.

Called by the detector for every (job, attempt, shard). No clock and no I/O: time is what the
records say, namely each sender's own durations and the ticks that the detector wrote into the same
log. The same records in the same order therefore give the same decisions.

Loss: samples may be late, repeated, torn into chunks or missing; the newest of a sender wins and
everything refused is counted by reason. Every table has a bound (`policy.Bounds`).
"""

from paceline.analysis.detection.block import JobBlock
from paceline.analysis.detection.decisions import Decision, DecisionKind
from paceline.analysis.detection.policy import Bounds, DetectionPolicy, SlowPolicy, StallPolicy
from paceline.analysis.detection.reasons import Gate, Reason

__all__ = [
    "Bounds",
    "Decision",
    "DecisionKind",
    "DetectionPolicy",
    "Gate",
    "JobBlock",
    "Reason",
    "SlowPolicy",
    "StallPolicy",
]
