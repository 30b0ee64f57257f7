"""The evidence that is in Flight Recorder dumps, as the analysis takes it; nothing else is used."""

import pickle
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from paceline.analysis import JobEvidence, build_evidence
from paceline.contracts.batch import PEER_ROW, ROUND_ROW, STATE_ROW, Batch, BatchKind, RowKind, Rows
from paceline.contracts.codes import FrameFlag, Function, OpKind, OpState, Source
from paceline.contracts.ids import communicator_id, format_communicator, format_ranks
from paceline.contracts.registry import CommunicatorRecord
from paceline.fleet import CommKind
from paceline.lab.evaluation.flight_dumps import DESCRIPTIONS, DTYPES, PREFIX, Dump

_TYPES = {name: code for code, name in DTYPES.items()}
_KINDS = {text: kind for kind, text in DESCRIPTIONS.items()}


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


class _Group:
    """A process group as its members' dumps describe it."""

    def __init__(self, name: str, config: Dump) -> None:
        self.ranks = [int(member) for member in config["ranks"].strip("[]").split(",")]
        self.kind = _KINDS.get(config["desc"], CommKind.WORLD)
        self.name = self.kind.value if self.kind is CommKind.WORLD else f"{self.kind.value} {name}"
        self.id = communicator_id(self.name, self.ranks)

    def record(self) -> CommunicatorRecord:
        return CommunicatorRecord(
            "dumps", "a1", format_communicator(self.id), self.name, format_ranks(self.ranks), 0, 0, "nccl",
            self.kind.value,
        )  # fmt: skip


def dump_evidence(dumps: dict[int, Dump], at_s: float) -> JobEvidence:
    """What the dumps show at `at_s` of the job."""
    groups: dict[str, _Group] = {}
    rows: dict[RowKind, list[Rows]] = {RowKind.STATE: [], RowKind.ROUND: [], RowKind.PEER: []}
    for rank, dump in dumps.items():
        for name, config in dump["pg_config"].items():
            group = groups.setdefault(name, _Group(name, config))
            mine = [entry for entry in dump["entries"] if entry["process_group"][0] == name]
            rows[RowKind.STATE].append(_state_row(rank, group, mine, at_s))
            rows[RowKind.PEER] += _peer_rows(rank, group, [e for e in mine if e["is_p2p"]], at_s)
            rows[RowKind.ROUND] += [_round_row(rank, group, entry, at_s) for entry in mine if _is_open(entry)]
    tables = {kind: np.concatenate(parts) for kind, parts in rows.items() if parts}
    batch = Batch(BatchKind.STALLED, "dumps", "a1", "dumps", 0, 1, 1, 1, 1, tables)
    records = [group.record() for group in groups.values()]
    return build_evidence([batch], None, [], records, [], job_id="dumps", attempt="a1")


def _is_open(entry: Dump) -> bool:
    return bool(entry["state"] != "completed")


def _age_ms(entry: Dump, at_s: float) -> int:
    return max(int(at_s * 1000 - entry["time_created_ns"] / 1e6), 1)


def _place(row: Any, rank: int, group: _Group) -> None:
    row["comm"], row["rank"], row["comm_rank"] = group.id, rank, group.ranks.index(rank)


def _state_row(rank: int, group: _Group, mine: Sequence[Dump], at_s: float) -> Rows:
    row = np.zeros(1, STATE_ROW)
    _place(row, rank, group)
    row["peer"], row["flags"], row["sources"] = -1, FrameFlag.COUNTS_UNOBSERVABLE, Source.TORCH_HOOK
    calls = [entry for entry in mine if not entry["is_p2p"]]
    row["entered"], row["completed"] = len(calls), sum(not _is_open(entry) for entry in calls)
    newest_s = max((entry["time_created_ns"] for entry in mine), default=0) / 1e9
    row["idle_ms"] = int((at_s - newest_s) * 1000)
    row["open_ops"] = sum(_is_open(entry) for entry in mine)
    head = next((entry for entry in calls if _is_open(entry)), None)
    shown = head or (mine[-1] if mine else None)
    if shown is not None:
        row["function"], row["dtype"] = _function(shown), _TYPES[shown["input_dtypes"][0]]
        row["state"] = OpState.ENTERED if row["open_ops"][0] else OpState.COMPLETED
    if head is not None:
        row["head_round"], row["head_issue"] = head["collective_seq_id"], head["record_id"] + 1
        row["head_signature"], row["head_age_ms"] = _signature(head), _age_ms(head, at_s)
    return row


def _round_row(rank: int, group: _Group, entry: Dump, at_s: float) -> Rows:
    row = np.zeros(1, ROUND_ROW)
    _place(row, rank, group)
    row["issue"], row["signature"] = entry["record_id"] + 1, _signature(entry)
    row["count"] = entry["input_sizes"][0][0]
    row["function"], row["dtype"] = _function(entry), _TYPES[entry["input_dtypes"][0]]
    row["state"], row["level"], row["age_ms"] = OpState.ENTERED, 255, _age_ms(entry, at_s)
    row["flags"] = FrameFlag.COUNTS_UNOBSERVABLE
    if entry["is_p2p"]:
        row["kind"], row["peer"], row["pair_seq"] = OpKind.POINT_TO_POINT, _peer(entry), entry["p2p_seq_id"]
    else:
        row["kind"], row["peer"], row["round"] = OpKind.COLLECTIVE, -1, entry["collective_seq_id"]
    return row


def _peer_rows(rank: int, group: _Group, pairs: Sequence[Dump], at_s: float) -> list[Rows]:
    """One row for each peer: how many were posted and completed, and the oldest open one."""
    found = []
    for peer in sorted({_peer(entry) for entry in pairs}):
        row = np.zeros(1, PEER_ROW)
        _place(row, rank, group)
        row["peer"] = peer
        for direction, function in enumerate((Function.SEND, Function.RECV)):
            mine = [entry for entry in pairs if _peer(entry) == peer and _function(entry) is function]
            head = next((entry for entry in mine if _is_open(entry)), None)
            row["posted"][:, direction] = len(mine)
            row["completed"][:, direction] = sum(not _is_open(entry) for entry in mine)
            if head is not None:
                row["head_age_ms"][:, direction] = _age_ms(head, at_s)
                row["head_issue"][:, direction] = head["record_id"] + 1
                row["head_signature"][:, direction] = _signature(head)
        found.append(row)
    return found


def _peer(entry: Dump) -> int:
    """Place of the other side: "nccl:send 0->1", "nccl:recv 1<-0"."""
    return int(str(entry["profiling_name"]).replace("->", "<-").split("<-")[1])


def _function(entry: Dump) -> Function:
    return Function[str(entry["profiling_name"]).split(":")[1].split(" ")[0].upper()]


def _signature(entry: Dump) -> int:
    """Both sides of a pair have the same."""
    name = "pair" if entry["is_p2p"] else entry["profiling_name"]
    text = f"{name}|{entry['input_sizes']}|{entry['input_dtypes']}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") | 1
