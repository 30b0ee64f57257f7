"""NCCL's logs are read once, in steps, whatever stands in their place."""

import os
from pathlib import Path

import pytest

from paceline.agent import nccl_logs
from paceline.agent.nccl_logs import NcclLogs, Wanted

UID = os.getuid()
HEAD = "n1:77:9 [0] NCCL INFO "


def texts(logs: NcclLogs, *wanted: Wanted) -> list[tuple[int, str]]:
    return [(place, line.text) for place, line in logs.read(wanted).lines]


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 5 in a container of its own, and 6, whose standard output is a file."""
    (tmp_path / "proc" / "5" / "root" / "log").mkdir(parents=True)
    (tmp_path / "proc" / "6" / "fd").mkdir(parents=True)
    (tmp_path / "job.out").write_text(f"loss 1\n{HEAD}Ring 00 : 3 -> 0 -> 1\n")
    (tmp_path / "proc" / "6" / "fd" / "1").symlink_to(tmp_path / "job.out")
    return tmp_path / "proc"


def test_lines_are_handed_over_once_and_whole(proc: Path) -> None:
    logs, path = NcclLogs(proc), proc / "5" / "root" / "log" / "nccl"
    wanted = Wanted(5, UID, "/log/nccl")
    assert texts(logs, wanted) == []
    path.write_text(
        f"{HEAD}Ring 00 : 3 -> 0 -> 1\n{HEAD}Channel 00/0 : 0[0] -> 1[1] via P2P\n{HEAD}Trees [0] 1/"
    )
    assert texts(logs, wanted) == [(0, "[0] NCCL INFO Ring 00 : 3 -> 0 -> 1")]
    with path.open("a") as file:
        file.write("-1/-1->0->-1\n")
    assert texts(logs, wanted) == [(0, "[0] NCCL INFO Trees [0] 1/-1/-1->0->-1")]
    assert texts(logs, wanted) == []


def test_ranks_that_share_a_file_read_it_once(proc: Path) -> None:
    wanted = Wanted(6, UID, "")
    found = texts(NcclLogs(proc), wanted, wanted, Wanted(0, UID, ""), Wanted(5, UID, "no/such\0file"))
    assert found == [(0, "[0] NCCL INFO Ring 00 : 3 -> 0 -> 1"), (1, "[0] NCCL INFO Ring 00 : 3 -> 0 -> 1")]


def test_a_look_is_bounded_and_says_that_there_is_more(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_logs, "LOOK_BYTES_MAX", 60)
    monkeypatch.setattr(nccl_logs, "FILE_BYTES_MAX", 150)
    path = proc / "5" / "root" / "log" / "nccl"
    path.write_text(f"{HEAD}Ring 00 : 3 -> 0 -> 1\n" * 5)
    logs, wanted = NcclLogs(proc), [Wanted(5, UID, "/log/nccl")]
    looks = [logs.read(wanted) for _ in range(4)]
    assert [look.more for look in looks] == [True, True, False, False]
    assert sum(len(look.lines) for look in looks) == 3
    assert looks[2].dropped == {"nccl_log_too_long": 1}


def test_what_is_no_log_of_the_process_is_not_read(proc: Path) -> None:
    folder = proc / "5" / "root" / "log"
    os.mkfifo(folder / "pipe")
    (folder / "other").write_text(f"{HEAD}Ring 00 : 3 -> 0 -> 1\n")
    logs = NcclLogs(proc)
    assert (
        texts(logs, Wanted(5, UID, "/log/pipe"), Wanted(5, UID + 1, "/log/other"), Wanted(5, UID, "/log"))
        == []
    )


def test_a_file_that_is_begun_anew_is_left(proc: Path) -> None:
    path, logs, wanted = proc / "5" / "root" / "log" / "nccl", NcclLogs(proc), Wanted(5, UID, "/log/nccl")
    path.write_text(f"{HEAD}Ring 00 : 3 -> 0 -> 1\n")
    assert len(texts(logs, wanted)) == 1
    path.write_text("")
    assert logs.read([wanted]).dropped == {"nccl_log_rewritten": 1}
    path.write_text(f"{HEAD}Ring 00 : 3 -> 0 -> 1\n" * 3)
    assert texts(logs, wanted) == []
