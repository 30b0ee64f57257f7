"""Where a consumer begins and how much it takes at once."""

from dataclasses import dataclass, field
from enum import Enum

from paceline.runtime.dead_letters import DeadLetterLimit
from paceline.runtime.handling import RetryPolicy


class Start(str, Enum):
    """Position of a partition that this process sees for the first time."""

    COMMITTED = "committed"  # the group's, else the beginning
    COMMITTED_OR_LATEST = "committed_or_latest"  # the group's, else the end
    EARLIEST = "earliest"  # the beginning: whole compacted topics
    LATEST = "latest"  # the end: only news


@dataclass(frozen=True)
class ConsumerOptions:
    start: Start = Start.COMMITTED
    records_max: int = 500  # in one call of the handler
    poll_s: float = 0.5
    partition_fetch_bytes_max: int = 4 << 20
    fetch_bytes_max: int = 32 << 20
    fetch_bytes_min: int = 1  # the broker answers with so much ...
    fetch_wait_s_max: float = 0.5  # ... or after so long
    check_crcs: bool = True  # of Kafka's batches; needless where each value has a checksum of its own
    commit_interval_s: float = 1.0
    watch_interval_s: float = 3.0
    unassigned_s: float = 120.0
    group_instance_id: str | None = None  # static membership, for example the pod's ordinal
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dead_letters: DeadLetterLimit = field(default_factory=DeadLetterLimit)
