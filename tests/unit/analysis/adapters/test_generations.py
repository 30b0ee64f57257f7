"""Every generation of torch's and gloo's lines, as tools really wrote them.

One parameter is one form; the words around the numbers differ between versions, the numbers are ours.
"""

from pathlib import Path

import pytest

from paceline.analysis.facts import (
    BarrierReport,
    DesyncReport,
    GlooFailure,
    GlooKind,
    GroupStatus,
    OperationMismatch,
    WatchdogStuck,
    WorkTimeout,
)
from tests.unit.analysis.adapters.reading_lines import facts_of, of_type

CAUGHT = "Watchdog caught collective operation timeout: "
NUMELS = "NumelIn=80, NumelOut=640, "


@pytest.mark.parametrize(
    ("line", "rank", "group_rank", "sequence", "function", "count_in", "ran_ms"),
    [
        (  # 1.11 and older
            f"[E ProcessGroupNCCL.cpp:566] [Rank 1] {CAUGHT}WorkNCCL(OpType=BROADCAST, Timeout(ms)=60000) "
            "ran for 60012 milliseconds before timing out.",
            None,
            1,
            None,
            "broadcast",
            None,
            60012,
        ),
        (  # 1.12 to 2.0
            f"[E ProcessGroupNCCL.cpp:828] [Rank 3] {CAUGHT}WorkNCCL(SeqNum=77, OpType=ALLREDUCE, "
            "TensorShape=[3, 4], Timeout(ms)=60000) ran for 60013 milliseconds before timing out.",
            None,
            3,
            77,
            "all_reduce",
            None,
            60013,
        ),
        (  # 2.1
            f"[E ProcessGroupNCCL.cpp:475] [Rank 3] {CAUGHT}WorkNCCL(SeqNum=77, "
            f"OpType=_ALLGATHER_BASE, {NUMELS}"
            "Timeout(ms)=600000) ran for 600096 milliseconds before timing out.",
            None,
            3,
            77,
            "all_gather",
            80,
            600096,
        ),
        (  # 2.1, blocking wait
            f"Work WorkNCCL(SeqNum=5, OpType=REDUCE, {NUMELS}Timeout(ms)=1000) timed out in blocking wait "
            "(NCCL_BLOCKING_WAIT=1).",
            None,
            None,
            5,
            "reduce",
            80,
            None,
        ),
        (  # 2.2 and 2.3
            f"[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 1] {CAUGHT}WorkNCCL(SeqNum=77, "
            "OpType=ALLTOALL_BASE, "
            f"{NUMELS}Timeout(ms)=600000) ran for 600096 milliseconds before timing out.",
            3,
            1,
            77,
            "all_to_all",
            80,
            600096,
        ),
        (  # 2.4 and later; the watchdog was blocked for hours
            "[rank3]:[E801 14:37:42.731834446 ProcessGroupNCCL.cpp:607] [Rank 1] "
            f"{CAUGHT}WorkNCCL(SeqNum=77, "
            f"OpType=_REDUCE_SCATTER_BASE, {NUMELS}Timeout(ms)=600000) ran for 25624887 milliseconds "
            "before timing out.",
            3,
            1,
            77,
            "reduce_scatter",
            80,
            25624887,
        ),
        (  # behind a progress bar, and folded by Ray
            "Epoch 3:  42%|####      | 42/100 [01:00<01:20,  1.38s/it](Worker pid=7, ip=10.0.0.1) "
            "[rank3]:[E801 "
            f"14:37:42.731834446 ProcessGroupNCCL.cpp:607] [Rank 1] {CAUGHT}WorkNCCL(SeqNum=77, OpType=SEND, "
            f"{NUMELS}Timeout(ms)=600000) ran for 600096 milliseconds before timing out. [repeated 6x "
            "across cluster]",
            3,
            1,
            77,
            "send",
            80,
            600096,
        ),
        (  # kubelet before torchrun
            "2026-01-01T10:00:00.123456789Z stderr F [default0]:[rank8]:[E101 10:00:00.1 "
            "ProcessGroupNCCL.cpp:607] "
            f"[Rank 0] {CAUGHT}WorkNCCL(SeqNum=1, OpType=COALESCED, NumelIn=0, NumelOut=0, "
            "Timeout(ms)=600000) "
            "ran for 600096 milliseconds before timing out.",
            8,
            0,
            1,
            "coalesced",
            0,
            600096,
        ),
    ],
)
def test_watchdogs_of_every_generation(
    tmp_path: Path,
    line: str,
    rank: int | None,
    group_rank: int | None,
    sequence: int | None,
    function: str,
    count_in: int | None,
    ran_ms: int | None,
) -> None:
    (timeout,) = of_type(facts_of(tmp_path, line + "\n"), WorkTimeout)
    assert (timeout.speaker.rank, timeout.speaker.group_rank) == (rank, group_rank)
    assert (timeout.work.sequence, timeout.work.function, timeout.work.count_in) == (
        sequence,
        function,
        count_in,
    )
    assert timeout.ran_ms == ran_ms


@pytest.mark.parametrize(
    ("line", "group", "group_rank", "numbers"),
    [
        (  # 2.2 and 2.3
            "[PG 0 Rank 2] Timeout at NCCL work: 7, last enqueued NCCL work: 9, last completed NCCL work: 6.",
            ("0", ""),
            2,
            (9, 6, 7),
        ),
        (  # 2.4
            "[PG 0 (default_pg) Rank 1] Exception (either an error or timeout) detected by watchdog at "
            "work: 7, "
            "last enqueued NCCL work: 9, last completed NCCL work: 6.",
            ("0", "default_pg"),
            1,
            (9, 6, 7),
        ),
        (  # 2.5, a group without a description
            "[PG ID 1 PG GUID 2 Rank 1] Timeout at NCCL work: 7, last enqueued NCCL work: 9, last "
            "completed NCCL work: 6.",
            ("2", ""),
            1,
            (9, 6, 7),
        ),
        (  # 2.6 and later
            "[PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by watchdog at work sequence id: "
            "7 PG status: "
            "last enqueued work: 9, last completed work: 6",
            ("0", "default_pg"),
            3,
            (9, 6, 7),
        ),
        (  # nothing enqueued
            "[PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout "
            "from  rank 6 and we "
            "will try our best to dump the debug info. Last enqueued NCCL work: -1, last completed "
            "NCCL work: -1.",
            ("0", "default_pg"),
            3,
            (-1, -1, None),
        ),
        (
            "[PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout "
            "from this local rank "
            "and we will try our best to dump the debug info. Last enqueued NCCL work: 9, last "
            "completed NCCL work: 6.",
            ("0", "default_pg"),
            3,
            (9, 6, None),
        ),
    ],
)
def test_statuses_of_every_generation(
    tmp_path: Path, line: str, group: tuple[str, str], group_rank: int, numbers: tuple[int, int, int | None]
) -> None:
    (status,) = of_type(facts_of(tmp_path, line + "\n"), GroupStatus)
    assert (status.group.name, status.group.description) == group
    assert status.speaker.group_rank == group_rank
    assert (status.enqueued, status.completed, status.failed) == numbers
    assert status.asked_by == (6 if "rank 6" in line else None)


@pytest.mark.parametrize(
    ("line", "seconds", "left"),
    [
        (
            "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring",
            480,
            None,
        ),
        (
            "[PG 1 Rank 0] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making "
            "progress in monitoring "
            "enqueued collectives. workMetaList_.size()=3",
            600,
            3,
        ),
        (
            "Heartbeat monitor timed out! Process will be terminated after dumping debug info. "
            "workMetaList_.size()=2",
            None,
            2,
        ),
    ],
)
def test_heartbeats(tmp_path: Path, line: str, seconds: int | None, left: int | None) -> None:
    stuck = of_type(facts_of(tmp_path, f"[rank0]:[E ProcessGroupNCCL.cpp:1870] {line}\n"), WatchdogStuck)
    if seconds is not None:
        assert [(one.stuck_s, one.works_left) for one in stuck] == [(seconds, left)]


PRINT = (
    "CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], TensorDtypes=Float, "
    "TensorDeviceTypes="
    "TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), requires_grad=false "
    "(default), "
    "pinned_memory=false (default), memory_format=(nullopt)))"
)


@pytest.mark.parametrize(
    ("text", "functions", "shapes", "aspects"),
    [
        (  # 2.1 and later
            f"Rank 1 is running collective: {PRINT.format(2, 'BROADCAST', 1)}, but Rank 0 is running "
            "collective: "
            f"{PRINT.format(1, 'ALLREDUCE', 4)}.Collectives differ in the following aspects: "
            "\tSequence number: 2vs 1  "
            "Op type: BROADCASTvs ALLREDUCE  Tensor Tensor shapes: 1vs 4",
            ("broadcast", "all_reduce"),
            ("[1]", "[4]"),
            ("op type", "sequence number", "tensor shapes"),
        ),
        (  # before 1.13 the other side is only a name
            f"Rank 1 is running inconsistent collective: {PRINT.format(2, 'BROADCAST', 1)}, but Rank 0 "
            "is running ALLREDUCE.",
            ("broadcast", "all_reduce"),
            ("[1]", ""),
            (),
        ),
        (
            "Rank 1 is running all_reduce(TensorShape=[4]) but Rank 0\nis running "
            "all_reduce(TensorShape=[1853171]).",
            ("all_reduce", "all_reduce"),
            ("[4]", "[1853171]"),
            (),
        ),
    ],
)
def test_fingerprint_mismatches(
    tmp_path: Path, text: str, functions: tuple[str, str], shapes: tuple[str, str], aspects: tuple[str, ...]
) -> None:
    line = f"[rank1]: RuntimeError: Detected mismatch between collectives on ranks. {text}\n"
    (mismatch,) = of_type(facts_of(tmp_path, line), OperationMismatch)
    assert [side.rank for side in mismatch.sides] == [1, 0]
    assert tuple(side.work.function for side in mismatch.sides) == functions
    assert tuple(side.work.shapes for side in mismatch.sides) == shapes
    assert mismatch.aspects == aspects


@pytest.mark.parametrize(
    ("body", "lagging", "stuck", "never"),
    [
        ("[7] finished collective #182, but didn't join collective #183 (count from 1)", (7,), (), ()),
        ("[2, 5] joined but didn't finish collective #15 (count from 1)", (), (2, 5), ()),
        ("[3] didn't join any collectives: They never joined any collectives", (), (), (3,)),
    ],
)
def test_desync_reports(
    tmp_path: Path, body: str, lagging: tuple[int, ...], stuck: tuple[int, ...], never: tuple[int, ...]
) -> None:
    text = (
        "[rank0]:[E515 18:36:47.3 ProcessGroupNCCL.cpp:1937] Rank 0\n\t - [0] Timeout at collective: "
        "ALLREDUCE, #315\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        f"\t     {body}\n\t - Snapshot of ranks' latest states:\n\t   #182 finished ranks:\n\t     [9] "
        "finished ALLREDUCE\n"
    )
    (report,) = of_type(facts_of(tmp_path, text), DesyncReport)
    assert (report.lagging, report.stuck, report.never_joined) == (lagging, stuck, never)


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms", (2,)),
        ("[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 4000 ms", (1, 2)),
        ("coordinator: Shutdown barrier DEADLINE_EXCEEDED; tasks not at the barrier: 0-2,5", (0, 1, 2, 5)),
    ],
)
def test_barriers_that_name_who_is_missing(tmp_path: Path, line: str, missing: tuple[int, ...]) -> None:
    assert [one.missing for one in of_type(facts_of(tmp_path, line + "\n"), BarrierReport)] == [missing]


def test_a_rank_that_reached_the_barrier_names_nobody(tmp_path: Path) -> None:
    line = (
        "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0. "
        "Please check rank 0 logs for faulty rank.\n"
    )
    assert not of_type(facts_of(tmp_path, line), BarrierReport)


@pytest.mark.parametrize(
    ("line", "kind", "peer", "timeout_ms"),
    [
        (
            "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for "
            "recv operation to complete",
            "timeout",
            "",
            1800000,
        ),
        (
            "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:133] Timed out waiting 4000ms "
            "for send operation to complete",
            "timeout",
            "",
            4000,
        ),
        ("Application timeout caused pair closure", "cascade", "", None),
        (
            "[/opt/conda/conda-bld/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection "
            "closed by peer [10.0.0.1]:53666",
            "closed",
            "10.0.0.1:53666",
            None,
        ),
        (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [fe80::1]:53666",
            "closed",
            "fe80::1:53666",
            None,
        ),
        (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:563] Read error [10.0.0.1]:19855: Connection "
            "reset by peer",
            "reset",
            "10.0.0.1:19855",
            None,
        ),
        (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.1]:19855: "
            "Connection refused",
            "connect",
            "10.0.0.1:19855",
            None,
        ),
        (
            "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] Connect timeout [10.0.0.1]:19855",
            "connect",
            "10.0.0.1:19855",
            None,
        ),
    ],
)
def test_gloo_of_every_build(tmp_path: Path, line: str, kind: str, peer: str, timeout_ms: int | None) -> None:
    (failure,) = of_type(facts_of(tmp_path, f"[rank1]: RuntimeError: {line}\n"), GlooFailure)
    assert (failure.kind, failure.peer, failure.timeout_ms) == (GlooKind(kind), peer, timeout_ms)
