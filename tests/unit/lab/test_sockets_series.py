"""What a series of runs on sockets says of the bar."""

import json
from pathlib import Path

import pytest

from paceline.lab.processes import LabError
from paceline.lab.sockets.faults import Fault
from paceline.lab.sockets.series import (
    Cell,
    Record,
    parse,
    plan_cells,
    read_records,
    render_table,
    select,
    summarise,
)


def record(
    cell: str, right: bool, first: bool = True, innocent: bool = False, after_s: float = 3.0
) -> Record:
    return {
        "cell": cell,
        "commit": "abc",
        "load": after_s,
        "class": "H3",
        "class_right": True,
        "root_right": right,
        "innocent": innocent,
        "first": {"class_right": first, "root_right": first, "innocent": False},
        "verdict_s": after_s,
    }


def test_default_series_is_what_the_bar_asks_for() -> None:
    arguments = parse([])
    cells = plan_cells(arguments.ring, arguments.tree, arguments.trees)
    runs = {cell.name: cell.runs for cell in cells}
    assert {runs[f"ring/{fault}"] for fault in ("h3", "s1", "s2", "s3")} == {30}
    assert {runs[f"{tree}/{fault}"] for tree in ("tree", "trees") for fault in ("h3", "s1", "s2", "s3")} == {
        10
    }
    assert (runs["ring/none"], runs["tree/none"], runs["trees/none"]) == (1, 1, 1)


def test_cells_are_selected_by_name_algorithm_or_fault() -> None:
    cells = plan_cells(5, 0, 2)
    assert not [cell for cell in cells if cell.algorithm == "tree"]
    assert select(cells, ["ring/h3"]) == [Cell("ring", Fault.H3, 5)]
    assert {cell.name for cell in select(cells, ["s2"])} == {"ring/s2", "trees/s2"}
    assert len(select(cells, ["trees"])) == 5
    assert select(cells, []) == cells


@pytest.mark.parametrize(("wrong", "met"), [(0, True), (1, True), (2, False)])
def test_bar_is_95_percent_of_the_runs(wrong: int, met: bool) -> None:
    (result,) = summarise(record("ring/h3", right=number >= wrong) for number in range(30))
    assert (result.runs, result.class_right, result.root_right) == (30, 30, 30 - wrong)
    assert result.met is met


def test_ten_runs_need_all_to_be_right() -> None:
    (result,) = summarise(record("tree/h3", right=number > 0) for number in range(10))
    assert not result.met


def test_table_counts_revised_verdicts_and_innocents_and_says_what_is_missed() -> None:
    records = [
        record("ring/s1", right=True, first=False, after_s=2.0),
        record("ring/s1", right=True, after_s=4.0),
        record("tree/s1", right=False, innocent=True),
    ]
    ring, tree = summarise(records)
    assert (ring.first_right, ring.innocent, ring.worst_s, ring.load) == (1, 0, 4.0, (2.0, 4.0))
    assert (tree.root_right, tree.innocent) == (0, 1)
    lines = render_table([ring, tree]).splitlines()
    assert lines[1].endswith("met")
    assert lines[2].endswith("MISSED")


def test_recorded_series_are_read_from_several_files(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text(json.dumps(record("ring/h3", right=True)) + "\n")
    (result,) = summarise(read_records(paths))
    assert result.runs == 2


@pytest.mark.parametrize(("text", "said"), [("{", "no JSON object"), ('{"cell": "ring/h3"}', "no class")])
def test_line_that_is_no_record_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(LabError, match=rf"a\.jsonl:1: {said}"):
        read_records([path])
