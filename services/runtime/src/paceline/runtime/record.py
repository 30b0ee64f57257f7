"""One record as a handler sees it, and the word for a record that cannot be used."""

from dataclasses import dataclass
from typing import NamedTuple

from paceline.runtime.cloud_events import Header


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a topic; orders by name and number."""

    topic: str
    number: int


class Record(NamedTuple):
    """One record; `value` is empty for a tombstone of a compacted topic. A tuple: cheap to make."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: tuple[Header, ...] = ()
    timestamp_ms: int = 0

    @property
    def is_tombstone(self) -> bool:
        return not self.value

    @property
    def key_text(self) -> str:
        """The key as text; bytes that are not UTF-8 are shown as replacement characters."""
        return (self.key or b"").decode(errors="replace")

    def header(self, name: str) -> str:
        """Value of the first header of that name, empty where there is none."""
        for key, raw in self.headers:
            if key == name:
                return (raw or b"").decode(errors="replace")
        return ""


class BadRecord(Exception):
    """This record can never be handled; `reason` is for the person who reads the dead letters."""

    def __init__(self, record: Record, reason: str) -> None:
        super().__init__(f"{record.topic}[{record.partition}]@{record.offset}: {reason}")
        self.record = record
        self.reason = reason
