"""Many Flight Recorder files at once: two processes turn them into small tables, a bounded number ahead."""

import multiprocessing
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paceline.analysis.adapters.flight_json import FlightJson
from paceline.analysis.adapters.flight_pickle import FlightPickles
from paceline.analysis.adapters.model import DOCUMENT_BYTES_MAX, Document, UnusableInput
from paceline.analysis.facts import FlightDump

FILES_A_TASK = 16
TASKS_AHEAD_A_WORKER = 2  # so that at most a few dozen tables wait for the reader
PARALLEL_FILES_MIN = 256  # below it starting processes costs more than it saves
_ADAPTERS = (FlightPickles(), FlightJson())


@dataclass(frozen=True)
class Refused:
    """A file that could not be read, and why."""

    name: str
    why: str


def read_files(paths: Sequence[Path], workers: int = 2) -> Iterator[FlightDump | Refused]:
    """The dumps of `paths` in their order; names are the paths as given. Never raises for a bad file."""
    if workers < 2 or len(paths) < PARALLEL_FILES_MIN:
        for path in paths:
            yield from _read_file(path)
        return
    tasks = [paths[at : at + FILES_A_TASK] for at in range(0, len(paths), FILES_A_TASK)]
    context = multiprocessing.get_context("spawn")  # the caller may have threads
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        ahead: deque[Future[list[FlightDump | Refused]]] = deque()
        for task in tasks:
            if len(ahead) >= workers * TASKS_AHEAD_A_WORKER:
                yield from ahead.popleft().result()
            ahead.append(pool.submit(_read_task, task))
        while ahead:
            yield from ahead.popleft().result()


def _read_task(paths: Sequence[Path]) -> list[FlightDump | Refused]:
    return [found for path in paths for found in _read_file(path)]


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
