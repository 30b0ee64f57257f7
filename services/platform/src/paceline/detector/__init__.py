"""The detector: reads frames, writes signals.

Called by nobody; it meets the others in topics. One instance owns some partitions of the frames;
all records of one (job, shard) meet in one partition, so one instance sees all its communicators.

Promises: every decision follows from the records of one partition in their order, ticks included,
so a replay decides the same. Frames are loss-tolerant: the newest sample of a sender wins, what is
refused is counted. Signals may repeat (after a restart, the seconds since the last snapshot are
replayed); their readers keep the newest. State is bounded by `DetectorSettings`.
"""

from paceline.detector.app import DetectorApp
from paceline.detector.core import DetectorCore
from paceline.detector.settings import DetectorSettings

__all__ = ["DetectorApp", "DetectorCore", "DetectorSettings"]
