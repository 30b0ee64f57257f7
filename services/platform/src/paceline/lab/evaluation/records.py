"""Finished jobs as JSON lines, so that a run of an hour can be interrupted and gone on with.

A line counts for the code that wrote it and for exactly its case: the version is a digest of every
source that decides a verdict, and of the settings; the key is a digest of the whole case. A torn
last line, as an interrupted write leaves it, is skipped and counted.
"""

import fcntl
import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from paceline.detector.settings import DetectorSettings
from paceline.fleet import Truth
from paceline.lab.evaluation.cases import Case
from paceline.lab.evaluation.peers import PeerRow, peer_tools
from paceline.lab.evaluation.runner import Result
from paceline.lab.evaluation.score import Score
from paceline.localizer.settings import LocalizerSettings

_PACKAGES = ("contracts", "analysis", "agent", "fleet", "detector", "localizer", "lab.evaluation")
# Of `lab.evaluation`: what only prints, chooses cases or keeps records, and what only compares peers.
_PRINTING = frozenset({"bars", "commands", "execute", "main", "plan", "records", "table"})
_PEERS = frozenset({"flight_dumps", "peers", "peer_nvrx"})


class RecordError(Exception):
    """The file cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Stored:
    """A `Result` without its case, which is looked up by its key."""

    truth: Truth
    score: Score
    control: Score
    cpu_s: float


_STORED = TypeAdapter(Stored)
_ROWS = TypeAdapter(tuple[PeerRow, ...])


def case_key(case: Case) -> str:
    """Digest of everything that makes the case what it is."""
    return blake2b(repr(case).encode(), digest_size=12).hexdigest()


def peers_key(case: Case) -> str:
    """The same for the dumps of a case, with the tools that there are."""
    return f"{case_key(case)}+{'+'.join(peer_tools())}"


@cache
def code_version(*, peers: bool = False) -> str:
    """Digest of the sources and settings that decide verdicts; with `peers` of the dumps as well."""
    digest = blake2b(digest_size=8)
    for package in _PACKAGES:
        spec = importlib.util.find_spec(f"paceline.{package}")
        for place in spec.submodule_search_locations or () if spec else ():
            for path in sorted(Path(place).rglob("*.py")):
                skipped = _PRINTING if peers else _PRINTING | _PEERS
                if package == "lab.evaluation" and path.stem in skipped:
                    continue
                digest.update(f"{package}/{path.relative_to(place)}\n".encode())
                digest.update(path.read_bytes())
    detector, localizer = DetectorSettings(), LocalizerSettings()
    digest.update(repr(detector.policy()).encode())
    digest.update(repr((localizer.judge_policy(), localizer.episode_policy(), localizer.bounds())).encode())
    digest.update(repr(localizer.health_wait_s).encode())
    return digest.hexdigest()


@dataclass
class Records:
    """The lines of one file that are of this code; new ones are appended and flushed one by one."""

    path: Path
    version: str
    peers_version: str
    torn: int = 0  # lines that are not whole
    others: int = 0  # lines of other code
    _jobs: dict[str, Stored | None] = field(default_factory=dict)
    _peers: dict[str, tuple[PeerRow, ...]] = field(default_factory=dict)
    _file: IO[str] | None = None

    @staticmethod
    def open(path: Path, *, any_code: bool = False) -> "Records":
        """Read `path` and hold it for appending; with `any_code` only read what the last line's code wrote.

        RecordError where another run holds it or it cannot be written.
        """
        records = Records(path, code_version(), code_version(peers=True))
        if any_code:
            records._take_last_version()
            records._read()
            return records
        try:
            records._file = path.open("a+", encoding="utf-8")
            fcntl.flock(records._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            records.close()
            raise RecordError(f"{path} is in use by another run; wait for it or name another file") from None
        except OSError as error:
            raise RecordError(f"{path} cannot be written: {error.strerror}; name another file") from None
        records._read()
        records._end_torn_line()
        return records

    def __contains__(self, case: Case) -> bool:
        return case_key(case) in self._jobs

    def results(self, cases: Iterable[Case]) -> Iterator[Result]:
        """Of the cases that are recorded and could be injected, in their order."""
        for case in cases:
            stored = self._jobs.get(case_key(case))
            if stored is not None:
                yield Result(case, stored.truth, stored.score, stored.control, stored.cpu_s)

    def add(self, case: Case, result: Result | None) -> None:
        """`result` None: the case has no place for its fault."""
        stored = None
        if result is not None:
            truth = replace(result.truth, fired=())  # nothing that is computed from records needs it
            stored = Stored(truth, result.score, result.control, result.cpu_s)
        self._jobs[case_key(case)] = stored
        data = None if stored is None else _STORED.dump_python(stored, mode="json")
        self._write({"code": self.version, "case": case_key(case), "name": case.name, "result": data})

    def peers(self, case: Case) -> tuple[PeerRow, ...] | None:
        """What the tools said about a case; None where it was not recorded."""
        return self._peers.get(peers_key(case))

    def add_peers(self, case: Case, rows: Sequence[PeerRow]) -> None:
        self._peers[peers_key(case)] = tuple(rows)
        data = _ROWS.dump_python(tuple(rows), mode="json")
        self._write({"code": self.peers_version, "peers": peers_key(case), "name": case.name, "rows": data})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def _lines(self) -> Iterator[dict[str, object]]:
        if not self.path.is_file():
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    self.torn += 1
                    continue
                if isinstance(line, dict) and isinstance(line.get("code"), str):
                    yield line
                else:
                    self.torn += 1

    def _read(self) -> None:
        for line in self._lines():
            if "rows" in line and line["code"] == self.peers_version:
                self._peers[str(line["peers"])] = _ROWS.validate_python(line["rows"])
            elif "result" in line and line["code"] == self.version:
                found = line["result"]
                self._jobs[str(line["case"])] = None if found is None else _STORED.validate_python(found)
            else:
                self.others += 1

    def _take_last_version(self) -> None:
        for line in self._lines():
            if "rows" in line:
                self.peers_version = str(line["code"])
            else:
                self.version = str(line["code"])
        self.torn = 0

    def _end_torn_line(self) -> None:
        """What follows an interrupted write starts on a line of its own."""
        with self.path.open("rb") as file:
            file.seek(0, 2)
            if file.tell() == 0:
                return
            file.seek(-1, 2)
            torn = file.read(1) != b"\n"
        if torn and self._file is not None:
            self._file.write("\n")
            self._file.flush()
