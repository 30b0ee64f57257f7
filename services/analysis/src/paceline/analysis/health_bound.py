"""Which health events are kept where there are more than a bound: the oldest, then those that say most."""

from collections.abc import Sequence

from paceline.contracts.registry import HealthEvent, HealthKind

OLDEST_KEPT = 256  # of the job itself, whatever they are: the first cause is among them
WEIGHTS = 3


def weight(event: HealthEvent) -> int:
    """0: hardware, heartbeats, a cancelled job; 1: killed by a signal; 2: an exit with a status. Lower is
    kept."""
    if event.kind is not HealthKind.PROCESS_EXIT:
        return 0
    return 1 if event.exit_code is not None and event.exit_code < 0 else 2


def bounded_health(events: Sequence[HealthEvent], limit: int) -> tuple[HealthEvent, ...]:
    """At most `limit` of `events` in their order; of equal weight the newest are left out."""
    if len(events) <= limit:
        return tuple(events)
    own = [index for index, event in enumerate(events) if event.job]
    first = own[: min(OLDEST_KEPT, limit // 2)]
    taken = set(first)
    others = [index for index in range(len(events)) if index not in taken]
    others.sort(key=lambda index: weight(events[index]))  # stable: the oldest first
    return tuple(events[index] for index in sorted([*first, *others[: limit - len(first)]]))
