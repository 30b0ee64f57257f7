"""JSON documents that hold measured rows: arrays of rows, rows under a name or under their rank, columns."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from paceline.analysis.adapters.model import Document
from paceline.analysis.adapters.reading import hint_of
from paceline.analysis.adapters.rows import kinds_of, read_fields, row_facts
from paceline.analysis.facts import Fact, Line, Origin

ROWS_MAX = 1_000_000
_BYTES_MAX = 64 << 20
_DEPTH = 5
_LOOK = 50  # rows looked at before a document is taken for something else


class JsonDocuments:
    """Any JSON document in which at least one of the first rows is of a known kind.

    Asked last: dumps and reports of tools are JSON as well. Rows are numbered from 1 in `Origin.line`.
    """

    name = "rows in a document"

    def recognise(self, document: Document) -> bool:
        content = _load(document)
        if content is None:
            return False
        return any(set(kinds_of(read_fields(row))) - {"other"} for row in islice(rows_of(content), _LOOK))

    def read(self, document: Document) -> Iterator[Fact]:
        content = _load(document)
        hint = hint_of(document.name)
        for number, row in enumerate(islice(rows_of(content), ROWS_MAX), 1):
            yield from row_facts(row, Line(Origin(document.name, number), "", hint))


def rows_of(
    content: Any, depth: int = 0, above: Mapping[str, Any] | None = None
) -> Iterator[Mapping[str, Any]]:
    """Every object that looks like a row; scalars beside a list belong to each row of the list.

    `{"ranks": {"3": {...}}}` gives the row its key as rank, columns of equal length become rows.
    """
    shared = dict(above or {})
    if depth > _DEPTH:
        return
    if isinstance(content, list):
        for item in content:
            if isinstance(item, dict):
                yield from rows_of(item, depth + 1, shared)
        return
    if not isinstance(content, dict) or not content:
        return
    scalars = {key: value for key, value in content.items() if not isinstance(value, list | dict)}
    columns = {key: value for key, value in content.items() if _is_column(value)}
    nested = [(key, value) for key, value in content.items() if _is_nested(value)]
    if columns and not nested and _are_columns(columns):
        for values in zip(*columns.values(), strict=True):
            yield {**shared, **scalars, **dict(zip(columns, values, strict=True))}
        return
    by_rank = {key: int(digits[:9]) for key, value in nested if value and (digits := _rank_key(key))}
    if not nested or (scalars and not by_rank and not any(isinstance(value, list) for _, value in nested)):
        yield {**shared, **content}
        return
    for key, value in nested:
        own = {"rank": by_rank[key]} if key in by_rank else {}
        yield from rows_of(value, depth + 1, {**shared, **scalars, **own})


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict) for item in value)
    )


def _rank_key(key: str) -> str:
    """The digits of `3`, `rank3` or `rank_3`, else nothing."""
    digits = key.removeprefix("rank").strip("_- ")
    return digits if digits.isascii() and digits.isdecimal() else ""


def _is_column(value: Any) -> bool:
    if not isinstance(value, list) or len(value) < 2:
        return False
    return not any(isinstance(item, list | dict) for item in value[:_LOOK])


def _are_columns(columns: Mapping[str, list[Any]]) -> bool:
    """At least two lists of one length, so that a shape or a list of ranks is none."""
    return len(columns) >= 2 and len({len(values) for values in columns.values()}) == 1


def _load(document: Document) -> Any:
    if len(document.content) > _BYTES_MAX or document.content[:64].lstrip()[:1] not in (b"[", b"{"):
        return None
    try:
        return json.loads(document.content)
    except (ValueError, RecursionError):
        return None
