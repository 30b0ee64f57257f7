"""Cursors: opaque text that says where the next page begins. Never an offset."""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Query

from paceline.api.errors import FieldProblem, InvalidRequest

LIMIT_MAX = 200
CURSOR_LENGTH_MAX = 512

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Items on a page")]
CursorText = Annotated[
    str | None, Query(alias="cursor", max_length=CURSOR_LENGTH_MAX, description="next_cursor of a page")
]


def encode_cursor(*values: str | int | datetime) -> str:
    """Text for the values of the last item."""
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return base64.urlsafe_b64encode(json.dumps(plain, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode(cursor: str, count: int) -> list[object]:
    try:
        data = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        raise bad_cursor(cursor) from None
    if not isinstance(data, list) or len(data) != count:
        raise bad_cursor(cursor)
    return data


def bad_cursor(cursor: str) -> InvalidRequest:
    problem = FieldProblem(field="query.cursor", value=cursor[:80], expected="next_cursor of an earlier page")
    return InvalidRequest("the cursor is not one of ours", (problem,))


def decode_time_cursor(cursor: str | None) -> tuple[datetime, str] | None:
    """(time, id) of the last item seen."""
    if cursor is None:
        return None
    at, identifier = _decode(cursor, 2)
    try:
        moment = datetime.fromisoformat(str(at))
    except ValueError:
        raise bad_cursor(cursor) from None
    if moment.tzinfo is None or not isinstance(identifier, str) or "\0" in identifier:
        raise bad_cursor(cursor)
    return moment, identifier


def decode_number_cursor(cursor: str | None) -> int | None:
    """Number of the last item seen."""
    if cursor is None:
        return None
    (number,) = _decode(cursor, 1)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**63:
        raise bad_cursor(cursor)
    return number


def decode_text_cursor(cursor: str | None) -> tuple[str, str] | None:
    """Two texts of the last item seen."""
    if cursor is None:
        return None
    first, second = _decode(cursor, 2)
    if not isinstance(first, str) or not isinstance(second, str) or "\0" in first + second:
        raise bad_cursor(cursor)
    return first, second


def next_cursor(fetched: Sequence[object], limit: int, *values: str | int | datetime) -> str | None:
    """Cursor of the page after this one, where one more than `limit` items were fetched."""
    return encode_cursor(*values) if len(fetched) > limit else None
