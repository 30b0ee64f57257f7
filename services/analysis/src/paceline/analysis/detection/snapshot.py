"""A block as bytes and back: what a detector needs to go on after a restart as if nothing happened.

    header 48 B | zlib(JSON length | JSON | arrays)

Only plain arrays of known names and types are read; anything else is a `SnapshotError`, and the
block starts anew from the log.
"""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.detection.block import JobBlock
from paceline.analysis.detection.policy import DetectionPolicy
from paceline.analysis.detection.reasons import Reason
from paceline.analysis.detection.senders import Sender
from paceline.analysis.detection.suspicion import Suspicion, Tracked
from paceline.contracts.batch import ROW_DTYPES, STATE_ROW, RowKind

MAGIC = 0x31534C50  # "PLS1"
VERSION = 2
CHUNK_BYTES_MAX = 900_000
RAW_BYTES_MAX = 512 * 1024 * 1024
# magic, version, chunk, chunks, partition, id, raw bytes, saved (unix s), crc32 of the part, spare
_HEADER = struct.Struct("<IHHHxxIQQdI4x")
assert _HEADER.size == 48

_SCALARS = (
    "now_ns",
    "first_ns",
    "tick_writer",
    "tick_sampled_ns",
    "last_gated_ns",
    "last_held_ns",
    "dead_since_ns",
    "gone_since_ns",
    "world_size",
    "stepless_warm",
    "stepless_beats",
    "beat_looked_ns",
    "usual_wait_ms",
    "longest_wait_ms",
    "asked_until_ns",
    "state_published_ns",
)
_SENDER_SCALARS = ("node", "seq", "sampled_ns", "sampled_unix_ns", "chunk", "seen_ns", "period_ns", "silent")
_Array = npt.NDArray[Any]  # of the dtype that `_read_arrays` checks
_Arrays = dict[str, _Array]


class SnapshotError(ValueError):
    """Bytes that are not a snapshot of this version; the message says what was found."""


@dataclass(frozen=True)
class ChunkHead:
    """What one record says of the snapshot it belongs to."""

    chunk: int
    chunks: int
    partition: int  # of the frames that the block was built from
    snapshot_id: int  # grows with every snapshot of a block
    raw_bytes: int
    saved_unix_s: float


def dump_block(block: JobBlock, outer: Mapping[str, object]) -> bytes:
    """Raw bytes of `block`; `outer` is the owner's own JSON (identity, offsets)."""
    suspicion = asdict(block.suspicion)
    suspicion["tracked"] = [
        [comm, entry.round, int(entry.reason), entry.calm_ticks]
        for comm, entry in block.suspicion.tracked.items()
    ]
    senders = []
    for sender in block.senders.values():
        entry = {name: getattr(sender, name) for name in _SENDER_SCALARS}
        entry["extras"] = {int(kind): len(rows) for kind, rows in sender.extras.items()}
        entry["ranks"] = len(sender.ranks)
        senders.append(entry)
    arrays: _Arrays = {
        "members": block.members.rows,
        "still": block.members.still,
        "members_seen": block.members.seen_ns,
        "processes": block.processes.rows,
        "processes_seen": block.processes.seen_ns,
        "sender_ranks": _join([sender.ranks for sender in block.senders.values()], np.dtype("<u4")),
        **block.slow.arrays(),
    }
    for kind in RowKind:
        parts = [s.extras[kind] for s in block.senders.values() if kind in s.extras]
        arrays[f"extra_{int(kind)}"] = _join(parts, ROW_DTYPES[kind])
    body = {
        "outer": dict(outer),
        "scalars": {name: getattr(block, name) for name in _SCALARS},
        "suspicion": suspicion,
        "slow": block.slow.scalars(),
        "senders": senders,
        "arrays": [[name, len(values)] for name, values in arrays.items()],
    }
    text = json.dumps(body).encode()
    return b"".join([struct.pack("<I", len(text)), text, *(a.tobytes() for a in arrays.values())])


def load_block(raw: bytes, policy: DetectionPolicy) -> tuple[JobBlock, dict[str, object]]:
    """The block and the owner's JSON; SnapshotError for anything that does not fit."""
    try:
        body, offset = _read_json(raw)
        block = JobBlock(policy)
        arrays = _read_arrays(raw, offset, body["arrays"], block)
        _restore(block, body, arrays)
        return block, dict(body["outer"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, struct.error) as error:
        raise SnapshotError(f"snapshot cannot be read: {type(error).__name__}: {error}") from None


def pack_chunks(raw: bytes, *, snapshot_id: int, partition: int, saved_unix_s: float) -> list[bytes]:
    """Compressed records below Kafka's limit."""
    packed = zlib.compress(raw, 1)
    parts = [packed[i : i + CHUNK_BYTES_MAX] for i in range(0, len(packed), CHUNK_BYTES_MAX)]
    return [
        _HEADER.pack(
            MAGIC,
            VERSION,
            index,
            len(parts),
            partition,
            snapshot_id,
            len(raw),
            saved_unix_s,
            zlib.crc32(part),
        )
        + part
        for index, part in enumerate(parts)
    ]


def read_chunk(data: bytes) -> ChunkHead:
    """What stands before one chunk; SnapshotError for garbage."""
    if len(data) < _HEADER.size:
        raise SnapshotError(f"length {len(data)}, expected at least {_HEADER.size} bytes")
    magic, version, chunk, chunks, partition, snapshot_id, length, saved, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise SnapshotError(f"magic {magic:#x} version {version}, expected {MAGIC:#x} version {VERSION}")
    if chunk >= chunks or length > RAW_BYTES_MAX or zlib.crc32(data[_HEADER.size :]) != crc:
        raise SnapshotError(f"chunk {chunk} of {chunks}, {length} bytes: damaged or beyond the bounds")
    return ChunkHead(chunk, chunks, partition, snapshot_id, length, saved)


def unpack_chunks(chunks: Sequence[bytes]) -> bytes:
    """Raw bytes of all chunks of one snapshot, in any order; SnapshotError where one is missing."""
    heads = sorted(((read_chunk(data), data) for data in chunks), key=lambda pair: pair[0].chunk)
    if not heads or len({head.snapshot_id for head, _ in heads}) != 1:
        raise SnapshotError("chunks of no or of different snapshots")
    if [head.chunk for head, _ in heads] != list(range(heads[0][0].chunks)):
        raise SnapshotError(f"{len(heads)} chunks, expected {heads[0][0].chunks}")
    length = heads[0][0].raw_bytes
    packed = b"".join(data[_HEADER.size :] for _, data in heads)
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(packed, length + 1)
    except zlib.error as error:
        raise SnapshotError(f"not compressed data: {error}") from None
    if len(raw) != length:
        raise SnapshotError(f"{len(raw)} bytes, expected {length}")
    return raw


def _join(parts: Sequence[_Array], dtype: np.dtype[Any]) -> _Array:
    return np.frombuffer(b"".join([part.tobytes() for part in parts]), dtype)


def _read_json(raw: bytes) -> tuple[dict, int]:  # type: ignore[type-arg]
    (length,) = struct.unpack_from("<I", raw)
    body = json.loads(raw[4 : 4 + length])
    if not isinstance(body, dict):
        raise SnapshotError("header is not an object")
    return body, 4 + length


def _read_arrays(raw: bytes, offset: int, listed: Sequence[tuple[str, int]], block: JobBlock) -> _Arrays:
    known: dict[str, np.dtype[np.generic]] = {
        "members": STATE_ROW,
        "still": np.dtype("u1"),
        "members_seen": np.dtype("<i8"),
        "processes": ROW_DTYPES[RowKind.PROCESS],
        "processes_seen": np.dtype("<i8"),
        "sender_ranks": np.dtype("<u4"),
        **{f"extra_{int(kind)}": ROW_DTYPES[kind] for kind in RowKind},
        **block.slow.array_dtypes(),
    }
    arrays: _Arrays = {}
    for name, count in listed:
        dtype = known[name]
        arrays[name] = np.frombuffer(raw, dtype, count, offset)
        offset += dtype.itemsize * count
    return arrays


def _restore(block: JobBlock, body: dict, arrays: _Arrays) -> None:  # type: ignore[type-arg]
    for name in _SCALARS:
        default = getattr(block, name)
        value = body["scalars"].get(name, default)  # an earlier release may not have had it
        if type(value) is not type(default):
            raise SnapshotError(f"{name} is {value!r}, expected {type(default).__name__}")
        setattr(block, name, value)
    block.members.restore(arrays["members"], arrays["still"], arrays["members_seen"])
    block.processes.restore(arrays["processes"], arrays["processes_seen"])
    block.slow.restore(arrays, body["slow"])
    _restore_senders(block, body["senders"], arrays)
    saved = dict(body["suspicion"])
    tracked = {
        int(comm): Tracked(int(number), Reason(reason), int(calm))
        for comm, number, reason, calm in saved.pop("tracked")
    }
    saved["first"] = (int(saved["first"][0]), int(saved["first"][1]))
    block.suspicion = Suspicion(**{**saved, "tracked": tracked})


def _restore_senders(block: JobBlock, saved: Sequence[dict], arrays: _Arrays) -> None:  # type: ignore[type-arg]
    used = dict.fromkeys(range(256), 0)
    ranks_used = 0
    for entry in saved:
        sender = Sender(**{name: entry[name] for name in _SENDER_SCALARS})
        for code, count in entry["extras"].items():
            kind = RowKind(int(code))
            start = used[int(code)]
            sender.extras[kind] = arrays[f"extra_{int(code)}"][start : start + count]
            used[int(code)] = start + count
        sender.ranks = arrays["sender_ranks"][ranks_used : ranks_used + entry["ranks"]]
        ranks_used += entry["ranks"]
        block.senders[sender.node] = sender
