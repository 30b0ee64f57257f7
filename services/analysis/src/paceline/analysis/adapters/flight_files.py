"""Flight Recorder files, one after the other, for callers that know what they have."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.analysis.adapters.flight_json import FlightJson
from paceline.analysis.adapters.flight_pickle import FlightPickles
from paceline.analysis.adapters.model import DOCUMENT_BYTES_MAX, Document, UnusableInput
from paceline.analysis.facts import FlightDump

_ADAPTERS = (FlightPickles(), FlightJson())


@dataclass(frozen=True)
class Refused:
    """A file that could not be read, and why."""

    name: str
    why: str


def read_files(paths: Sequence[Path]) -> Iterator[FlightDump | Refused]:
    """The dumps of `paths` in their order; names are the paths as given. Never raises for a bad file."""
    for path in paths:
        yield from _read_file(path)


def _read_file(path: Path) -> Iterator[FlightDump | Refused]:
    try:
        if path.stat().st_size > DOCUMENT_BYTES_MAX:
            raise UnusableInput(f"{path} is larger than {DOCUMENT_BYTES_MAX >> 20} MiB")
        document = Document(str(path), path.read_bytes())
        for adapter in _ADAPTERS:
            if adapter.recognise(document):
                for fact in adapter.read(document):
                    if isinstance(fact, FlightDump):
                        yield fact
                return
        yield Refused(str(path), "no Flight Recorder dump")
    except (UnusableInput, OSError) as error:
        yield Refused(str(path), str(error))
