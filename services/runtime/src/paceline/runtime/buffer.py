"""The waiting room of records that may be lost: bounded in bytes, the newest win."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record on its way out."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def size_bytes(self) -> int:
        return 64 + len(self.key or b"") + len(self.value) + sum(len(k) + len(v) for k, v in self.headers)


@dataclass
class NewestWins:
    """A queue that drops its oldest records to stay within `bytes_max`."""

    bytes_max: int
    size_bytes: int = 0
    dropped: int = 0
    _records: deque[Outgoing] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._records)

    def push(self, record: Outgoing) -> list[Outgoing]:
        """Append; returns what had to go, which is `record` itself where it alone is too large."""
        if record.size_bytes > self.bytes_max:
            self.dropped += 1
            return [record]
        self._records.append(record)
        self.size_bytes += record.size_bytes
        gone = []
        while self.size_bytes > self.bytes_max:
            gone.append(self._pop())
        self.dropped += len(gone)
        return gone

    def push_back(self, record: Outgoing) -> bool:
        """Return a record whose sending failed to the head; False, and dropped, where it is full."""
        if self.size_bytes + record.size_bytes > self.bytes_max:
            self.dropped += 1
            return False
        self._records.appendleft(record)
        self.size_bytes += record.size_bytes
        return True

    def pop(self) -> Outgoing | None:
        """The oldest record, None where there is none."""
        return self._pop() if self._records else None

    def _pop(self) -> Outgoing:
        record = self._records.popleft()
        self.size_bytes -= record.size_bytes
        return record
