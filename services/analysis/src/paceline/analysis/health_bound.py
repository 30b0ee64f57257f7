"""Which health events are kept where there are more than a bound: the oldest, then those that say most."""

from collections.abc import Iterable, Sequence

from paceline.contracts.registry import HealthEvent, HealthKind

OLDEST_KEPT = 256  # of the job itself, whatever they are: the first cause is among them
WEIGHTS = 3
# After so long in which the job went on, a fault of hardware is not what stops it now. IB gives up after
# about 30 s, a watchdog of NCCL after 10 minutes.
HARDWARE_BACK_S = 900.0
HARDWARE = frozenset(
    {HealthKind.XID, HealthKind.ECC, HealthKind.NVLINK, HealthKind.LINK, HealthKind.GPU_SILENT}
)
# What accuses nobody by itself and is said beside a verdict on the same rank or node.
REMARKS = frozenset(
    {HealthKind.THERMAL, HealthKind.LINK_ERRORS, HealthKind.GPU_SPINNING, HealthKind.HOST_MEMORY}
)
_OCCASIONS = (HARDWARE | REMARKS) - {HealthKind.GPU_SILENT}  # which is a state, until it is taken back


def weight(event: HealthEvent) -> int:
    """0: hardware, heartbeats, a cancelled job; 1: killed by a signal; 2: an exit with a status, a remark.
    Lower is kept."""
    if event.kind in REMARKS:
        return 2
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


def fresh_health(events: Iterable[HealthEvent], stalled_unix_s: float) -> list[HealthEvent]:
    """`events` without the faults of hardware that the job outlived long before it stalled."""
    since_unix_s = stalled_unix_s - HARDWARE_BACK_S
    return [event for event in events if event.kind not in _OCCASIONS or event.at_unix_s >= since_unix_s]
