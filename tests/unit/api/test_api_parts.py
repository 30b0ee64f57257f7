"""Cursors, problems, the body limit, the console's files: without a database."""

import contextlib
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.api.console import find_file
from paceline.api.errors import ApiError, InvalidRequest, NotFound, StaleVersion, responses
from paceline.api.events.endpoints import gap_reason, parse_event_id
from paceline.api.incidents.page import detected_at
from paceline.api.jobs.service import sort_axes
from paceline.api.middleware import read_trace_id
from paceline.api.openapi import render_openapi
from paceline.api.pagination import (
    decode_number_cursor,
    decode_text_cursor,
    decode_time_cursor,
    encode_cursor,
)
from paceline.store.models.incident import Incident
from paceline.store.models.timeline import TimelineEntry

ROOT = Path(__file__).parents[3]
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


def test_the_committed_description_is_that_of_the_code() -> None:
    committed = (ROOT / "services/platform/openapi.json").read_text()
    assert committed == render_openapi(), (
        "run `python -m paceline.api.openapi services/platform/openapi.json`"
    )


def test_cursors_there_and_back() -> None:
    assert decode_time_cursor(encode_cursor(AT, "inc_1")) == (AT, "inc_1")
    assert decode_number_cursor(encode_cursor(7)) == 7
    assert decode_text_cursor(encode_cursor("tp_1", "00aa")) == ("tp_1", "00aa")
    assert decode_time_cursor(None) is None


@given(st.text(max_size=60))
def test_a_foreign_cursor_is_an_invalid_request_never_a_crash(text: str) -> None:
    for decode in (decode_time_cursor, decode_number_cursor, decode_text_cursor):
        with contextlib.suppress(InvalidRequest):
            decode(text)


@pytest.mark.parametrize("values", [(True,), (-1,), (2**63,), ("x",)])
def test_a_number_cursor_with_another_value(values: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidRequest):
        decode_number_cursor(encode_cursor(*values))


def test_a_cursor_of_another_list_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_time_cursor(encode_cursor("no time", "inc_1"))
    with pytest.raises(InvalidRequest):
        decode_time_cursor(encode_cursor(AT.replace(tzinfo=None), "inc_1"))


def all_errors(base: type[ApiError] = ApiError) -> list[type[ApiError]]:
    return [found for kind in base.__subclasses__() for found in (kind, *all_errors(kind))]


def test_codes_of_errors_are_unique() -> None:
    codes = [error.code for error in all_errors() if error.status != 500]
    assert len(codes) == len(set(codes)) > 10


def test_an_error_describes_itself() -> None:
    problem = StaleVersion("read it again").problem("ab" * 16)
    assert (problem.status, problem.code, problem.type) == (
        412,
        "stale_version",
        "urn:paceline:problem:stale_version",
    )
    described = responses(NotFound)
    assert set(described) == {404, 422, 503}


@pytest.mark.parametrize(
    ("position", "oldest", "newest", "expected"),
    [
        (5, 1, 5, None),
        (0, 1, 5, None),
        (3, 4, 5, None),
        (2, 4, 5, "no longer kept"),
        (9, 1, 5, "ahead"),
        (0, 1, 101, "more than 100"),
        (0, 0, 0, None),
    ],
)
def test_a_gap_in_the_event_stream(position: int, oldest: int, newest: int, expected: str | None) -> None:
    found = gap_reason(position, oldest, newest, 100)
    assert found is None if expected is None else expected in str(found)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "abc", "²", str(2**63)])
def test_a_foreign_event_id(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_event_id(text)


def test_trace_ids() -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert read_trace_id(good) == "0af7651916cd43dd8448eb211c80319c"
    for bad in ("", "nonsense", f"00-{'0' * 32}-b7ad6b7169203331-01"):
        assert len(read_trace_id(bad)) == 32
        assert read_trace_id(bad) not in (good, "0" * 32)


def test_files_of_the_console(tmp_path: Path) -> None:
    root = tmp_path / "dist"
    (root / "assets").mkdir(parents=True)
    (root / "index.html").write_text("index")
    (root / "assets" / "a.js").write_text("js")
    (tmp_path / "secret.txt").write_text("no")
    assert find_file(root, "assets/a.js") == root / "assets" / "a.js"
    assert find_file(root, "incidents/inc_1") == root / "index.html"
    assert find_file(root, "") == root / "index.html"
    assert find_file(root, "assets/gone.js") is None
    assert find_file(root, "../secret.txt") is None
    assert find_file(root, "a\0b") is None
    assert find_file(root, "a" * 300) is None


def test_a_reopened_incident_was_detected_when_it_was_reopened() -> None:
    incident = Incident(opened_at=AT, reopened_count=0)
    entries = [
        TimelineEntry(kind=kind, at=AT + timedelta(minutes=minutes))
        for minutes, kind in ((30, "updated"), (20, "reopened"), (10, "reopened"), (0, "opened"))
    ]
    assert detected_at(incident, entries) == AT
    incident.reopened_count = 2
    assert detected_at(incident, entries) == AT + timedelta(minutes=20)
    assert detected_at(incident, []) == AT


def test_axes_in_the_order_of_the_layout() -> None:
    assert sort_axes({"dp": 2, "zz": 1, "tp": 4, "aa": 1}) == ["tp", "dp", "aa", "zz"]
