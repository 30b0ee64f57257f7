"""Columns straight from the bytes are what the slow way gives, or the slow way is taken."""

import pickle
import random
from typing import Any

import numpy as np
import pytest

from paceline.analysis.adapters.flight_dump import read_dump
from paceline.analysis.adapters.model import UnusableInput
from paceline.analysis.adapters.pickle_rows import PickledRows, find_entries, read_rows, words_before
from paceline.analysis.adapters.plain_pickle import load_plain
from paceline.analysis.facts import FlightDump
from tests.unit.analysis.flight_examples import dump, entry, message, pending, read_one

_NAMES = ("nccl:all_reduce", "nccl:_all_gather_base", "nccl:broadcast")


def _entries(count: int, draw: random.Random) -> list[dict[str, Any]]:
    """Calls of many widths: numbers of one to eight bytes, lists of several lengths, stacks."""
    made = []
    for at in range(count):
        record = at + draw.choice((0, 250, 65_500))
        if draw.random() < 0.2:
            made.append(message(record, at + 1, f"send 0->{draw.randint(1, 3)}", draw.random() < 0.5))
            continue
        kind = pending if draw.random() < 0.1 else entry
        made.append(kind(record, record, draw.choice(_NAMES), draw.choice((1, 300, 70_000, 1 << 33))))
        made[-1]["frames"] = [
            {"name": "step", "line": draw.randint(1, 999)} for _ in range(draw.randint(0, 3))
        ]
        made[-1]["input_sizes"] = [
            [draw.randint(1, 300)] * draw.randint(0, 3) for _ in range(draw.randint(0, 2))
        ]
    return made


def _read(content: bytes) -> tuple[bytes, PickledRows] | None:
    begin = find_entries(content)
    return read_rows(content, begin, words_before(content, begin)) if begin >= 0 else None


def _same(one: FlightDump, two: FlightDump) -> None:
    for name in one.entries.dtype.names or ():
        if name != "work":
            assert np.array_equal(one.entries[name], two.entries[name]), name
    assert [one.works[at] for at in one.entries["work"]] == [two.works[at] for at in two.entries["work"]]
    assert (one.groups, one.status, one.timeout_ms, one.gaps, one.speaker, one.only_active) == (
        two.groups, two.status, two.timeout_ms, two.gaps, two.speaker, two.only_active
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [64, 1500])
def test_both_ways_give_the_same(seed: int, count: int) -> None:
    record = dump(_entries(count, random.Random(seed)))
    content = pickle.dumps(record, 2)
    _same(read_one("rank_2", content), read_dump("rank_2", load_plain("rank_2", content)[0]))


def test_the_fast_way_is_taken_for_what_torch_writes() -> None:
    content = pickle.dumps(dump([entry(at, at + 1) for at in range(300)]), 2)
    read = _read(content)
    assert read is not None
    assert len(read[1]) == 300
    assert read[1][299]["record_id"] == 299
    assert len(read[0]) < 1000


def test_words_that_a_longer_entry_defines_are_known_in_shorter_ones() -> None:
    """Forms are walked by length: a short one may refer to a word that stands in a longer one."""
    calls = [("nccl:all_reduce", 7), ("nccl:broadcast", 70_000), ("nccl:_all_gather_base", 300)]
    entries = [entry(at, at + 1, *calls[at % 3]) for at in range(400)]
    record = dump(entries)
    content = pickle.dumps(record, 2)
    assert _read(content) is not None
    _same(read_one("rank_3", content), read_dump("rank_3", record))


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_other_protocols_go_the_slow_way(protocol: int) -> None:
    record = dump([entry(at, at + 1) for at in range(300)])
    assert _read(pickle.dumps(record, protocol)) is None
    _same(read_one("rank_1", pickle.dumps(record, protocol)), read_dump("rank_1", record))


def test_an_import_among_many_entries_is_refused() -> None:
    record = dump([entry(at, at + 1) for at in range(300)])
    record["entries"][150]["frames"] = [random.Random]
    with pytest.raises(UnusableInput, match=r"would import random\.Random"):
        read_one("rank_0", pickle.dumps(record, 2))


def test_damaged_bytes_give_a_table_or_a_reason() -> None:
    content = pickle.dumps(dump(_entries(200, random.Random(3))), 2)
    draw = random.Random(5)
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 6)):
            damaged[draw.randrange(2, len(damaged))] = draw.randrange(256)
        try:
            read_one("rank_0", bytes(damaged))
        except UnusableInput:
            continue
