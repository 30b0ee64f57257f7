"""JSON as tools really write it: without a comma here and there, cut off, several objects in a row."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

OBJECTS_MAX = 2_000_000
FAILURES_MAX = 1_000  # broken objects that are passed over before the rest is left
_MISSING_COMMA = re.compile(r'([}\]"\dels])([ \t\r]*\n\s*)(?=["{\[])')
_SPARE_COMMA = re.compile(r",(\s*[}\]])")
_OPENING = re.compile(r"[{\[]")
_OPENING_LINE = re.compile(r"^[{\[]", re.MULTILINE)
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_DECODER = json.JSONDecoder(parse_constant=lambda word: None)


def load_repaired(text: str) -> Any:
    """The first JSON value of `text`, repaired where that is possible; None where it is none.

    Repairs: words before it, missing commas between lines, commas too many, an end that was cut off.
    """
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if start < 0:
        return None
    text = text[start:]
    for repair in (str, _commas, lambda broken: _closed(_commas(broken))):
        try:
            return _DECODER.raw_decode(repair(text))[0]
        except (ValueError, RecursionError):
            continue
    return None


def objects_of(text: str, at_most: int = OBJECTS_MAX) -> Iterator[dict[str, Any]]:
    """JSON objects that follow each other, in lines, pretty or in one list; garbage is passed over."""
    at, count, failures = _first(text, 0), 0, 0
    while 0 <= at < len(text) and count < at_most and failures < FAILURES_MAX:
        try:
            value, at_next = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            at, failures = _first_after_line(text, at), failures + 1
            continue
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, dict):
                count += 1
                yield item
        at = _first(text, at_next)


def integer(value: Any) -> int | None:
    """An integer as JSON may give it (number, or digits in a string); None where it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 1 << 62 else None
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else None
    if isinstance(value, str) and len(value) < 19 and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return None


def word(value: Any, at_most: int = 256) -> str:
    """A string, bounded; empty where it is none."""
    return value[:at_most] if isinstance(value, str) else ""


def _first(text: str, at: int) -> int:
    """Where the next object or list of objects begins."""
    found = _OPENING.search(text, at)
    return found.start() if found else -1


def _first_after_line(text: str, at: int) -> int:
    """Past the line that could not be read, so that a broken text is read once and not once per byte."""
    end = text.find("\n", at)
    if end < 0:
        return -1
    found = _OPENING_LINE.search(text, end + 1)
    return found.start() if found else -1


def _commas(text: str) -> str:
    return _SPARE_COMMA.sub(r"\1", _MISSING_COMMA.sub(r"\1,\2", text))


def _closed(text: str) -> str:
    """What was cut off is dropped back to the last whole value, and open brackets are closed."""
    stack: list[str] = []
    whole, whole_stack = 0, ""
    in_string = escaped = False
    for at, character in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]":
            if not stack or stack.pop() != character:
                break
            whole, whole_stack = at + 1, "".join(reversed(stack))
            if not stack:
                break
        elif character == "," and stack:
            whole, whole_stack = at, "".join(reversed(stack))
    return text[:whole] + whole_stack
