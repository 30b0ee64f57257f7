"""PyTorch's fr_trace and NVRx's analyser on the same jobs, side by side, where they are installed."""

import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.analysis.adapters.flight_files import Refused, read_files
from paceline.analysis.adapters.model import UnusableInput
from paceline.analysis.diagnosis.flight import read_flight
from paceline.analysis.diagnosis.flight_verdict import judge_flight
from paceline.contracts.verdicts import RootKind, Verdict, VerdictClass
from paceline.fleet import FleetJob
from paceline.lab.evaluation.cases import Case
from paceline.lab.evaluation.flight_dumps import PREFIX, FlightRecorder
from paceline.lab.evaluation.peer_nvrx import (
    Named,
    has_nvrx,
    named_sets,
    nvrx_command,
    read_nvrx,
    why_no_nvrx,
)

HUNG_S = 20  # seconds after the fault at which the dumps are taken
FR_TRACE = "torch.distributed.flight_recorder.fr_trace"
FEWER = "fr_trace no p2p"
LIMIT_S = 300
_CULPRIT = re.compile(r"[Cc]ulprit rank (\d+)")
_MISSING = re.compile(r"missing[ _]ranks[^{]*\{([0-9, ]+)\}")


@dataclass(frozen=True)
class PeerRow:
    """What one tool named from one set of dumps."""

    case: str
    injected: tuple[int, ...]
    tool: str
    named: tuple[int, ...]
    sets: int
    first: tuple[int, ...]  # of the first line that names anybody
    seconds: float
    note: str = ""

    @property
    def precision(self) -> float:
        return len(set(self.named) & set(self.injected)) / len(self.named) if self.named else 0.0

    @property
    def is_exact(self) -> bool:
        return set(self.named) == set(self.injected)


def has_fr_trace() -> bool:
    """Whether this Python can run it."""
    try:
        return importlib.util.find_spec(FR_TRACE) is not None
    except ModuleNotFoundError:
        return False


def peer_tools() -> tuple[str, ...]:
    """Names of the analysers that are run, ours first."""
    fr_trace = ("fr_trace", FEWER) if has_fr_trace() else ()
    return ("paceline", *fr_trace, *(("nvrx",) if has_nvrx() else ()))


def missing_peers() -> list[str]:
    """Analysers that this Python cannot run, as sentences."""
    notes = [] if has_fr_trace() else ["fr_trace was not run: torch is not installed"]
    reason = why_no_nvrx()
    return [*notes, f"NVRx's analyser was not run: {reason}"] if reason else notes


def compare_tools(cases: Iterable[Case]) -> Iterator[PeerRow]:
    """Each case once as dumps, on the same files: this analysis, then the peers that there are.

    fr_trace gets them a second time without sends and receives, which it matches against whole groups.
    """
    for case in cases:
        job = case.make_job()
        recorder = FlightRecorder(job)
        at_s = int(case.draw()[0].at_s) + HUNG_S if case.kind is not None else HUNG_S
        for second in range(at_s + 1):
            job.tables(second)
        injected = _visible(job)
        label = case.part.removeprefix("named ")
        with tempfile.TemporaryDirectory(prefix="paceline-dumps-") as text:
            folder, fewer = Path(text) / "all", Path(text) / "fewer"
            folder.mkdir()
            recorder.write(folder, float(at_s))
            yield _ours(label, injected, folder)
            if has_nvrx():
                yield _theirs(label, injected, "nvrx", nvrx_command(folder, f"{PREFIX}*"), read_nvrx)
            if has_fr_trace():
                fewer.mkdir()
                recorder.write(fewer, float(at_s), pairs=False)
                for tool, where in (("fr_trace", folder), (FEWER, fewer)):
                    words = [sys.executable, "-m", FR_TRACE, str(where), "-p", PREFIX]
                    yield _theirs(label, injected, tool, words, read_fr_trace)


def _visible(job: FleetJob) -> tuple[int, ...]:
    """What can be known from dumps: they show nothing of what happens inside an operation."""
    truth = job.truth()
    if truth.verdict_class is not VerdictClass.H3:
        return tuple(sorted(truth.root_ranks))
    fault = truth.fired[0].fault
    groups = job.topology.groups[fault.group]
    return tuple(int(rank) for rank in groups.members[groups.comm_of[fault.rank]])


def judge_dumps(folder: Path) -> Verdict:
    """What `paceline diagnose` reads out of the dumps of a folder, one process. Raises UnusableInput."""
    dumps = []
    for dump in read_files(sorted(folder.glob(f"{PREFIX}*"))):
        if isinstance(dump, Refused):
            raise UnusableInput(f"{dump.name}: {dump.why}")
        dumps.append(dump)
    return judge_flight(read_flight(dumps)).verdict


def _ours(label: str, injected: tuple[int, ...], folder: Path) -> PeerRow:
    started = time.perf_counter()
    verdict = judge_dumps(folder)
    named = _named(verdict)
    seconds = time.perf_counter() - started
    note = f"{verdict.verdict_class.value} {verdict.sub_reason.value}: {verdict.summary}"
    return PeerRow(label, injected, "paceline", named, 1 if named else 0, named, seconds, note)


def _named(verdict: Verdict) -> tuple[int, ...]:
    ranks = {
        rank
        for root in verdict.roots
        if root.kind is not RootKind.NONE
        for rank in (root.rank, root.peer_rank, *root.ranks)
        if rank is not None
    }
    return tuple(sorted(ranks))


def _theirs(
    label: str, injected: tuple[int, ...], tool: str, words: Sequence[str], read: Callable[[str], Named]
) -> PeerRow:
    """One run of a peer; what it says on both streams is read by `read`."""
    started = time.perf_counter()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return PeerRow(label, injected, tool, (), 0, (), LIMIT_S, f"not done after {LIMIT_S} s")
    seconds = time.perf_counter() - started
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    note = f"status {done.returncode}: {' '.join(last)}" if done.returncode else ""
    return PeerRow(label, injected, tool, *read(done.stdout + done.stderr), seconds, note)


def read_fr_trace(text: str) -> Named:
    """What fr_trace names as culprits and as missing."""
    sets: list[set[int]] = []
    for line in text.splitlines():
        culprits = {int(rank) for rank in _CULPRIT.findall(line)}
        missing = {int(rank) for found in _MISSING.findall(line) for rank in found.split(",")}
        if culprits or missing:
            sets.append(culprits or missing)
    return named_sets(sets)
