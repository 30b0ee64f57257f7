"""Median seconds of one judgement from evidence in memory: `python tests/bench/judge.py [--json]`.

Jobs of 4,096 to 98,304 ranks with four communicators each (world, tensor, data, pipeline), hung by
one rank that never entered, by one that differs, by nobody that can be named, and frozen.
"""

import argparse
import json
import statistics
import time

import numpy as np

from paceline.analysis import JobEvidence, build_evidence, judge
from paceline.contracts.batch import PROCESS_ROW, STATE_ROW, Batch, BatchKind, RowKind
from paceline.contracts.codes import FrameFlag, Function, Phase, ProcessState
from paceline.contracts.ids import format_communicator, format_ranks
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState, NodeRecord, RankRecord

TP, PP = 8, 8
FAULTS = ("h1", "h2", "h3", "frozen")


def groups_of(world: int) -> list[tuple[str, np.ndarray]]:
    """(kind, ranks) of every communicator; each rank is in four."""
    ranks = np.arange(world).reshape(PP, -1, TP)
    groups = [("world", np.arange(world))]
    groups += [("tp", row) for row in ranks.reshape(-1, TP)]
    groups += [("dp", column) for column in ranks.transpose(0, 2, 1).reshape(-1, world // (TP * PP))]
    groups += [("pp", column) for column in ranks.transpose(1, 2, 0).reshape(-1, PP)]
    return groups


def make_evidence(world: int, fault: str) -> JobEvidence:
    """Evidence of a job whose rank 42 is at fault in its tensor group; everybody else waits."""
    guilty, rng = 42, np.random.default_rng(7)
    groups = groups_of(world)
    records, tables = [], []
    for index, (kind, ranks) in enumerate(groups):
        comm = index * 7919 + 1
        records.append(
            CommunicatorRecord(
                "j",
                "a",
                format_communicator(comm),
                f"{kind}_{index}",
                format_ranks(ranks.tolist()),
                0,
                0,
                "nccl",
                kind,
            )
        )
        rows = np.zeros(len(ranks), STATE_ROW)
        rows["comm"], rows["rank"], rows["comm_rank"] = comm, ranks, np.arange(len(ranks))
        rows["entered"] = rows["completed"] = 411
        rows["function"], rows["peer"], rows["flags"] = Function.ALL_REDUCE, -1, FrameFlag.COUNTS_UNOBSERVABLE
        in_fault = kind == "tp" and guilty in ranks
        waits = in_fault or (kind == "dp")
        if waits:
            inside = np.ones(len(ranks), bool)
            if kind == "dp":
                inside = ranks // TP != guilty // TP  # the tensor group of the guilty rank never gets there
            elif fault == "h1":
                inside = ranks != guilty
            complete = kind == "dp" and inside.all()
            if not complete:
                rows["entered"][inside], rows["head_round"][inside] = 412, 412
                rows["head_signature"][inside], rows["open_ops"][inside] = 99, 1
                rows["head_issue"][inside] = 1000
                rows["head_age_ms"][inside] = rng.integers(6000, 7000, int(inside.sum()))
        if in_fault and fault == "h2":
            rows["head_signature"][ranks == guilty], rows["function"][ranks == guilty] = (
                98,
                Function.BROADCAST,
            )
        if kind == "world":
            rest = ~np.isin(ranks // TP, [guilty // TP])
            rest &= ranks // (world // PP) != guilty // (world // PP)
            rows["entered"][rest], rows["head_round"][rest], rows["head_age_ms"][rest] = 412, 412, 6500
            rows["head_issue"][rest], rows["open_ops"][rest] = 1001, 1
        tables.append(rows)
    process = np.zeros(world, PROCESS_ROW)
    process["rank"], process["communicators"] = np.arange(world), 4
    process["process_state"], process["phase"] = ProcessState.SLEEPING, Phase.TRAIN
    process["native_age_ms"], process["host_wait_rank"] = 80, -1
    if fault == "frozen":
        process["process_state"][guilty], process["native_age_ms"][guilty] = ProcessState.STOPPED, 8000
    batch = Batch(
        BatchKind.STALLED, "j", "a", "d", 0, 1, 1, 1, 1,
        {RowKind.STATE: np.concatenate(tables), RowKind.PROCESS: process},
    )  # fmt: skip
    job = JobRecord("j", "a", "c", "t", "u", "n", world, 1, JobState.RUNNING, "declared", "declared", 0.0)
    nodes = [
        NodeRecord(
            "j", "a", f"node{n:05}", "agent", tuple(RankRecord(n * 8 + i, i, 1, 1, i) for i in range(8))
        )
        for n in range(world // 8)
    ]
    return build_evidence([batch], job, nodes, records)


def measure(world: int, fault: str, repeats: int = 9) -> dict[str, object]:
    """Median and worst of `repeats` judgements."""
    evidence = make_evidence(world, fault)
    verdict = judge(evidence)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        judge(evidence)
        times.append(time.perf_counter() - started)
    return {
        "ranks": world,
        "fault": fault,
        "communicators": evidence.communicators,
        "median_ms": round(statistics.median(times) * 1000, 1),
        "worst_ms": round(max(times) * 1000, 1),
        "verdict": verdict.verdict_class.value,
        "summary": verdict.summary,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4096, 16384, 98304])
    arguments = parser.parse_args()
    results = [measure(world, fault) for world in arguments.ranks for fault in FAULTS]
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{'ranks':>7} {'fault':>7} {'comms':>7} {'median ms':>10} {'worst ms':>9}  verdict")
    for row in results:
        print(
            f"{row['ranks']:>7} {row['fault']:>7} {row['communicators']:>7} {row['median_ms']:>10} "
            f"{row['worst_ms']:>9}  {row['summary']}"
        )


if __name__ == "__main__":
    main()
