"""One attempt of one job, as its files show it: who is who, which groups exist, and how far each rank came.

Three rank numbers occur in logs. Everything here is in global ranks; what cannot be brought to one is left
out of the tables, never guessed.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TypeVar

from paceline.analysis.diagnosis.placed import placed
from paceline.analysis.facts import (
    Clock,
    Fact,
    FlightDump,
    Group,
    GroupStatus,
    Membership,
    Origin,
    ProcessFault,
    Work,
    WorkTimeout,
)

RANKS_MAX = 1 << 20
DEFAULT_GROUP = "0"  # torch's name of the group of all ranks
_DEFAULT_NAMES = ("", DEFAULT_GROUP, "default_pg")
_YEAR_S = 366 * 86_400.0
_COMPARABLE_S = 30 * 86_400.0  # times further apart come from clocks or years that do not fit
_LOCAL_FOLDER = re.compile(r"(?:^|/)\d+/std(?:err|out)\.log$")  # torchrun --log-dir
_HELPER = re.compile(r"worker \(pid(?:\(s\))? (?P<pids>\d{1,9}(?:, ?\d{1,9}){0,63})\)")  # of a data loader
AnyFact = TypeVar("AnyFact", bound=Fact)


@dataclass
class Standing:
    """How far one rank has come in one group; sequence numbers of the watchdog, None where not said."""

    group: str
    rank: int
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    failed: int | None = None
    work: Work | None = None  # the operation its watchdog gave up on
    entered_s: float | None = None  # when it entered that operation: time of the line minus "ran for"
    clock: Clock = Clock.NONE
    place: int | None = None  # rank inside the group, where a line says it
    origins: list[Origin] = field(default_factory=list)

    @property
    def waits_in(self) -> int | None:
        """The sequence it stands in: the failed one, or the oldest that is not completed."""
        if self.failed is not None:
            return self.failed
        if self.enqueued is not None and self.completed is not None and self.enqueued > self.completed:
            return self.completed + 1
        return self.work.sequence if self.work else None


@dataclass
class Place:
    """Where a rank runs, as far as any line says."""

    host: str = ""
    pid: int | None = None
    gpu: str = ""
    local_rank: int | None = None


@dataclass
class GroupView:
    """A process group: its global ranks in group order where known, else only its size, 0 unknown."""

    name: str
    description: str = ""
    size: int = 0
    ranks: tuple[int, ...] = ()


class Case:
    """Facts of one attempt with identity resolved. Build once, read by every rule."""

    def __init__(self, facts: Sequence[Fact], attempt: int = 0, attempts: int = 1) -> None:
        self.facts = tuple(placed(facts))
        self.attempt, self.attempts = attempt, attempts
        self.memo: dict[str, object] = {}  # what several rules need and is dear to find
        self._by_kind: dict[type[Fact], list[Fact]] = defaultdict(list)
        for fact in self.facts:
            self._by_kind[type(fact)].append(fact)
        self._by_pid: dict[tuple[str, int], int] = {}
        self._by_lone_pid: dict[int, tuple[str, int]] = {}  # pids that only one rank has
        self._by_gpu: dict[tuple[str, str], int] = {}
        self.groups = self._read_groups()
        self._ranks_of_file = self._read_files()
        self.places = self._read_places()
        self.ranks_named = self._read_ranks()
        self.world_size = self._read_world()
        self.table = self._read_table()
        self.waiting_in: dict[int, set[str]] = defaultdict(set)  # groups in which a rank gave up
        for (group, rank), standing in self.table.items():
            if standing.work is not None:
                self.waiting_in[rank].add(group)

    def of(self, kind: type[AnyFact]) -> list[AnyFact]:
        """All facts of a kind, in order of the input."""
        return self._by_kind.get(kind, [])  # type: ignore[return-value]

    def rank_of(self, fact: Fact) -> int | None:
        """Global rank of the speaker, None where the text does not allow to say it."""
        speaker = fact.speaker
        if speaker.rank is not None:
            return speaker.rank if speaker.rank < RANKS_MAX else None
        if speaker.group_rank is not None:
            return self.global_rank(getattr(fact, "group", Group()), speaker.group_rank)
        if speaker.pid is not None and (speaker.host, speaker.pid) in self._by_pid:
            return self._by_pid[speaker.host, speaker.pid]
        if speaker.pid is not None and speaker.pid in self._by_lone_pid:
            host, owner = self._by_lone_pid[speaker.pid]
            if not host or not speaker.host:
                return owner
        if speaker.gpu:
            return self.rank_on(speaker.host, speaker.gpu)
        rank = self._ranks_of_file.get(fact.origin.file)
        if rank is not None and speaker.pid is not None:
            place = getattr(self, "places", {}).get(rank)
            if place and place.pid not in (None, speaker.pid) and place.host == speaker.host:
                return None  # another process writes into the same file
        return rank

    def global_rank(self, group: Group, group_rank: int) -> int | None:
        """Global rank of a member; the group of all ranks numbers its members alike."""
        view = self.groups.get(group.name)
        if view is not None and group_rank < len(view.ranks):
            return view.ranks[group_rank]
        alike = group.name in _DEFAULT_NAMES or group.description == "default_pg"
        return group_rank if (alike or self._covers_job(group)) and group_rank < RANKS_MAX else None

    def rank_on(self, host: str, gpu: str) -> int | None:
        """Rank that runs on a GPU, where a topology or NCCL's init lines say so.

        A kernel log without a host belongs to the only host whose GPUs are known.
        """
        if not host:
            hosts = {known for known, _ in self._by_gpu}
            host = next(iter(hosts)) if len(hosts) == 1 else ""
        return self._by_gpu.get((host, gpu))

    def members(self, group: str) -> tuple[int, ...]:
        """Global ranks of a group; empty where neither its members nor its size are known."""
        view = self.groups.get(group)
        if view is not None and view.ranks:
            return view.ranks
        if view is not None and view.size and (group in _DEFAULT_NAMES or view.size == self.world_size):
            return tuple(range(view.size))
        return tuple(range(self.world_size)) if group in _DEFAULT_NAMES else ()

    def standings(self, group: str) -> list[Standing]:
        return [standing for (name, _), standing in sorted(self.table.items()) if name == group]

    def _covers_job(self, group: Group) -> bool:
        if not group.size and group.name.startswith("0x"):
            return len(self.groups) == 1  # NCCL's only communicator, by a tool that does not say its size
        sizes = [fact.group.size for fact in self.of(Membership)]
        return bool(group.size) and group.size >= max(sizes, default=0)

    def _read_groups(self) -> dict[str, GroupView]:
        views: dict[str, GroupView] = {}
        for fact in self.facts:
            groups = fact.groups if isinstance(fact, FlightDump) else (getattr(fact, "group", None),)
            for group in groups:
                if isinstance(group, Group) and group.name:
                    view = views.setdefault(group.name, GroupView(group.name))
                    view.description = view.description or group.description
                    view.ranks = view.ranks or group.ranks
                    view.size = max(view.size, group.size, len(group.ranks))
        return views

    def _read_files(self) -> dict[str, int]:
        """Files in which every line with a rank names the same one."""
        ranks: dict[str, set[int]] = defaultdict(set)
        for fact in self.facts:
            if fact.speaker.rank is not None:
                ranks[fact.origin.file].add(fact.speaker.rank)
        known = {file: next(iter(found)) for file, found in ranks.items() if len(found) == 1}
        return self._read_folders(ranks) | known

    def _read_folders(self, ranks: dict[str, set[int]]) -> dict[str, int]:
        """Ranks of torchrun's folders, one for each local rank, of a job that runs on one node."""
        local: dict[str, set[int]] = defaultdict(set)
        for fact in self.facts:
            if fact.speaker.local_rank is not None and _LOCAL_FOLDER.search(fact.origin.file):
                local[fact.origin.file].add(fact.speaker.local_rank)
        folders = {file.rpartition("/")[0]: next(iter(found)) for file, found in local.items()}
        whole = set(folders.values()) == set(range(len(folders))) and len(folders) > 1
        named = max((rank for found in ranks.values() for rank in found), default=-1)
        if not whole or named >= len(folders):
            return {}
        return {file: next(iter(found)) for file, found in local.items() if len(found) == 1}

    def _read_places(self) -> dict[int, Place]:
        places: dict[int, Place] = {}
        for fact in self.facts:
            rank = self.rank_of(fact) if fact.speaker.group_rank is not None else fact.speaker.rank
            if rank is None or rank >= RANKS_MAX:
                continue
            place = places.setdefault(rank, Place())
            place.host = place.host or fact.speaker.host
            place.gpu = place.gpu or fact.speaker.gpu
            place.pid = fact.speaker.pid if place.pid is None else place.pid
            place.local_rank = fact.speaker.local_rank if place.local_rank is None else place.local_rank
        for rank, place in places.items():
            if place.pid is not None:
                self._by_pid.setdefault((place.host, place.pid), rank)
            if place.gpu:
                self._by_gpu.setdefault((place.host, place.gpu), rank)
        self._by_lone_pid = self._read_pids(places)
        return places

    def _read_pids(self, places: dict[int, Place]) -> dict[int, tuple[str, int]]:
        """Processes of a rank whose pid no other rank has: its own, and helpers whose loss it reports."""
        owners: dict[int, set[tuple[str, int]]] = defaultdict(set)
        for rank, place in places.items():
            if place.pid is not None:
                owners[place.pid].add((place.host, rank))
        for fault in self.of(ProcessFault):
            found = _HELPER.search(fault.text)
            owner = self.rank_of(fault) if found else None
            if found and owner is not None:
                for pid in found["pids"].split(","):
                    owners[int(pid)].add((fault.speaker.host, owner))
        return {pid: next(iter(known)) for pid, known in owners.items() if len(known) == 1}

    def _read_ranks(self) -> tuple[int, ...]:
        """Every global rank that some line speaks for."""
        found = {rank for fact in self.facts if (rank := self.rank_of(fact)) is not None}
        return tuple(sorted(found))

    def _read_world(self) -> int:
        """Ranks of the job, 0 where no line gives the size of the group of all."""
        sizes = [0]
        for view in self.groups.values():
            whole = view.name in _DEFAULT_NAMES or view.description == "default_pg"
            sizes.append(max(view.size if whole else 0, max(view.ranks, default=-1) + 1))
        sizes += [fact.group.size for fact in self.of(Membership)]
        sizes += [size for fact in self.facts if (size := int(getattr(fact, "expected", None) or 0))]
        sizes += [
            _gathered_size(fact.work) for fact in self.of(WorkTimeout) if fact.group.name in _DEFAULT_NAMES
        ]
        size = max(sizes)
        return size if size > max(self.ranks_named, default=-1) else 0

    def _read_table(self) -> dict[tuple[str, int], Standing]:
        table: dict[tuple[str, int], Standing] = {}
        for status in self.of(GroupStatus):
            rank = self.rank_of(status)
            if rank is None:
                continue
            standing = table.setdefault((status.group.name, rank), Standing(status.group.name, rank))
            standing.enqueued = _later(standing.enqueued, status.enqueued)
            standing.started = _later(standing.started, status.started)
            standing.completed = _later(standing.completed, status.completed)
            standing.failed = _earlier(standing.failed, status.failed)
            standing.place = status.speaker.group_rank if standing.place is None else standing.place
            standing.origins.append(status.origin)
        spoken: dict[int, list[Standing]] = defaultdict(list)
        for (group, rank), standing in table.items():
            if group:
                spoken[rank].append(standing)
        for timeout in self.of(WorkTimeout):
            rank = self.rank_of(timeout)
            if rank is not None:
                self._add_timeout(
                    table, timeout, rank, timeout.group.name or _group_of(timeout, spoken[rank])
                )
        return table

    def _add_timeout(
        self, table: dict[tuple[str, int], Standing], timeout: WorkTimeout, rank: int, group: str
    ) -> None:
        standing = table.setdefault((group, rank), Standing(group, rank))
        standing.origins.insert(0, timeout.origin)
        standing.place = timeout.speaker.group_rank if standing.place is None else standing.place
        if standing.work is None or (timeout.work.sequence or 0) < (standing.work.sequence or 0):
            standing.work = timeout.work
            if timeout.time_s is not None and timeout.ran_ms is not None:
                standing.entered_s, standing.clock = timeout.time_s - timeout.ran_ms / 1000, timeout.clock


def _group_of(timeout: WorkTimeout, mine: Sequence[Standing]) -> str:
    """The timeout's line names no group; the status line of the same rank and work does."""
    for standing in mine:
        if timeout.work.sequence is not None and standing.failed == timeout.work.sequence:
            return standing.group
    if len({standing.group for standing in mine}) != 1:
        return ""
    enqueued, sequence = mine[0].enqueued, timeout.work.sequence
    return "" if enqueued is not None and (sequence or 0) > enqueued else mine[0].group


def seconds_after(first: Fact, second: Fact) -> float | None:
    """How long after `first` the other was said, None where their clocks do not allow it.

    Prefixes without a year (glog, syslog) are read in this year: times that are far apart are compared
    by their day of the year.
    """
    if first.time_s is None or second.time_s is None or first.clock is not second.clock:
        return None
    gap = second.time_s - first.time_s
    if abs(gap) >= _COMPARABLE_S and first.clock is Clock.UNIX:
        gap = _in_year(second.time_s) - _in_year(first.time_s)
    return gap if abs(gap) < _COMPARABLE_S else None


def first_and_last(facts: Iterable[Fact]) -> list[Fact]:
    """The earliest and the latest of each clock and year: what gaps to all others are bounded by."""
    found: dict[tuple[Clock, int], tuple[Fact, Fact]] = {}
    for fact in facts:
        if fact.time_s is None:
            continue
        key = fact.clock, int(fact.time_s // _YEAR_S)
        first, last = found.get(key, (fact, fact))
        found[key] = (
            fact if fact.time_s < (first.time_s or 0.0) else first,
            fact if fact.time_s > (last.time_s or 0.0) else last,
        )
    return [fact for pair in found.values() for fact in pair]


def comparable(first: Fact, second: Fact) -> bool:
    """Whether the order of two facts by time means something."""
    return seconds_after(first, second) is not None


def is_before(first: Fact, second: Fact) -> bool:
    """By time where the clocks allow it, else by line in the same file; False where unknown."""
    gap = seconds_after(first, second)
    if gap is not None:
        return gap > 0
    return first.origin.file == second.origin.file and first.origin.line < second.origin.line


def _in_year(time_s: float) -> float:
    """Seconds since the year began, as in a leap year, so that dates of two years can be compared."""
    try:
        moment = datetime.fromtimestamp(time_s, timezone.utc).replace(year=2000)
    except (OverflowError, OSError, ValueError):
        return 0.0
    return (moment - datetime(2000, 1, 1, tzinfo=timezone.utc)).total_seconds()


def _gathered_size(work: Work) -> int:
    """An all-gather's output over its input is the size of its group."""
    if work.function != "all_gather" or not work.count_in or not work.count_out:
        return 0
    return work.count_out // work.count_in if work.count_out % work.count_in == 0 else 0


def _earlier(known: int | None, found: int | None) -> int | None:
    if known is None or found is None:
        return found if known is None else known
    return min(known, found)


def _later(known: int | None, found: int | None) -> int | None:
    if known is None or found is None:
        return found if known is None else known
    return max(known, found)
