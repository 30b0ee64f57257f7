"""Dumps that are written alike are compared as a whole, and give what the slow way gives."""

import pickle
import re

import numpy as np
import pytest

from paceline.analysis.adapters.flight_dump import read_dump
from paceline.analysis.adapters.model import UnusableInput
from paceline.analysis.adapters.pickle_layout import AlikeRows, rows_alike
from paceline.analysis.adapters.pickle_rows import find_entries, words_before
from paceline.analysis.adapters.plain_pickle import load_plain
from paceline.analysis.facts import FlightDump
from tests.bench.flight_sets import DumpSet
from tests.unit.analysis.flight_examples import read_one

RANKS = 24


def _alike(content: bytes) -> AlikeRows | None:
    begin = find_entries(content)
    found = rows_alike(content, begin, words_before(content, begin))
    return None if found is None else found[1]


def _same(one: FlightDump, two: FlightDump) -> None:
    for name in one.entries.dtype.names or ():
        if name != "work":
            assert np.array_equal(one.entries[name], two.entries[name]), name
    assert [one.works[at] for at in one.entries["work"]] == [two.works[at] for at in two.entries["work"]]
    for field in ("groups", "status", "timeout_ms", "gaps", "speaker", "only_active", "overwritten", "notes"):
        assert getattr(one, field) == getattr(two, field), field


@pytest.mark.parametrize("version", ["2.9", "2.10"])
def test_every_rank_reads_as_in_the_slow_way(version: str) -> None:
    made = DumpSet(RANKS, 200, odd=9, version=version)
    taken = 0
    for rank in range(RANKS):
        content = made.content(rank)
        dump = read_one(f"rank_{rank}", content)
        taken += _alike(content) is not None
        _same(dump, read_dump(f"rank_{rank}", load_plain("x", content)[0]))
        assert dump.speaker.rank == rank
    assert taken == RANKS  # each by itself at least: it was remembered


def test_groups_are_those_of_the_dump_itself() -> None:
    made = DumpSet(RANKS, 200, odd=9)
    read_one("rank_16", made.content(16))
    other = made.content(20)
    rows = _alike(other)
    assert rows is not None
    assert rows[0]["process_group"] == pickle.loads(other)["entries"][0]["process_group"]


def test_other_calls_are_not_alike() -> None:
    content = DumpSet(RANKS, 200, odd=9, seed=5).content(17)
    read_one("rank_17", content)
    place = content.rindex(b"X\x08\x00\x00\x00BFloat16") + 5
    changed = content[:place] + b"BFloat32" + content[place + 8 :]
    assert _alike(content) is not None
    assert _alike(changed) is None
    _same(read_one("rank_17", changed), read_dump("rank_17", load_plain("x", changed)[0]))
    assert "BFloat32" in {work.dtype for work in read_one("rank_17", changed).works}


def test_a_word_from_before_the_entries_is_not_taken_for_another() -> None:
    """A group may be named as a type is: then the type stands before the entries."""
    record = pickle.loads(DumpSet(RANKS, 200, odd=9).content(3))
    contents = []
    for name in ("BFloat16", "BFloat32"):
        record["pg_config"]["0"]["desc"] = name
        for entry in record["entries"]:
            entry["input_dtypes"] = entry["output_dtypes"] = [name]
        contents.append(pickle.dumps(record, 2))
    first, second = (read_one("rank_3", content) for content in contents)
    assert {work.dtype for work in first.works} == {"BFloat16"}
    assert {work.dtype for work in second.works} == {"BFloat32"}


def test_an_import_in_place_of_a_value_is_refused_and_named() -> None:
    content = DumpSet(RANKS, 200, odd=9).content(18)
    read_one("rank_18", content)
    last = [found.start() for found in re.finditer(rb"pt_main_thread|\x8a\x08", content)][-1]
    hostile = content[:last] + b"cos\nsystem\n"[:10] + content[last + 10 :]
    assert _alike(hostile) is None
    with pytest.raises(UnusableInput):
        read_one("rank_18", hostile)


def test_a_cut_dump_is_not_alike() -> None:
    content = DumpSet(RANKS, 200, odd=9).content(19)
    read_one("rank_19", content)
    assert _alike(content[:-400]) is None
    assert len(read_one("rank_19", content[:-400]).entries) < 200
