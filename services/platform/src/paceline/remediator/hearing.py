"""Until when this service knows what was written to its topics; nothing is late for longer than that.

Any instance may judge any job: what counts is what the groups have handled, whichever instance it was.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol

from paceline.runtime.clock import Clock

LOOK_EVERY_S = 1.0  # while nothing is due
# Once Kafka answers again: agents connect within 5 s, and what they have kept comes then.
AWAY_S = 8.0


class Group(Protocol):
    """`paceline.runtime.consumer.Consumer`, as far as it is asked."""

    async def handled_until(self) -> float | None: ...


class Hearing:
    """Asks the groups of this service."""

    def __init__(self, consumers: Sequence[Group], clock: Clock) -> None:
        self.heard_s = 0.0
        self._consumers = consumers
        self._clock = clock
        self._away_s = clock.unix_s()  # a service that has just begun does not know what was before it
        self._looked_s = -math.inf

    async def look(self, *, needed: bool) -> None:
        """Ask Kafka; takes seconds where it does not answer."""
        now_s = self._clock.unix_s()
        if not needed and 0 <= now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        found = await asyncio.gather(*(consumer.handled_until() for consumer in self._consumers))
        until_s = [at_s for at_s in found if at_s is not None]
        if len(until_s) < len(found):
            self._away_s = self._clock.unix_s()
        elif min(until_s) >= self._away_s + AWAY_S:
            self.heard_s = min(until_s)
