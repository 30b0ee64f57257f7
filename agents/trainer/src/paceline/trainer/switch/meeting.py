"""At which step everybody switches, where training has no all-reduce in which a vote could ride.

Each participant says once that it has heard the order, and, after everybody has, once which boundary it can
reach. Words are written once and everybody decides by all of them, so it does not matter when somebody reads:
nothing here is polled for a state that may change (docs/adr/0045-planned-switch.md).
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from paceline.trainer.switch.agree import agreed_boundary


class Meeting:
    """Of one attempt, over a store client that belongs to the calling thread."""

    def __init__(self, store: Any, everybody: Sequence[str], mine: str) -> None:
        self._store = store
        self._everybody = list(everybody)
        self._mine = mine

    def arrive(self, limit_s: float) -> None:
        """This participant has heard the order; RuntimeError where somebody has not within `limit_s`."""
        self._store.set(f"here/{self._mine}", "1")
        self._store.wait([f"here/{name}" for name in self._everybody], timedelta(seconds=limit_s))

    def propose(self, boundary: int) -> None:
        """The first boundary that this participant can reach; below 0: it cannot switch."""
        self._store.set(f"step/{self._mine}", str(boundary))

    def agreed(self, limit_s: float) -> int:
        """The boundary that everybody can reach, below 0 where somebody cannot switch.

        RuntimeError where somebody has not said anything within `limit_s`.
        """
        keys = [f"step/{name}" for name in self._everybody]
        self._store.wait(keys, timedelta(seconds=limit_s))
        return agreed_boundary([int(self._store.get(key)) for key in keys])
