"""Batches by shard and chunk."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.agent import batches
from paceline.agent.batches import Sample, chunk_rows, encode_sample, merge_rows, split_shards
from paceline.agent.registry import shards_for
from paceline.contracts.batch import (
    BATCH_BYTES_MAX,
    FRAME_ROW,
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    BatchFlag,
    RowKind,
    decode_batch,
)
from paceline.contracts.dtypes import FRAME_DTYPE

SAMPLE = Sample("job", "a1", "n1", 4, 10, 20, BatchFlag.SUSPECT)


@pytest.fixture
def rows() -> Any:
    state, rounds, frames = np.zeros(8, STATE_ROW), np.zeros(30_000, ROUND_ROW), np.zeros(8, FRAME_DTYPE)
    state["comm"], rounds["comm"], frames["comm"] = np.arange(8), np.arange(30_000) % 8, np.arange(8)
    rounds["round"] = np.arange(30_000)
    return {
        RowKind.STATE: state,
        RowKind.ROUND: rounds,
        RowKind.PROCESS: np.zeros(2, PROCESS_ROW),
        RowKind.FRAME: frames.view(FRAME_ROW),
    }


def test_rows_meet_in_the_shard_of_their_communicator(rows: Any) -> None:
    parts = split_shards(rows, 4)
    for shard, part in enumerate(parts):
        assert len(part[RowKind.PROCESS]) == 2  # every shard needs the processes
        assert part[RowKind.STATE]["comm"].tolist() == [shard, shard + 4]
        assert part[RowKind.FRAME].view(FRAME_DTYPE)["comm"].tolist() == [shard, shard + 4]


def test_chunks_are_bounded_and_lose_nothing(rows: Any) -> None:
    chunks = chunk_rows(rows, 100_000)
    assert all(sum(t.nbytes for t in chunk.values()) <= 100_000 for chunk in chunks)
    assert RowKind.PROCESS in chunks[0]
    merged = merge_rows(chunks)
    assert {kind: len(table) for kind, table in merged.items()} == {k: len(t) for k, t in rows.items()}
    assert (merged[RowKind.ROUND]["round"] == rows[RowKind.ROUND]["round"]).all()


def test_encoded_sample_decodes_in_every_shard_and_chunk(rows: Any) -> None:
    rows[RowKind.ROUND] = np.concatenate([rows[RowKind.ROUND]] * 2)
    found = [
        (shard, decode_batch(data))
        for shard, data in encode_sample(SAMPLE, rows, {0: 5, 1: 6, 2: 7, 3: 8}, Counter())
    ]
    assert all(batch.seq == 5 + shard == 5 + batch.shard for shard, batch in found)
    assert {(b.shard, b.chunk) for _, b in found} == {
        (s, c) for s in range(4) for c in range(found[0][1].chunks)
    }
    assert sum(len(b.table(RowKind.ROUND)) for _, b in found) == 60_000
    assert found[0][1].chunks > 1
    assert (
        max(len(data) for _, data in encode_sample(SAMPLE, rows, dict.fromkeys(range(4), 1), Counter()))
        <= BATCH_BYTES_MAX
    )


def test_a_sample_beyond_the_bound_is_cut_counted_and_says_so(
    rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CHUNKS_MAX", 2)
    monkeypatch.setattr(batches, "CHUNK_BYTES_MAX", 500_000)
    drops: Counter[str] = Counter()
    sample = replace(SAMPLE, shards=1)
    found = [decode_batch(data) for _, data in encode_sample(sample, rows, {0: 1}, drops)]
    assert [(batch.chunk, batch.chunks) for batch in found] == [(0, 2), (1, 2)]
    assert all(batch.flags & BatchFlag.DROPPED for batch in found)
    assert drops == {"sample_too_large": len(chunk_rows(rows, 500_000)) - 2}


@pytest.mark.parametrize(
    ("ranks", "shards"), [(1, 1), (131_072, 1), (131_073, 2), (1_000_000, 8), (10_000_000, 64)]
)
def test_shards_follow_from_the_size_alone(ranks: int, shards: int) -> None:
    assert shards_for(ranks) == shards
