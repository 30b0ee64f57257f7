"""Until when everything that was written to a topic has been handled by a group, whichever member did it.

A deadline that has passed means something only to who has read what was written before it. Each look asks
for the ends of all partitions; once the group has handled up to them, what was written before that look
is known. What this process has handled it knows itself, of the rest it asks for the committed positions.
"""

from collections.abc import Mapping

from paceline.runtime.record import Partition
from paceline.runtime.session import Session


class Reach:
    """Belongs to one consumer of a group and outlives its sessions."""

    def __init__(self) -> None:
        self.until_s = 0.0  # unix seconds of whoever asks
        self._wanted: tuple[float, Mapping[Partition, int]] | None = None
        self._handled: dict[Partition, int] = {}  # by others, as far as was asked

    async def look(self, session: Session, mine: Mapping[Partition, int], now_s: float) -> None:
        """Ask once; `mine` are positions up to which this process has handled. KafkaError or TimeoutError
        where Kafka does not answer."""
        if self._wanted is None:
            self._wanted = now_s, await session.all_ends()
        at_s, ends = self._wanted
        behind = self._behind(mine, ends)
        if behind:
            self._handled |= await session.committed(behind)
        if not self._behind(mine, ends):
            self.until_s = at_s
            self._wanted = None

    def _behind(self, mine: Mapping[Partition, int], ends: Mapping[Partition, int]) -> list[Partition]:
        return [
            part for part, end in ends.items() if max(mine.get(part, 0), self._handled.get(part, 0)) < end
        ]
