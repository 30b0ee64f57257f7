"""The ranks of one job run one program: what a rank had called before a call, against its siblings.

Siblings are the ranks at the same stage of their pipeline. Where a rank stands in a call, each
sibling has made the same call at some time (same kind of group, same number), and had called the
same things before. A rank that had not is the one that left something out or turned it round.
Counted by the process-wide issue index of each rank; nothing is compared by time.
"""

from enum import Enum
from functools import cached_property

import numpy as np

from paceline.analysis.evidence import Ints
from paceline.analysis.situation import Situation
from paceline.contracts.batch import Rows
from paceline.contracts.codes import Function

SIBLINGS_MAX = 64  # enough for a vote; all of them would cost ranks squared

# ("kind", kind) -> rounds entered; ("pair", kind, peer, direction) -> operations posted
Key = tuple[object, ...]
Calls = dict[Key, int]


class Standing(str, Enum):
    """What the siblings say about a rank."""

    NORMAL = "normal"
    ODD = "odd"
    UNKNOWN = "unknown"


class Programs:
    """Compares ranks of one job; built only where operations wait in a circle."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        evidence = situation.evidence
        sizes = np.diff(evidence.offsets)
        names = [kind or f"size {size}" for kind, size in zip(evidence.comm_kinds, sizes, strict=True)]
        self._kinds = list(dict.fromkeys(names))
        order = {name: index for index, name in enumerate(self._kinds)}
        self._kind_of = np.array([order[name] for name in names], np.int64)
        self._rounds = _by_rank(evidence.rounds, evidence.world_size)
        self._peers = _by_rank(evidence.peers, evidence.world_size)
        # Ranks of one circle ask the same siblings about the same call; each is looked up once.
        self._issues: dict[tuple[int, Key], int | None] = {}
        self._calls: dict[tuple[int, int], Calls | None] = {}

    def kind_name(self, kind: int) -> str:
        return self._kinds[kind]

    @cached_property
    def _places(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Stage of each rank: its places in the groups in which it sends and receives."""
        evidence = self._situation.evidence
        found: dict[int, set[tuple[int, int]]] = {}
        index = evidence.index_of(evidence.peers["comm"])
        for at, row in zip(index, evidence.peers, strict=True):
            if at >= 0:
                place = (int(self._kind_of[at]), int(row["comm_rank"]))
                found.setdefault(int(row["rank"]), set()).add(place)
        return {rank: tuple(sorted(places)) for rank, places in found.items()}

    @cached_property
    def _by_place(self) -> dict[tuple[tuple[int, int], ...], list[int]]:
        groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for rank in range(self._situation.evidence.world_size):
            groups.setdefault(self._places.get(rank, ()), []).append(rank)
        return groups

    @cached_property
    def _members(self) -> tuple[Ints, Ints]:
        """Members that are seen, by rank, and where each rank's begin (world + 1 places)."""
        evidence = self._situation.evidence
        seen = np.flatnonzero(evidence.seen)
        order = seen[np.argsort(evidence.member_rank[seen], kind="stable")]
        return order, np.searchsorted(evidence.member_rank[order], np.arange(evidence.world_size + 1))

    @cached_property
    def _held(self) -> dict[tuple[int, int], int]:
        """Issue index of the oldest hold of a rank in an operation."""
        holds = self._situation.graph.holds
        held: dict[tuple[int, int], int] = {}
        for op, rank, issue in zip(holds.op.tolist(), holds.rank.tolist(), holds.issue.tolist(), strict=True):
            held.setdefault((op, rank), issue)
        return held

    def standing(self, rank: int, op: int) -> tuple[Standing, Key | None, int]:
        """Whether `rank`, standing in `op`, had called what its siblings had before that call.

        With ODD the first call in which it differs, and by how much (negative: left out).
        """
        call = self._call_of(rank, op)
        mine = self._before(rank, self._issue(rank, call, op))
        if call is None or mine is None:
            return Standing.UNKNOWN, None, 0
        others = [calls for calls in self._siblings(rank, call) if calls.keys() == mine.keys()]
        if not others:
            return Standing.UNKNOWN, None, 0
        differing = [
            (key, mine[key] - others[0][key])
            for key in sorted(mine, key=repr)
            if all(calls[key] == others[0][key] for calls in others) and mine[key] != others[0][key]
        ]
        if differing:
            return Standing.ODD, *differing[0]
        agreed = all(calls == mine for calls in others)
        return (Standing.NORMAL if agreed else Standing.UNKNOWN), None, 0

    def votes(self, rank: int, inside: int, lacking: int) -> tuple[int, int]:
        """Ranks that have taken the kinds of two operations the other way round, and as `rank` did."""
        taken, skipped = self._entered(inside), self._entered(lacking)
        if taken is None or skipped is None:
            return 0, 0
        mine, other = int(taken[rank]), int(skipped[rank])
        against = int(np.count_nonzero((taken == mine - 1) & (skipped == other + 1)))
        return against, int(np.count_nonzero((taken == mine) & (skipped == other)))

    def _entered(self, op: int) -> Ints | None:
        """W: rounds entered in all groups of the kind of `op`."""
        evidence = self._situation.evidence
        if op >= self._situation.graph.pair_base:
            return None
        mine = (self._kind_of[evidence.comm_of] == self._kind_of[op]) & evidence.seen
        counts = np.bincount(evidence.member_rank[mine], evidence.state["entered"][mine], evidence.world_size)
        return counts.astype(np.int64)

    def _siblings(self, rank: int, call: Key) -> list[Calls]:
        found: list[Calls] = []
        for sibling in self._by_place[self._places.get(rank, ())]:
            if (
                sibling != rank
                and (calls := self._before(sibling, self._sibling_issue(sibling, call))) is not None
            ):
                found.append(calls)
            if len(found) >= SIBLINGS_MAX:
                break
        return found

    def _call_of(self, rank: int, op: int) -> Key | None:
        """Name of an operation that holds for every rank at the same stage."""
        graph, evidence = self._situation.graph, self._situation.evidence
        comm = self._situation.comm_of_op(op)
        if comm < 0:
            return None
        kind = int(self._kind_of[comm])
        if op < graph.pair_base:
            return ("kind", kind, int(graph.collectives.round[op]))
        at = op - graph.pair_base
        if int(graph.pairs.rank[at]) != rank or int(graph.pairs.peer[at]) < 0:
            return None
        members = evidence.members(comm)
        local = int(np.flatnonzero(members == graph.pairs.peer[at])[0])
        direction = 0 if bool(graph.pairs.sends[at]) else 1
        return ("pair", kind, local, direction, int(graph.pairs.sequence[at]))

    def _sibling_issue(self, sibling: int, call: Key) -> int | None:
        if (sibling, call) not in self._issues:
            self._issues[sibling, call] = self._issue(sibling, call)
        return self._issues[sibling, call]

    def _issue(self, rank: int, call: Key | None, op: int = -1) -> int | None:
        """Issue index of `call` at `rank`; None where it was not recorded, or not made."""
        if call is None:
            return None
        if held := self._held.get((op, rank), 0):
            return held
        rows, kinds = self._rows(rank)
        if call[0] == "kind":
            same = (kinds == call[1]) & (rows["round"] == call[2])
        else:
            direction = np.where(rows["function"] == Function.SEND, 0, 1)
            same = (kinds == call[1]) & (rows["round"] == 0) & (rows["peer"] == call[2])
            same &= (direction == call[3]) & (rows["pair_seq"] == call[4])
        issues = np.unique(rows["issue"][same])
        return int(issues[0]) if len(issues) == 1 else None

    def _rows(self, rank: int) -> tuple[Rows, Ints]:
        rows = self._rounds.get(rank, self._situation.evidence.rounds[:0])
        index = self._situation.evidence.index_of(rows["comm"])
        known = index >= 0
        return rows[known], self._kind_of[index[known]]

    def _before(self, rank: int, issue: int | None) -> Calls | None:
        """Everything `rank` had called before its call number `issue`."""
        if issue is None:
            return None
        if (rank, issue) not in self._calls:
            self._calls[rank, issue] = self._count_before(rank, issue)
        return self._calls[rank, issue]

    def _count_before(self, rank: int, issue: int) -> Calls | None:
        if not self._situation.observed[rank]:
            return None  # a missing row would look like a call that was left out
        evidence = self._situation.evidence
        rows, kinds = self._rows(rank)
        later = rows["issue"] >= issue
        calls: Calls = {}
        order, first = self._members
        for member in order[first[rank] : first[rank + 1]]:
            key: Key = ("kind", int(self._kind_of[evidence.comm_of[member]]))
            calls[key] = calls.get(key, 0) + int(evidence.state["entered"][member])
        for kind in kinds[later & (rows["round"] > 0)]:
            calls[("kind", int(kind))] = calls.get(("kind", int(kind)), 0) - 1
        peers = self._peers.get(rank, evidence.peers[:0])
        index = evidence.index_of(peers["comm"])
        for at, row in zip(index, peers, strict=True):
            for direction in (0, 1):
                if at >= 0:
                    pair: Key = ("pair", int(self._kind_of[at]), int(row["peer"]), direction)
                    calls[pair] = int(row["posted"][direction])
        for row, kind in zip(
            rows[later & (rows["round"] == 0)], kinds[later & (rows["round"] == 0)], strict=True
        ):
            direction = 0 if int(row["function"]) == Function.SEND else 1
            pair = ("pair", int(kind), int(row["peer"]), direction)
            calls[pair] = calls.get(pair, 0) - 1
        return calls


def _by_rank(rows: Rows, world: int) -> dict[int, Rows]:
    if len(rows) == 0:
        return {}
    order = np.argsort(rows["rank"], kind="stable")
    ordered = rows[order]
    ranks, first = np.unique(ordered["rank"], return_index=True)
    ends = [*first[1:].tolist(), len(ordered)]
    return {
        int(rank): ordered[start:end]
        for rank, start, end in zip(ranks, first.tolist(), ends, strict=True)
        if rank < world
    }
