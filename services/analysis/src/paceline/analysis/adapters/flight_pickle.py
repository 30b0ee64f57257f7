"""PyTorch Flight Recorder dumps as torch writes them on a timeout: pickles, versions 2.1 to 2.10."""

from collections.abc import Iterator
from typing import Any

from paceline.analysis.adapters.flight_dump import OddRowsError, is_dump, read_dump
from paceline.analysis.adapters.model import Document, UnusableInput
from paceline.analysis.adapters.pickle_layout import AlikeRows, remember, rows_alike
from paceline.analysis.adapters.pickle_rows import PickledRows, find_entries, read_rows, words_before
from paceline.analysis.adapters.plain_pickle import PICKLE_BYTES_MAX, is_pickle, load_plain
from paceline.analysis.facts import Fact


class FlightPickles:
    """Any pickle is recognised, so that one which is no dump is refused by name and never loaded."""

    name = "flight recorder pickle"

    def recognise(self, document: Document) -> bool:
        return is_pickle(document.content)

    def read(self, document: Document) -> Iterator[Fact]:
        content = document.content
        found = _rows(content) if len(content) <= PICKLE_BYTES_MAX else None
        if found is not None:
            record, whole = _without_entries(document.name, found[0])
            if whole and is_dump(record):
                try:
                    dump = read_dump(document.name, record, (), found[1])
                except OddRowsError:
                    pass
                else:
                    yield dump
                    return
        record, whole = load_plain(document.name, content)
        if not is_dump(record):
            raise UnusableInput(f"{document.name} is a pickle and no Flight Recorder dump: not read")
        notes = () if whole else ("the file is cut; the entries before the cut were read",)
        yield read_dump(document.name, record, notes)


def _rows(content: bytes) -> tuple[bytes, PickledRows | AlikeRows] | None:
    """(the pickle without its entries, the entries) where they need not be built one by one."""
    begin = find_entries(content)
    if begin < 0:
        return None
    try:
        words = words_before(content, begin)
    except UnicodeDecodeError:
        return None
    alike = rows_alike(content, begin, words)
    if alike is not None:
        return alike
    found = read_rows(content, begin, words)
    if found is not None:
        remember(found[1], begin, int(found[1].ends[-1]))
    return found


def _without_entries(name: str, content: bytes) -> tuple[Any, bool]:
    """What stands around the entries; not whole where it cannot be read without them."""
    try:
        return load_plain(name, content)
    except UnusableInput:
        return None, False
