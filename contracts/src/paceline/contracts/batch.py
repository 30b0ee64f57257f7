"""The binary record of `paceline.frames.v1` and `paceline.signals.v1`.

    fixed header 64 B | strings | section table, 8 B each | rows of section 0 | rows of section 1 ...

A record holds rows of several kinds for one (job, node, shard) and one instant. Each section says
its own row size: a reader views only the prefix it knows, so old readers accept rows that grew at
the end, and a reader of a longer row sees zeros where an old writer had nothing. A change of
meaning is a new topic (docs/adr/0004-binary-batches.md).

Raises `BatchError` (and nothing else) for any bytes that are not such a record.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.contracts.layout import FRAME

MAGIC = 0x31424C50  # "PLB1"
VERSION = 1
BATCH_BYTES_MAX = 900_000  # below Kafka's default 1 MB record limit, headers included
SECTIONS_MAX = 16
ROWS_MAX = 200_000
WIDENED_BYTES_MAX = 8_000_000  # rows of an older writer, zeros added: a few bytes must not claim much memory
STRING_BYTES_MAX = 255
PEEK_BYTES = 64 + 4 * STRING_BYTES_MAX
TEXTS_MAX = 32_768  # strings of senders kept decoded: those of the nodes of the largest jobs

# magic, version, kind, flags, crc32, shard, shards, seq, sampled_ns, sampled_unix_ns,
# chunk, chunks, sections, four string lengths, spare
_HEADER = struct.Struct("<IHBBIIIQQQHHBBBBB11x")
_SECTION = struct.Struct("<HHI")
assert _HEADER.size == 64

Rows = npt.NDArray[np.void]


class BatchError(ValueError):
    """Bytes that are not a batch; the message names the field, its value and what was expected."""


class BatchKind(IntEnum):
    FRAMES = 1  # what an agent sampled
    STALLED = 2  # a detector shard sees rounds without progress
    SLOW = 3  # a detector shard sees slow rounds
    STATE = 4  # a detector shard shows all it knows of a job that another shard suspects
    CLEAR = 5  # what was stalled or slow progresses again
    TICK = 6  # written by the detector so that silence is in the record too
    SCALING = 7  # a window of iterations, of healthy jobs too (docs/adr/0025-scaling-on-the-wire.md)


class BatchFlag(IntFlag):
    NONE = 0
    SUSPECT = 1  # open rounds, edges and peers are included
    LAST = 2  # the last rows of a process that is gone
    DROPPED = 4  # the sender dropped at least one batch before this one
    PROGRESS = 8  # CLEAR: what stood still has gone on, as opposed to a job that has ended


class RowKind(IntEnum):
    STATE = 1
    ROUND = 2
    PROCESS = 3
    EDGE = 4
    PEER = 5
    FRAME = 6
    BASELINE = 7
    STEP = 8
    ITERATION = 9
    TRANSFER = 10


class StepFlag(IntFlag):
    """What a STEP row cannot say; the figure concerned is 0 and must not be used."""

    NONE = 0
    OWN_UNOBSERVED = 1  # waits are not seen, or overlap with computation: own time is unknown
    NO_BASE = 2  # nothing learned yet to compare with
    ONCE = 4  # own time has risen in the newest figures only, not in those before


STATE_ROW = np.dtype(
    [
        ("comm", "<u8"),
        ("rank", "<u4"),  # global
        ("comm_rank", "<u4"),
        ("entered", "<u8"),  # rounds entered = number of the newest entered round
        ("completed", "<u8"),  # rounds completed
        ("head_round", "<u8"),  # oldest open round, 0 = nothing open
        ("head_signature", "<u8"),
        ("head_issue", "<u8"),  # process-wide order of the head; entered-order across communicators
        ("head_age_ms", "<u4"),  # own clock
        ("idle_ms", "<u4"),  # since the last progress in this communicator, own clock
        ("send_count", "<u8"),
        ("recv_count", "<u8"),
        ("open_ops", "<u2"),
        ("flags", "<u2"),  # FrameFlag
        ("function", "u1"),  # of the head, else of the newest operation
        ("dtype", "u1"),
        ("reduce_op", "u1"),
        ("state", "u1"),
        ("peer", "<i4"),  # root or peer as rank of the communicator, -1 none
        ("sources", "<u4"),
    ]
)
ROUND_ROW = np.dtype(
    [
        ("comm", "<u8"),
        ("rank", "<u4"),
        ("comm_rank", "<u4"),
        ("round", "<u8"),  # 0 for point-to-point
        ("issue", "<u8"),
        ("signature", "<u8"),
        ("count", "<u8"),
        ("duration_ns", "<u8"),  # T = completed - started; 0 while open
        ("gap_ns", "<u8"),  # started - previous completion on this rank: time outside
        ("kind", "u1"),
        ("function", "u1"),
        ("dtype", "u1"),
        ("reduce_op", "u1"),
        ("state", "u1"),
        ("level", "u1"),  # kept level 0, 4, 8, 12; 255 = newest only
        ("flags", "u1"),  # FrameFlag
        ("path", "u1"),  # `pack_path` of algorithm and protocol; 0 = unknown
        ("peer", "<i4"),
        ("pair_seq", "<u4"),
        ("step", "<u4"),
        ("age_ms", "<u4"),  # since entered, own clock
        ("send_wait_us", "<u4"),
        ("recv_wait_us", "<u4"),
    ]
)
PROCESS_ROW = np.dtype(
    [
        ("rank", "<u4"),
        ("pid", "<u4"),
        ("pid_start", "<u8"),
        ("step", "<u8"),
        ("issued", "<u8"),  # process-wide issue counter
        ("cpu_ms", "<u8"),  # user + system time so far
        ("paced_ms", "<u8"),
        ("native_age_ms", "<u4"),  # age of the native heartbeat; grows while frozen
        ("python_age_ms", "<u4"),  # age of the Python heartbeat; grows while the GIL is held
        ("phase_age_ms", "<u4"),
        ("step_age_ms", "<u4"),
        ("host_wait_age_ms", "<u4"),
        ("host_wait_rank", "<i4"),
        ("exit_code", "<i4"),  # exit status, or minus the signal
        ("communicators", "<u2"),
        ("phase", "u1"),
        ("process_state", "u1"),  # ProcessState
        ("host_wait", "u1"),
        ("exit_kind", "u1"),  # ExitKind
        ("finished", "u1"),
        ("flags", "u1"),
        ("dropped", "<u4"),  # operations and communicators the probe could not record
        ("context_switches", "<u4"),  # voluntary, low 32 bits; of one of the last five samples
        ("waited_ms", "<u4"),  # in collectives and receives so far, low 32 bits; 0 = not observed
    ]
)
EDGE_ROW = np.dtype(
    [
        ("comm", "<u8"),
        ("rank", "<u4"),
        ("comm_rank", "<u4"),
        ("peer", "<i4"),  # rank of the communicator
        ("group", "<u2"),
        ("direction", "<u2"),
        ("count", "<u8"),
        ("bytes", "<u8"),
        ("wait_ns", "<u8"),  # a wait that is going on included, where the source sees it
        ("recent_wait_us", "<u4"),  # of it in the newest interval between two samples; the detector fills it
        ("recent_us", "<u4"),  # that interval, 0 = not known
        ("state", "u1"),  # TransferState of this edge, 0 = idle or not seen
        ("spare", "u1", (7,)),
    ]
)
PEER_ROW = np.dtype(
    [
        ("comm", "<u8"),
        ("rank", "<u4"),
        ("comm_rank", "<u4"),
        ("peer", "<i4"),  # rank of the communicator, -2 = any source
        ("flags", "<u4"),
        ("posted", "<u8", (2,)),  # [send, receive]
        ("completed", "<u8", (2,)),
        ("head_signature", "<u8", (2,)),
        ("head_issue", "<u8", (2,)),
        ("head_age_ms", "<u4", (2,)),  # 0 = nothing open
    ]
)
FRAME_ROW = np.dtype((np.void, FRAME.size))
BASELINE_ROW = np.dtype(
    [
        ("comm", "<u8"),
        ("count", "<u8"),  # elements of the newest round of this key
        ("t_base_ns", "<u8"),  # median over rounds of the smallest T among the members
        ("samples", "<u4"),  # rounds behind t_base_ns
        ("ratio", "<f4"),  # newest Tmax / Tbase
        ("threshold", "<f4"),  # of this key, as the detector applied it
        ("slow", "<u2"),  # slow rounds ...
        ("window", "<u2"),  # ... among this many newest ones
        ("function", "u1"),
        ("dtype", "u1"),
        ("reduce_op", "u1"),
        ("bucket", "u1"),  # bit length of count: rounds of one key share it
        ("algorithm", "u1"),
        ("protocol", "u1"),
        ("in_turn_s", "<u2"),  # different ranks have come last for so long
        ("late_rank", "<i4"),  # who came last again and again, -1 = nobody: all alike, or in turn
        ("late_nats", "<f4"),  # evidence for that, natural logarithm of the likelihood ratio
        ("usual_late_ns", "<u8"),  # lateness that was usual before
        ("rounds_per_step", "<f4"),  # of the communicator, 0 = unknown
        ("step_ms", "<f4"),  # usual duration of a step of the job, 0 = unknown
    ]
)
# Where the time of a step goes on one rank: own + waited = step. Own clock, means per step.
STEP_ROW = np.dtype(
    [
        ("rank", "<u4"),
        ("flags", "<u4"),  # StepFlag
        ("steps", "<u4"),  # behind the newest figures
        ("base_steps", "<u4"),  # behind the usual ones
        ("step_us", "<u8"),
        ("own_us", "<u8"),  # neither in a collective nor in a receive
        ("base_step_us", "<u8"),
        ("base_own_us", "<u8"),
    ]
)
# SCALING: one iteration of one rank, as seen in the communicators of this shard. Own clock.
ITERATION_ROW = np.dtype(
    [
        ("step", "<u4"),  # low 32 bits
        ("rank", "<u4"),
        ("step_us", "<u4"),  # duration of the iteration, 0 = not known here
        ("waited_us", "<u4"),  # in collectives
    ]
)
# SCALING: what one communicator needs in one iteration whoever comes last.
TRANSFER_ROW = np.dtype(
    [
        ("comm", "<u8"),
        ("step", "<u4"),  # low 32 bits
        ("transfer_us", "<u4"),  # sum over its rounds of the smallest T among all members
    ]
)

ROW_DTYPES: Mapping[RowKind, np.dtype[np.void]] = {
    RowKind.STATE: STATE_ROW,
    RowKind.ROUND: ROUND_ROW,
    RowKind.PROCESS: PROCESS_ROW,
    RowKind.EDGE: EDGE_ROW,
    RowKind.PEER: PEER_ROW,
    RowKind.FRAME: FRAME_ROW,
    RowKind.BASELINE: BASELINE_ROW,
    RowKind.STEP: STEP_ROW,
    RowKind.ITERATION: ITERATION_ROW,
    RowKind.TRANSFER: TRANSFER_ROW,
}
# An enum looked up by value costs more than the rest of a header.
_BATCH_KINDS = {kind.value: kind for kind in BatchKind}
_ROW_KINDS = {kind.value: kind for kind in RowKind}
_FLAGS = [BatchFlag(value) for value in range(256)]


def pack_path(algorithm: int, protocol: int) -> int:
    """Algorithm and Protocol in the one byte of `ROUND_ROW.path`; also for arrays of u1."""
    return (algorithm << 4) | protocol


@dataclass(frozen=True)
class Batch:
    """One decoded record. `rows` arrays have the dtypes of `ROW_DTYPES`."""

    kind: BatchKind
    job: str
    attempt: str
    node: str  # the sender: a node for FRAMES, a detector instance for the others
    shard: int
    shards: int
    seq: int  # per (sender, job, shard), so that gaps show
    sampled_ns: int  # sender's CLOCK_MONOTONIC; durations only
    sampled_unix_ns: int  # sender's wall clock; for people, never for judgement across nodes
    rows: Mapping[RowKind, Rows] = field(default_factory=dict)
    flags: BatchFlag = BatchFlag.NONE
    chunk: int = 0
    chunks: int = 1
    episode: str = ""  # signals: id of the stall episode, empty for frames

    def table(self, kind: RowKind) -> Rows:
        """Rows of `kind`, an empty array where the record has none."""
        found = self.rows.get(kind)
        return np.zeros(0, ROW_DTYPES[kind]) if found is None else found


def encode_batch(batch: Batch) -> bytes:
    """Bytes of `batch`; BatchError where it exceeds a bound."""
    strings = [_pack_text(name, getattr(batch, name)) for name in ("job", "attempt", "node", "episode")]
    tables: list[bytes] = []
    sections: list[bytes] = []
    for kind, rows in batch.rows.items():
        if len(rows) == 0:
            continue
        sections.append(_SECTION.pack(kind, rows.dtype.itemsize, len(rows)))
        tables.append(rows.tobytes())
    body = b"".join([*strings, *sections, *tables])
    if _HEADER.size + len(body) > BATCH_BYTES_MAX:
        raise BatchError(
            f"batch of {_HEADER.size + len(body)} bytes exceeds {BATCH_BYTES_MAX}; split it into chunks"
        )
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        batch.kind,
        batch.flags,
        zlib.crc32(body),
        batch.shard,
        batch.shards,
        batch.seq,
        batch.sampled_ns,
        batch.sampled_unix_ns,
        batch.chunk,
        batch.chunks,
        len(sections),
        *(len(text) for text in strings),
    )
    return header + body


def decode_batch(data: bytes) -> Batch:
    """The batch in `data`; BatchError names what is wrong with it."""
    if not _HEADER.size <= len(data) <= BATCH_BYTES_MAX:
        raise BatchError(f"length {len(data)}, expected {_HEADER.size} to {BATCH_BYTES_MAX} bytes")
    (magic, version, kind, flags, crc, shard, shards, seq, sampled_ns, sampled_unix_ns,
     chunk, chunks, section_count, *lengths) = _HEADER.unpack_from(data)  # fmt: skip
    if magic != MAGIC:
        raise BatchError(f"magic {magic:#x}, expected {MAGIC:#x}")
    if version != VERSION:
        raise BatchError(f"version {version}, expected {VERSION}; upgrade this reader")
    if zlib.crc32(memoryview(data)[_HEADER.size :]) != crc:
        raise BatchError("checksum does not match the content")
    if section_count > SECTIONS_MAX:
        raise BatchError(f"sections {section_count}, expected at most {SECTIONS_MAX}")
    if not 0 < shards <= 65536 or shard >= shards or chunk >= max(chunks, 1):
        raise BatchError(f"shard {shard} of {shards}, chunk {chunk} of {chunks} is not a position")
    batch_kind = _BATCH_KINDS.get(kind)
    if batch_kind is None:
        raise BatchError(f"kind {kind}, expected one of {[k.value for k in BatchKind]}")
    offset = _HEADER.size + sum(lengths)
    job, attempt, node, episode = _unpack_texts(data[_HEADER.size : offset], *lengths)
    batch = Batch.__new__(Batch)  # setting each field of a frozen class costs as much as reading the rows
    batch.__dict__.update(
        kind=batch_kind,
        job=job,
        attempt=attempt,
        node=node,
        episode=episode,
        shard=shard,
        shards=shards,
        seq=seq,
        sampled_ns=sampled_ns,
        sampled_unix_ns=sampled_unix_ns,
        rows=_unpack_sections(data, offset, section_count),
        flags=_FLAGS[flags],
        chunk=chunk,
        chunks=chunks,
    )
    return batch


def peek_identity(data: bytes) -> tuple[BatchKind, str, str, str]:
    """Kind, job, attempt and node of a batch of which `data` are at least the first PEEK_BYTES bytes.

    BatchError where they do not begin one; the checksum is not looked at.
    """
    if len(data) < _HEADER.size:
        raise BatchError(f"length {len(data)}, expected at least {_HEADER.size} bytes")
    fields = _HEADER.unpack_from(data)
    if fields[:2] != (MAGIC, VERSION):
        raise BatchError(f"magic and version {fields[:2]}, expected {(MAGIC, VERSION)}")
    kind = _BATCH_KINDS.get(fields[2])
    if kind is None:
        raise BatchError(f"kind {fields[2]}, expected one of {[k.value for k in BatchKind]}")
    lengths = fields[-4:]
    job, attempt, node, _ = _unpack_texts(data[_HEADER.size : _HEADER.size + sum(lengths)], *lengths)
    return kind, job, attempt, node


def _pack_text(name: str, text: str) -> bytes:
    packed = text.encode()
    if len(packed) > STRING_BYTES_MAX:
        raise BatchError(f"{name} has {len(packed)} bytes, expected at most {STRING_BYTES_MAX}")
    return packed


@lru_cache(maxsize=TEXTS_MAX)
def _unpack_texts(packed: bytes, *lengths: int) -> tuple[str, ...]:
    """A sender has the same strings in each record."""
    texts, offset = [], 0
    for length in lengths:
        try:
            texts.append(packed[offset : offset + length].decode())
        except UnicodeDecodeError as error:
            raise BatchError(f"text at byte {_HEADER.size + offset} is not UTF-8: {error.reason}") from None
        offset += length
    return tuple(texts)


def _unpack_sections(data: bytes, offset: int, count: int) -> dict[RowKind, Rows]:
    rows: dict[RowKind, Rows] = {}
    start = offset + count * _SECTION.size
    if start > len(data):
        raise BatchError(f"section table ends at {start}, the record has {len(data)} bytes")
    for index, (code, row_bytes, row_count) in enumerate(_SECTION.iter_unpack(data[offset:start])):
        end = start + row_bytes * row_count
        if row_count > ROWS_MAX or end > len(data):
            raise BatchError(f"section {index} has {row_count} rows of {row_bytes} bytes, past the end")
        kind = _ROW_KINDS.get(code)
        if kind is not None:
            rows[kind] = _view(data, start, row_bytes, row_count, ROW_DTYPES[kind])
        start = end  # a row kind of a newer writer is skipped
    return rows


def _view(data: bytes, start: int, row_bytes: int, count: int, dtype: np.dtype[np.void]) -> Rows:
    """Rows as `dtype`: the known prefix of longer rows, zeros behind shorter ones."""
    if row_bytes == dtype.itemsize:
        return np.frombuffer(data, dtype, count, start)
    if count * dtype.itemsize > WIDENED_BYTES_MAX:
        raise BatchError(
            f"{count} rows of {row_bytes} bytes would take {count * dtype.itemsize} bytes, "
            f"expected at most {WIDENED_BYTES_MAX}"
        )
    raw = np.frombuffer(data, np.uint8, row_bytes * count, start).reshape(count, row_bytes)
    wide = np.zeros((count, dtype.itemsize), np.uint8)
    shared = min(row_bytes, dtype.itemsize)
    wide[:, :shared] = raw[:, :shared]
    return wide.reshape(-1).view(dtype)
