"""Rows of the processes of one job to encoded batches: by shard, in chunks below the size bound."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.contracts.batch import (
    BATCH_BYTES_MAX,
    ROW_DTYPES,
    STRING_BYTES_MAX,
    Batch,
    BatchFlag,
    BatchKind,
    RowKind,
    Rows,
    encode_batch,
)
from paceline.contracts.layout import FRAME

CHUNK_BYTES_MAX = BATCH_BYTES_MAX - 4 * STRING_BYTES_MAX - 1024
COMM_IN_FRAME = FRAME.field("comm").offset
CHUNKS_MAX = 64  # a node of 64 processes at the bounds of every page


@dataclass(frozen=True)
class Sample:
    """What holds for all batches of one job at one instant."""

    job: str
    attempt: str
    node: str
    shards: int
    sampled_ns: int
    sampled_unix_ns: int
    flags: BatchFlag


def merge_rows(parts: Sequence[Mapping[RowKind, Rows]]) -> dict[RowKind, Rows]:
    """The rows of several processes in one table for each kind."""
    merged: dict[RowKind, Rows] = {}
    for kind, dtype in ROW_DTYPES.items():
        found = [part[kind] for part in parts if kind in part and len(part[kind])]
        if found:
            # As bytes: field by field takes ten times as long.
            merged[kind] = np.concatenate([table.view(f"V{dtype.itemsize}") for table in found]).view(dtype)
    return merged


def split_shards(rows: Mapping[RowKind, Rows], shards: int) -> list[dict[RowKind, Rows]]:
    """Rows by shard of their communicator; process rows go to every shard, each one needs them."""
    if shards == 1:
        return [dict(rows)]
    split: list[dict[RowKind, Rows]] = [{} for _ in range(shards)]
    for kind, table in rows.items():
        if kind is RowKind.PROCESS:
            for part in split:
                part[kind] = table
            continue
        shard_of_row = _communicators(kind, table) % np.uint64(shards)
        for shard in range(shards):
            split[shard][kind] = table[shard_of_row == shard]
    return split


def chunk_rows(rows: Mapping[RowKind, Rows], bytes_max: int) -> list[dict[RowKind, Rows]]:
    """Tables cut so that each chunk stays below `bytes_max`; the first chunk has the process rows."""
    chunks: list[dict[RowKind, Rows]] = [{}]
    room = bytes_max
    order = sorted(rows, key=lambda kind: kind is not RowKind.PROCESS)
    for kind in order:
        table = rows[kind]
        start = 0
        while start < len(table):
            fits = room // table.dtype.itemsize
            if fits == 0:
                chunks.append({})
                room = bytes_max
                continue
            piece = table[start : start + fits]
            chunks[-1][kind] = piece
            room -= len(piece) * table.dtype.itemsize
            start += len(piece)
    return chunks


def encode_sample(
    sample: Sample, rows: Mapping[RowKind, Rows], seqs: Mapping[int, int], drops: Counter[str]
) -> Iterable[tuple[int, bytes]]:
    """(shard, encoded batch) for each chunk; `seqs` is the sequence number by shard.

    Chunks beyond CHUNKS_MAX are counted in `drops`, and those that remain say DROPPED.
    """
    for shard, part in enumerate(split_shards(rows, sample.shards)):
        chunks = chunk_rows(part, CHUNK_BYTES_MAX)
        flags = sample.flags
        if len(chunks) > CHUNKS_MAX:
            drops["sample_too_large"] += len(chunks) - CHUNKS_MAX
            flags |= BatchFlag.DROPPED
            del chunks[CHUNKS_MAX:]
        for index, chunk in enumerate(chunks):
            batch = Batch(
                kind=BatchKind.FRAMES,
                job=sample.job,
                attempt=sample.attempt,
                node=sample.node,
                shard=shard,
                shards=sample.shards,
                seq=seqs[shard],
                sampled_ns=sample.sampled_ns,
                sampled_unix_ns=sample.sampled_unix_ns,
                rows=chunk,
                flags=flags,
                chunk=index,
                chunks=len(chunks),
            )
            yield shard, encode_batch(batch)


def _communicators(kind: RowKind, table: Rows) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    if kind is not RowKind.FRAME:
        return table["comm"].astype(np.uint64)
    raw = table.view(np.uint8).reshape(len(table), -1)
    return raw[:, COMM_IN_FRAME : COMM_IN_FRAME + 8].copy().view("<u8").reshape(-1)
