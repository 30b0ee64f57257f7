"""A simulated job as PyTorch Flight Recorder dumps, format 2.10.

One pickle per rank, as `ProcessGroupNCCL` writes it on a timeout with default settings: states are
scheduled or completed; process groups have numbers for names and a description that many of them
share; sends and receives have a sequence of their own, place in the pipeline group instead of rank,
and are not coalesced (entries of real Megatron dumps look so). Nothing was overwritten in the ring,
which is the best case for any analyser.
"""

import pickle
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from paceline.contracts.codes import DType, Function
from paceline.fleet import CommKind, FleetJob
from paceline.fleet.history import Op, PairOp
from paceline.fleet.layout import Groups

PREFIX = "rank_"
VERSION = "2.10"
DESCRIPTIONS = {
    CommKind.WORLD: "default_pg",
    CommKind.TP: "TENSOR_MODEL_PARALLEL_GROUP",
    CommKind.CP: "CONTEXT_PARALLEL_GROUP",
    CommKind.EP: "EXPERT_MODEL_PARALLEL_GROUP",
    CommKind.DP: "DATA_PARALLEL_GROUP",
    CommKind.PP: "PIPELINE_MODEL_PARALLEL_GROUP",
}
DTYPES = {DType.FLOAT32: "Float", DType.FLOAT64: "Double", DType.FLOAT16: "Half", DType.BFLOAT16: "BFloat16"}
DTYPES |= {DType.INT64: "Long", DType.INT32: "Int"}
_TIMEOUT_MS = 600_000
Dump = dict[str, Any]  # as pickled by torch


class FlightRecorder:
    """Remembers every operation of a job, from the moment it is made."""

    def __init__(self, job: FleetJob) -> None:
        self._job = job
        self._made: dict[CommKind, list[Op]] = {}
        for kind, history in job.engine.histories.items():
            history.made = self._made[kind] = []
        self._pairs: list[PairOp] = []
        job.engine.pairs.made = self._pairs

    def dumps(self, at_s: float, *, pairs: bool = True) -> Iterator[Dump]:
        """What each rank has recorded at `at_s`, in rank order; without sends and receives if not `pairs`."""
        topology = self._job.topology
        names = _names(topology.groups)
        ops: list[list[tuple[CommKind, Op]]] = [[] for _ in range(topology.pp)]
        for kind, made in self._made.items():
            for op in made:
                for stage in op.stages:
                    ops[int(stage)].append((kind, op))
        posted = [[op for op in self._pairs if pairs and op.stage == stage] for stage in range(topology.pp)]
        for rank in range(topology.ranks):
            stage, place = divmod(rank, topology.stage_ranks)
            found = [
                (issue, kind, entry)
                for kind, op in ops[stage]
                for issue, entry in _collective(op, topology.groups[kind], stage, place, rank, at_s)
            ]
            found += [
                (issue, CommKind.PP, entry) for op in posted[stage] for issue, entry in _pair(op, place, at_s)
            ]
            found.sort(key=itemgetter(0))
            yield _dump(topology.groups, names, rank, [(kind, entry) for _, kind, entry in found])

    def write(self, folder: Path, at_s: float, *, pairs: bool = True) -> None:
        """One file per rank: `rank_N`."""
        for rank, dump in enumerate(self.dumps(at_s, pairs=pairs)):
            (folder / f"{PREFIX}{rank}").write_bytes(pickle.dumps(dump))


def _names(groups: dict[CommKind, Groups]) -> dict[CommKind, int]:
    """Number of the first group of each kind: torch counts groups in the order of their creation."""
    first, found = 0, {}
    for kind, each in groups.items():
        found[kind] = first
        first += len(each.members)
    return found


def _dump(
    groups: dict[CommKind, Groups], names: dict[CommKind, int], rank: int, made: list[tuple[CommKind, Dump]]
) -> Dump:
    """The pickle of one rank; numbers what is numbered per process and per group."""
    mine = {kind: str(names[kind] + int(each.comm_of[rank])) for kind, each in groups.items()}
    local = {kind: index for index, kind in enumerate(groups)}
    pair_seq = 0
    status = {
        str(index): {"last_enqueued_collective": -1, "last_started_collective": -1,
                     "last_completed_collective": -1}
        for index in local.values()
    }  # fmt: skip
    for number, (kind, entry) in enumerate(made):
        entry["record_id"], entry["pg_id"] = number, local[kind]
        entry["process_group"] = (mine[kind], DESCRIPTIONS[kind])
        if entry["is_p2p"]:
            pair_seq += 1
            entry["p2p_seq_id"] = pair_seq
        entry["op_id"] = entry["collective_seq_id"] + entry["p2p_seq_id"]
        newest = entry["p2p_seq_id"] or entry["collective_seq_id"]
        status[str(local[kind])]["last_enqueued_collective"] = newest
        if entry["state"] == "completed":
            status[str(local[kind])]["last_completed_collective"] = newest
    return {
        "version": VERSION,
        "comm_lib_version": "2.27.5",
        "pg_config": {
            mine[kind]: {
                "name": mine[kind],
                "desc": DESCRIPTIONS[kind],
                "ranks": str(each.members[int(each.comm_of[rank])].tolist()),
            }
            for kind, each in groups.items()
        },
        "pg_status": status,
        "entries": [entry for _, entry in made],
    }


def _collective(
    op: Op, groups: Groups, stage: int, place: int, rank: int, at_s: float
) -> Iterator[tuple[int, Dump]]:
    """(issue, entry), where the rank has made the call."""
    row = op.row(stage)
    if not op.enter[row, place] <= at_s:
        return
    call = op.exceptions.get(rank, op.call)
    many = call.count * groups.size
    done = float(op.complete[row, place]) if op.complete[row, place] <= at_s else None
    sizes_in = [[many if call.function is Function.REDUCE_SCATTER else call.count]]
    sizes_out = [[many if call.function is Function.ALL_GATHER else call.count]]
    entry = _entry(f"nccl:{call.function.name.lower()}", sizes_in, sizes_out, call.dtype)
    entry |= {"collective_seq_id": int(op.numbers[row]), "p2p_seq_id": 0, "is_p2p": False}
    _put_times(entry, float(op.enter[row, place]), done)
    yield op.reissued.get(rank, int(op.issues[row])), entry


def _pair(op: PairOp, place: int, at_s: float) -> Iterator[tuple[int, Dump]]:
    """The same of a send or a receive; ranks are places in the pipeline group."""
    if not op.enter[place] <= at_s:
        return
    done = float(op.complete[place]) if op.complete[place] <= at_s else None
    name = f"nccl:send {op.stage}->{op.peer}" if op.sends else f"nccl:recv {op.stage}<-{op.peer}"
    entry = _entry(name, [[op.count]], [[op.count]], DType.BFLOAT16)
    entry |= {"collective_seq_id": 0, "p2p_seq_id": 0, "is_p2p": True}
    _put_times(entry, float(op.enter[place]), done)
    yield op.issue, entry


def _entry(name: str, sizes_in: list[list[int]], sizes_out: list[list[int]], dtype: DType) -> Dump:
    return {
        "profiling_name": name,
        "input_sizes": sizes_in,
        "input_dtypes": [DTYPES[dtype]],
        "output_sizes": sizes_out,
        "output_dtypes": [DTYPES[dtype]],
        "timeout_ms": _TIMEOUT_MS,
        "frames": [],
    }


def _put_times(entry: Dump, enter_s: float, done_s: float | None) -> None:
    entry["time_created_ns"] = int(enter_s * 1e9)
    entry["state"] = "scheduled" if done_s is None else "completed"
    entry["time_discovered_started_ns"] = None
    entry["time_discovered_completed_ns"] = None if done_s is None else int(done_s * 1e9)
    entry["retired"] = done_s is not None
