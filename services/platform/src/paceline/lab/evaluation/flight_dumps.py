"""A simulated job as PyTorch Flight Recorder dumps (format 2.10), and the evidence that is in them.

One pickle per rank, as `ProcessGroupNCCL` writes it on a timeout with default settings: states are
scheduled or completed, sends and receives are left out because fr_trace matches them against whole
groups. Nothing was overwritten in the ring, which is the best case for any analyser.
"""

import pickle
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from paceline.analysis import JobEvidence, build_evidence
from paceline.contracts.batch import ROUND_ROW, STATE_ROW, Batch, BatchKind, RowKind
from paceline.contracts.codes import DType, FrameFlag, Function, OpKind, OpState, Source
from paceline.contracts.ids import communicator_id, format_communicator, format_ranks
from paceline.contracts.registry import CommunicatorRecord
from paceline.fleet import CommKind, FleetJob
from paceline.fleet.history import Op
from paceline.fleet.layout import Groups

PREFIX = "rank_"
VERSION = "2.10"
_TIMEOUT_MS = 600_000
_NAMES = {DType.FLOAT32: "Float", DType.FLOAT64: "Double", DType.FLOAT16: "Half", DType.BFLOAT16: "BFloat16"}
_NAMES |= {DType.INT64: "Long", DType.INT32: "Int"}
_TYPES = {name: code for code, name in _NAMES.items()}
Dump = dict[str, Any]  # as pickled by torch


class FlightRecorder:
    """Remembers every collective of a job; call `note` after each second of it."""

    def __init__(self, job: FleetJob) -> None:
        self._job = job
        self._ops: dict[int, tuple[CommKind, Op]] = {}

    def note(self) -> None:
        for kind, history in self._job.engine.histories.items():
            for op in history.ops:
                self._ops.setdefault(id(op), (kind, op))

    def dumps(self, at_s: float) -> Iterator[Dump]:
        """What each rank has recorded at `at_s`, in rank order."""
        topology = self._job.topology
        kinds = [kind for kind in topology.kinds if kind is not CommKind.PP]
        ops: list[list[tuple[CommKind, Op]]] = [[] for _ in range(topology.pp)]
        for kind, op in self._ops.values():
            for stage in op.stages:
                ops[int(stage)].append((kind, op))
        for rank in range(topology.ranks):
            stage, place = divmod(rank, topology.stage_ranks)
            entries = [
                entry
                for kind, op in ops[stage]
                if (entry := _entry(op, topology.groups[kind], stage, place, rank, at_s)) is not None
            ]
            entries.sort(key=lambda entry: int(entry["op_id"]))
            for number, entry in enumerate(entries):
                entry["record_id"] = number
            groups = [topology.groups[kind] for kind in kinds]
            yield {
                "version": VERSION,
                "comm_lib_version": "2.27.5",
                "pg_config": {_name(each, rank): _config(each, rank) for each in groups},
                "pg_status": {},
                "entries": entries,
            }

    def write(self, folder: Path, at_s: float) -> None:
        """One file per rank: `rank_N`."""
        for rank, dump in enumerate(self.dumps(at_s)):
            (folder / f"{PREFIX}{rank}").write_bytes(pickle.dumps(dump))


def _name(groups: Groups, rank: int) -> str:
    return groups.names[int(groups.comm_of[rank])]


def _config(groups: Groups, rank: int) -> dict[str, str]:
    members = groups.members[int(groups.comm_of[rank])]
    return {"name": _name(groups, rank), "desc": _name(groups, rank), "ranks": str(members.tolist())}


def _entry(op: Op, groups: Groups, stage: int, place: int, rank: int, at_s: float) -> Dump | None:
    row = op.row(stage)
    if not op.enter[row, place] <= at_s:
        return None
    call = op.exceptions.get(rank, op.call)
    done = bool(op.complete[row, place] <= at_s)
    many, types = call.count * groups.size, [_NAMES[call.dtype]]
    sizes_in = [[many if call.function is Function.REDUCE_SCATTER else call.count]]
    sizes_out = [[many if call.function is Function.ALL_GATHER else call.count]]
    name = _name(groups, rank)
    return {
        "record_id": 0,
        "pg_id": 0,
        "process_group": (name, name),
        "collective_seq_id": int(op.numbers[row]),
        "p2p_seq_id": 0,
        "op_id": op.reissued.get(rank, int(op.issues[row])),
        "profiling_name": f"nccl:{call.function.name.lower()}",
        "time_created_ns": int(op.enter[row, place] * 1e9),
        "input_sizes": sizes_in,
        "input_dtypes": types,
        "output_sizes": sizes_out,
        "output_dtypes": types,
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": int(op.complete[row, place] * 1e9) if done else None,
        "retired": done,
        "timeout_ms": _TIMEOUT_MS,
        "is_p2p": False,
        "frames": [],
    }


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"a dump is plain data, {module}.{name} is not")


def read_dumps(folder: Path) -> dict[int, Dump]:
    """Dumps of a folder by rank; UnpicklingError for a file that is more than data."""
    found: dict[int, Dump] = {}
    for path in sorted(folder.glob(f"{PREFIX}*")):
        with path.open("rb") as file:
            found[int(path.name.removeprefix(PREFIX))] = _PlainUnpickler(file).load()
    return found


def dump_evidence(dumps: dict[int, Dump], at_s: float) -> JobEvidence:
    """What the dumps show, as the analysis takes it; nothing but the dumps is used."""
    groups: dict[str, list[int]] = {}
    states, rounds = [], []
    for rank, dump in dumps.items():
        for name, config in dump["pg_config"].items():
            groups[name] = [int(member) for member in config["ranks"].strip("[]").split(",")]
        for name in dump["pg_config"]:
            mine = [entry for entry in dump["entries"] if entry["process_group"][0] == name]
            states.append(_state_row(rank, name, groups[name], mine, at_s))
            rounds += [_round_row(rank, name, groups[name], e, at_s) for e in mine if _is_open(e)]
    rows = {RowKind.STATE: np.concatenate(states)}
    if rounds:
        rows[RowKind.ROUND] = np.concatenate(rounds)
    batch = Batch(BatchKind.STALLED, "dumps", "a1", "dumps", 0, 1, 1, 1, 1, rows)
    records = [
        CommunicatorRecord(
            "dumps", "a1", format_communicator(communicator_id(name, ranks)), name, format_ranks(ranks),
            0, 0, "nccl", name.split("_")[0],
        )
        for name, ranks in groups.items()
    ]  # fmt: skip
    return build_evidence([batch], None, [], records, [], job_id="dumps", attempt="a1")


def _is_open(entry: Dump) -> bool:
    return bool(entry["state"] != "completed")


def _state_row(rank: int, name: str, ranks: list[int], mine: list[Dump], at_s: float) -> Any:
    row = np.zeros(1, STATE_ROW)
    row["comm"], row["rank"], row["comm_rank"] = communicator_id(name, ranks), rank, ranks.index(rank)
    row["peer"], row["flags"], row["sources"] = -1, FrameFlag.COUNTS_UNOBSERVABLE, Source.TORCH_HOOK
    row["entered"] = len(mine)
    row["completed"] = sum(not _is_open(entry) for entry in mine)
    newest_s = max((entry["time_created_ns"] for entry in mine), default=0) / 1e9
    row["idle_ms"] = int((at_s - newest_s) * 1000)
    head = next((entry for entry in mine if _is_open(entry)), None)
    shown = head or (mine[-1] if mine else None)
    if shown is not None:
        row["function"], row["dtype"] = _function(shown), _TYPES[shown["input_dtypes"][0]]
        row["state"] = OpState.COMPLETED if head is None else OpState.ENTERED
    if head is not None:
        row["head_round"], row["head_issue"] = head["collective_seq_id"], head["record_id"] + 1
        row["head_signature"] = _signature(head)
        row["head_age_ms"] = int(at_s * 1000 - head["time_created_ns"] / 1e6)
        row["open_ops"] = sum(_is_open(entry) for entry in mine)
    return row


def _round_row(rank: int, name: str, ranks: list[int], entry: Dump, at_s: float) -> Any:
    row = np.zeros(1, ROUND_ROW)
    row["comm"], row["rank"], row["comm_rank"] = communicator_id(name, ranks), rank, ranks.index(rank)
    row["round"], row["issue"] = entry["collective_seq_id"], entry["record_id"] + 1
    row["signature"], row["count"] = _signature(entry), entry["input_sizes"][0][0]
    row["function"], row["dtype"] = _function(entry), _TYPES[entry["input_dtypes"][0]]
    row["kind"], row["state"], row["level"], row["peer"] = OpKind.COLLECTIVE, OpState.ENTERED, 255, -1
    row["age_ms"] = int(at_s * 1000 - entry["time_created_ns"] / 1e6)
    row["flags"] = FrameFlag.COUNTS_UNOBSERVABLE
    return row


def _function(entry: Dump) -> Function:
    return Function[str(entry["profiling_name"]).split(":")[1].upper()]


def _signature(entry: Dump) -> int:
    text = f"{entry['profiling_name']}|{entry['input_sizes']}|{entry['input_dtypes']}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") | 1
