"""Waiting longer after each failure, and which failures are worth waiting for."""

import asyncio
import random
from dataclasses import dataclass

from aiokafka.errors import KafkaError

# SQLSTATE classes that pass by themselves: connection, transaction rollback, resources, shutdown,
# lock not available (PostgreSQL manual, appendix A).
TRANSIENT_SQLSTATES = ("08", "40", "53", "57P", "55P03")
CAUSES_MAX = 8


@dataclass(frozen=True)
class Backoff:
    """Exponential with jitter; `attempt` counts from 0."""

    first_s: float = 0.1
    max_s: float = 30.0
    factor: float = 2.0
    jitter_ratio: float = 0.2

    def delay_s(self, attempt: int, spread: float | None = None) -> float:
        """Seconds before attempt + 1; `spread` 0 to 1 replaces the random draw."""
        draw = random.random() if spread is None else spread
        plain = min(self.max_s, self.first_s * self.factor ** min(attempt, 64))
        return plain * (1 - self.jitter_ratio + 2 * self.jitter_ratio * draw)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later: network, Kafka, a database that restarts.

    The database is recognised by what its errors carry (`sqlstate`, `connection_invalidated`), so
    that this room needs no database package.
    """
    current: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if current is None:
            return False
        if isinstance(current, OSError | TimeoutError | asyncio.TimeoutError | KafkaError):
            return True
        if getattr(current, "connection_invalidated", False) is True:
            return True
        state = getattr(current, "sqlstate", None) or getattr(current, "pgcode", None)
        if isinstance(state, str) and state.startswith(TRANSIENT_SQLSTATES):
            return True
        origin = getattr(current, "orig", None)
        current = origin if isinstance(origin, BaseException) else current.__cause__
    return False
