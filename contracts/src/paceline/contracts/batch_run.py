"""Many FRAMES records read at once: what each of them repeats is read once, numbers as columns.

`decode_batch` says what a record is. Here only what it would accept is taken, and only where rows have the
size that this version knows; everything else is named by its place, for `decode_batch` to read or refuse.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.contracts.batch import (
    BATCH_BYTES_MAX,
    MAGIC,
    ROW_DTYPES,
    SECTIONS_MAX,
    VERSION,
    Batch,
    BatchFlag,
    BatchKind,
    RowKind,
    Rows,
    decode_batch,
)

ORIGINS_MAX = 65_536  # senders of the largest jobs; beyond that all are read anew
LAYOUTS_MAX = 16_384  # numbers of rows that come together
_HEAD_BYTES = 64
_REPEATED = 44  # from here to the end of the section table a sender repeats itself
_HEAD = np.dtype(
    {
        "names": ["magic", "version", "kind", "flags", "crc", "shard", "shards", "seq", "sampled_ns",
                  "sampled_unix_ns", "chunk", "chunks", "sections", "lengths"],
        "formats": ["<u4", "<u2", "u1", "u1", "<u4", "<u4", "<u4", "<u8", "<u8",
                    "<u8", "<u2", "<u2", "u1", ("u1", 4)],
        "offsets": [0, 4, 6, 7, 8, 12, 16, 20, 28, 36, 44, 46, 48, 49],
        "itemsize": _HEAD_BYTES,
    }
)  # fmt: skip
_NOWHERE = slice(0, 0)
_NO_SIZE = -(1 << 40)  # of rows; a record cut in its section table lacks a few bytes
_PLAIN = (RowKind.PROCESS, RowKind.STATE, RowKind.ROUND)
_SECTION = np.dtype([("code", "<u2"), ("row_bytes", "<u2"), ("rows", "<u4")])


class Origin(NamedTuple):
    """Who sends, and of which attempt of which job."""

    attempt: tuple[str, str]  # (job, attempt)
    node: str


class Layout(NamedTuple):
    """Where rows of each of `_PLAIN` are, counted from the end of the record, and how many."""

    parts: tuple[slice, slice, slice]
    counts: tuple[int, int, int]
    row_bytes: int  # of all rows
    plain: bool  # rows of no other kind


@dataclass(frozen=True)
class BatchRun:
    """Records in their order; one entry of each column per record."""

    values: Sequence[bytes]
    origins: Sequence[Origin]
    layouts: Sequence[Layout]
    heads: Rows

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def _layout(self) -> Layout | None:
        """That of all records, None where they differ."""
        first = self.layouts[0]
        return first if all(one is first for one in self.layouts) else None

    @property
    def plain(self) -> npt.NDArray[np.bool_]:
        """Records of a calm sender: no rows but PROCESS, STATE and ROUND, in one piece, not suspect."""
        kinds = self._layout.plain if self._layout else [layout.plain for layout in self.layouts]
        suspect = (self.heads["flags"] & BatchFlag.SUSPECT.value) != 0
        result: npt.NDArray[np.bool_] = ~suspect & (self.heads["chunk"] == 0) & np.array(kinds, np.bool_)
        return result

    def batch(self, at: int) -> Batch:
        """One record, decoded alone."""
        return decode_batch(self.values[at])

    def table(self, kind: RowKind) -> tuple[Rows, list[int]]:
        """Rows of PROCESS, STATE or ROUND of all records one after the other, and how many each has."""
        place, alike = _PLAIN.index(kind), self._layout
        if alike is not None:
            where, lengths = alike.parts[place], [alike.counts[place]] * len(self)
            parts = [value[where] for value in self.values]
        else:
            lengths = [layout.counts[place] for layout in self.layouts]
            parts = [
                value[layout.parts[place]] for value, layout in zip(self.values, self.layouts, strict=True)
            ]
        return np.frombuffer(b"".join(parts), ROW_DTYPES[kind]), lengths

    def rows(self, at: int, kind: RowKind) -> Rows:
        """Rows of PROCESS, STATE or ROUND of one record."""
        where = self.layouts[at].parts[_PLAIN.index(kind)]
        return np.frombuffer(self.values[at][where], ROW_DTYPES[kind])

    def take(self, places: Sequence[int]) -> "BatchRun":
        """Some of the records."""
        return BatchRun(
            [self.values[at] for at in places],
            [self.origins[at] for at in places],
            [self.layouts[at] for at in places],
            self.heads[np.asarray(places, np.int64)],
        )


Checksums = Callable[[list[bytes], int], bytes]


def crc32_each(values: list[bytes], skip: int) -> bytes:
    """Little-endian CRC-32 of each value without its first `skip` bytes."""
    found = [zlib.crc32(memoryview(value)[skip:]) for value in values]
    return np.array(found, "<u4").tobytes()


class RunReader:
    """Reads runs and remembers, bounded, what senders repeat. `checksums`: a faster `crc32_each`."""

    def __init__(self, checksums: Checksums = crc32_each) -> None:
        self._checksums = checksums
        self._origins: dict[bytes, Origin | None] = {}
        self._layouts: dict[bytes, Layout | None] = {}

    def read(self, values: list[bytes]) -> tuple[BatchRun, list[int]]:
        """The records that can be taken together, and the places of all others in `values`."""
        raw = b"".join([value[:_HEAD_BYTES] for value in values])
        if len(raw) != _HEAD_BYTES * len(values):  # somebody's is shorter than a header
            raw = b"".join([value[:_HEAD_BYTES].ljust(_HEAD_BYTES, b"\0") for value in values])
        heads = np.frombuffer(raw, _HEAD)
        texts_end = _HEAD_BYTES + heads["lengths"].sum(axis=1, dtype=np.int64)
        rows_from = texts_end + heads["sections"] * _SECTION.itemsize
        middles, starts = texts_end.tolist(), rows_from.tolist()
        origins = self._find_origins(values, middles)
        layouts = self._find_layouts(values, middles, starts)
        sizes = np.array(list(map(len, values)), np.int64)
        good = _acceptable(heads, sizes)
        good &= sizes - rows_from == [_NO_SIZE if one is None else one.row_bytes for one in layouts]
        if None in origins:
            good &= [one is not None for one in origins]
        good &= heads["crc"] == np.frombuffer(self._checksums(values, _HEAD_BYTES), "<u4")
        run = BatchRun(values, origins, layouts, heads)  # type: ignore[arg-type]  # None is not good
        if good.all():
            return run, []
        return run.take(np.flatnonzero(good).tolist()), np.flatnonzero(~good).tolist()

    def _find_origins(self, values: Sequence[bytes], ends: Sequence[int]) -> list[Origin | None]:
        known = self._origins
        keys = [value[_REPEATED:end] for value, end in zip(values, ends, strict=True)]
        try:
            return [known[key] for key in keys]
        except KeyError:
            pass
        if len(known) + len(keys) > ORIGINS_MAX:
            known.clear()
        for key in keys:
            if key not in known:
                known[key] = _read_origin(key)
        return [known[key] for key in keys]

    def _find_layouts(
        self, values: Sequence[bytes], starts: Sequence[int], ends: Sequence[int]
    ) -> list[Layout | None]:
        known = self._layouts
        keys = [value[start:end] for value, start, end in zip(values, starts, ends, strict=True)]
        try:
            return [known[key] for key in keys]
        except KeyError:
            pass
        if len(known) + len(keys) > LAYOUTS_MAX:
            known.clear()
        for key in keys:
            if key not in known:
                known[key] = _read_layout(key)
        return [known[key] for key in keys]


def _acceptable(heads: Rows, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """What `decode_batch` asks of a header."""
    good = (heads["magic"] == MAGIC) & (heads["version"] == VERSION) & (heads["kind"] == BatchKind.FRAMES)
    good &= (sizes >= _HEAD_BYTES) & (sizes <= BATCH_BYTES_MAX) & (heads["sections"] <= SECTIONS_MAX)
    good &= (heads["shards"] > 0) & (heads["shards"] <= 65536) & (heads["shard"] < heads["shards"])
    good &= heads["chunk"] < np.maximum(heads["chunks"], 1)
    result: npt.NDArray[np.bool_] = good
    return result


def _read_origin(repeated: bytes) -> Origin | None:
    """None for texts that are not UTF-8 or not all there."""
    if len(repeated) < _HEAD_BYTES - _REPEATED:
        return None
    lengths = repeated[5:9]
    texts, start = [], _HEAD_BYTES - _REPEATED
    try:
        for length in lengths:
            texts.append(repeated[start : start + length].decode())
            start += length
    except UnicodeDecodeError:
        return None
    if start != len(repeated):
        return None
    job, attempt, node, _ = texts
    return Origin((job, attempt), node)


def _read_layout(table: bytes) -> Layout | None:
    """None where a section is not as this version writes it, or comes twice."""
    if len(table) % _SECTION.itemsize:
        return None
    places: dict[int, tuple[int, int]] = {}
    start, plain = 0, True
    for code, row_bytes, rows in np.frombuffer(table, _SECTION).tolist():
        dtype = ROW_DTYPES.get(code)
        if dtype is None or dtype.itemsize != row_bytes or code in places or start > BATCH_BYTES_MAX:
            return None
        places[code] = (start, start + rows * row_bytes)
        start += rows * row_bytes
        plain &= code in _PLAIN
    found = [places.get(kind, (0, 0)) for kind in _PLAIN]
    process, state, rounds = (_from_end(first, last, start) for first, last in found)
    counts = [
        (last - first) // ROW_DTYPES[kind].itemsize for kind, (first, last) in zip(_PLAIN, found, strict=True)
    ]
    return Layout((process, state, rounds), (counts[0], counts[1], counts[2]), start, plain)


def _from_end(first: int, last: int, size: int) -> slice:
    return _NOWHERE if first == last else slice(first - size, last - size or None)
