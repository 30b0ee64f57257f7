"""Rows that a signal carries, and how a signal is cut into records below Kafka's limit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from paceline.analysis.detection.arrays import Rows, join_rows
from paceline.analysis.detection.senders import EXTRA_KINDS, Sender
from paceline.contracts.batch import BATCH_BYTES_MAX, ROW_DTYPES, Batch, RowKind

SIGNAL_BYTES_MAX = 64 * 1024 * 1024  # 98,304 ranks x 4 communicators fit; frames are cut first
_HEADER_BYTES_MAX = 64 + 4 * 255 + 16 * 8


def gather_extras(senders: Iterable[Sender]) -> dict[RowKind, Rows]:
    """Open rounds, peers, edges and frames of all senders, newest sample of each."""
    parts: dict[RowKind, list[Rows]] = {}
    for sender in senders:
        for kind, rows in sender.extras.items():
            parts.setdefault(kind, []).append(rows)
    return {kind: join_rows(parts[kind]) for kind in EXTRA_KINDS if kind in parts}


def bound_rows(
    rows: Mapping[RowKind, Rows], bytes_max: int = SIGNAL_BYTES_MAX
) -> tuple[dict[RowKind, Rows], int]:
    """Rows up to `bytes_max`, kinds in their given order; returns them and how many were cut."""
    kept: dict[RowKind, Rows] = {}
    cut = 0
    for kind, table in rows.items():
        room = max(bytes_max // table.dtype.itemsize, 0)
        kept[kind] = table[:room]
        cut += max(len(table) - room, 0)
        bytes_max -= kept[kind].nbytes
    return kept, cut


def split_batch(batch: Batch, bytes_max: int = BATCH_BYTES_MAX) -> Iterator[Batch]:
    """Records of one signal: same `seq`, rows dealt in order, `chunk` of `chunks`."""
    room = bytes_max - _HEADER_BYTES_MAX
    chunks: list[dict[RowKind, Rows]] = [{}]
    left = room
    for kind, table in batch.rows.items():
        start = 0
        while start < len(table):
            take = min(left // ROW_DTYPES[kind].itemsize, len(table) - start)
            if take == 0:
                chunks.append({})
                left = room
                continue
            chunks[-1][kind] = table[start : start + take]
            left -= take * ROW_DTYPES[kind].itemsize
            start += take
    for index, rows in enumerate(chunks):
        yield replace(batch, rows=rows, chunk=index, chunks=len(chunks))
