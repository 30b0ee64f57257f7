"""Tables of measured values: CSV and its relatives, Markdown, and columns that blanks separate.

The header names the columns, each line below it with as many fields is one row, read as a row of
`adapters.rows` is. A header is recognised by its names (those of `row_fields`), never by the file's name, and
only where a row of numbers follows it. Columns such as `rank0 rank1 ...` beside a step are one row for each
rank. Tables that have a reader of their own (nccl-tests, perftest, top) are left to it.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.analysis.adapters.model import Block
from paceline.analysis.adapters.row_fields import WORD_OF, bare_name, is_measure, is_place, stamp_of
from paceline.analysis.adapters.rows import row_facts
from paceline.analysis.adapters.smi_rows import clock_reasons
from paceline.analysis.facts import Fact, Line

COLUMNS_MAX = 1100  # a wide table of a thousand ranks
_HEADER_CHARS_MAX = 16_000
_ROWS_LOOKED = 3  # below a header: a ruler or a line of units may stand between
_NAME = re.compile(r"#?\s?[A-Za-z%][\w .()\[\]/%#:*-]{0,60}")
_NUMBER = re.compile(r"-?(?:\d{1,18}(?:\.\d{0,12})?|\.\d{1,12})(?:[eE][+-]?\d{1,3})?")
_MEASURED = re.compile(_NUMBER.pattern + r" ?(?:[a-zA-Zµ%]{1,3}(?:/s)?|\[?MHz\]?)?")
_HEADING = re.compile(r"^\W{0,4}(?:[Ss]tep|[Ii]ter(?:ation)?)[ =:#]{1,3}(?P<step>\d{1,12})\b")
_HEADING_CHARS = 40
_RULER = re.compile(r"[\s|:+=-]*")
_OF_RANK = re.compile(
    r"(?:(?P<what>[a-z_]{1,40}?)_)?(?:rank|r|worker|gpu)_?(?P<rank>\d{1,6})(?:_(?P<rest>[a-z_]{1,40}))?"
)
_OWN_READER = re.compile(r"#bytes|\bPID\b|redop|#wrong")
_UNITS = ("", "ms", "us", "s", "sec", "seconds")
_STATISTIC = frozenset(("min", "max", "mean", "avg", "median", "std", "p50", "p95", "p99"))


@dataclass(frozen=True)
class _Table:
    separator: str  # " " for blanks of any number
    columns: tuple[str, ...]
    wide: tuple[tuple[int, str, int], ...] = ()  # (column, name of the measure, rank)


class DelimitedTables:
    """One table at a time for each file; a line of another width ends it."""

    name = "tables"
    needles = (",", "\t", "|", ";", " ")

    def __init__(self) -> None:
        self._file, self._line = "", 0
        self._table: _Table | None = None
        self._step: int | None = None  # of the heading above the table
        self._heading: tuple[int, int] | None = None  # (step, line) of `[step 173] ...` above a table

    def read(self, block: Block) -> Iterator[Fact]:
        line = block.line
        origin, text = line.origin, line.text
        if origin.file != self._file or origin.line < self._line:
            self._table = self._heading = None
        self._file, self._line = origin.file, origin.line
        if self._table is not None:
            fields = _fields(text, self._table, line)
            if fields is not None:
                yield from _facts(self._table, fields, line, self._step)
                return
            if text.strip() and not text.startswith("#") and not _RULER.fullmatch(text):
                self._table = None
        if found := _HEADING.match(text[:_HEADING_CHARS]):
            self._heading = int(found["step"]), origin.line
        if self._table is None and len(text) <= _HEADER_CHARS_MAX:
            self._table = _header(block)
            near = self._heading is not None and origin.line - self._heading[1] <= _ROWS_LOOKED
            self._step = self._heading[0] if near and self._heading is not None else None


def _header(block: Block) -> _Table | None:
    text = block.line.text
    if text[:1] in ("{", "[", "<") or _OWN_READER.search(text[:400]):
        return None
    for separator in (",", "\t", ";", "|", " "):
        if separator not in text:
            continue
        names = _split(text.removeprefix("#").strip() if separator == " " else text, separator)
        least = 3 if separator == " " else 2
        if not least <= len(names) <= COLUMNS_MAX or not all(_NAME.fullmatch(name) for name in names):
            continue
        columns = tuple(bare_name(name) for name in names)
        table = _Table(separator, columns, _wide(columns))
        if _is_header(table) and _row_follows(block, table):
            return table
    return None


def _is_header(table: _Table) -> bool:
    """A place (rank, node, step, two ends, ...) and a measure, by name; among blanks nearly all are names."""
    places = [is_place(column) for column in table.columns]
    measures = [is_measure(column) for column in table.columns]
    if table.wide:
        return any(places) or any(stamp_of(column) for column in table.columns)
    known = sum(place or measure for place, measure in zip(places, measures, strict=True))
    least = 2 if table.separator != " " else max(3, (len(table.columns) + 1) // 2)
    return any(places) and any(measures) and known >= least


def _wide(columns: Sequence[str]) -> tuple[tuple[int, str, int], ...]:
    """Columns that name a rank each: what they measure is in the name, or the time of a step."""
    found = []
    for at, column in enumerate(columns):
        if match := _OF_RANK.fullmatch(column):
            rest = match["rest"] or ""
            what = match["what"] or ("step_time" if rest in _UNITS else rest or "step_time")
            if what.split("_")[-1] in _STATISTIC:
                continue
            found.append((at, f"{what}_{rest}" if rest in _UNITS and rest else what, int(match["rank"])))
    return tuple(found) if len(found) >= 2 and len({rank for _, _, rank in found}) == len(found) else ()


def _row_follows(block: Block, table: _Table) -> bool:
    looked = 0
    for line in block.after:
        if not line.text.strip() or _RULER.fullmatch(line.text) or line.text.startswith("#"):
            continue
        looked += 1
        if (fields := _fields(line.text, table, line)) is not None:
            return any(_MEASURED.fullmatch(field) for field in fields)
        if looked >= _ROWS_LOOKED:
            return False
    return False


def _fields(text: str, table: _Table, line: Line) -> list[str] | None:
    """As many fields as the header has; a time in front may have been taken off as a prefix."""
    if not text.strip() or _RULER.fullmatch(text):
        return None
    fields = _split(text.strip() if table.separator == " " else text, table.separator)
    missing = len(table.columns) - len(fields)
    if missing == 1 and line.time_s is not None and stamp_of(table.columns[0]):
        fields = ["", *fields]
    elif missing:
        return None
    return fields if any(_NUMBER.match(field) for field in fields) else None


def _split(text: str, separator: str) -> list[str]:
    if separator == " ":
        return text.split()
    if separator == "|":
        return [field.strip() for field in text.strip().strip("|").split("|")]
    try:
        return [field.strip() for field in next(csv.reader([text], delimiter=separator), [])]
    except csv.Error:
        return []


def _facts(table: _Table, fields: Sequence[str], line: Line, step: int | None) -> Iterator[Fact]:
    row: dict[str, Any] = {}
    if step is not None and "step" not in table.columns:
        row["step"] = step
    taken = {at for at, _, _ in table.wide}
    for at, (column, field) in enumerate(zip(table.columns, fields, strict=True)):
        if field and at not in taken:
            row.setdefault(column, _value(column, field))
    yield from clock_reasons(row, line)
    if not table.wide:
        yield from row_facts(row, line)
    for at, name, rank in table.wide:
        if (value := _value(name, fields[at])) != "":
            yield from row_facts({**row, "rank": rank, name: value}, line)


def _value(column: str, field: str) -> Any:
    """A number where the whole field is one; names of machines and devices stay words."""
    if WORD_OF.get(column) in ("node", "gpu") and not field.isdecimal():
        return field
    if not _NUMBER.fullmatch(field):
        return field
    return int(field) if field.lstrip("-").isdecimal() else float(field)
