"""The entries of a large dump straight from the bytes of its pickle, as columns, without building them.

The entries of one dump are dictionaries with the same keys, so most of them are the same bytes but for
numbers. One entry of each form is walked operation by operation; the others of its length are compared
with it byte by byte, and their numbers are taken in one piece. Whatever does not fit exactly (another
protocol, an operation that plain data does not have, bytes in between) ends it: None is returned and the
pickle is read the slow way, which also refuses what must be refused.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.arrays import distinct

ROWS_MIN = 64  # of fewer the slow way is as fast
FORMS_MAX = 512  # of one dump
_FORMS_KEPT_MAX = 64  # of one length, across dumps
_LENGTHS_KEPT_MAX = 1024
_VALUES_KEPT_MAX = 65_536
ROW_BYTES_MAX = 65_536
_ENTRIES = b"X\x07\x00\x00\x00entries"
_MEMO = rb"(?:q.|r..[\x00-\x0f]\x00)?"
_REFERENCES = re.compile(rb"\]\((?:h.|j....)+e", re.DOTALL)  # a list of words or frames that stand elsewhere
_OPENS = re.compile(rb"\]" + _MEMO + rb"\((?=\})", re.DOTALL)
_INTEGERS = {0x4B: (1, False), 0x4D: (2, False), 0x4A: (4, True)}  # K M J: bytes, signed
_NUMERIC = frozenset((*_INTEGERS, 0x8A, 0x47))
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}
_WHOLE: dict[tuple[int, bool], np.dtype[Any]] = {
    (1, False): np.dtype("u1"), (2, False): np.dtype("<u2"), (4, False): np.dtype("<u4"),
    (4, True): np.dtype("<i4"), (8, True): np.dtype("<i8"),
}  # fmt: skip
_BATCH = b"e("  # Python writes lists in parts of a thousand
_Place = tuple[int, int]  # first byte and width
_Bytes = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]


class _OddError(Exception):
    """Not the form that is read here."""


@dataclass(slots=True)
class _Item:
    """One value on the stack: where its number or reference stands, and the bytes of it all."""

    value: Any
    begin: int
    end: int
    at: int = 0
    width: int = 0  # of a number; 0 for anything else
    signed: bool = False
    refers: bool = False  # the number is a memo index


@dataclass
class _Form:
    """How one entry is written. Offsets count from its first byte."""

    fixed: _Bytes  # 255 where all entries of the form are equal
    shown: _Bytes  # bytes of the walked entry under `fixed`
    keys: tuple[tuple[int, str], ...]  # memo index and name of each key
    items: dict[str, _Item]
    memo_at: npt.NDArray[np.bool_]  # bytes of memo indices that say nothing
    defines: bool  # it has words of its own, so it is that of one entry
    references: tuple[tuple[int, int], ...]  # place and width of each memo index, but for the keys
    marks: tuple[tuple[str, ...], _Ints, npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None = None

    def matches(self, rows: _Bytes) -> npt.NDArray[np.bool_]:
        return np.asarray(((rows ^ self.shown) & self.fixed).any(axis=1) == 0, np.bool_)

    def mark(self, names: tuple[str, ...], rows: _Bytes) -> npt.NDArray[np.uint64]:
        """A number for each row that is the same where the bytes of `names` are: linear in the bytes, so
        that those which never change are summed once."""
        if self.marks is None or self.marks[0] != names:
            places = np.concatenate(
                [np.arange(self.items[name].begin, self.items[name].end) for name in names]
            )
            places = places[~self.memo_at[places]]
            weights = _weights(len(places))
            still = self.fixed[places] > 0
            known = np.ones(len(places), np.uint64)  # one for each, so that the length counts
            known[still] += self.shown[places[still]]
            constant = (known * weights).sum(dtype=np.uint64, keepdims=True)
            self.marks = (names, places[~still], weights[~still], constant)
        _, places, weights, constant = self.marks
        marks: npt.NDArray[np.uint64] = rows[:, places].astype(np.uint64) @ weights + constant
        return marks


_known: dict[int, list[_Form]] = {}
_values: dict[tuple[int, int, tuple[str, ...]], tuple[Any, ...]] = {}


@dataclass(eq=False)
class PickledRows:
    """Entries of one dump, made one at a time where somebody asks for one."""

    content: bytes
    starts: _Ints
    ends: _Ints
    memo: dict[int, str]
    before: dict[int, str]  # the part of `memo` that stands before the entries
    forms: list[tuple[_Form, _Ints, _Bytes]] = field(default_factory=list)  # form, numbers of rows, rows
    made: dict[int, dict[str, Any]] = field(default_factory=dict)
    marks: dict[tuple[str, ...], dict[int, int]] = field(default_factory=dict)

    @cached_property
    def memo_key(self) -> int:
        return hash(frozenset(self.memo.items()))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, at: int) -> dict[str, Any]:
        entry = self.made.get(at)
        if entry is None:
            entry = self.made[at] = _walk(self.content, int(self.starts[at]), self.memo)
        return entry

    def number(self, name: str) -> _Ints:
        """A column of numbers; None is 0, True is 1. Raises KeyError, TypeError where there is none."""
        column = np.zeros(len(self), np.int64)
        for form, at, rows in self.forms:
            item = form.items[name]
            if item.width and not item.refers:
                column[at] = item.value if form.defines else _integers(rows, item)
            elif item.value is None or isinstance(item.value, int):
                column[at] = int(item.value or 0)
            else:
                raise TypeError(name)
        return column

    def word(self, name: str, codes: dict[str, int]) -> _Ints:
        """A column of words as `codes`. Raises KeyError for other words."""
        column = np.zeros(len(self), np.int64)
        for form, at, rows in self.forms:
            item = form.items[name]
            if item.refers:
                values, inverse = np.unique(_integers(rows, item), return_inverse=True)
                known = np.array([codes[self.memo[int(value)]] for value in values], np.int64)
                column[at] = known[inverse.reshape(-1)]
            else:
                column[at] = codes[item.value]
        return column

    def alike(self, names: tuple[str, ...]) -> tuple[list[int], npt.NDArray[np.int32]]:
        """Rows that are written alike in all of `names`: the first of each kind, and each row's kind."""
        marks = np.zeros(len(self), np.uint64)
        for form, at, rows in self.forms:
            marks[at] = form.mark(names, rows)
        found, first, kinds = np.unique(marks, return_index=True, return_inverse=True)
        self.marks[names] = dict(zip(first.tolist(), found.tolist(), strict=True))
        return first.tolist(), kinds.reshape(-1).astype(np.int32)

    def values(self, at: int, names: tuple[str, ...]) -> tuple[Any, ...]:
        """Fields of row `at`, one of the first that `alike` gave; looked up where another dump with the
        same memo had them."""
        key = (self.marks[names][at], self.memo_key, names)
        found = _values.get(key)
        if found is None:
            entry = self[at]
            found = tuple(entry[name] for name in names)
            if len(_values) >= _VALUES_KEPT_MAX:
                _values.clear()
            _values[key] = found
        return found


def find_entries(content: bytes) -> int:
    """Where the first entry of a dump begins, -1 where it is not written as it is read here."""
    key = content.find(_ENTRIES)
    if key < 0 or content[:2] != b"\x80\x02":
        return -1
    opened = _OPENS.search(content, key + len(_ENTRIES), key + len(_ENTRIES) + 16)
    return -1 if opened is None else opened.end()


def read_rows(content: bytes, begin: int, words: dict[int, str]) -> tuple[bytes, PickledRows] | None:
    """(the pickle without its entries, the entries), or None where they must be read the slow way.

    `begin` is where the first entry does, `words` are those of `words_before`.
    """
    try:
        return _read(content, begin, words)
    except (_OddError, StopIteration, IndexError, KeyError, TypeError, ValueError, UnicodeDecodeError):
        return None


def _read(content: bytes, begin: int, words: dict[int, str]) -> tuple[bytes, PickledRows] | None:
    memo = dict(words)
    form, _, end = _walk_form(content, begin, memo)
    first_key = form.keys[0][0]
    refers = b"h" + bytes([first_key]) if first_key < 256 else b"j" + first_key.to_bytes(4, "little")
    again = re.compile(rb"\}" + _MEMO + rb"\(" + re.escape(refers), re.DOTALL)
    later = [found.start() for found in again.finditer(content, end)]
    if len(later) + 1 < ROWS_MIN:
        return None
    starts = np.array([begin, *later], np.int64)
    if content[end : later[0]] not in (b"", _BATCH):
        raise _OddError
    last_end = _walk_form(content, later[-1], memo)[2]
    ends = np.array([*later, last_end], np.int64)
    rows = PickledRows(content, starts, ends, memo, words)
    _sort_by_form(rows, np.frombuffer(content, np.uint8))
    return content[:begin] + content[last_end:], rows


def _sort_by_form(rows: PickledRows, data: _Bytes) -> None:
    """Give every row its form. Raises `_OddError` for one that has none, or for too many forms."""
    lengths = rows.ends - rows.starts
    for length in distinct(lengths).tolist():
        if length > ROW_BYTES_MAX:
            raise _OddError
        left = np.flatnonzero(lengths == length)
        window = np.lib.stride_tricks.sliding_window_view(data, length)
        block = window[rows.starts[left]]
        for form in list(_known.get(length, ())):
            if len(left) and all(rows.memo.get(index) == name for index, name in form.keys):
                left, block = _take(rows, form, left, block)
        while len(left):
            if len(rows.forms) >= FORMS_MAX:
                raise _OddError
            text = block[0].tobytes()
            form, _, end = _walk_form(text, 0, rows.memo)  # words that another form defines come later
            if text[end:] not in (b"", _BATCH):
                raise _OddError
            left, block = _take(rows, form, left, block)
            kept = _known.setdefault(length, []) if len(_known) < _LENGTHS_KEPT_MAX else []
            if not form.defines and len(kept) < _FORMS_KEPT_MAX:
                kept.append(form)


def _take(rows: PickledRows, form: _Form, left: _Ints, block: _Bytes) -> tuple[_Ints, _Bytes]:
    fits = form.matches(block)
    if bool(fits.all()):
        rows.forms.append((form, left, block))
        return left[:0], block[:0]
    if fits.any():
        rows.forms.append((form, left[fits], block[fits]))
    return left[~fits], block[~fits]


def words_before(content: bytes, end: int) -> dict[int, str]:
    """Words that the part before the entries has put into the memo. Raises UnicodeDecodeError."""
    memo: dict[int, str] = {}
    at = 0
    while (at := content.find(b"X", at, end)) >= 0:
        size = int.from_bytes(content[at + 1 : at + 5], "little")
        put = at + 5 + size
        if put < end and content[put] in b"qr":
            wide = content[put] == 0x72
            index = int.from_bytes(content[put + 1 : put + (5 if wide else 2)], "little")
            memo[index] = content[at + 5 : put].decode("utf-8")
            at = put
        at += 1
    return memo


def _walk_form(data: bytes, begin: int, memo: dict[int, str]) -> tuple[_Form, dict[str, Any], int]:
    """The form of the entry at `begin`, its values, and where it ends."""
    items, values, end, puts, keys, defines, listed = _machine(data, begin, memo)
    shown = np.frombuffer(data, np.uint8, end - begin, begin)
    rest = data[end : end + 2] == _BATCH and begin == 0
    fixed = np.full(end - begin + (2 if rest else 0), 255, np.uint8)
    if rest:
        shown = np.frombuffer(data, np.uint8, end - begin + 2, begin)
    for item in items:
        fixed[item.at - begin : item.at - begin + item.width] = 0
    for at, width in (*puts, *listed):
        fixed[at - begin : at - begin + width] = 0
    fields: dict[str, _Item] = {}
    for name, item in values.items():
        fields[name] = _Item(
            item.value,
            item.begin - begin,
            item.end - begin,
            item.at - begin,
            item.width,
            item.signed,
            item.refers,
        )
    memo_at = np.zeros(len(fixed), np.bool_)
    for at, width in puts:
        memo_at[at - begin : at - begin + width] = True
    references = (
        *((item.at - begin, item.width) for item in items if item.refers),
        *((at - begin, width) for at, width in listed),
    )
    form = _Form(fixed, shown & fixed, tuple(keys), fields, memo_at, defines, references)
    return form, {name: item.value for name, item in values.items()}, end


def _walk(data: bytes, begin: int, memo: dict[int, str]) -> dict[str, Any]:
    return {name: item.value for name, item in _machine(data, begin, memo)[1].items()}


def _machine(
    data: bytes, begin: int, memo: dict[int, str]
) -> tuple[list[_Item], dict[str, _Item], int, list[_Place], list[tuple[int, str]], bool, list[_Place]]:
    """Walk one dictionary: its numbers, values, end, places of memo indices, keys, whether words are new,
    and places of references in lists of nothing else.

    A reference to what is no word is None: stacks refer to dictionaries of other entries.
    """
    numbers: list[_Item] = []
    listed: list[_Place] = []
    puts: list[tuple[int, int]] = []
    defines = False
    stack: list[_Item] = []
    marks: list[int] = []
    at = begin
    while True:
        op = data[at]
        here = at
        if op in _NUMERIC:
            stack.append(_number_at(data, at))
            numbers.append(stack[-1])
            at = stack[-1].end
        elif op in (0x68, 0x6A):  # a reference
            width = 1 if op == 0x68 else 4
            index = int.from_bytes(data[at + 1 : at + 1 + width], "little")
            stack.append(_Item(memo.get(index), here, at + 1 + width, at + 1, width, False, True))
            numbers.append(stack[-1])
            at += 1 + width
        elif op in _CONSTANTS:
            at += 1
            stack.append(_Item(_CONSTANTS[op], here, at))
        elif op == 0x58:
            size = int.from_bytes(data[at + 1 : at + 5], "little")
            at += 5 + size
            if at > len(data):
                raise _OddError
            word = data[here + 5 : at].decode("utf-8")
            stack.append(_Item(word, here, at))
            defines = True
            if data[at] in b"qr":
                width = 1 if data[at] == 0x71 else 4
                memo[int.from_bytes(data[at + 1 : at + 1 + width], "little")] = word
                at += 1 + width
        elif op in (0x71, 0x72):
            width = 1 if op == 0x71 else 4
            puts.append((at + 1, width))
            at += 1 + width
            stack[-1].end = at
        elif op == 0x5D and (found := _REFERENCES.match(data, at)):
            at = found.end()
            listed += (places := _listed(data, here + 2, at - 1))
            words = [memo.get(int.from_bytes(data[p : p + w], "little")) for p, w in places]
            stack.append(_Item(words, here, at))
        elif op in b"}](":
            at += 1
            if op == 0x28:
                marks.append(len(stack))
            else:
                stack.append(_Item({} if op == 0x7D else [], here, at))
        elif op in b"eatus\x85\x86\x87":
            at += 1
            _close(op, stack, marks, at)
            if op == 0x75 and len(stack) == 1 and not marks:
                break
        else:
            raise _OddError
        if at - begin > ROW_BYTES_MAX:
            raise _OddError
    fields, keys, key_items = _fields(data, begin, stack[0].value, memo)
    return [item for item in numbers if id(item) not in key_items], fields, at, puts, keys, defines, listed


def _number_at(data: bytes, at: int) -> _Item:
    op = data[at]
    if op == 0x47:  # a float: only durations are
        return _Item(0.0, at, at + 9, at + 1, 8)
    first = at + 1
    if op == 0x8A:
        first, width, signed = at + 2, data[at + 1], True
        if not 0 < width <= 8:
            raise _OddError
    else:
        width, signed = _INTEGERS[op]
    value = int.from_bytes(data[first : first + width], "little", signed=signed)
    return _Item(value, at, first + width, first, width, signed)


def _listed(data: bytes, at: int, end: int) -> list[_Place]:
    """Places of the memo indices of references that follow each other."""
    places = []
    while at < end:
        width = 1 if data[at] == 0x68 else 4
        places.append((at + 1, width))
        at += 1 + width
    return places


def _fields(
    data: bytes, begin: int, entry: Any, memo: dict[int, str]
) -> tuple[dict[str, _Item], list[tuple[int, str]], set[int]]:
    """Values by name, memo index and name of each key, and which items are the keys."""
    if not isinstance(entry, dict) or data[begin] != 0x7D:
        raise _OddError
    keys = []
    for name, (key, _) in entry.items():
        index = (
            int.from_bytes(data[key.at : key.at + key.width], "little") if key.refers else _index(memo, name)
        )
        keys.append((index, name))
    return {name: pair[1] for name, pair in entry.items()}, keys, {id(pair[0]) for pair in entry.values()}


def _index(memo: dict[int, str], name: str) -> int:
    return next(index for index, word in memo.items() if word == name)


def _close(op: int, stack: list[_Item], marks: list[int], at: int) -> None:
    """Operations that put items into a container or a tuple."""
    if op in b"\x85\x86\x87":
        count = op - 0x84
        parts = stack[-count:]
        del stack[-count:]
        stack.append(_Item(tuple(part.value for part in parts), parts[0].begin, at))
        return
    low = marks.pop() if op in b"eut" else len(stack) - (1 if op == 0x61 else 2)
    parts = stack[low:]
    del stack[low:]
    if op == 0x74:
        stack.append(_Item(tuple(part.value for part in parts), parts[0].begin if parts else at - 1, at))
        return
    target = stack[-1]
    target.end = at
    if op in b"ae":
        if not isinstance(target.value, list):
            raise _OddError
        target.value.extend(part.value for part in parts)
        return
    if not isinstance(target.value, dict) or len(parts) % 2:
        raise _OddError
    outer = len(stack) == 1 and not marks
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        if isinstance(key.value, str):
            target.value[key.value] = (key, value) if outer else value.value
        elif outer:  # inside stacks a key may be a word of an entry that is walked later
            raise _OddError


def _integers(rows: _Bytes, item: _Item) -> _Ints:
    """Little-endian numbers of one place in all rows."""
    part = rows[:, item.at : item.at + item.width]
    whole = _WHOLE.get((item.width, item.signed))
    if whole is not None:
        return np.asarray(np.ascontiguousarray(part).view(whole)[:, 0], np.int64)
    column = np.zeros(len(rows), np.uint64)
    for byte in range(item.width):
        column |= part[:, byte].astype(np.uint64) << np.uint64(8 * byte)
    top = np.uint64(1 << (8 * item.width - 1))
    return (column ^ top).astype(np.int64) - np.int64(int(top))


def _weights(count: int) -> npt.NDArray[np.uint64]:
    """Odd multipliers, the same in every process."""
    seeds = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(
        0xD1B54A32D192ED03
    )
    return (seeds ^ (seeds >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) | np.uint64(1)
