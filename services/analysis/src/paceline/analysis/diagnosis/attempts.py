"""Attempts of a job in appended logs: a start after a failure begins the next one.

A start is what only a new process says: NCCL's version or the begin of a communicator's init, a rendezvous,
a launcher's first words, a coordinator's endpoint, or a step below one that was reached before. Within one
file lines keep their order; files are aligned at their last attempt, and facts of files without a start go by
time where they have one.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from paceline.analysis.diagnosis.case import Case
from paceline.analysis.facts import (
    Clock,
    DeviceEvent,
    Fact,
    FlightDump,
    GlooFailure,
    HostKill,
    IncidentSeen,
    LiveEvidence,
    Membership,
    NetworkFailure,
    PhaseKind,
    PhaseSeen,
    ProcessEnd,
    ProcessFault,
    ProgressSeen,
    RecordedSamples,
    SettingSeen,
    WorkTimeout,
)

ATTEMPTS_MAX = 1000
_FAILURES = (WorkTimeout, ProcessFault, ProcessEnd, GlooFailure, NetworkFailure)
_OUTSIDE = (DeviceEvent, HostKill)  # machines do not start again with the job
_START_SETTINGS = ("nccl_version", "endpoint_served", "launcher_start")


@dataclass
class _File:
    """Where one file is while its facts go by."""

    attempt: int = 0
    failed: bool = False
    reached: dict[str, int] = field(default_factory=dict)  # most steps by kind of progress


def split_attempts(facts: Iterable[Fact]) -> list[Case]:
    """One case for each attempt, oldest first; at least one."""
    everything = list(facts)
    recorded = [fact for fact in everything if isinstance(fact, RecordedSamples)]
    if recorded:
        return _with_recorded([f for f in everything if not isinstance(f, RecordedSamples)], recorded)
    parts = _split(everything, 0)
    return [Case(part, number, len(parts)) for number, part in enumerate(parts)]


def _with_recorded(others: list[Fact], recorded: list[RecordedSamples]) -> list[Case]:
    """Recordings name their attempts; logs are aligned with them at the last."""
    from paceline.analysis.diagnosis.recorded import memberships, number_attempts

    numbers = number_attempts(recorded)
    parts = _split(others, max(numbers.values()))
    shift = len(parts) - 1 - max(numbers.values())
    mine: dict[int, list[RecordedSamples]] = defaultdict(list)
    for fact in recorded:
        number = numbers[fact.job, fact.run] + shift
        mine[number].append(replace(fact, attempt=number))
    for number, samples in mine.items():
        parts[number] += [*samples, *(replace(each, attempt=number) for each in memberships(samples))]
    return [Case(part, number, len(parts)) for number, part in enumerate(parts)]


def _split(everything: list[Fact], last_min: int) -> list[list[Fact]]:
    """The facts of each attempt, oldest first; of at least `last_min` + 1."""
    files: dict[str, _File] = defaultdict(_File)
    numbers: list[int] = []
    for fact in everything:
        numbers.append(max(fact.attempt, _advance(files[fact.origin.file], fact)))
    last = max((state.attempt for state in files.values()), default=0)
    last = max(last, last_min)
    if last == 0:
        return [everything]
    begins = _begins(everything, numbers, files, last)
    parts: dict[int, list[Fact]] = defaultdict(list)
    for fact, number in zip(everything, numbers, strict=True):
        mine = _attempt_of(fact, number, files[fact.origin.file].attempt, last, begins)
        parts[mine].append(replace(fact, attempt=mine) if fact.attempt != mine else fact)
    return [parts.get(number, []) for number in range(last + 1)]


def _advance(state: _File, fact: Fact) -> int:
    """The attempt of this fact, counted within its file."""
    if isinstance(fact, ProgressSeen):
        before = state.reached.get(fact.what, -1)
        if state.failed and fact.done < before:
            _next(state)
        state.reached[fact.what] = max(state.reached.get(fact.what, -1), fact.done)
    elif isinstance(fact, _FAILURES):
        state.failed = True
    elif state.failed and _is_start(fact):
        _next(state)
    return state.attempt


def _next(state: _File) -> None:
    state.attempt = min(state.attempt + 1, ATTEMPTS_MAX)
    state.failed = False
    state.reached.clear()


def _is_start(fact: Fact) -> bool:
    if isinstance(fact, SettingSeen):
        return fact.name in _START_SETTINGS
    if isinstance(fact, Membership):
        return fact.complete is False
    return isinstance(fact, PhaseSeen) and fact.kind is PhaseKind.INIT and not fact.ended


def _begins(facts: list[Fact], numbers: list[int], files: dict[str, _File], last: int) -> dict[int, float]:
    """First time of each attempt in the files that show them all."""
    begins: dict[int, float] = {}
    for fact, number in zip(facts, numbers, strict=True):
        whole = files[fact.origin.file].attempt == last
        if whole and fact.time_s is not None and fact.clock is Clock.UNIX:
            begins[number] = min(begins.get(number, fact.time_s), fact.time_s)
    return begins


def _attempt_of(fact: Fact, number: int, of_file: int, last: int, begins: dict[int, float]) -> int:
    if isinstance(fact, (FlightDump, LiveEvidence, IncidentSeen)):
        return last  # dumps are overwritten by the next attempt, bundles are of one
    alone = of_file == 0 or isinstance(fact, _OUTSIDE)
    if alone and fact.time_s is not None and fact.clock is Clock.UNIX and begins:
        known = [attempt for attempt, begin in begins.items() if begin <= fact.time_s]
        return max(known, default=min(begins))
    return last - of_file + number
