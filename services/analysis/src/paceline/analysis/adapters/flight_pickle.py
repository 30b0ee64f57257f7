"""PyTorch Flight Recorder dumps as torch writes them on a timeout: pickles, versions 2.1 to 2.10."""

from collections.abc import Iterator

from paceline.analysis.adapters.flight_dump import is_dump, read_dump
from paceline.analysis.adapters.model import Document, UnusableInput
from paceline.analysis.adapters.plain_pickle import is_pickle, load_plain
from paceline.analysis.facts import Fact


class FlightPickles:
    """Any pickle is recognised, so that one which is no dump is refused by name and never loaded."""

    name = "flight recorder pickle"

    def recognise(self, document: Document) -> bool:
        return is_pickle(document.content)

    def read(self, document: Document) -> Iterator[Fact]:
        record, whole = load_plain(document.name, document.content)
        if not is_dump(record):
            raise UnusableInput(f"{document.name} is a pickle and no Flight Recorder dump: not read")
        notes = () if whole else ("the file is cut; the entries before the cut were read",)
        yield read_dump(document.name, record, notes)
