"""`paceline diagnose` as it is called: outputs, exit status, words for what cannot be read."""

import argparse
import json
from pathlib import Path

import pytest

from paceline.analysis import commands

LOG = (
    "[rank{rank}]:[E801 14:37:42.731834446 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0(default_pg) "
    "Rank {rank}]  failure detected by watchdog at work sequence id: {work} PG status: "
    "last enqueued work: {work}, last completed work: {done}\n"
    "[rank{rank}]:[E801 14:37:42.731834446 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={work}, OpType=ALLREDUCE, NumelIn=80, NumelOut=80, "
    "Timeout(ms)=600000) ran for 600031 milliseconds before timing out.\n"
)
SILENT = (
    "[rank{rank}]:[E801 14:37:43.731834446 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0(default_pg) "
    "Rank {rank}] Received a dump signal due to a collective timeout from  rank 0 and we will try our "
    "best to dump the debug info. Last enqueued NCCL work: {done}, last completed NCCL work: {done}.\n"
)


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    commands.add_diagnose(parser.add_subparsers())
    return parser.parse_args(["diagnose", *argv])


def run(*argv: str) -> int:
    arguments = parse(*argv)
    return int(arguments.run(arguments))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "zoefolder"
    folder.mkdir()
    for rank in range(4):
        words = SILENT if rank == 2 else LOG
        text = words.format(rank=rank, work=78, done=77)
        (folder / f"rank_{rank}.log").write_text(f"gpu-77.site.example: starts\n{text}")
    return folder


def test_json_and_files(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    status = run(str(logs), "--json", "--html", str(page), "--trace", str(trace))
    answer = json.loads(capsys.readouterr().out)
    assert status == answer["exit_status"] == 0
    assert answer["class"] == "H1"
    assert [root["rank"] for root in answer["roots"]] == [2]
    assert answer["victims"] == [0, 1, 3]
    assert "rank 2" in page.read_text()
    assert json.loads(trace.read_text())["traceEvents"]


def test_the_terminal_answer_names_files(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(logs)) == 0
    out, err = capsys.readouterr()
    assert "only waited  ranks 0-1, 3" in out
    assert "rank_2.log:2" in out
    assert err == ""


def test_redaction_reaches_every_output(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    assert run(str(logs), "--redact", "--html", str(page), "--trace", str(trace)) == 0
    out, err = capsys.readouterr()
    for text in (out, err, page.read_text(), trace.read_text()):
        assert "zoefolder" not in text
        assert "gpu-77" not in text
        assert "rank_2.log" not in text
    assert "file-" in out


def test_unusable_input_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "nowhere")) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "poem.txt").write_text("roses are red\n")
    assert run(str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert "poem.txt: nothing recognised" in said
    assert "Give the ranks' logs" in said


def test_redaction_covers_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "zoefolder"), "--redact") == 2
    assert "zoefolder" not in capsys.readouterr().err


def test_an_attempt_that_is_not_there(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(logs), "--attempt", "4") == 2
    assert "there is no attempt 4" in capsys.readouterr().err
    assert run(str(logs), "--attempt", "1") == 0


def test_a_page_that_cannot_be_written(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(logs), "--html", str(tmp_path / "no" / "report.html")) == 2
    assert "report.html" in capsys.readouterr().err
