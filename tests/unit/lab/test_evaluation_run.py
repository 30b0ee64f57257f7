"""The corpus through the real cores, the control, the dumps and the bars."""

import argparse
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.adapters.model import UnusableInput
from paceline.contracts.verdicts import VerdictClass
from paceline.fleet import CommKind, FaultKind, ProfileName
from paceline.lab.evaluation.bars import judge_bars
from paceline.lab.evaluation.cases import TOPOLOGIES, Case, Coverage
from paceline.lab.evaluation.commands import add
from paceline.lab.evaluation.flight_dumps import FlightRecorder
from paceline.lab.evaluation.peer_nvrx import read_nvrx
from paceline.lab.evaluation.peers import PeerRow, judge_dumps, read_fr_trace
from paceline.lab.evaluation.plan import Amount, all_cases, peer_cases
from paceline.lab.evaluation.runner import Result, run_case
from paceline.lab.evaluation.table import failures, peer_lines, quiet_rows, render

H1 = Case(FaultKind.MISSING_ENTER, "2x2x4", ProfileName.GLOO, 1)


def result_of(case: Case) -> Result:
    result = run_case(case)
    assert result is not None
    return result


def test_a_rank_that_never_enters_is_named_by_the_real_cores_and_counted_as_right() -> None:
    result = result_of(H1)
    assert result.score.all_right
    assert result.score.seconds is not None
    assert 3.0 < result.score.seconds < 15.0
    assert failures([result]) == []
    assert "class H1" in render([result], [], [])


def test_argmin_blames_somebody_else_where_progress_alone_does_not_tell() -> None:
    case = Case(FaultKind.OPERATION, "2x2x4", ProfileName.GLOO, 1, group=CommKind.WORLD)
    result = result_of(case)
    assert result.score.all_right
    assert not result.control.all_right


def test_a_healthy_job_raises_nothing_for_as_long_as_it_was_asked_to_run() -> None:
    result = result_of(Case(None, "2x2x4", ProfileName.NCCL1, 3, part="healthy", seconds=40))
    assert result.score.false_alarms == 0
    assert result.truth.verdict_class is VerdictClass.NONE
    assert [(row.slice, row.jobs, row.alarms) for row in quiet_rows([result])] == [
        ("all", 1, 0), ("topology 2x2x4", 1, 0), ("profile nccl1", 1, 0),
    ]  # fmt: skip
    assert "without a fault" in render([result], [], [])
    amount = Amount(1, 1, 1, 1, 40, ("2x2x4",), 0)
    bars = {bar.name: bar for bar in judge_bars([result], [], amount, short=False)}
    assert bars["healthy jobs"].met is False  # 40 s are not 24 h
    assert bars["class accuracy, complete samples"].met is None


def test_thirty_injections_of_each_class_and_topology_are_asked_for_only_in_the_whole_run() -> None:
    result, amount = result_of(H1), Amount.short()
    whole, short = (
        {bar.name: bar.met for bar in judge_bars([result], [], amount, short=short)}
        for short in (False, True)
    )
    assert whole["class accuracy, complete samples"] is False
    assert short["class accuracy, complete samples"] is True
    assert short["hang to verdict in memory, P90"] is True
    assert short["argmin-only control"] is False  # of one H1 it is right, too


def test_cases_are_fixed_and_their_names_are_unique() -> None:
    cases = [case for case in all_cases(Amount.whole(2)) if case.kind is not None]
    assert len({case.name for case in cases}) == len(cases)
    again = [case for case in all_cases(Amount.whole(2)) if case.kind is not None]
    assert [case.name for case in cases] == [case.name for case in again]
    assert cases[0].draw() == again[0].draw()
    only = list(all_cases(Amount.whole(2), ("corpus", "/2x2x4/")))
    assert only
    assert {case.topology for case in only} == {"2x2x4"}
    assert {case.part for case in only} == {"corpus"}
    assert peer_cases(Amount.whole(2), ("corpus",)) == []


@pytest.mark.parametrize("cover", [Coverage.OTHERS, Coverage.GUILTY])
def test_coverage_hides_ranks_but_the_guilty_one_only_where_asked(cover: Coverage) -> None:
    case = Case(FaultKind.MISSING_ENTER, "8x4x4", ProfileName.GLOO, 7, cover)
    (fault,) = case.draw()
    hidden = case.make_job().conditions.unobserved
    assert len(hidden) == (1 if cover is Coverage.GUILTY else 13)
    assert (fault.rank in hidden) is (cover is Coverage.GUILTY)


def test_dumps_hold_only_data_and_show_a_rank_that_never_entered(tmp_path: Path) -> None:
    job = Case(FaultKind.MISSING_ENTER, "2x2x4", ProfileName.NCCL1, 4, group=CommKind.TP).make_job()
    recorder = FlightRecorder(job)
    for second in range(30):
        job.tables(second)
    recorder.write(tmp_path, 29.0)
    dumps = list(recorder.dumps(29.0))
    assert len(dumps) == len(list(tmp_path.iterdir())) == TOPOLOGIES["2x2x4"].ranks
    entries = dumps[0]["entries"]
    assert [entry["record_id"] for entry in entries] == list(range(len(entries)))
    check_numbers(dumps[0])
    assert not any(entry["is_p2p"] for entry in next(recorder.dumps(29.0, pairs=False))["entries"])
    verdict = judge_dumps(tmp_path)
    assert verdict.verdict_class is VerdictClass.H1
    assert {root.rank for root in verdict.roots} == job.truth().root_ranks
    (tmp_path / "rank_0").write_bytes(pickle.dumps(Path))
    with pytest.raises(UnusableInput, match="pathlib"):
        judge_dumps(tmp_path)


def check_numbers(dump: dict[str, Any]) -> None:
    """As in real dumps: each group counts its own operations, sends and receives apart."""
    for local, name in enumerate(dump["pg_config"]):
        mine = [entry for entry in dump["entries"] if entry["process_group"][0] == name]
        numbers = [entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"] for entry in mine]
        assert numbers == list(range(1, len(mine) + 1))
        assert {entry["pg_id"] for entry in mine} == {local}
        status = dump["pg_status"][str(local)]
        assert status["last_enqueued_collective"] == len(mine)
        assert status["last_completed_collective"] == sum(entry["retired"] for entry in mine)
    pairs = [entry for entry in dump["entries"] if entry["is_p2p"]]
    assert {entry["profiling_name"] for entry in pairs} == {"nccl:send 0->1", "nccl:recv 0<-1"}


def test_nvrx_is_read_by_the_last_column_of_its_table() -> None:
    table = (
        "PGID   | Process Group Desc | Op Type    | Size | Dtype | Missing Ranks\n"
        "9      | TENSOR,0           | nccl:x     | 8    | Float | 3,4\n"
        "12     | DATA,1             | nccl:y     | 8    | Float | 4\n"
    )
    assert read_nvrx(table + "INFO\n" + table) == ((3, 4), 2, (3, 4))
    assert read_nvrx("PGID | Missing\n1 | 2\n") == ((), 0, ())


def test_each_tool_has_a_line_of_how_often_it_is_right() -> None:
    rows = [
        PeerRow("H1", (3,), "paceline", (3,), 1, (3,), 0.1),
        PeerRow("H1", (3,), "fr_trace", (1, 2, 3), 2, (1, 2), 0.1),
    ]
    text = "\n".join(peer_lines(rows))
    assert "paceline: exact in 1 of 1, the injected among the named in 1, the first line right in 1" in text
    assert "fr_trace: exact in 0 of 1, the injected among the named in 1, the first line right in 0" in text


def test_fr_trace_is_read_line_by_line() -> None:
    text = (
        "Not all ranks joining collective, sequence number: 7\nmissing ranks: {3, 4}\n"
        "error msg: Culprit rank 9; Error type: X, Culprit rank 2; Error type: Y\nexpected ranks: {1, 2}\n"
    )
    assert read_fr_trace(text) == ((2, 3, 4, 9), 2, (3, 4))
    assert read_fr_trace("nothing") == ((), 0, ())


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    arguments = parser.parse_args(["eval", *words])
    status: int = arguments.run(arguments)
    return status


def test_the_command_says_by_its_status_whether_bars_are_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("--short", "--only", "corpus/no-such-fault") == 2
    assert run_command("--short", "--only", "corpus/h2-size/2x2x4", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["jobs"] == 1
    assert run_command("--seeds", "1", "--only", "corpus/h2-size/2x2x4") == 1  # one is not thirty
    assert "what must be shown" in capsys.readouterr().out
