"""The binary batch: round trip, evolution by stride, golden bytes, hostile input."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.batch import (
    BATCH_BYTES_MAX,
    ROW_DTYPES,
    ROWS_MAX,
    STATE_ROW,
    Batch,
    BatchError,
    BatchFlag,
    BatchKind,
    RowKind,
    decode_batch,
    encode_batch,
)

GOLDEN = Path(__file__).parent / "golden" / "batch-v1.bin"


def make_batch() -> Batch:
    state = np.zeros(2, STATE_ROW)
    state["comm"] = 0x1122334455667788
    state["rank"] = [3, 5]
    state["entered"] = [412, 411]
    state["completed"] = 411
    state["head_round"] = [412, 0]
    return Batch(
        kind=BatchKind.FRAMES,
        job="llama",
        attempt="a1",
        node="gpu-0664",
        shard=3,
        shards=8,
        seq=17,
        sampled_ns=123_456_789,
        sampled_unix_ns=1_767_323_045_000_000_000,
        rows={RowKind.STATE: state},
        flags=BatchFlag.SUSPECT,
    )


def test_round_trip_keeps_every_field() -> None:
    batch = replace(make_batch(), episode="epi_1", chunk=1, chunks=2)
    decoded = decode_batch(encode_batch(batch))
    assert replace(decoded, rows={}) == replace(batch, rows={})
    assert decoded.table(RowKind.STATE).tobytes() == batch.table(RowKind.STATE).tobytes()
    assert len(decoded.table(RowKind.PEER)) == 0


def test_strings_are_told_apart_by_their_lengths() -> None:
    names = [("ab", "c"), ("a", "bc"), ("ab", "c")]
    made = [encode_batch(replace(make_batch(), job=job, attempt=attempt)) for job, attempt in names]
    assert [(batch.job, batch.attempt) for batch in map(decode_batch, made)] == names


def test_golden_bytes_of_version_1_are_read_as_written() -> None:
    assert encode_batch(make_batch()) == GOLDEN.read_bytes()
    assert decode_batch(GOLDEN.read_bytes()).table(RowKind.STATE)["rank"].tolist() == [3, 5]


@pytest.mark.parametrize("row_bytes", [88, 104])
def test_rows_of_another_length_are_read_by_their_prefix(row_bytes: int) -> None:
    rows = np.zeros(2, np.dtype((np.void, row_bytes)))
    raw = rows.view(np.uint8).reshape(2, row_bytes)
    raw[:, :88] = make_batch().table(RowKind.STATE).view(np.uint8).reshape(2, 96)[:, :88]
    decoded = decode_batch(encode_batch(replace(make_batch(), rows={RowKind.STATE: rows})))
    assert decoded.table(RowKind.STATE).dtype == STATE_ROW
    assert decoded.table(RowKind.STATE)["entered"].tolist() == [412, 411]
    assert decoded.table(RowKind.STATE)["sources"].tolist() == [0, 0]


@pytest.mark.parametrize(("kind", "row_bytes"), [(RowKind.FRAME, 1), (RowKind.STATE, 0)])
def test_a_small_record_claims_no_large_memory(kind: RowKind, row_bytes: int) -> None:
    rows = np.zeros(ROWS_MAX, np.dtype((np.void, row_bytes)))
    data = encode_batch(replace(make_batch(), rows={kind: rows}))
    with pytest.raises(BatchError, match=f"{ROWS_MAX} rows of {row_bytes} bytes would take"):
        decode_batch(data)


def test_rows_stay_within_96_bytes() -> None:
    small = {kind: dtype.itemsize for kind, dtype in ROW_DTYPES.items() if kind is not RowKind.FRAME}
    assert max(small.values()) <= 96


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, b"XXXX", "magic"),
        (4, b"\xff\xff", "version 65535, expected 1"),
        (6, b"\x63", "kind 99"),
        (8, b"\0\0\0\0", "checksum"),
        (12, b"\xff\xff\xff\xff", "not a position"),
    ],
)
def test_wrong_header_is_named(position: int, value: bytes, message: str) -> None:
    data = bytearray(encode_batch(make_batch()))
    data[position : position + len(value)] = value
    with pytest.raises(BatchError, match=message):
        decode_batch(bytes(data))


def test_too_large_and_too_short_are_refused() -> None:
    with pytest.raises(BatchError, match="length 3"):
        decode_batch(b"abc")
    huge = np.zeros(BATCH_BYTES_MAX // 96 + 1, STATE_ROW)
    with pytest.raises(BatchError, match="split it into chunks"):
        encode_batch(replace(make_batch(), rows={RowKind.STATE: huge}))
    with pytest.raises(BatchError, match="job has 300 bytes"):
        encode_batch(replace(make_batch(), job="x" * 300))


@given(st.binary(max_size=600))
def test_garbage_raises_nothing_but_batch_error(data: bytes) -> None:
    with pytest.raises(BatchError):
        decode_batch(data)


@given(st.integers(0, 257), st.integers(0, 255))
def test_one_flipped_byte_is_an_error_or_a_batch(position: int, value: int) -> None:
    data = bytearray(encode_batch(make_batch()))
    data[position % len(data)] = value
    try:
        decode_batch(bytes(data))
    except BatchError:
        pass
