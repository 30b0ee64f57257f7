"""The file of `paceline run --record`: what an agent would have published, appended to a file of its own.

    file: record*
    record: mark 4 B | kind u8 | 3 B zero | length u32 | crc32 u32 | time u64 | payload

All little endian; `time` is the writer's wall clock in ns, the checksum covers kind, time and payload. The
first record of a file is a HEAD. A writer that was killed leaves a torn record, and whatever else is damaged
costs only itself: a reader goes on at the next mark whose checksum holds (docs/adr/0033-recording.md).
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

MARK = b"\x89PLR"
VERSION = 1
SUFFIX = ".plrec"
PAYLOAD_BYTES_MAX = 2 << 20
RECORDING_BYTES_MIN = 8 << 20  # of one node: eight files with room for what each begins with
_HEADER = struct.Struct("<4sB3xIIQ")
_SUMMED = struct.Struct("<BQ")
HEADER_BYTES = _HEADER.size


class RecordKind(IntEnum):
    """What the payload is. A reader skips kinds that it does not know."""

    HEAD = 1  # JSON: version, recorder, node, segment, interval_s
    BATCH = 2  # zlib of an encoded batch (`contracts.batch`)
    EVENT = 3  # JSON: type (a CloudEvents type), value (the record as on the topics); null: a tombstone
    COUNTS = 4  # JSON: what was dropped so far, by reason
    END = 5  # JSON: reason; the recorder ended in order


class Record(NamedTuple):
    """One whole record and where its payload stands."""

    kind: int
    time_ns: int
    offset: int  # of the payload
    size: int


@dataclass
class Damage:
    """What a scan had to leave out."""

    bytes_skipped: int = 0
    places: list[int] = field(default_factory=list)  # offsets, at most PLACES_MAX

    def add(self, start: int, end: int) -> None:
        self.bytes_skipped += end - start
        if len(self.places) < PLACES_MAX:
            self.places.append(start)


PLACES_MAX = 16
TRIES_MAX = 256  # records that are none, each up to PAYLOAD_BYTES_MAX to sum up; then the rest is damaged


def encode_record(kind: int, time_ns: int, payload: bytes) -> bytes:
    """One record; ValueError for a payload beyond PAYLOAD_BYTES_MAX."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"payload has {len(payload)} bytes, expected at most {PAYLOAD_BYTES_MAX}")
    return _HEADER.pack(MARK, kind, len(payload), _checksum(kind, time_ns, payload), time_ns) + payload


def is_recording(content: bytes) -> bool:
    """Whether `content` begins like a recording."""
    return content[:5] == MARK + bytes([RecordKind.HEAD])


def scan_records(content: bytes, damage: Damage | None = None) -> Iterator[Record]:
    """Every whole record of `content`; never raises. What is torn or damaged is told to `damage`."""
    damage = damage if damage is not None else Damage()
    view = memoryview(content)
    at, bad_from, tries = 0, -1, 0
    while at < len(content):
        found = _record_at(view, at)
        if found is None:
            bad_from = at if bad_from < 0 else bad_from
            tries += 1
            following = content.find(MARK, at + 1) if tries < TRIES_MAX else -1
            at = len(content) if following < 0 else following
            continue
        if bad_from >= 0:
            damage.add(bad_from, at)
            bad_from = -1
        yield found
        at = found.offset + found.size
    if bad_from >= 0:
        damage.add(bad_from, len(content))


def _record_at(view: memoryview, at: int) -> Record | None:
    if at + HEADER_BYTES > len(view):
        return None
    mark, kind, size, checksum, time_ns = _HEADER.unpack_from(view, at)
    start = at + HEADER_BYTES
    if mark != MARK or size > PAYLOAD_BYTES_MAX or start + size > len(view):
        return None
    if _checksum(kind, time_ns, view[start : start + size]) != checksum:
        return None
    return Record(kind, time_ns, start, size)


def _checksum(kind: int, time_ns: int, payload: "bytes | memoryview") -> int:
    return zlib.crc32(payload, zlib.crc32(_SUMMED.pack(kind, time_ns)))
