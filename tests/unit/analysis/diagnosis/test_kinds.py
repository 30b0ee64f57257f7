"""Answers to small inputs of each kind, other than the incidents: names, numbers and wordings differ."""

import json
from pathlib import Path

import pytest

from paceline.analysis.diagnosis import EXIT_ANSWERED, EXIT_INCONCLUSIVE, Diagnosis, diagnose
from paceline.contracts.verdicts import ActionKind, RootKind, VerdictClass

C = VerdictClass
MACHINE = (ActionKind.REPLACE_NODE, ActionKind.RESET_GPU)


def answer(folder: Path, **files: str) -> Diagnosis:
    return answers(folder, **files)[-1]


def answers(folder: Path, **files: str) -> list[Diagnosis]:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, "utf-8")
    return diagnose([str(folder)])


def ranks(diagnosis: Diagnosis) -> set[int]:
    found = {root.rank for root in diagnosis.roots if root.rank is not None}
    return found | {rank for root in diagnosis.roots for rank in root.ranks}


def timeout(
    rank: int, sequence: int, op: str = "ALLREDUCE", count: int = 4096, second: float = 10.0, group: str = ""
) -> str:
    """Watchdog and status lines of torch 2.7."""
    pg = group or "PG ID 0 PG GUID 0(default_pg)"
    head = f"[rank{rank}]:[E412 09:20:{second:012.9f} ProcessGroupNCCL.cpp:"
    return (
        f"{head}632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={sequence}, "
        f"OpType={op}, NumelIn={count}, NumelOut={count}, Timeout(ms)=600000) ran for 600011 milliseconds "
        f"before timing out.\n"
        f"{head}2271] [{pg} Rank {rank}]  failure detected by watchdog at work sequence id: {sequence} PG "
        f"status: last enqueued work: {sequence + 1}, last completed work: {sequence - 1}\n"
    )


def signalled(rank: int, enqueued: int) -> str:
    return (
        f"[rank{rank}]:[E412 09:20:11.000000001 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) "
        f"Rank {rank}] Received a dump signal due to a collective timeout from  rank 1 and we will try our "
        f"best to dump the debug info. Last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {enqueued}."
    )


def test_rank_that_answers_the_dump_signal_behind(tmp_path: Path) -> None:
    found = answer(tmp_path, job__log="".join(timeout(r, 91) for r in (0, 1, 3)) + signalled(2, 90) + "\n")
    assert found.verdict_class is C.H1
    assert ranks(found) == {2}
    assert found.victims == (0, 1, 3)
    assert found.operation is not None
    assert (found.operation.function, found.operation.round) == ("all_reduce", 91)
    assert found.action.kind not in MACHINE


def test_silent_rank(tmp_path: Path) -> None:
    found = answer(tmp_path, out__txt="".join(timeout(r, 7, "BROADCAST") for r in (0, 1, 2, 4, 5, 6, 7)))
    assert (found.verdict_class, ranks(found)) == (C.H1, {3})


def test_silent_last_rank_of_eight(tmp_path: Path) -> None:
    found = answer(tmp_path, out__txt="".join(timeout(r, 7) for r in range(7)))
    assert (found.verdict_class, ranks(found)) == (C.H1, {7})


TP = "PG ID 1 PG GUID 1(mesh_tp)"


def test_chain_over_two_groups_ends_where_nobody_waits(tmp_path: Path) -> None:
    """Ranks 0, 1 and 3 of all wait for 2, which waits for 6 inside its own group; 6 says nothing."""
    text = "".join(timeout(r, 40, second=30.0) for r in (0, 1, 3, 4, 5, 7))
    text += "".join(timeout(r, 9, "ALLGATHER", second=20.0, group=TP) for r in (2,))
    text += signalled(2, 39) + "\n" + signalled(6, 39) + "\n"
    found = answer(tmp_path, out__txt=text)
    assert found.verdict_class is C.H1
    assert 2 not in ranks(found)
    assert ranks(found) == {6}


def test_circle_of_two_groups(tmp_path: Path) -> None:
    text = "".join(timeout(r, 40) + signalled(r, 40) + "\n" for r in (0, 1, 2))
    text += timeout(3, 9, "ALLGATHER", group=TP) + signalled(3, 39) + "\n"
    found = answer(tmp_path, out__txt=text)
    assert found.verdict_class is C.H2
    assert found.sub_reason.value == "order_inversion"


def test_two_ranks_of_which_one_says_other_things(tmp_path: Path) -> None:
    files = {"rank0__log": timeout(0, 40), "rank1__log": "[rank1]: loading dataset shard 3/9\niteration 3\n"}
    found = answer(tmp_path, **files)
    assert (found.verdict_class, ranks(found)) == (C.H1, {1})


def test_stuck_watchdog_of_one_rank(tmp_path: Path) -> None:
    stuck = (
        "[rank2]:[E412 09:20:01.000000001 ProcessGroupNCCL.cpp:1870] [PG ID 0 PG GUID 0(default_pg) Rank 2] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring.\n"
    )
    progress = "".join(f"[rank{rank}]: iteration 12\n" for rank in range(4))
    found = answer(tmp_path, out__txt=progress + stuck)
    assert (found.verdict_class, ranks(found)) == (C.H1, {2})


def test_only_telemetry_of_spinning_gpus(tmp_path: Path) -> None:
    rows = [{"rank": r, "sm_util": 100, "mem_util": 0, "power_w": 121, "power_cap_w": 700} for r in range(8)]
    found = answer(tmp_path, gpus__jsonl="\n".join(map(json.dumps, rows)))
    assert found.verdict_class is C.H3
    assert ranks(found) == set()


def test_connections_closed_by_the_rank_without_a_log(tmp_path: Path) -> None:
    words = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer"
    line = "[rank{0}]: " + words + " [10.1.0.2]:41{0}\n"
    found = answer(tmp_path, out__txt="".join(line.format(rank) for rank in (0, 1, 3)))
    assert (found.verdict_class, ranks(found)) == (C.H1, {2})
    assert found.victims == (0, 1, 3)


def test_cancelled_job(tmp_path: Path) -> None:
    text = "srun: error: n18: task 3: Terminated\nsrun: error: n17: tasks 0-2: Terminated\n"
    assert answer(tmp_path, slurm__out=text).verdict_class is C.NONE


def test_even_steps(tmp_path: Path) -> None:
    rows = [
        {"step": step, "rank": rank, "pre_ms": 100.0 + rank, "coll_ms": 10.0 - rank}
        for step in range(20)
        for rank in range(4)
    ]
    found = answer(tmp_path, any__jsonl="\n".join(map(json.dumps, rows)))
    assert found.verdict_class is C.NONE


def test_one_complaint_alone_decides_nothing(tmp_path: Path) -> None:
    found = answer(tmp_path, rank5__log=timeout(5, 40))
    assert found.verdict_class is C.INCONCLUSIVE
    assert ranks(found) == set()
    assert found.would_decide
    assert found.exit_status == EXIT_INCONCLUSIVE


def test_everybody_in_one_collective(tmp_path: Path) -> None:
    found = answer(tmp_path, out__txt="".join(timeout(r, 12) for r in range(8)))
    assert found.verdict_class is C.H3
    assert ranks(found) == set()


def test_same_sequence_and_another_operation(tmp_path: Path) -> None:
    lines = "".join(timeout(r, 300, "ALLREDUCE", 26214400) for r in (0, 1, 3)) + timeout(
        2, 300, "ALLREDUCE", 1
    )
    found = answer(tmp_path, out__txt=lines)
    assert (found.verdict_class, ranks(found)) == (C.H2, {2})
    assert found.action.kind is ActionKind.FIX_CODE


def test_exception_before_the_others_timed_out(tmp_path: Path) -> None:
    found = answer(
        tmp_path,
        rank6__log="Traceback (most recent call last):\n  File \"a.py\", line 5, in step\nKeyError: 'x'\n",
        rank0__log=timeout(0, 8),
        rank1__log=timeout(1, 8),
    )
    assert (found.verdict_class, ranks(found)) == (C.H1, {6})
    assert found.victims == (0, 1)


def test_exception_after_the_own_timeout_is_a_consequence(tmp_path: Path) -> None:
    text = (
        timeout(0, 8) + timeout(1, 8) + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"
    )
    found = answer(tmp_path, out__txt=text)
    assert ranks(found) != {1}
    assert found.action.kind not in MACHINE


def test_late_xid_of_an_application_is_teardown(tmp_path: Path) -> None:
    found = answer(
        tmp_path,
        rank2__log="[2026-04-12 09:10:00] ValueError: no data\n",
        rank0__log=timeout(0, 8),
        rank1__log=timeout(1, 8),
        dmesg="[Sun Apr 12 09:21:20 2026] NVRM: Xid (PCI:0000:41:00): 13, pid=88, Graphics Exception\n",
    )
    assert (found.verdict_class, ranks(found)) == (C.H1, {2})


def test_gpu_off_the_bus_before_the_timeouts(tmp_path: Path) -> None:
    found = answer(
        tmp_path,
        out__log="".join(timeout(r, 8) for r in range(4)),
        dmesg="Apr 12 09:09:01 gpu-17 kernel: NVRM: Xid (PCI:0000:cb:00): 79, GPU has fallen off the bus.\n"
        "Apr 12 09:09:01 gpu-17 kernel: NVRM: Xid (PCI:0000:cb:00): 45, pid=9, name=python, Ch 8\n",
    )
    assert found.verdict_class is C.H3
    assert [(root.kind, root.node, root.gpu) for root in found.roots] == [
        (RootKind.GPU, "gpu-17", "0000:cb:00")
    ]
    assert found.action.kind is ActionKind.REPLACE_NODE


def test_what_only_follows_is_no_first_event(tmp_path: Path) -> None:
    found = answer(tmp_path, dmesg="[ 12.1] NVRM: Xid (PCI:0000:cb:00): 63, Row remapping pending\n")
    assert found.verdict_class is not C.H3


def test_monitored_barrier(tmp_path: Path) -> None:
    text = "[rank0]: RuntimeError: Rank 5 failed to pass monitoredBarrier in 300000 ms\n"
    found = answer(tmp_path, out__txt=text)
    assert (found.verdict_class, ranks(found)) == (C.H1, {5})


def test_killed_by_the_kernel(tmp_path: Path) -> None:
    found = answer(
        tmp_path,
        agent__log="E 09:10:00 failed (exitcode: -9) local_rank: 3 (pid: 4411) of binary: /usr/bin/python\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 4411)\n  traceback : Signal 9 (SIGKILL)\n",
        out__log="".join(timeout(r, 8) for r in (0, 1, 2)),
    )
    assert (found.verdict_class, ranks(found)) == (C.H1, {3})


@pytest.mark.parametrize("late", [0, 3])
def test_late_rank_in_every_slow_step(tmp_path: Path, late: int) -> None:
    rows = []
    for step in range(40):
        slow = step >= 20
        for rank in range(4):
            own = 1.0 + (0.08 if slow and rank == late else 0.0)
            whole = 1.1 + (0.08 if slow else 0.0)
            rows.append(
                {"iteration": step, "rank": rank, "compute_s": own, "comm_s": whole - own, "step_s": whole}
            )
    found = answer(tmp_path, any__jsonl="\n".join(map(json.dumps, rows)))
    assert (found.verdict_class, ranks(found)) == (C.S1, {late})
    assert found.exit_status == EXIT_ANSWERED


def test_rotating_late_rank(tmp_path: Path) -> None:
    rows = [
        {"step": step, "rank": rank, "pre_ms": 70.4 if rank == (step * 5) % 8 else 14.1, "coll_ms": 5.0}
        for step in range(32)
        for rank in range(8)
    ]  # fmt: skip
    found = answer(tmp_path, any__jsonl="\n".join(map(json.dumps, rows)))
    assert found.verdict_class is C.S1
    assert found.roots[0].kind is RootKind.ROTATING
    assert found.action.kind not in MACHINE


def test_slow_pair_of_nodes(tmp_path: Path) -> None:
    pairs = [("n1", "n2"), ("n1", "n3"), ("n1", "n4"), ("n2", "n3"), ("n2", "n4"), ("n3", "n4")]
    rows = [{"src": a, "dst": b, "busbw_gbps": 25.1 if (a, b) == ("n2", "n4") else 39.0} for a, b in pairs]
    found = answer(tmp_path, pairs__jsonl="\n".join(map(json.dumps, rows)))
    assert found.verdict_class is C.S2
    assert "n2" in found.roots[0].name
    assert "n4" in found.roots[0].name
    assert found.roots[0].kind is RootKind.LINK


def test_thermal_slowdown(tmp_path: Path) -> None:
    text = (
        "GPU 00000000:3B:00.0\n    Clocks Event Reasons\n        SW Power Cap        : Not Active\n"
        "        HW Slowdown         : Active\n            HW Thermal Slowdown     : Active\n"
    )
    found = answer(tmp_path, smi__txt=text)
    assert found.verdict_class is C.S1
    assert found.roots[0].gpu == "0000:3b:00"


def test_two_attempts_in_one_log(tmp_path: Path) -> None:
    first = "NCCL version 2.21.5+cuda12.4\n" + "".join(timeout(r, 30) for r in (0, 1, 2, 3, 4, 5, 7))
    second = "NCCL version 2.21.5+cuda12.4\n" + "".join(timeout(r, 55) for r in (0, 2, 3, 4, 5, 6, 7))
    found = answers(tmp_path, job__log=first + second)
    assert [(each.attempt, each.attempts) for each in found] == [(0, 2), (1, 2)]
    assert [ranks(each) for each in found] == [{6}, {1}]


def test_unknown_json_document_is_no_log(tmp_path: Path) -> None:
    text = json.dumps({"note": "CUDA error: uncorrectable ECC error encountered on rank 3"}, indent=1)
    found = answer(tmp_path, notes__json=text)
    assert found.verdict_class is C.INCONCLUSIVE
    assert found.seen.notes


def test_garbage_gives_an_answer(tmp_path: Path) -> None:
    (tmp_path / "noise.log").write_bytes(bytes(range(1, 256)) * 40)
    assert diagnose([str(tmp_path)])[-1].verdict_class is C.INCONCLUSIVE
