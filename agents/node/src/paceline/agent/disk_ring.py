"""A bounded ring of records on disk: one file per segment, the oldest segment is dropped first.

    segment file: record*          record: u32 length | u32 crc32 | body

A full disk or a removed folder costs records, which are counted, and never an exception to the
caller. A torn record at the end of a segment (the agent was killed while it wrote) ends that segment.
"""

import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_RECORD = struct.Struct("<II")
_CURSOR = struct.Struct("<QQ")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
RECORD_BYTES_MAX = 1 << 20
SEGMENTS_MIN = 4  # so that dropping the oldest segment never drops most of the ring


@dataclass(frozen=True, order=True)
class Position:
    """Where a record starts; ordered by age."""

    segment: int
    offset: int


class Ring(Protocol):
    """Where frames wait beside memory; nothing here raises."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def append(self, body: bytes) -> Position | None: ...

    def read(self, position: Position) -> bytes | None: ...

    def positions(self, after: Position | None) -> Iterator[tuple[Position, int]]: ...

    def load_cursor(self) -> Position | None: ...

    def save_cursor(self, position: Position) -> None: ...


class NoRing:
    """Keeps nothing: where the publisher writes to disk itself."""

    def open(self) -> None: ...

    def close(self) -> None: ...

    def append(self, body: bytes) -> Position | None:
        return None

    def read(self, position: Position) -> bytes | None:
        return None

    def positions(self, after: Position | None) -> Iterator[tuple[Position, int]]:
        return iter(())

    def load_cursor(self) -> Position | None:
        return None

    def save_cursor(self, position: Position) -> None: ...


class DiskRing:
    """Append-only segments below `folder`, together at most `bytes_max` bytes.

    Not thread-safe: one event loop owns it. What it cannot keep is counted in `drops` by reason.
    """

    def __init__(self, folder: Path, bytes_max: int, drops: Counter[str]) -> None:
        self.drops = drops
        self._folder = folder
        self._segment_bytes_max = max(bytes_max // SEGMENTS_MIN - 1, 1)
        self._segments_max = SEGMENTS_MIN
        self._fd: int | None = None
        self._cursor_fd: int | None = None
        self._segment = 0
        self._offset = 0

    def open(self) -> None:
        """Prepare the folder and start a fresh segment behind those of an earlier agent."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            self.drops["ring_unavailable"] += 1
        self._roll(max(self._segments(), default=0) + 1)

    def close(self) -> None:
        self._close_segment()
        if self._cursor_fd is not None:
            os.close(self._cursor_fd)
            self._cursor_fd = None

    def append(self, body: bytes) -> Position | None:
        """Where `body` now lies; None, counted, where it could not be written."""
        record = _RECORD.pack(len(body), zlib.crc32(body)) + body
        if len(body) > RECORD_BYTES_MAX or len(record) > self._segment_bytes_max:
            self.drops["ring_record_too_large"] += 1
            return None
        if self._fd is None or self._offset + len(record) > self._segment_bytes_max:
            self._roll(self._segment + 1)
        if self._fd is None:
            self.drops["ring_unavailable"] += 1
            return None
        position = Position(self._segment, self._offset)
        try:
            written = os.pwrite(self._fd, record, self._offset)
        except OSError:
            written = 0
        if written != len(record):
            # What was written of it is overwritten by the next record.
            self.drops["ring_disk_full"] += 1
            return None
        self._offset += written
        return position

    def read(self, position: Position) -> bytes | None:
        """The record at `position`; None where its segment was dropped or is damaged."""
        try:
            with open(self._path(position.segment), "rb") as file:
                file.seek(position.offset)
                return _read_record(file.read(_RECORD.size), file.read)
        except OSError:
            return None

    def positions(self, after: Position | None) -> Iterator[tuple[Position, int]]:
        """Positions and sizes of all whole records behind `after`, oldest first."""
        for segment in self._segments():
            if after is not None and segment < after.segment:
                continue
            yield from self._scan(segment, after)

    def load_cursor(self) -> Position | None:
        """The last record that an earlier agent delivered, None where it left no word."""
        try:
            return Position(*_CURSOR.unpack((self._folder / "delivered").read_bytes()))
        except (OSError, struct.error):
            return None

    def save_cursor(self, position: Position) -> None:
        try:
            if self._cursor_fd is None:
                self._cursor_fd = os.open(self._folder / "delivered", _NEW_FILE, 0o600)
            os.pwrite(self._cursor_fd, _CURSOR.pack(position.segment, position.offset), 0)
        except OSError:
            self.drops["ring_cursor"] += 1  # the next agent delivers some records twice

    def _scan(self, segment: int, after: Position | None) -> Iterator[tuple[Position, int]]:
        offset = 0
        try:
            with open(self._path(segment), "rb") as file:
                while (body := _read_record(file.read(_RECORD.size), file.read)) is not None:
                    position = Position(segment, offset)
                    if after is None or position > after:
                        yield position, len(body)
                    offset += _RECORD.size + len(body)
        except OSError:
            return

    def _close_segment(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _roll(self, segment: int) -> None:
        self._close_segment()
        for old in self._segments()[: -(self._segments_max - 1)]:
            try:
                self._path(old).unlink()
            except OSError:
                self.drops["ring_unlink"] += 1
        try:
            self._fd = os.open(self._path(segment), _NEW_FILE, 0o600)
        except OSError:
            return  # append counts and tries again
        self._segment, self._offset = segment, 0

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:012d}.ring"

    def _segments(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except OSError:
            return []
        return sorted(int(name[:12]) for name in names if name.endswith(".ring") and name[:12].isdigit())


def _read_record(head: bytes, read: Callable[[int], bytes]) -> bytes | None:
    if len(head) < _RECORD.size:
        return None
    length, crc = _RECORD.unpack(head)
    if length > RECORD_BYTES_MAX:
        return None
    body = read(length)
    return body if len(body) == length and zlib.crc32(body) == crc else None
