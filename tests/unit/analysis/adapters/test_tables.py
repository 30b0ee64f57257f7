"""Tables of any separator as rows: headers by their names, wide tables, lines that only look alike."""

from pathlib import Path

import pytest

from paceline.analysis.facts import SampleRow, SettingSeen
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type


def _rows(folder: Path, text: str) -> list[SampleRow]:
    return of_type(facts_of(folder, text), SampleRow)


@pytest.mark.parametrize(
    "text",
    [
        "step,rank,fwd_ms,bwd_ms\n7,3,120.5,241.0\n",
        "step;rank;fwd_ms;bwd_ms\n7;3;120.5;241.0\n",
        "step\trank\tfwd_ms\tbwd_ms\n7\t3\t120.5\t241.0\n",
        "| step | rank | fwd_ms | bwd_ms |\n|------|------|--------|--------|\n| 7 | 3 | 120.5 | 241.0 |\n",
        "step rank  fwd_ms  bwd_ms\n---------------------\n   7    3   120.5   241.0\n",
        "# step rank fwd_ms bwd_ms\n7 3 120.5 241.0\n",
    ],
)
def test_every_separator_gives_the_same_row(tmp_path: Path, text: str) -> None:
    (row,) = _rows(tmp_path, text)
    assert row.kind == "steps"
    assert row.speaker.rank == 3
    assert row.numbers["step"] == 7
    assert row.numbers["forward_s"] == pytest.approx(0.1205)
    assert row.numbers["backward_s"] == pytest.approx(0.241)


def test_a_column_of_times_taken_off_as_a_prefix(tmp_path: Path) -> None:
    (row,) = _rows(tmp_path, "timestamp,rank,step,step_ms\n2026-01-02 10:00:00.5,4,9,512.0\n")
    assert row.speaker.rank == 4
    assert row.numbers["step_s"] == pytest.approx(0.512)
    assert row.time_s is not None


def test_columns_that_name_ranks(tmp_path: Path) -> None:
    rows = _rows(tmp_path, "step,rank0_compute_ms,rank1,rank2\n1,,10,20\n2,11,12,13\n")
    assert [(row.numbers["step"], row.speaker.rank) for row in rows] == [
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
        (2, 2),
    ]


def test_two_ends_and_a_rate_are_a_pair(tmp_path: Path) -> None:
    (row,) = _rows(tmp_path, "node_a node_b busbw(GB/s)\nh0 h1 45.5\n")
    assert (row.kind, row.words["src"], row.words["dst"]) == ("pairs", "h0", "h1")
    assert row.numbers["busbw"] == pytest.approx(45.5e9)


@pytest.mark.parametrize(
    "text",
    [
        "rank step time loading data now\nnothing to see in this line here\n",  # prose
        "step,rank,fwd_ms\n",  # no row
        "name,color,taste\napple,3,4\n",  # names that mean nothing here
        "step,rank,fwd_ms\n1,2\n",  # another width
        "",
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str) -> None:
    assert _rows(tmp_path, text) == []


def test_a_line_of_another_width_ends_the_table(tmp_path: Path) -> None:
    rows = _rows(
        tmp_path, "step,rank,fwd_ms\n1,2,3\nthe run ends here, after some words, and more, words\n1,2,3\n"
    )
    assert len(rows) == 1


def test_reasons_of_low_clocks(tmp_path: Path) -> None:
    text = (
        "index, pci.bus_id, temperature.gpu, clocks_event_reasons.hw_thermal_slowdown, "
        "clocks_event_reasons.active\n"
        "2, 00000000:45:00.0, 91, Active, 0x0000000000000044\n"
        "3, 00000000:46:00.0, 61, Not Active, 0x0000000000000000\n"
    )
    found = of_type(facts_of(tmp_path, text), SettingSeen)
    assert {(fact.value, fact.speaker.gpu) for fact in found if fact.name == "clock_event_reason"} == {
        ("HW Thermal Slowdown", "0000:45:00"),
        ("SW Power Cap", "0000:45:00"),
    }
