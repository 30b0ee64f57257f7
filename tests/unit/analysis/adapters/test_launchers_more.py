"""Shells, first words of launchers, sizes of jobs, exceptions inside elastic reports."""

from pathlib import Path

import pytest

from paceline.analysis.facts import Membership, ProcessEnd, ProcessFault, SettingSeen
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

_REPORT = """  host      : node-a
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 105)
  error_file: /tmp/e.json
  traceback : Traceback (most recent call last):
    File "/app/ft.py", line 71, in main
      x = batch['labels']
  KeyError: 'labels'
============================================================
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/bin/run.sh: line 12:  6612 Killed                  python train.py", [(6612, 9)]),
        ("Killed", [(None, 9)]),
        ("Segmentation fault (core dumped)", [(None, 11)]),
        ("Killed all stale workers before the start", []),
        ("[INFO] Killed", []),
    ],
)
def test_shells(tmp_path: Path, line: str, expected: list[tuple[int | None, int]]) -> None:
    ends = of_type(facts_of(tmp_path, line + "\n"), ProcessEnd)
    assert [(end.speaker.pid, end.signal) for end in ends] == expected


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("global_ranks=[0, 1] role_world_sizes=[16, 16] global_world_sizes=[16, 16]", [16]),
        ("Namespace(world_size=4, backend='nccl')", [4]),
        ("group_rank=0 group_world_size=2", []),
        ("data parallel world size: 8", []),
        ("WORLD_SIZE=1", []),
    ],
)
def test_sizes_of_jobs(tmp_path: Path, line: str, sizes: list[int]) -> None:
    found = of_type(facts_of(tmp_path, line + "\n"), Membership)
    assert [fact.group.size for fact in found] == sizes


def test_the_first_words_of_a_launcher(tmp_path: Path) -> None:
    line = (
        "W1 1 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process\n"
    )
    assert [fact.name for fact in of_type(facts_of(tmp_path, line), SettingSeen)] == ["launcher_start"]


def test_an_elastic_report_repeats_the_exception(tmp_path: Path) -> None:
    fault = of_type(facts_of(tmp_path, _REPORT), ProcessFault)[0]
    assert (fault.speaker.rank, fault.exception, fault.frames) == (5, "KeyError", ("/app/ft.py:71 main",))
