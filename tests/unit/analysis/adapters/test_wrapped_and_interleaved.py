"""Lines that a terminal has cut, ranks that write between each other, prefixes of servers and of MPI."""

from pathlib import Path

import pytest

from paceline.analysis.facts import (
    BarrierReport,
    GroupStatus,
    OperationMismatch,
    ProcessEnd,
    ProcessFault,
    WorkTimeout,
)
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

_CUT = """[rank2]:[E424 01:11:21.160812730 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught \
collective operation timeout: WorkNCCL(SeqNum=4, OpTy
pe=BROADCAST, NumelIn=112, NumelOut=112, Timeout(ms)=1800000) ran for 18000
12 milliseconds before timing out.
[rank2]:[E424 01:11:21.160912730 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank 2]  failure \
detected by watchdog at work sequence id: 4 PG status: las
t enqueued work: 5, last completed work: 3
"""
_BETWEEN = """[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/app/a.py", line 1, in main
[rank1]:   File "/app/b.py", line 2, in main
[rank1]: KeyError: 'labels'
[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.
"""


def test_a_message_in_three_pieces(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, _CUT)
    timeout = of_type(facts, WorkTimeout)[0]
    assert (timeout.work.function, timeout.work.sequence, timeout.ran_ms) == ("broadcast", 4, 1_800_012)
    status = of_type(facts, GroupStatus)[0]
    assert (status.enqueued, status.completed, status.failed) == (5, 3, 4)


def test_a_cut_message_does_not_take_the_next_one(tmp_path: Path) -> None:
    lines = _CUT.splitlines()
    assert of_type(facts_of(tmp_path, "\n".join([lines[0], lines[3]])), WorkTimeout) == []


def test_tracebacks_of_two_ranks_at_once(tmp_path: Path) -> None:
    faults = of_type(facts_of(tmp_path, _BETWEEN), ProcessFault)
    assert {(fault.speaker.rank, fault.exception.rpartition(".")[2]) for fault in faults} == {
        (0, "DistBackendError"),
        (1, "KeyError"),
    }


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[2025-10-02 08:01:12 TP2] ValueError: bad shape", 2),
        ("[2025-10-02 08:01:12 DP1 TP5 EP5] ValueError: bad shape", 5),
        ("[2025-10-02 08:01:12 PP1 TP0] ValueError: bad shape", None),
        ("(VllmWorker TP3 pid=408) ValueError: bad shape", 3),
        ("(Worker_DP1_TP0 pid=408) ValueError: bad shape", None),
        ("[1,6]<stderr>:ValueError: bad shape", 6),
        ("[1,mpirank:9,algo-2]<stderr>:ValueError: bad shape", 9),
        ("[rank: 3] ValueError: bad shape", 3),
    ],
)
def test_who_speaks(tmp_path: Path, line: str, rank: int | None) -> None:
    assert [fault.speaker.rank for fault in of_type(facts_of(tmp_path, line), ProcessFault)] == [rank]


def test_children_that_end(tmp_path: Path) -> None:
    text = (
        "[rank: 1] Child process with PID 48 terminated with code -9. Forcefully terminating all other\n"
        "Worker proc VllmWorker-2 died unexpectedly, shutting down executor.\n"
    )
    ends = of_type(facts_of(tmp_path, text), ProcessEnd)
    assert [(end.speaker.rank, end.signal) for end in ends] == [(1, 9), (2, None)]


def test_stalled_tensors_name_who_is_missing(tmp_path: Path) -> None:
    text = (
        "W stall_inspector.cc:107] submitted by subset of ranks and are waiting for remainder of ranks for\n"
    )
    text += "Missing ranks:\n3: [grad.a, grad.b]\n5: [grad.a]\nstep 12\n"
    assert [report.missing for report in of_type(facts_of(tmp_path, text), BarrierReport)] == [(3,), (5,)]


def test_models_that_differ(tmp_path: Path) -> None:
    text = (
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 8 params, while rank 3 has "
        "inconsistent 9 params.\n"
        "RuntimeError: [2]: params[0] in this process with sizes [10, 5] appears not to match sizes of the "
        "same param in process 0.\n"
    )
    sides = [fact.sides for fact in of_type(facts_of(tmp_path, text), OperationMismatch)]
    assert [[side.rank for side in pair] for pair in sides] == [[1, 3], [2, 0]]
    assert sides[1][0].work.shapes == "[10, 5]"
