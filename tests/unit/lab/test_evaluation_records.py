"""A run is gone on with where it was interrupted, and only by the same code."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.contracts.verdicts import Root, RootKind, SubReason, VerdictClass
from paceline.fleet import Conditions, FaultKind, Pause, ProfileName, Truth
from paceline.lab.evaluation import execute, main
from paceline.lab.evaluation.cases import Case
from paceline.lab.evaluation.commands import add
from paceline.lab.evaluation.execute import Progress
from paceline.lab.evaluation.peers import PeerRow
from paceline.lab.evaluation.records import RecordError, Records, case_key, code_version
from paceline.lab.evaluation.runner import Result
from paceline.lab.evaluation.score import Match, Score

CASE = Case(FaultKind.MISSING_ENTER, "2x2x4", ProfileName.GLOO, 1)
OTHER = replace(CASE, seed=2)
TRUTH = Truth(
    VerdictClass.H1,
    frozenset({VerdictClass.H1}),
    frozenset({SubReason.MISSING_ENTER}),
    (Root(RootKind.RANK, rank=3, node="node-00000"), Root(RootKind.GROUP, ranks=(1, 2))),
    (3,),
)
SCORE = Score(
    VerdictClass.H1, SubReason.MISSING_ENTER, True, True, Match.EXACT, 1, 1, 1, (5,), None, 0, "rank 3", False
)


def result_of(case: Case) -> Result:
    return Result(case, TRUTH, SCORE, replace(SCORE, match=Match.WRONG, seconds=4.5), 0.25)


def written(path: Path, *cases: Case) -> None:
    records = Records.open(path)
    for case in cases:
        records.add(case, result_of(case))
    records.close()


def test_a_recorded_result_is_read_back_as_it_was_and_one_without_a_place_is_not_run_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.jsonl"
    written(path, CASE)
    records = Records.open(path)
    records.add(OTHER, None)
    records.close()
    again = Records.open(path)
    assert CASE in again
    assert OTHER in again
    assert list(again.results([OTHER, CASE])) == [result_of(CASE)]
    assert replace(CASE, seconds=30) not in again
    again.close()


def test_a_torn_line_costs_one_job_and_lines_of_other_code_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    written(path, CASE, OTHER)
    whole = path.read_text()
    path.write_text(whole.replace(code_version(), "other", 1)[:-40])
    records = Records.open(path)
    assert (records.others, records.torn) == (1, 1)
    assert CASE not in records
    records.add(CASE, result_of(CASE))
    records.close()
    last = Records.open(path)
    assert CASE in last
    assert OTHER not in last
    last.close()


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first = Records.open(path)
    with pytest.raises(RecordError, match="in use by another run"):
        Records.open(path)
    first.close()
    with pytest.raises(RecordError, match="cannot be written"):
        Records.open(tmp_path / "no" / "run.jsonl")


def test_a_reading_takes_what_the_newest_code_wrote(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    written(path, CASE, OTHER)
    old, new = path.read_text().splitlines()
    path.write_text(f"{old}\n{new.replace(code_version(), 'newer')}\n")
    records = Records.open(path, any_code=True)
    assert [result.case for result in records.results([CASE, OTHER])] == [OTHER]


def test_rows_of_peers_are_kept_beside_the_jobs(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows = (PeerRow("H1", (3,), "paceline", (3,), 1, (3,), 0.5, "note"),)
    records = Records.open(path)
    assert records.peers(CASE) is None
    records.add_peers(CASE, rows)
    records.close()
    again = Records.open(path)
    assert again.peers(CASE) == rows
    assert CASE not in again
    again.close()


def test_the_key_of_a_case_is_all_of_it() -> None:
    paused = replace(CASE, conditions=Conditions(pauses=(Pause(1.0, 2.0),)))
    assert len({case_key(case) for case in (CASE, OTHER, paused, replace(CASE, seconds=9))}) == 4
    assert case_key(CASE) == case_key(replace(CASE))


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    arguments = parser.parse_args(["eval", *words])
    status: int = arguments.run(arguments)
    return status


def test_an_interrupted_command_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    ran: list[str] = []

    def run_case(case: Case) -> Result:
        if len(ran) == 2:
            ran.append("interrupted")
            raise KeyboardInterrupt
        ran.append(case.name)
        return result_of(case)

    monkeypatch.setattr(execute, "run_case", run_case)
    words = ("--seeds", "4", "--only", "corpus/h2-size/2x2x4", "--json", "--record", str(path))
    assert run_command(*words) == main.INTERRUPTED
    assert "goes on" in capsys.readouterr().err
    assert run_command(*words, "--no-run") == 1  # two of thirty: a bar is missed
    assert json.loads(capsys.readouterr().out)["jobs"] == 2
    assert run_command(*words) == 1
    assert json.loads(capsys.readouterr().out)["jobs"] == 4
    assert len(set(ran)) == 5
    assert len(ran) == 5
    assert run_command("--no-run") == 2
    assert run_command("--no-run", "--record", str(tmp_path / "none.jsonl")) == 2


def test_progress_estimates_by_simulated_time_and_keeps_quiet_in_between() -> None:
    now = [0.0]
    healthy = replace(CASE, kind=None, seconds=3600)
    progress = Progress([healthy, healthy], clock=lambda: now[0])
    now[0] = 60.0
    assert progress.note(healthy) == "1 of 2 jobs, 1.0 min, about 1 min left\n"
    now[0] = 61.0
    assert progress.note(healthy) is None


def test_a_process_that_reads_other_sources_than_the_first_one_judges_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execute._Process, "changed", True)
    with pytest.raises(execute.CodeChangedError, match="checkout of its own"):
        list(execute.run_cases([CASE], 1))
