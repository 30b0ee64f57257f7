"""Many Flight Recorder dumps, one at a time, down to what the judgement needs of each.

Of a dump of 2,000 entries remain four bytes for each collective, its open operations and its point-to-point
counts, so that ten thousand dumps fit into a few hundred megabytes whatever order they come in.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from paceline.analysis.arrays import distinct
from paceline.analysis.facts import Fact, FlightDump, Group, Work
from paceline.contracts.codes import DType, Function

OPEN_KEPT_MAX = 32  # open collectives of one rank in one group
PAIRS_KEPT_MAX = 4096  # peers of one rank
KNOWN_MAX = 100_000  # groups that are looked up by identity
HISTORIES_MAX = 4096  # sequences of calls that ranks share
TABLE_BYTES_MAX = 64 << 20  # of whole tables, for pictures; of later dumps the newest entries stay
NEWEST_KEPT = 16  # entries of each group
_COMPLETED = 2
_DTYPES = {
    "float": DType.FLOAT32, "double": DType.FLOAT64, "half": DType.FLOAT16, "bfloat16": DType.BFLOAT16,
    "long": DType.INT64, "int": DType.INT32, "short": DType.INT16, "char": DType.INT8, "byte": DType.UINT8,
    "bool": DType.BOOL, "complexfloat": DType.COMPLEX64, "complexdouble": DType.COMPLEX128,
    "float8_e4m3fn": DType.FLOAT8_E4M3, "float8_e5m2": DType.FLOAT8_E5M2,
}  # fmt: skip
# Members may send and take different amounts of these, or only the root has a buffer.
_UNEVEN_IN = ("all_to_all", "scatter", "coalesced")
_UNEVEN_OUT = ("all_to_all", "gather", "coalesced")


@dataclass(frozen=True)
class Call:
    """One distinct operation of the job; equal for all ranks that call the same."""

    work: Work
    signature: int
    function: int
    dtype: int
    count: int

    def __str__(self) -> str:
        size = self.work.shapes if len(self.work.shapes) <= 60 else f"{self.work.count_in} elements"
        return f"{self.work.function} {size} {self.work.dtype}".strip()


@dataclass(frozen=True, eq=False)
class Collectives:
    """What one rank called in one group. `sequences` ascend; `calls` are numbers of `Fold.calls`."""

    sequences: npt.NDArray[np.int64] | range
    calls: npt.NDArray[np.int32]
    entered: int
    completed: int
    head: int  # index of the oldest open one, len(calls) where none
    records: npt.NDArray[np.int64]  # of the open ones, at most OPEN_KEPT_MAX
    created_ns: npt.NDArray[np.int64]
    last_ns: int
    known: bool = True  # False: the ring has no entry of the group, its counts come from `pg_status`


@dataclass(frozen=True)
class Pair:
    """Sends to, or receives from, one place in a group, as far as the ring goes back."""

    posted: int
    completed: int
    call: int  # of the oldest open one, -1 where none
    record: int
    created_ns: int


@dataclass(frozen=True, eq=False)
class RankPart:
    """One rank."""

    rank: int
    file: str
    newest_ns: int
    oldest_open_ns: int  # 0 = nothing open
    timeout_ms: int
    whole: bool  # everything since the start of the process is in the ring
    issued: int
    backend: str
    groups: tuple[int, ...]  # numbers of `Fold.groups`
    collectives: dict[int, Collectives]
    pairs: dict[tuple[int, int, int], Pair]  # (group, peer, 0 send | 1 receive)
    notes: tuple[str, ...]
    only_active: bool


@dataclass
class Tables:
    """Calls and groups of a job, numbered in the order in which its dumps name them."""

    calls: list[Call] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    _call_of: dict[Work, int] = field(default_factory=dict)
    _signed: dict[int, int] = field(default_factory=dict)
    _group_of: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    _known: dict[tuple[str, int], tuple[tuple[int, ...], int]] = field(default_factory=dict)
    _joint: dict[tuple[int, ...], int] = field(default_factory=dict)
    _histories: dict[bytes, npt.NDArray[np.int32]] = field(default_factory=dict)

    def part(self, dump: FlightDump) -> RankPart | None:
        """What is needed of `dump`; None where it says no rank."""
        rank = dump.speaker.rank
        return None if rank is None or rank < 0 else self._read(rank, dump)

    def _read(self, rank: int, dump: FlightDump) -> RankPart:
        entries = dump.entries
        groups = [self._number(group) for group in dump.groups]
        calls = np.array([self._call(work) for work in dump.works], np.int32)
        collectives: dict[int, Collectives] = {}
        single = ~entries["is_p2p"]
        for at in distinct(entries["group"][single]).tolist():
            rows = entries[single & (entries["group"] == at)]
            collectives[groups[at]] = self._collectives(rows, calls)
        pairs = self._pairs(dump, groups, calls) if not bool(single.all()) else {}
        with_pairs = {group for group, _, _ in pairs}
        for group, (enqueued, _, completed) in _by_group(dump, groups):
            if group not in collectives and group not in with_pairs and enqueued >= 0:
                collectives[group] = _of_status(enqueued, completed)
        is_open = entries["state"] < _COMPLETED
        newest = max(int(entries["created_ns"].max(initial=0)), int(entries["completed_ns"].max(initial=0)))
        return RankPart(
            rank=rank,
            file=dump.origin.file,
            newest_ns=newest,
            oldest_open_ns=int(entries["created_ns"][is_open].min()) if is_open.any() else 0,
            timeout_ms=dump.timeout_ms or 0,
            whole=dump.overwritten == 0 and dump.gaps == 0 and not dump.only_active,
            issued=int(entries["record"][-1]) + 1 if len(entries) else 0,
            backend=dump.backend,
            groups=tuple(groups),
            collectives=collectives,
            pairs=pairs,
            notes=dump.notes,
            only_active=dump.only_active,
        )

    def _number(self, group: Group) -> int:
        same = (group.name, id(group.ranks))  # to look up long member lists by their content takes long
        known = self._known.get(same)
        if known is not None:
            return known[1]
        key = (group.name, group.ranks)
        found = self._group_of.get(key)
        if found is None:
            found = self._group_of[key] = len(self.groups)
            self.groups.append(group)
        if len(self._known) < KNOWN_MAX:
            self._known[same] = (group.ranks, found)  # which keeps the list, so that its identity stays
        return found

    def _history(self, calls: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """One array for all ranks that made the same calls."""
        key = calls.tobytes()
        if len(self._histories) < HISTORIES_MAX:
            return self._histories.setdefault(key, calls)
        return self._histories.get(key, calls)

    def _call(self, work: Work) -> int:
        found = self._call_of.get(work)
        if found is None:
            call = describe_call(work)
            found = self._signed.get(call.signature)
            if found is None:
                found = self._signed[call.signature] = len(self.calls)
                self.calls.append(call)
            self._call_of[work] = found
        return found

    def _join(self, parts: tuple[int, ...]) -> int:
        """One call for a group of coalesced ones, which share a sequence number."""
        found = self._joint.get(parts)
        if found is None:
            inner = [self.calls[part] for part in parts]
            real = [call for call in inner if call.work.function != "coalesced"] or inner
            joined = b"".join(call.signature.to_bytes(8, "little") for call in real)
            signature = int.from_bytes(blake2b(joined, digest_size=8).digest(), "little") | 1
            found = self._joint[parts] = len(self.calls)
            first = real[0]
            count = sum(call.count for call in real)
            self.calls.append(Call(first.work, signature, first.function, first.dtype, count))
        return found

    def _collectives(self, rows: npt.NDArray[np.void], calls: npt.NDArray[np.int32]) -> Collectives:
        """One rank in one group; entries of one sequence number are one call."""
        if bool((np.diff(rows["sequence"]) < 0).any()):  # damaged, or several groups under one number
            rows = rows[np.argsort(rows["sequence"], kind="stable")]
        sequence, call = rows["sequence"], calls[rows["work"]]
        state, record, created = rows["state"], rows["record"], rows["created_ns"]
        new = np.ones(len(rows), np.bool_)
        new[1:] = sequence[1:] != sequence[:-1]
        if not bool(new.all()):
            first = np.flatnonzero(new)
            joined = np.split(call, first[1:])
            call = np.array(
                [self._join(tuple(part.tolist())) if len(part) > 1 else int(part[0]) for part in joined],
                np.int32,
            )
            state = np.minimum.reduceat(state, first)
            sequence, record, created = sequence[first], record[first], created[first]
        done = np.flatnonzero(state >= _COMPLETED)
        head = int(done[-1]) + 1 if len(done) else 0  # one stream: what came before a completed one is over
        kept = slice(head, head + OPEN_KEPT_MAX)
        low, high = int(sequence[0]), int(sequence[-1])
        dense = high - low + 1 == len(sequence) and bool((np.diff(sequence) == 1).all())
        completed = int(sequence[head]) - 1 if head < len(sequence) else high
        return Collectives(
            range(low, high + 1) if dense else sequence.copy(),
            self._history(call.astype(np.int32)),
            high,
            completed,
            head,
            record[kept].copy(),
            created[kept].copy(),
            int(created[-1]),
        )

    def _pairs(
        self, dump: FlightDump, groups: list[int], calls: npt.NDArray[np.int32]
    ) -> dict[tuple[int, int, int], Pair]:
        """Counts of sends and receives by group, peer and direction."""
        peers = np.array([-1 if work.peer is None else work.peer for work in dump.works], np.int64)
        way = np.array([0 if work.function == "send" else 1 for work in dump.works], np.int64)
        rows = dump.entries[dump.entries["is_p2p"]]
        rows = rows[peers[rows["work"]] >= 0]
        found: dict[tuple[int, int, int], Pair] = {}
        if len(rows) == 0:
            return found
        peer, side = peers[rows["work"]], way[rows["work"]]
        keys = np.column_stack([rows["group"].astype(np.int64), peer, side])
        kinds, which = np.unique(keys, axis=0, return_inverse=True)
        for at, (group, place, direction) in enumerate(kinds[:PAIRS_KEPT_MAX].tolist()):
            mine = rows[which.reshape(-1) == at]
            done = np.flatnonzero(mine["state"] >= _COMPLETED)
            head = int(done[-1]) + 1 if len(done) else 0
            shown = mine[head] if head < len(mine) else None
            found[groups[group], place, direction] = Pair(
                len(mine),
                head,
                -1 if shown is None else int(calls[shown["work"]]),
                0 if shown is None else int(shown["record"]),
                0 if shown is None else int(shown["created_ns"]),
            )
        return found


@dataclass
class Fold:
    """All dumps so far."""

    tables: Tables = field(default_factory=Tables)
    ranks: dict[int, RankPart] = field(default_factory=dict)
    unranked: list[str] = field(default_factory=list)  # files without a rank
    replaced: list[str] = field(default_factory=list)  # older dumps of a rank that has a newer one

    @property
    def calls(self) -> list[Call]:
        return self.tables.calls

    @property
    def groups(self) -> list[Group]:
        return self.tables.groups

    def add(self, dump: FlightDump) -> None:
        """Take what is needed of `dump`; of two dumps of one rank the newer one counts."""
        part = dump.folded.part if isinstance(dump.folded, Folded) else self.tables.part(dump)
        if part is None:
            self.unranked.append(dump.origin.file)
            return
        other = self.ranks.get(part.rank)
        if other is not None:
            self.replaced.append(part.file if other.newest_ns > part.newest_ns else other.file)
            if other.newest_ns > part.newest_ns:
                return
        self.ranks[part.rank] = part


@dataclass(frozen=True, eq=False)
class Folded:
    """A dump that was folded when it was read, with the tables of all dumps that were read with it."""

    tables: Tables
    part: RankPart


class FoldAsRead:
    """Folds each dump when it is read and lets its table go where they become too many.

    So ten thousand dumps take a few hundred megabytes, in whatever order and beside whatever logs.
    """

    def __init__(self, table_bytes_max: int = TABLE_BYTES_MAX) -> None:
        self._tables: dict[str, Tables] = {}  # by backend: the dumps of each recorder are judged apart
        self._left = table_bytes_max

    def __call__(self, fact: Fact) -> Fact:
        if not isinstance(fact, FlightDump) or len(fact.entries) == 0:
            return fact
        tables = self._tables.setdefault(fact.backend, Tables())
        part = tables.part(fact)
        if part is None:
            return fact
        self._left -= fact.entries.nbytes
        entries = fact.entries if self._left >= 0 else _newest(fact.entries)
        return replace(fact, folded=Folded(tables, part), entries=entries)


def fold_dumps(dumps: Iterable[FlightDump]) -> Fold:
    """All of `dumps`, which may be a generator: each is let go once it is read.

    Those that were folded as they were read must be of one reading and one backend: their numbers are those
    of its tables. Raises ValueError for others.
    """
    folded = (each.folded for each in dumps) if isinstance(dumps, Sequence) else ()
    fold = Fold(next((each.tables for each in folded if isinstance(each, Folded)), Tables()))
    for dump in dumps:
        if isinstance(dump.folded, Folded) and dump.folded.tables is not fold.tables:
            raise ValueError(f"{dump.origin.file} was read apart from the others")
        fold.add(dump)
    return fold


def _newest(entries: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The last entries of each group, with the last completed one."""
    kept = np.zeros(len(entries), np.bool_)
    for group in distinct(entries["group"]).tolist():
        rows = np.flatnonzero(entries["group"] == group)
        kept[rows[-NEWEST_KEPT:]] = True
        kept[rows[entries["state"][rows] >= _COMPLETED][-1:]] = True
    return entries[kept]


def describe_call(work: Work) -> Call:
    """Signature of an operation: function, elements, type; both ends of a message have the same one."""
    name = "pair" if work.peer is not None else work.function
    count_in = None if name in _UNEVEN_IN else work.count_in
    count_out = None if name in _UNEVEN_OUT or name == "pair" else work.count_out
    text = f"{name}|{count_in}|{count_out}|{work.dtype}"
    signature = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") | 1
    function = Function.__members__.get(work.function.upper(), Function.UNKNOWN)
    dtype = _DTYPES.get(work.dtype.lower(), DType.UNKNOWN)
    count = min(count_in if count_in is not None else count_out or 0, (1 << 62) - 1)
    return Call(work, signature, int(function), int(dtype), count)


def _by_group(dump: FlightDump, groups: list[int]) -> Iterator[tuple[int, tuple[int, int, int]]]:
    for at, group in enumerate(dump.groups):
        if group.name in dump.status:
            yield groups[at], dump.status[group.name]


def _of_status(enqueued: int, completed: int) -> Collectives:
    """A group of which the ring has nothing: its counts only. What is open there is in no entry."""
    nothing = np.zeros(0, np.int64)
    done = max(min(completed, enqueued), 0)
    return Collectives(nothing, np.zeros(0, np.int32), max(enqueued, 0), done, 0, nothing, nothing, 0, False)
