"""What could not be read, and why: kept for the operator, at a bounded rate.

A bad deployment must not turn a whole topic into dead letters (the idea of arroyo's DlqLimit). At
most `per_s` with a burst of `burst` are written; above that, topics that must not be lost wait and
loss-tolerant ones are dropped and counted. Above `ratio_max` of the last records the consumer says
that it is not ready.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.contracts.topics import DEAD_LETTERS, TOPICS
from paceline.runtime.clock import Clock
from paceline.runtime.cloud_events import Header
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count
from paceline.runtime.producer import Producer
from paceline.runtime.record import BadRecord

VALUE_BYTES_MAX = 900_000
REASON_BYTES_MAX = 1_000
HEADER_BYTES_MAX = 2_000
HEADERS_MAX = 32
log = get_logger(__name__)
LOSS_TOLERANT = frozenset(topic.name for topic in TOPICS if topic.loss_tolerant)


@dataclass(frozen=True)
class DeadLetterLimit:
    """Bounds of what is written, and of what is healthy."""

    per_s: float = 20.0
    burst: int = 500
    ratio_max: float = 0.5
    ratio_window_count: int = 200


@dataclass
class Tokens:
    """Token bucket on the caller's clock."""

    per_s: float
    burst: int
    _level: float = -1.0
    _at_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Take one token: 0 where there was one, else seconds until there will be, none taken."""
        if self._level < 0:
            self._level, self._at_s = float(self.burst), now_s
        self._level = min(self.burst, self._level + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        if self._level >= 1:
            self._level -= 1
            return 0.0
        return (1 - self._level) / self.per_s


@dataclass
class DeadLetterBox:
    """Writes rejected records of one consumer group to `paceline.dead-letters.v1`."""

    producer: Producer | None
    group: str
    clock: Clock
    limit: DeadLetterLimit = field(default_factory=DeadLetterLimit)
    rejected: int = 0
    _tokens: Tokens = field(init=False)
    _recent: deque[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._tokens = Tokens(self.limit.per_s, self.limit.burst)
        self._recent = deque(maxlen=self.limit.ratio_window_count)

    @property
    def ratio_exceeded(self) -> bool:
        """Whether most of the last records were bad; only once the window is full."""
        full = len(self._recent) == self._recent.maxlen
        return full and sum(self._recent) > self.limit.ratio_max * len(self._recent)

    def note_good(self, number: int) -> None:
        self._recent.extend([False] * min(number, self.limit.ratio_window_count))

    async def put(self, bad: BadRecord) -> None:
        """Keep one bad record; KafkaUnavailable where it could not be written."""
        topic = bad.record.topic
        if self.producer is None:
            return self._note(bad, "not_kept")
        while (wait_s := self._tokens.wait_s(self.clock.monotonic_ns() / 1e9)) > 0:
            if topic in LOSS_TOLERANT:
                return self._note(bad, "over_limit")
            await self.clock.sleep(wait_s)
        value = bad.record.value[:VALUE_BYTES_MAX]
        headers = dead_letter_headers(bad, self.group, self.clock.unix_s())
        try:
            await self.producer.send(DEAD_LETTERS, topic, value, headers)
        except ValueError:
            return self._note(bad, "refused")
        return self._note(bad, "kept")

    def _note(self, bad: BadRecord, outcome: str) -> None:
        self.rejected += 1
        self._recent.append(True)
        count("paceline.kafka.dead_letters", topic=bad.record.topic, group=self.group, outcome=outcome)
        if self.rejected <= 10 or self.rejected % 1000 == 0:
            log.warning(
                "bad_record", group=self.group, outcome=outcome, reason=str(bad), rejected=self.rejected
            )


def dead_letter_headers(bad: BadRecord, group: str, unix_s: float) -> Sequence[Header]:
    """Where the record came from and why it is here, then its original headers, both bounded."""
    record = bad.record
    own = {
        "paceline_reason": bad.reason.encode()[:REASON_BYTES_MAX],
        "paceline_topic": record.topic.encode(),
        "paceline_partition": str(record.partition).encode(),
        "paceline_offset": str(record.offset).encode(),
        "paceline_group": group.encode(),
        "paceline_at_unix_s": f"{unix_s:.3f}".encode(),
        "paceline_key": (record.key or b"")[:HEADER_BYTES_MAX],
        "paceline_value_bytes": str(len(record.value)).encode(),
    }
    original = [(name, (raw or b"")[:HEADER_BYTES_MAX]) for name, raw in record.headers[:HEADERS_MAX]]
    return [*own.items(), *original]
