"""A pickle is data or it is refused by name; nothing in it runs and little memory answers for it."""

import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from paceline.analysis.adapters.model import UnusableInput
from paceline.analysis.adapters.plain_pickle import is_pickle, load_plain
from tests.unit.analysis.flight_examples import dump, entry


class _Runs:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_of_every_protocol_is_read(protocol: int) -> None:
    record = dump([entry(at, at + 1, size=at * 1000) for at in range(700)])
    content = pickle.dumps(record, protocol)
    assert is_pickle(content)
    assert load_plain("rank_0", content) == (record, True)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_something_is_refused_and_named(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    content = pickle.dumps(dump([entry(0, 1, frames=[_Runs(mark)])]), protocol)
    with pytest.raises(UnusableInput, match=r"rank_7 .*would import .*pathlib\.P"):
        load_plain("rank_7", content)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo index that would claim 16 GB
        b"\x80\x02N" + b"\x85" * 100_000 + b".",  # tuples around tuples
        b"\x80\x02" + b"]" * 1_100_000 + b".",  # lists on the stack
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.",  # a frame of exabytes
        b"\x80\x05\x96\xff\xff\xff\xff\x00\x00\x00\x00.",  # a bytearray of 4 GB
        b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",  # a number of 2,040 bits
        b"\x80\x02X\xff\xff\xff\x7fabc",  # a string of 2 GB in a small file
        b"\x80\x02" + b"2" * 1000 + b".",
        b"\x80\x02",
    ],
)
def test_bombs_and_rubbish_cost_little(content: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnusableInput, match="rank_0"):
            load_plain("rank_0", content)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 << 20


def test_the_whole_entries_of_a_cut_dump_are_read() -> None:
    record = dump([entry(at, at + 1) for at in range(50)])
    content = pickle.dumps(record, 2)
    value, whole = load_plain("rank_0", content[: len(content) * 3 // 4])
    assert not whole
    assert value["entries"] == record["entries"][: len(value["entries"])]
    assert len(value["entries"]) > 25


def test_damaged_bytes_never_raise_anything_else() -> None:
    content = pickle.dumps(dump([entry(at, at + 1) for at in range(20)]), 2)
    draw = random.Random(7)
    for _ in range(2000):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            damaged[draw.randrange(2, len(damaged))] = draw.randrange(256)
        try:
            load_plain("rank_0", bytes(damaged[: draw.randint(2, len(damaged))]))
        except UnusableInput:
            continue
