"""Health events of one attempt, bounded: the oldest stay, of the others those that say most."""

from collections.abc import Iterator
from enum import Enum

from paceline.analysis.health_bound import OLDEST_KEPT, WEIGHTS, weight
from paceline.contracts.registry import HealthEvent


class Noted(Enum):
    NEW = "new"
    NEW_FOR_ANOTHER = "new_for_another"  # the newest of a greater weight was dropped
    KNOWN = "known"
    REFUSED = "refused"

    @property
    def is_kept(self) -> bool:
        return self in (Noted.NEW, Noted.NEW_FOR_ANOTHER)

    @property
    def loses(self) -> bool:
        return self in (Noted.REFUSED, Noted.NEW_FOR_ANOTHER)


class HealthLog:
    """Iterates in order of arrival."""

    def __init__(self) -> None:
        self._events: dict[str, HealthEvent] = {}
        self._spare: list[list[str]] = [[] for _ in range(WEIGHTS)]  # ids that may go, newest last

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[HealthEvent]:
        return iter(self._events.values())

    def note(self, event: HealthEvent, limit: int) -> Noted:
        """Keep an event, or say why not."""
        if event.id in self._events:
            return Noted.KNOWN
        noted = Noted.NEW
        if len(self._events) >= limit:
            heavier = [ids for ids in self._spare[weight(event) + 1 :] if ids]
            if not heavier:
                return Noted.REFUSED
            del self._events[heavier[-1].pop()]
            noted = Noted.NEW_FOR_ANOTHER
        if len(self._events) >= min(OLDEST_KEPT, limit // 2):
            self._spare[weight(event)].append(event.id)
        self._events[event.id] = event
        return noted
