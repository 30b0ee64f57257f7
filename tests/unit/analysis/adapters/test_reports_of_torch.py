"""Reports of torch in their rarer forms: desync, monitored barrier, launchers' exit codes, stores."""

from pathlib import Path

from paceline.analysis.facts import (
    BarrierReport,
    DesyncReport,
    GroupStatus,
    NetworkFailure,
    NetworkKind,
    OperationMismatch,
    PhaseSeen,
    ProcessEnd,
    ProcessFault,
    WorkTimeout,
)
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

_MISMATCH = """[rank0]: - [0] Timeout at collective: ALLREDUCE, #88
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [0-3] joined but didn't finish collective #88 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #88 started ranks:
\t     [0, 1, 3] started ALLREDUCE
\t     [2] started BROADCAST
"""


def test_ranks_that_never_joined(tmp_path: Path) -> None:
    text = (
        "\t - To our best knowledge, ranks [5, 6] are the lagging ranks that caused this timeout. They never "
    )
    report = of_type(facts_of(tmp_path, text + "joined any collectives\n"), DesyncReport)[0]
    assert report.never_joined == (5, 6)
    assert report.lagging == ()


def test_a_snapshot_with_two_calls_under_one_number(tmp_path: Path) -> None:
    sides = [fact.sides for fact in of_type(facts_of(tmp_path, _MISMATCH), OperationMismatch)]
    works = {side.rank: (side.work.function, side.work.sequence) for pair in sides for side in pair}
    reduce = ("all_reduce", 88)
    assert works == {0: reduce, 1: reduce, 2: ("broadcast", 88), 3: reduce}


def test_a_barrier_that_names_whom_it_waited_for(tmp_path: Path) -> None:
    text = (
        "RuntimeError: Rank 6 timed out in monitoredBarrier after 60000 ms. Successfully processed ranks: 1"
    )
    assert [report.missing for report in of_type(facts_of(tmp_path, text), BarrierReport)] == [(6,)]


def test_exit_codes_of_global_ranks(tmp_path: Path) -> None:
    text = "Global rank 5 (PID 48120) exited with code 1\nGlobal rank 0 (PID 48115) exited with code -15\n"
    ends = of_type(facts_of(tmp_path, text), ProcessEnd)
    assert [(end.speaker.rank, end.exit_code, end.signal) for end in ends] == [(5, 1, None), (0, -15, 15)]


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    text = "[rank1]: DistBackendError: by key '0', but store->get('0') got error: Connection reset by peer\n"
    failures = of_type(facts_of(tmp_path, text), NetworkFailure)
    assert [(failure.speaker.rank, failure.kind) for failure in failures] == [(1, NetworkKind.CLOSED)]


def test_a_barrier_of_the_store_counts_who_came(tmp_path: Path) -> None:
    text = (
        "[rank2]: RuntimeError: Timed out initializing process group in store based barrier on rank: 2, for "
        "key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)\n"
    )
    facts = facts_of(tmp_path, text)
    reports = of_type(facts, BarrierReport)
    assert [(report.speaker.rank, report.arrived, report.expected) for report in reports] == [(2, 3, 4)]
    assert of_type(facts, PhaseSeen) == []  # the end of an attempt is no new init


def test_a_process_of_multiprocessing(tmp_path: Path) -> None:
    text = (
        "-- Process 2 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "/a.py", line 1, in main_worker\nKeyError: 1\n'
    )
    faults = of_type(facts_of(tmp_path, text), ProcessFault)
    assert [(fault.speaker.rank, fault.exception) for fault in faults] == [(2, "KeyError")]


def test_the_text_of_the_analyser(tmp_path: Path) -> None:
    text = (
        "Not all ranks joining collective, sequence number: 9\ngroup info: 0:default_pg\n"
        "collective: nccl:all_reduce\n"
        "missing ranks: {2}\nexpected ranks: {0, 1, 2}\n"
    )
    facts = facts_of(tmp_path, text)
    assert [(fact.speaker.rank, fact.enqueued) for fact in of_type(facts, GroupStatus)] == [(2, 8)]
    waits = of_type(facts, WorkTimeout)
    assert [(fact.speaker.rank, fact.work.function, fact.work.sequence) for fact in waits] == [
        (0, "all_reduce", 9),
        (1, "all_reduce", 9),
    ]
