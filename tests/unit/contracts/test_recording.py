"""The recording's frame: what was whole stays readable, whatever happens around it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.recording import (
    HEADER_BYTES,
    MARK,
    PAYLOAD_BYTES_MAX,
    Damage,
    RecordKind,
    encode_record,
    is_recording,
    scan_records,
)
from paceline.contracts.sizes import parse_size

HEAD = encode_record(RecordKind.HEAD, 1, b"{}")
RECORDS = [HEAD, *(encode_record(RecordKind.BATCH, at, bytes([at]) * at) for at in range(2, 9))]
WHOLE = b"".join(RECORDS)


def payloads(content: bytes) -> list[bytes]:
    return [content[r.offset : r.offset + r.size] for r in scan_records(content)]


def test_records_come_back_in_order() -> None:
    found = list(scan_records(WHOLE))
    assert [record.time_ns for record in found] == list(range(1, 9))
    assert [record.kind for record in found] == [RecordKind.HEAD, *[RecordKind.BATCH] * 7]
    assert payloads(WHOLE)[3] == b"\x04" * 4
    assert is_recording(WHOLE)


@pytest.mark.parametrize("cut", range(1, len(RECORDS[-1])))
def test_a_torn_end_costs_one_record(cut: int) -> None:
    damage = Damage()
    assert len(list(scan_records(WHOLE[:-cut], damage))) == len(RECORDS) - 1
    assert damage.bytes_skipped == len(RECORDS[-1]) - cut


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=0, max_size=80))
def test_damage_costs_only_what_it_touches(at: int, junk: bytes) -> None:
    content = WHOLE[:at] + junk + WHOLE[at:]
    found = payloads(content)
    whole = [payloads(record)[0] for record in RECORDS]
    assert [part for part in found if part in whole]
    assert len(found) >= len(RECORDS) - 1


@given(st.binary(max_size=300))
def test_anything_can_be_scanned(content: bytes) -> None:
    damage = Damage()
    kept = sum(HEADER_BYTES + record.size for record in scan_records(content, damage))
    assert kept + damage.bytes_skipped == len(content)


def test_a_hostile_file_of_marks_ends_soon() -> None:
    lie = (MARK + bytes([RecordKind.BATCH, 0, 0, 0]) + PAYLOAD_BYTES_MAX.to_bytes(4, "little")) * 1
    content = HEAD + lie * 300_000
    damage = Damage()
    assert len(list(scan_records(content, damage))) == 1
    assert damage.bytes_skipped == len(content) - len(HEAD)


def test_a_payload_beyond_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at most"):
        encode_record(RecordKind.BATCH, 0, bytes(PAYLOAD_BYTES_MAX + 1))


def test_sizes() -> None:
    assert [parse_size(text) for text in ("64M", "512k", "1 GiB", "7")] == [64 << 20, 512 << 10, 1 << 30, 7]
    for text in ("", "0", "M", "-1", "1T", "64 Mx"):
        with pytest.raises(ValueError, match="for example 64M"):
            parse_size(text)
