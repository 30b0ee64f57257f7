"""Dumps of one job that are written alike: the entries of the next one are compared with those of the first.

Ranks that run the same program write the same bytes but for numbers, times and the word of their thread. Such
a dump is compared with one that was read entry by entry, as a whole; only its numbers are taken. A dump that
differs in any other byte is read entry by entry itself.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.adapters.pickle_rows import PickledRows

LAYOUTS_MAX = 48
LAYOUT_BYTES_MAX = 64 << 20  # of all of them; one for 2,000 entries takes about 1.5 MiB
COPIES = 4  # of a dump that a layout holds: the bytes, the rows by form, the mask and what it shows
TAIL_BYTES_MAX = 64  # behind the entries: closing operations, where they are the last key
_LOOK_WORDS = 512  # compared first: most that differ do so soon
_NUMBERS = (
    "record_id", "collective_seq_id", "p2p_seq_id", "op_id",
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
)  # fmt: skip
_UNREAD_WORDS = ("thread_id",)  # differ by rank, and nothing is read from them
_UNREAD = ("frames", "thread_name", "thread_id")
_DTYPES = {(1, False): "u1", (2, False): "<u2", (4, True): "<i4", (8, True): "<i8"}
_Bytes = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]


class _NoLayoutError(Exception):
    """A number of a width that has no dtype, or a value that this way does not follow."""


@dataclass(eq=False)
class Layout:
    """Entries of one dump. Offsets count from the first byte of the first entry."""

    rows: PickledRows
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def nbytes(self) -> int:
        return COPIES * len(self.rows.content)

    @cached_property
    def fixed(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Mask and masked bytes, padded to whole words."""
        mask = np.zeros(-(-self.size // 8) * 8, np.uint8)
        mask[: self.size] = 255
        for parts in self.places.values():
            for dtype, _, at in parts:
                for byte in range(np.dtype(dtype).itemsize):
                    mask[at + byte] = 0
        for begin, end in self._free_words():
            mask[begin:end] = 0
        shown = np.zeros(len(mask), np.uint8)
        shown[: self.size] = np.frombuffer(self.rows.content, np.uint8, self.size, self.begin)
        return mask.view(np.uint64), (shown & mask).view(np.uint64)

    @cached_property
    def places(self) -> dict[str, list[tuple[str, _Ints, _Ints]]]:
        """Of each number that differs by rank: dtype, rows that have one, and where it stands."""
        found: dict[str, list[tuple[str, _Ints, _Ints]]] = {}
        for name in _NUMBERS:
            parts: dict[str, tuple[list[_Ints], list[_Ints]]] = {}
            for form, at, _ in self.rows.forms:
                item = form.items.get(name)
                if item is None or item.refers:
                    if name == "op_id" and item is None:
                        continue
                    raise _NoLayoutError(name)
                if item.width:
                    dtype = _DTYPES.get((item.width, item.signed))
                    if dtype is None:
                        raise _NoLayoutError(name)
                    numbers, places = parts.setdefault(dtype, ([], []))
                    numbers.append(at)
                    places.append(self.rows.starts[at] - self.begin + item.at)
            found[name] = [
                (dtype, np.concatenate(numbers), np.concatenate(places))
                for dtype, (numbers, places) in parts.items()
            ]
        return found

    @cached_property
    def words_needed(self) -> dict[int, str | None]:
        """Words from before the entries that fields refer to, other than those of the group."""
        data = self.rows.content
        needed: dict[int, str | None] = {}
        for form, at, _ in self.rows.forms:
            needed |= {index: self.words_before.get(index) for index, _ in form.keys}
            start = int(self.rows.starts[at[0]])
            spans = [
                (item.begin, item.end)
                for name, item in form.items.items()
                if name in (*_UNREAD, "process_group")
            ]
            for place, width in form.references:
                if not any(begin <= place < end for begin, end in spans):
                    index = int.from_bytes(data[start + place : start + place + width], "little")
                    needed[index] = self.words_before.get(index)
        return {index: word for index, word in needed.items() if word is not None}

    @cached_property
    def words_before(self) -> dict[int, str]:
        return self.rows.before

    def _free_words(self) -> list[tuple[int, int]]:
        found = []
        for form, at, _ in self.rows.forms:
            for name in _UNREAD_WORDS:
                item = form.items.get(name)
                start = int(self.rows.starts[at[0]])
                if item is None or self.rows.content[start + item.begin] != 0x58:
                    continue
                size = int.from_bytes(self.rows.content[start + item.begin + 1 :][:4], "little")
                begin = start - self.begin + item.begin + 5
                found.append((begin, begin + size))
        return found

    def fits(self, data: npt.NDArray[np.uint64], words: dict[int, str]) -> bool:
        """Whether the entries of another dump are these, but for what differs by rank."""
        mask, shown = self.fixed
        for part in (slice(_LOOK_WORDS), slice(None)):
            if not np.array_equal(data[part] & mask[part], shown[part]):
                return False
        return all(words.get(index) == word for index, word in self.words_needed.items())

    @cached_property
    def columns(self) -> dict[str, _Ints]:
        """Columns of this dump itself, as they were asked for."""
        return {}

    @cached_property
    def kinds(self) -> dict[tuple[str, ...], tuple[list[int], npt.NDArray[np.int32]]]:
        return {}

    @cached_property
    def group_words(self) -> dict[int, tuple[int | None, int | None]]:
        """By row: memo indices of the two words of its group; None where the word stands in the entry."""
        return {}

    def group_of(self, at: int) -> tuple[int | None, int | None]:
        found = self.group_words.get(at)
        if found is None:
            form = next(form for form, numbers, _ in self.rows.forms if at in numbers)
            place = int(self.rows.starts[at]) + form.items["process_group"].begin
            first, place = _reference(self.rows.content, place)
            second, _ = _reference(self.rows.content, place)
            found = self.group_words[at] = (first, second)
        return found


def _reference(data: bytes, at: int) -> tuple[int | None, int]:
    """(memo index, where it ends) of a reference; (None, end) of a word that stands here."""
    if data[at] == 0x68:
        return data[at + 1], at + 2
    if data[at] == 0x6A:
        return int.from_bytes(data[at + 1 : at + 5], "little"), at + 5
    if data[at] != 0x58:
        raise _NoLayoutError("process_group")
    at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
    return None, at + {0x71: 2, 0x72: 5}.get(data[at], 0)


@dataclass(eq=False)
class AlikeRows:
    """Entries of a dump that has the layout of another. The same calls as `PickledRows`."""

    layout: Layout
    content: bytes
    begin: int
    words: dict[int, str]  # from before the entries

    def __len__(self) -> int:
        return len(self.layout.rows)

    def __getitem__(self, at: int) -> dict[str, Any]:
        """Fields of one entry; its numbers and thread are those of the other dump."""
        entry = self.layout.rows[at]
        pair = entry.get("process_group")
        if isinstance(pair, tuple) and len(pair) == 2:
            first, second = self.layout.group_of(at)
            pair = (
                pair[0] if first is None else self.words.get(first, pair[0]),
                pair[1] if second is None else self.words.get(second, pair[1]),
            )
            return {**entry, "process_group": pair}
        return entry

    def number(self, name: str) -> _Ints:
        parts = self.layout.places.get(name)
        if parts is None:
            column = self.layout.columns.get(name)
            if column is None:
                column = self.layout.columns[name] = self.layout.rows.number(name)
            return column
        column = np.zeros(len(self), np.int64)
        for dtype, numbers, places in parts:
            count = self.layout.size - np.dtype(dtype).itemsize + 1
            every: npt.NDArray[Any] = np.ndarray((count,), dtype, self.content, self.begin, (1,))
            column[numbers] = every[places]
        return column

    def word(self, name: str, codes: dict[str, int]) -> _Ints:
        column = self.layout.columns.get(name)
        if column is None:
            column = self.layout.columns[name] = self.layout.rows.word(name, codes)
        return column

    def alike(self, names: tuple[str, ...]) -> tuple[list[int], npt.NDArray[np.int32]]:
        found = self.layout.kinds.get(names)
        if found is None:
            found = self.layout.kinds[names] = self.layout.rows.alike(names)
        return found

    def values(self, at: int, names: tuple[str, ...]) -> tuple[Any, ...]:
        return self.layout.rows.values(at, names)


_layouts: OrderedDict[int, list[Layout]] = OrderedDict()  # by size of the entries, last used last


def rows_alike(content: bytes, begin: int, words: dict[int, str]) -> tuple[bytes, AlikeRows] | None:
    """(the pickle without its entries, the entries) where they are written as those of an earlier dump."""
    for size in reversed(_layouts):
        end = begin + size
        if not end < len(content) <= end + TAIL_BYTES_MAX or content[end : end + 1] != b"e":
            continue
        data = np.empty(-(-size // 8), np.uint64)
        data[-1] = 0
        data.view(np.uint8)[:size] = np.frombuffer(content, np.uint8, size, begin)
        for layout in _layouts[size]:
            if layout.fits(data, words):
                _layouts.move_to_end(size)
                return content[:begin] + content[end:], AlikeRows(layout, content, begin, words)
    return None


def remember(rows: PickledRows, begin: int, end: int) -> None:
    """Keep a dump that was read entry by entry for others that are written alike."""
    layout = Layout(rows, begin, end)
    if layout.nbytes > LAYOUT_BYTES_MAX:
        return
    try:
        _ = layout.fixed, layout.words_needed
    except (_NoLayoutError, KeyError):
        return
    kept = _layouts.setdefault(layout.size, [])
    kept.append(layout)
    _layouts.move_to_end(layout.size)
    while _is_too_much():
        size, oldest = next(iter(_layouts.items()))
        oldest.pop(0)
        if not oldest:
            del _layouts[size]


def _is_too_much() -> bool:
    kept = [layout for each in _layouts.values() for layout in each]
    return len(kept) > LAYOUTS_MAX or sum(layout.nbytes for layout in kept) > LAYOUT_BYTES_MAX
