"""Evidence as one bounded, deterministic block of bytes, and back.

    "PLEV" | version u16 | spare u16 | gzip( u32 length | JSON | arrays one after another )

The JSON holds names, registry and health and says of each array its row size and count, so that
rows that grew at the end still load; and the thresholds of the judgement, where the writer gave them.
`load_bundle` and `load_judged` raise `BundleError`, and nothing else, for any other bytes; what they
return never refers outside its own arrays.
"""

import json
import math
import struct
import zlib
from dataclasses import asdict, dataclass, fields, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import COMMUNICATORS_MAX, HEALTH_MAX, MEMBERS_MAX, RANKS_MAX, JobEvidence
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.batch import ROW_DTYPES, RowKind, Rows
from paceline.contracts.ids import format_ranks, parse_ranks
from paceline.contracts.registry import HealthEvent, HealthKind

MAGIC = b"PLEV"
VERSION = 1
PLAIN_BYTES_MAX = 256 * 1024 * 1024
_HEAD = struct.Struct("<4sHH")
_LENGTH = struct.Struct("<I")
_ROW_KINDS = {
    "state": RowKind.STATE,
    "processes": RowKind.PROCESS,
    "peers": RowKind.PEER,
    "rounds": RowKind.ROUND,
    "edges": RowKind.EDGE,
    "baselines": RowKind.BASELINE,
    "steps": RowKind.STEP,
}
_PER_RANK = ("node_of", "local_rank", "gpu")


class BundleError(ValueError):
    """Not a bundle, or too large; the message names the field and what was expected."""


@dataclass(frozen=True)
class Judged:
    """What a verdict was judged from. `is_whole` False: rows were left out to fit, so that a slow verdict
    may come out differently; `policy` null: the bundle does not say it."""

    evidence: JobEvidence
    policy: JudgePolicy | None
    is_whole: bool


def dump_bundle(
    evidence: JobEvidence, bytes_max: int = 384 * 1024, policy: JudgePolicy | None = None
) -> bytes:
    """Bytes of `evidence`, equal for equal evidence; BundleError where they exceed `bytes_max`.

    Where the whole does not fit, completed rounds and edges go first: a hang does not need them.
    """
    packed = _pack(evidence, policy, is_whole=True)
    if len(packed) > bytes_max:
        rounds = evidence.rounds
        open_rounds = rounds[rounds["duration_ns"] == 0]
        less = replace(evidence, rounds=open_rounds, edges=evidence.edges[:0])
        packed = _pack(less, policy, is_whole=False)
    if len(packed) > bytes_max:
        raise BundleError(f"evidence of {len(packed)} bytes exceeds {bytes_max}")
    return packed


def _pack(evidence: JobEvidence, policy: JudgePolicy | None, *, is_whole: bool) -> bytes:
    arrays: list[tuple[str, npt.NDArray[np.void]]] = [(name, getattr(evidence, name)) for name in _ROW_KINDS]
    meta = {
        "job": evidence.job,
        "attempt": evidence.attempt,
        "job_name": evidence.job_name,
        "job_state": evidence.job_state,
        "world_size": evidence.world_size,
        "nodes": list(evidence.nodes),
        "coordinates": {axis: values.tolist() for axis, values in sorted(evidence.coordinates.items())},
        "communicators": [
            {
                "id": int(evidence.comm_ids[index]),
                "name": evidence.comm_names[index],
                "kind": evidence.comm_kinds[index],
                "backend": evidence.comm_backends[index],
                "inferred": bool(evidence.inferred[index]),
                "ranks": format_ranks(evidence.members(index).tolist()),
                "ring": evidence.ring_of(index),
                "tree": evidence.tree_of(index),
            }
            for index in range(evidence.communicators)
        ],
        "health": [asdict(event) for event in evidence.health],
        "ignored_rows": evidence.ignored_rows,
        "policy": None if policy is None else asdict(policy),
        "whole": is_whole,
        "seen": format_ranks(np.flatnonzero(evidence.seen).tolist()),
        "process_seen": format_ranks(np.flatnonzero(evidence.process_seen).tolist()),
        "arrays": [[name, rows.dtype.itemsize, len(rows)] for name, rows in arrays],
        **{name: getattr(evidence, name).tolist() for name in _PER_RANK},
    }
    text = json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()
    plain = b"".join([_LENGTH.pack(len(text)), text, *(rows.tobytes() for _, rows in arrays)])
    return _HEAD.pack(MAGIC, VERSION, 0) + zlib.compress(plain, 6)


def load_bundle(data: bytes) -> JobEvidence:
    """The evidence in `data`; BundleError for anything else."""
    return load_judged(data).evidence


def load_judged(data: bytes) -> Judged:
    """The evidence in `data` and how it was judged; BundleError for anything else."""
    try:
        return _unpack(data)
    except BundleError:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        IndexError,
        struct.error,
    ) as error:
        raise BundleError(f"malformed bundle: {type(error).__name__}: {error}"[:300]) from None
    except RecursionError:
        raise BundleError("malformed bundle: JSON nested too deep") from None


def _unpack(data: bytes) -> Judged:
    if len(data) < _HEAD.size:
        raise BundleError(f"length {len(data)}, expected at least {_HEAD.size} bytes")
    magic, version, _ = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise BundleError(f"magic {magic!r} version {version}, expected {MAGIC!r} version {VERSION}")
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(data[_HEAD.size :], PLAIN_BYTES_MAX)
    except zlib.error as error:
        raise BundleError(f"compressed part: {error}") from None
    if not inflate.eof:
        raise BundleError(f"content is cut short or exceeds {PLAIN_BYTES_MAX} bytes")
    (length,) = _LENGTH.unpack_from(plain)
    if length > len(plain) - _LENGTH.size:
        raise BundleError(f"JSON of {length} bytes in {len(plain)} bytes")
    meta = json.loads(plain[_LENGTH.size : _LENGTH.size + length])
    tables = _tables(meta["arrays"], plain, _LENGTH.size + length)
    return Judged(_evidence(meta, tables), _policy(meta.get("policy")), meta.get("whole") is not False)


def _policy(stored: object) -> JudgePolicy | None:
    """Thresholds of a newer version that are not known here are left out; the others are numbers."""
    if stored is None:
        return None
    values = cast(dict[str, float], stored)
    known = {field.name: values[field.name] for field in fields(JudgePolicy) if field.name in values}
    for name, value in known.items():
        whole = isinstance(getattr(JudgePolicy(), name), int)
        right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not right or not math.isfinite(value) or not 0 <= value <= 1e9:
            raise BundleError(f"policy {name} is {str(value)[:40]}, expected a number from 0 to 1e9")
    return JudgePolicy(**known)  # type: ignore[arg-type]


def _tables(entries: list[list[object]], plain: bytes, offset: int) -> dict[str, Rows]:
    tables = {name: np.zeros(0, ROW_DTYPES[kind]) for name, kind in _ROW_KINDS.items()}
    for name, row_bytes, count in entries[:64]:
        size, rows = int(cast(int, row_bytes)), int(cast(int, count))
        if size <= 0 or rows < 0 or offset + size * rows > len(plain):
            raise BundleError(f"array {name}: {rows} rows of {size} bytes reach past the end")
        if name in _ROW_KINDS:
            dtype = ROW_DTYPES[_ROW_KINDS[str(name)]]
            raw = np.frombuffer(plain, np.uint8, size * rows, offset).reshape(rows, size)
            wide = np.zeros((rows, dtype.itemsize), np.uint8)
            shared = min(size, dtype.itemsize)
            wide[:, :shared] = raw[:, :shared]
            tables[str(name)] = wide.reshape(-1).view(dtype)
        offset += size * rows
    return tables


def _evidence(meta: dict[str, object], tables: dict[str, Rows]) -> JobEvidence:
    world = int(cast(int, meta["world_size"]))
    comms = cast(list[dict[str, object]], meta["communicators"])
    if not 0 <= world <= RANKS_MAX or len(comms) > COMMUNICATORS_MAX:
        raise BundleError(f"world_size {world} with {len(comms)} communicators exceeds the bounds")
    ranks = [parse_ranks(str(comm["ranks"]), RANKS_MAX) for comm in comms]
    members = sum(len(part) for part in ranks)
    if members > MEMBERS_MAX or any(not part or max(part) >= world for part in ranks):
        raise BundleError(f"members {members}: a communicator is empty or names a rank beyond {world - 1}")
    if len(tables["state"]) != members or len(tables["processes"]) != world:
        raise BundleError(
            f"state {len(tables['state'])} of {members}, processes {len(tables['processes'])} of {world}"
        )
    ids = np.array([int(cast(int, comm["id"])) for comm in comms], np.uint64)
    if len(ids) > 1 and not bool((ids[1:] > ids[:-1]).all()):
        raise BundleError("communicator ids are not ascending")
    for name, table in tables.items():
        if "rank" in (table.dtype.names or ()) and len(table) and name != "processes" and name != "state":
            tables[name] = table[table["rank"] < world]
    nodes = tuple(str(node) for node in cast(list[object], meta["nodes"]))
    per_rank = {name: _ints(meta[name], world) for name in _PER_RANK}
    if len(per_rank["node_of"]) and int(per_rank["node_of"].max()) >= len(nodes):
        raise BundleError(f"node_of names node {int(per_rank['node_of'].max())} of {len(nodes)}")
    coordinates = cast(dict[str, object], meta["coordinates"])
    return JobEvidence(
        job=str(meta["job"]),
        attempt=str(meta["attempt"]),
        job_name=str(meta["job_name"]),
        job_state=str(meta["job_state"]),
        world_size=world,
        nodes=nodes,
        node_of=per_rank["node_of"],
        local_rank=per_rank["local_rank"],
        gpu=per_rank["gpu"],
        coordinates={str(axis): _ints(values, world) for axis, values in list(coordinates.items())[:16]},
        comm_ids=ids,
        comm_names=tuple(str(comm["name"]) for comm in comms),
        comm_kinds=tuple(str(comm["kind"]) for comm in comms),
        comm_backends=tuple(str(comm["backend"]) for comm in comms),
        inferred=np.array([bool(comm["inferred"]) for comm in comms], np.bool_),
        offsets=np.concatenate([[0], np.cumsum([len(part) for part in ranks])]).astype(np.int64),
        member_rank=np.array([rank for part in ranks for rank in part], np.int64),
        state=tables["state"],
        seen=_mask(str(meta["seen"]), members),
        processes=tables["processes"],
        process_seen=_mask(str(meta["process_seen"]), world),
        peers=tables["peers"],
        rounds=tables["rounds"],
        edges=tables["edges"],
        baselines=tables["baselines"],
        steps=tables["steps"],
        health=_health(cast(list[dict[str, object]], meta["health"])),
        ignored_rows=int(cast(int, meta["ignored_rows"])),
        comm_rings=tuple(str(comm.get("ring", "")) for comm in comms),
        comm_trees=tuple(str(comm.get("tree", "")) for comm in comms),
    )


def _health(entries: list[dict[str, object]]) -> tuple[HealthEvent, ...]:
    events = []
    for entry in entries[-HEALTH_MAX:]:
        kind = HealthKind(str(entry["kind"]))
        fields = {**entry, "kind": kind}
        event = HealthEvent(**fields)  # type: ignore[arg-type]
        numbers = (event.rank, event.pid, event.exit_code, event.gpu, event.code)
        if not all(value is None or isinstance(value, int) for value in numbers):
            raise BundleError(f"health event {event.id}: a number is not an integer")
        events.append(event)
    return tuple(events)


def _ints(values: object, count: int) -> npt.NDArray[np.int64]:
    array = np.array(values, np.int64)
    if array.shape != (count,) or (count and int(array.min()) < -1):
        raise BundleError(f"array of shape {array.shape}, expected ({count},) of numbers from -1")
    return array


def _mask(text: str, count: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[parse_ranks(text, MEMBERS_MAX)] = True
    return mask
