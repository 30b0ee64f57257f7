"""Dumps that are folded while they are read answer as those that are kept whole."""

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.analysis.adapters.catalog import ADAPTERS
from paceline.analysis.adapters.reading import Reading, read_inputs
from paceline.analysis.diagnosis.attempts import split_attempts
from paceline.analysis.diagnosis.flight_fold import FoldAsRead, fold_dumps
from paceline.analysis.diagnosis.picture import make_picture
from paceline.analysis.diagnosis.progress import count_files
from paceline.analysis.diagnosis.rules import DUMPS_ALONE, decide, judged
from paceline.analysis.diagnosis.rules.finding import Finding
from paceline.analysis.diagnosis.rules.order import RULES
from paceline.analysis.diagnosis.run import answer, diagnose_reading
from paceline.analysis.facts import FlightDump
from tests.bench.flight_sets import DumpSet

RANKS, ODD = 24, 13


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dumps")
    DumpSet(RANKS, 400, ODD).write(place)
    return place


def _read(folder: Path, fold: FoldAsRead | None) -> Reading:
    if fold is None:
        return read_inputs([str(folder)], ADAPTERS)
    return read_inputs([str(folder)], ADAPTERS, reduce=fold)


def _dumps(reading: Reading) -> list[FlightDump]:
    return [fact for fact in reading.facts if isinstance(fact, FlightDump)]


def test_answers_are_the_same(folder: Path) -> None:
    readings = [_read(folder, None), _read(folder, FoldAsRead()), _read(folder, FoldAsRead(0))]
    answers = [json.dumps([each.as_json() for each in diagnose_reading(reading)]) for reading in readings]
    assert answers[0] == answers[1] == answers[2]
    assert json.loads(answers[0])[0]["roots"][0]["rank"] == ODD


def test_tables_beyond_the_bound_keep_the_newest_entries(folder: Path) -> None:
    whole, cut = _dumps(_read(folder, FoldAsRead())), _dumps(_read(folder, FoldAsRead(0)))
    for one, two in zip(whole, cut, strict=True):
        assert len(one.entries) == 400
        assert len(two.entries) < 60
        assert np.array_equal(one.entries[-5:], two.entries[-5:])
    assert sum(dump.entries.nbytes for dump in cut) < 1 << 20


def test_progress_of_a_picture_needs_no_whole_table(folder: Path) -> None:
    pictures = []
    for fold in (None, FoldAsRead(0)):
        reading = _read(folder, fold)
        case = split_attempts(reading.facts)[-1]
        pictures.append(make_picture(answer(case, reading), case.facts, case.rank_of).progress)
    assert pictures[0] == pictures[1]


def test_dumps_of_two_readings_are_not_mixed(folder: Path) -> None:
    one, two = _dumps(_read(folder, FoldAsRead())), _dumps(_read(folder, FoldAsRead()))
    with pytest.raises(ValueError, match="apart"):
        fold_dumps([one[0], two[1]])


def test_recorders_of_two_backends_are_folded_apart(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "incidents/variants/fr-two-recorders-gloo-rank2"
    plain, folded = (_read(folder, fold) for fold in (None, FoldAsRead(0)))
    assert [each.as_json() for each in diagnose_reading(plain)] == [
        each.as_json() for each in diagnose_reading(folded)
    ]
    assert {dump.backend for dump in _dumps(folded)} == {"gloo", "nccl"}


def test_a_dump_without_entries_does_not_part_the_others(tmp_path: Path, folder: Path) -> None:
    empty = (
        '{"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0]"}}, "pg_status": {}}'
    )
    (tmp_path / "a.json").write_text(empty)
    for rank in range(8):
        (tmp_path / f"rank_{rank}").write_bytes((folder / f"rank_{rank}").read_bytes())
    plain, folded = (_read(tmp_path, fold) for fold in (None, FoldAsRead(0)))
    assert len(_dumps(folded)) == 9
    assert diagnose_reading(plain)[0].as_json() == diagnose_reading(folded)[0].as_json()


@pytest.mark.parametrize("kept", [RANKS, 3])
def test_rules_that_are_left_out_for_dumps_alone_say_nothing(folder: Path, kept: int) -> None:
    case = split_attempts(_read(folder, None).facts[:kept])[-1]
    said: list[Finding] = []
    for rule in RULES:
        if rule not in DUMPS_ALONE:
            assert rule(case) is None, rule
    said += [found for rule in (judged.dumps, judged.dumps_undecided) if (found := rule(case)) is not None]
    assert decide(case) == said[0]


def test_files_are_counted_for_progress(folder: Path) -> None:
    assert count_files([str(folder), str(folder / "rank_0"), "-"]) == RANKS + 2
