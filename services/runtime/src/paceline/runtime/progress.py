"""Does a consumer move? Pure: observations in, a named decision out.

aiokafka can stop silently after a broker restart or a rebalance (aio-libs/aiokafka#1154), so the
shell compares its own positions with the end of the log and recreates a consumer that stands still.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from paceline.runtime.record import Partition


class Progress(str, Enum):
    MOVING = "moving"
    IDLE = "idle"  # everything has been read
    HANDLING = "handling"  # the handler has the ball
    WAITING = "waiting"  # behind, but not for long enough
    STUCK = "stuck"  # records ahead, no movement for `stuck_s`
    UNASSIGNED = "unassigned"  # no partition for `unassigned_s`
    UNREACHABLE = "unreachable"  # the end of the log cannot be asked for

    @property
    def needs_new_consumer(self) -> bool:
        return self in (Progress.STUCK, Progress.UNASSIGNED, Progress.UNREACHABLE)


@dataclass
class ProgressWatch:
    """Remembers when each partition last moved, on the caller's monotonic clock."""

    stuck_s: float
    unassigned_s: float
    _positions: dict[Partition, int] = field(default_factory=dict)
    _moved_s: dict[Partition, float] = field(default_factory=dict)
    _assigned_s: float | None = None
    _answered_s: float | None = None

    def reset(self) -> None:
        """Begin again, for a new consumer."""
        self._positions.clear()
        self._moved_s.clear()
        self._assigned_s = None
        self._answered_s = None

    def observe(
        self,
        now_s: float,
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int] | None,
        *,
        handling: bool,
    ) -> Progress:
        """Judge one observation; `ends` is None where Kafka did not answer the question."""
        assigned_s = self._assigned_s = now_s if positions or self._assigned_s is None else self._assigned_s
        if not positions and not handling:
            return Progress.UNASSIGNED if now_s - assigned_s >= self.unassigned_s else Progress.WAITING
        moved = self._note_movement(now_s, positions)
        answered_s = self._answered_s = (
            now_s if ends is not None or self._answered_s is None else self._answered_s
        )
        if handling:
            self._moved_s = dict.fromkeys(positions, now_s)
            return Progress.HANDLING
        if ends is None:
            return Progress.UNREACHABLE if now_s - answered_s >= self.stuck_s else Progress.WAITING
        behind = [part for part, position in positions.items() if position < ends.get(part, 0)]
        # A partition without news does not stand still: its time runs from the first record ahead.
        self._moved_s |= dict.fromkeys(positions.keys() - behind, now_s)
        if any(now_s - self._moved_s[part] >= self.stuck_s for part in behind):
            return Progress.STUCK
        if moved:
            return Progress.MOVING
        return Progress.WAITING if behind else Progress.IDLE

    def _note_movement(self, now_s: float, positions: Mapping[Partition, int]) -> bool:
        moved = False
        for part, position in positions.items():
            if self._positions.get(part) != position:
                self._moved_s[part] = now_s
                moved = True
        self._positions = dict(positions)
        return moved
