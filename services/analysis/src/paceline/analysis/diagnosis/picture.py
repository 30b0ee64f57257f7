"""What can be drawn: who is blamed and who waits, how far each rank came, when works began and ended."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.analysis.diagnosis.answer import Diagnosis
from paceline.analysis.diagnosis.redact import Redactor
from paceline.analysis.facts import (
    BarrierReport,
    Clock,
    Counted,
    DesyncReport,
    DeviceEvent,
    Fact,
    FlightDump,
    GlooFailure,
    Group,
    GroupStatus,
    HostKill,
    NetworkFailure,
    OperationMismatch,
    Origin,
    PhaseSeen,
    ProcessEnd,
    ProcessFault,
    WatchdogStuck,
    WorkTimeout,
)

RANKS_DRAWN_MAX = 131_072
MARKS_MAX = 20_000
_MARKED = (
    DeviceEvent, ProcessFault, ProcessEnd, HostKill, NetworkFailure, GlooFailure, BarrierReport,
    DesyncReport, OperationMismatch, WatchdogStuck, WorkTimeout, PhaseSeen,
)  # fmt: skip
RankOf = Callable[[Fact], "int | None"]
COMPLETED = 2  # state of a Flight Recorder entry
RECORDER = "recorder"  # clock of Flight Recorder entries


@dataclass(frozen=True)
class Bar:
    """One work of one rank. `end_s` None: it had not ended when the input was written."""

    clock: str  # times of different clocks are not compared
    group: str
    rank: int
    function: str
    sequence: int | None
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class Mark:
    """One event; `at_s` None where the line has no time."""

    clock: str
    at_s: float | None
    rank: int | None
    host: str
    kind: str
    text: str
    origin: Origin


@dataclass(frozen=True)
class Progress:
    """Sequence numbers of one rank in one group, None where not said."""

    group: str
    rank: int
    enqueued: int | None
    completed: int | None


@dataclass(frozen=True)
class Picture:
    """All that the page and the trace draw of one attempt; bars are made when asked for."""

    facts: Sequence[Fact]
    rank_of: RankOf
    world_size: int
    hosts: dict[int, str]
    reporting: frozenset[int]
    progress: tuple[Progress, ...]
    marks: tuple[Mark, ...]
    marks_dropped: int = 0
    cover: Callable[[str], str] = str  # of names of groups and works

    def waiting(self) -> set[int]:
        """Ranks that have entered more than they completed, in any group."""
        return {
            progress.rank
            for progress in self.progress
            if progress.enqueued is not None and progress.enqueued > (progress.completed or -1)
        }

    def bars(self, last: int | None = None) -> Iterator[Bar]:
        """Works with a beginning; of each rank and group at most the `last` ones."""
        for fact in self.facts:
            rank = self.rank_of(fact) if isinstance(fact, (FlightDump, WorkTimeout)) else None
            if isinstance(fact, FlightDump):
                yield from _recorded(fact, rank, last, self.cover)
            elif isinstance(fact, WorkTimeout):
                yield from _timed_out(fact, rank, self.cover)


def make_picture(diagnosis: Diagnosis, facts: Sequence[Fact], rank_of: RankOf) -> Picture:
    """`facts` of one attempt; `rank_of` says the global rank of a speaker, None where unknown."""
    facts = _with_groups(facts, rank_of)
    hosts: dict[int, str] = {}
    reporting: set[int] = set()
    marks: list[Mark] = []
    dropped = 0
    for fact in facts:
        rank = rank_of(fact)
        if rank is not None and rank < RANKS_DRAWN_MAX:
            reporting.add(rank)
            if fact.speaker.host:
                hosts.setdefault(rank, fact.speaker.host)
        if isinstance(fact, _MARKED):
            if len(marks) < MARKS_MAX:
                marks.append(_mark(fact, rank))
            else:
                dropped += 1
    named = {rank for root in diagnosis.roots for rank in (root.rank, root.peer_rank, *root.ranks)}
    known = reporting | set(diagnosis.victims) | {rank for rank in named if rank is not None}
    world = min(max(diagnosis.seen.ranks_expected, max(known, default=-1) + 1), RANKS_DRAWN_MAX)
    return Picture(
        facts, rank_of, world, hosts, frozenset(reporting), _progress(facts, rank_of), tuple(marks), dropped
    )


def redacted(picture: Picture, redactor: Redactor) -> Picture:
    """The same picture in pseudonyms."""
    return replace(
        picture,
        hosts=redactor.redact(picture.hosts),
        progress=redactor.redact(picture.progress),
        marks=redactor.redact(picture.marks),
        cover=redactor.cover,
    )


def group_name(group: Group) -> str:
    return group.description or group.name or "(group not named)"


def _with_groups(facts: Sequence[Fact], rank_of: RankOf) -> Sequence[Fact]:
    """Older watchdogs name no group in the timeout itself; the status line of the same work does."""
    named: dict[tuple[int | None, int | None], Group] = {}
    for fact in facts:
        if isinstance(fact, GroupStatus) and fact.failed is not None and fact.group.name:
            named[rank_of(fact), fact.failed] = fact.group
    return [
        replace(fact, group=named.get((rank_of(fact), fact.work.sequence), fact.group))
        if isinstance(fact, WorkTimeout) and not fact.group.name
        else fact
        for fact in facts
    ]


def _progress(facts: Iterable[Fact], rank_of: RankOf) -> tuple[Progress, ...]:
    """Highest numbers of each (group, rank)."""
    found: dict[tuple[str, int], list[int | None]] = defaultdict(lambda: [None, None])
    for fact in facts:
        rank = rank_of(fact)
        if rank is None:
            continue
        for group, enqueued, completed in _numbers(fact):
            numbers = found[group, rank]
            for index, number in enumerate((enqueued, completed)):
                known = numbers[index]
                if number is not None and (known is None or number > known):
                    numbers[index] = number
    return tuple(Progress(group, rank, *numbers) for (group, rank), numbers in sorted(found.items()))


def _numbers(fact: Fact) -> Iterator[tuple[str, int | None, int | None]]:
    if isinstance(fact, GroupStatus):
        yield group_name(fact.group), fact.enqueued, fact.completed
    elif isinstance(fact, WorkTimeout) and fact.work.sequence is not None:
        yield group_name(fact.group), fact.work.sequence, None
    elif isinstance(fact, Counted) and fact.ranks_alike == 1 and not fact.function:
        yield group_name(fact.group), fact.launched, fact.completed
    elif isinstance(fact, FlightDump):
        names = {group.name: group_name(group) for group in fact.groups}
        for name, (enqueued, _, completed) in fact.status.items():
            yield names.get(name, name), enqueued, completed
        if not fact.status:
            yield from _from_entries(fact)


def _from_entries(dump: FlightDump) -> Iterator[tuple[str, int | None, int | None]]:
    collective = dump.entries[~dump.entries["is_p2p"]]
    for index, group in enumerate(dump.groups):
        mine = collective[collective["group"] == index]
        done = mine["sequence"][mine["state"] == COMPLETED]
        if len(mine):
            yield group_name(group), int(mine["sequence"].max()), int(done.max()) if len(done) else None


def _recorded(
    dump: FlightDump, rank: int | None, last: int | None, cover: Callable[[str], str]
) -> Iterator[Bar]:
    entries = dump.entries
    if rank is None or not len(entries):
        return
    functions = [cover(work.function) for work in dump.works]
    for index, group in enumerate(dump.groups):
        mine = entries[entries["group"] == index]
        mine = mine if last is None else mine[-last:]
        begin = np.where(mine["started_ns"] > 0, mine["started_ns"], mine["created_ns"])
        end = np.maximum(mine["completed_ns"], begin)
        name = cover(group_name(group))
        columns = (mine["work"], mine["sequence"], begin, end, mine["state"] == COMPLETED)
        for work, sequence, start_ns, end_ns, is_over in zip(
            *(part.tolist() for part in columns), strict=True
        ):
            if start_ns > 0:
                function = functions[work] if 0 <= work < len(functions) else ""
                end_s = end_ns / 1e9 if is_over else None
                yield Bar(RECORDER, name, rank, function, sequence, start_ns / 1e9, end_s)


def _timed_out(fact: WorkTimeout, rank: int | None, cover: Callable[[str], str]) -> Iterator[Bar]:
    if rank is None or fact.time_s is None or fact.ran_ms is None or fact.clock is Clock.NONE:
        return
    start = fact.time_s - fact.ran_ms / 1000
    name = cover(group_name(fact.group))
    yield Bar(fact.clock.value, name, rank, cover(fact.work.function), fact.work.sequence, start, None)


def _mark(fact: Fact, rank: int | None) -> Mark:
    kind, text = _words(fact)
    return Mark(fact.clock.value, fact.time_s, rank, fact.speaker.host, kind, text[:300], fact.origin)


def _words(fact: Fact) -> tuple[str, str]:
    text = str(getattr(fact, "text", ""))
    if isinstance(fact, DeviceEvent):
        return fact.label or f"{'SXid' if fact.is_switch else 'Xid'} {fact.code}", text
    if isinstance(fact, WorkTimeout):
        number = "" if fact.work.sequence is None else f" {fact.work.sequence}"
        return "timeout", f"{fact.work.function or 'work'}{number} of {group_name(fact.group)}"
    if isinstance(fact, PhaseSeen):
        return f"{fact.kind.value} {'ended' if fact.ended else 'began'}", text
    if isinstance(fact, (NetworkFailure, GlooFailure)):
        return (
            f"{'gloo' if isinstance(fact, GlooFailure) else 'network'} {fact.kind.value}",
            text or fact.peer,
        )
    if isinstance(fact, ProcessFault):
        return fact.exception or fact.kind.value.replace("_", " "), text
    if isinstance(fact, WatchdogStuck):
        return "watchdog stuck", f"for {fact.stuck_s} s"
    if isinstance(fact, ProcessEnd):
        return "process end", text or f"exit {fact.exit_code} signal {fact.signal}"
    kinds = {HostKill: "killed by the kernel", BarrierReport: "barrier report", DesyncReport: "desync report"}
    return kinds.get(type(fact), "mismatch"), text
