"""The ranks of one job run one program: what a rank had called before a call, against its siblings.

Siblings are the ranks at the same stage of their pipeline. Where a rank stands in a call, each
sibling has made the same call at some time (same kind of group, same number), and had called the
same things before. A rank that had not is the one that left something out or turned it round.
Counted by the process-wide issue index of each rank; nothing is compared by time.

Counts before a call are counts now minus the calls since. They stand only where every call since is
among the rows (heads included): a call whose row is missing would look like one made before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.analysis.arrays import distinct
from paceline.analysis.evidence import Ints, Mask
from paceline.analysis.situation import Situation
from paceline.contracts.codes import Function

SIBLINGS_MAX = 64  # enough for a vote; all of them would cost ranks squared
SIBLINGS_MIN = 2  # one other rank that differs may be the odd one itself
ROUNDS_MAX = 1 << 31  # entered in groups of one kind; nobody gets there
CALLS_MAX = 16  # distinct calls of one circle that are looked up; ranks in further ones stay unknown

# ("kind", kind) -> rounds entered; ("pair", kind, peer, direction) -> operations posted
Key = tuple[object, ...]


class Standing(str, Enum):
    """What the siblings say about a rank."""

    NORMAL = "normal"
    ODD = "odd"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """With ODD: the first call in which the rank differs, by how much (negative: left out), and what it
    called as much too often instead, where that is the same with another peer."""

    standing: Standing
    key: Key | None = None
    by: int = 0
    instead: Key | None = None


UNKNOWN = Answer(Standing.UNKNOWN)


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls of some ranks that are known one by one: rank, issue index, column of what was called."""

    rank: Ints
    issue: Ints
    key: Ints


@dataclass(frozen=True, eq=False)
class _Counts:
    """What R ranks have called so far, by C columns, and their known calls (`rank` indexes the R)."""

    ranks: Ints  # R, ascending
    totals: Ints  # R x C
    present: Mask  # R x C: whether the rank has such a column at all
    calls: _Calls
    columns: list[Key]


class Programs:
    """Compares ranks of one job; built only where operations wait in a circle."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        evidence = situation.evidence
        sizes = np.diff(evidence.offsets).tolist()
        names = [kind or f"size {size}" for kind, size in zip(evidence.comm_kinds, sizes, strict=True)]
        self._kinds = list(dict.fromkeys(names))
        order = {name: index for index, name in enumerate(self._kinds)}
        self._kind_of = np.array([order[name] for name in names], np.int64)
        self._round_kind = self._kinds_of_rows(evidence.round_comm)
        self._peer_kind = self._kinds_of_rows(evidence.index_of(evidence.peers["comm"]))
        self._entered: dict[int, Ints] = {}

    def _kinds_of_rows(self, comm: Ints) -> Ints:
        """Kind of the communicator of each row, -1 unknown."""
        if len(self._kind_of) == 0:
            return np.full(len(comm), -1, np.int64)
        return np.where(comm >= 0, self._kind_of[comm], -1)

    def kind_name(self, kind: int) -> str:
        return self._kinds[kind]

    @cached_property
    def _place(self) -> Ints:
        """W: ranks with the same number stand at the same place of the groups that send and receive.

        From the registry's membership, not from rows, of which some may be missing.
        """
        evidence = self._situation.evidence
        place = np.zeros(evidence.world_size, np.int64)
        for kind in distinct(self._peer_kind[self._peer_kind >= 0]).tolist():
            mine = self._kind_of[evidence.comm_of] == kind
            within = np.arange(len(mine)) - evidence.offsets[evidence.comm_of]
            local = np.full(evidence.world_size, -1, np.int64)
            local[evidence.member_rank[mine]] = within[mine]
            _, place = np.unique(place * (int(local.max()) + 2) + local + 1, return_inverse=True)
        return place.astype(np.int64)

    # ------------------------------------------------------------------ standing among siblings

    def standings(self, pairs: Sequence[tuple[int, int]]) -> dict[int, Answer]:
        """Of each rank of `pairs` (rank, operation it has called): whether it had called what its
        siblings had before that call; the first pair that is known decides.
        """
        found: dict[int, Answer] = {rank: UNKNOWN for rank, _ in pairs}
        asked: dict[Key, set[int]] = {}
        calls = [(rank, self._call_of(rank, op)) for rank, op in dict.fromkeys(pairs)]
        for rank, call in calls:
            if call is not None and (call in asked or len(asked) < CALLS_MAX):
                asked.setdefault(call, set()).add(rank)
        makers = {call: self._makers(call) for call in asked}
        chosen = {call: self._choose(makers[call][0], ranks) for call, ranks in asked.items()}
        if not chosen:
            return found
        counts = self._count(distinct(np.concatenate(list(chosen.values()))))
        answers = {
            call: self._compare(counts, chosen[call], *makers[call], sorted(ranks))
            for call, ranks in asked.items()
        }
        for rank, call in calls:
            if call in answers and found[rank].standing is Standing.UNKNOWN:
                found[rank] = answers[call].get(rank, UNKNOWN)
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
        local = int(np.flatnonzero(evidence.members(comm) == graph.pairs.peer[at])[0])
        direction = 0 if bool(graph.pairs.sends[at]) else 1
        return ("pair", kind, local, direction, int(graph.pairs.sequence[at]))

    def _makers(self, call: Key) -> tuple[Ints, Ints]:
        """Ranks that are known to have made `call`, ascending, and its issue index at each; ranks for
        which it is not unique are left out."""
        evidence, heads, rows = self._situation.evidence, self._heads, self._situation.evidence.rounds
        if call[0] == "kind":
            same = (self._round_kind == call[1]) & (rows["round"] == call[2])
            inside = self._situation.graph.collectives.inside
            inside = inside & (self._kind_of[evidence.comm_of] == call[1])
            inside &= (evidence.column("head_round") == call[2]) & (evidence.column("head_issue") > 0)
            ranks, issues = evidence.member_rank[inside], evidence.column("head_issue")[inside]
        else:
            direction = np.where(rows["function"] == Function.SEND, 0, 1)
            same = (self._round_kind == call[1]) & (rows["round"] == 0) & (rows["peer"] == call[2])
            same &= (direction == call[3]) & (rows["pair_seq"] == call[4])
            peers, side = evidence.peers, int(str(call[3]))
            open_now = (self._peer_kind == call[1]) & (peers["peer"] == call[2])
            open_now &= (peers["completed"][:, side] + np.uint64(1) == call[4]) & heads[:, side]
            ranks, issues = peers["rank"][open_now].astype(np.int64), peers["head_issue"][open_now, side]
        ranks = np.concatenate([ranks, rows["rank"][same].astype(np.int64)])
        issues = np.concatenate([issues, rows["issue"][same]]).astype(np.int64)
        order = np.lexsort((issues, ranks))
        ranks, issues = ranks[order], issues[order]
        new = np.ones(len(ranks), np.bool_)
        new[1:] = (ranks[1:] != ranks[:-1]) | (issues[1:] != issues[:-1])
        ranks, issues = ranks[new], issues[new]
        single = np.ones(len(ranks), np.bool_)
        single[1:] &= ranks[1:] != ranks[:-1]
        single[:-1] &= ranks[:-1] != ranks[1:]
        return ranks[single], issues[single]

    @cached_property
    def _heads(self) -> Mask:
        """Rows of peers x 2: something is open and its issue index is known."""
        peers = self._situation.evidence.peers
        mask: Mask = (peers["posted"] > peers["completed"]) & (peers["head_issue"] > 0)
        return mask

    def _choose(self, makers: Ints, asked: set[int]) -> Ints:
        """Ranks to compare: those asked for, and enough siblings of each."""
        usable = makers[self._situation.observed[makers]]
        places = self._place[usable]
        parts = [np.array(sorted(asked), np.int64)]
        parts += [
            usable[places == place][: SIBLINGS_MAX + 1] for place in distinct(self._place[parts[0]]).tolist()
        ]
        return distinct(np.concatenate(parts))

    # ------------------------------------------------------------------ counting

    def _count(self, ranks: Ints) -> _Counts:
        """Everything that `ranks` have called so far."""
        evidence = self._situation.evidence
        index = np.full(evidence.world_size, -1, np.int64)
        index[ranks] = np.arange(len(ranks))
        members = np.flatnonzero((index[evidence.member_rank] >= 0) & evidence.seen)
        rows, peers = self._situation.evidence.rounds, evidence.peers
        at = np.flatnonzero((index[rows["rank"]] >= 0) & (self._round_kind >= 0))
        near = np.flatnonzero((index[peers["rank"]] >= 0) & (self._peer_kind >= 0))
        parts = [
            self._heads_of(members),
            self._recorded(at),
            *(self._pair_heads(near[self._heads[near, side]], side) for side in (0, 1)),
        ]
        calls = _Calls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("rank", "issue", "key"))
        )
        owner = [evidence.member_rank[members], *(peers["rank"][near].astype(np.int64),) * 2]
        key = [
            self._kind_of[evidence.comm_of[members]],
            *(self._pair_key(self._peer_kind[near], peers["peer"][near], side) for side in (0, 1)),
        ]
        number = [evidence.column("entered")[members], peers["posted"][near, 0], peers["posted"][near, 1]]
        owners, keys = index[np.concatenate(owner)], np.concatenate(key)
        columns = distinct(np.concatenate([keys, calls.key]))
        width = max(len(columns), 1)
        places = owners * width + np.searchsorted(columns, keys)
        size = len(ranks) * width
        totals = np.bincount(places, np.concatenate(number).astype(np.float64), size).astype(np.int64)
        present = np.bincount(places, minlength=size) > 0
        calls = _once(index[calls.rank], calls.issue, np.searchsorted(columns, calls.key))
        return _Counts(
            ranks,
            totals.reshape(-1, width),
            present.reshape(-1, width),
            calls,
            [self._name_key(int(column)) for column in columns],
        )

    def _heads_of(self, members: Ints) -> _Calls:
        evidence = self._situation.evidence
        state = evidence.state[members]
        known = (state["head_round"] > 0) & (state["head_issue"] > 0)
        known &= state["head_round"] <= state["entered"]
        return _Calls(
            evidence.member_rank[members][known],
            state["head_issue"][known].astype(np.int64),
            self._kind_of[evidence.comm_of[members]][known],
        )

    def _recorded(self, at: Ints) -> _Calls:
        rows, kind = self._situation.evidence.rounds[at], self._round_kind[at]
        pair = self._pair_key(kind, rows["peer"], np.where(rows["function"] == Function.SEND, 0, 1))
        key = np.where(rows["round"] > 0, kind, pair)
        return _Calls(rows["rank"].astype(np.int64), rows["issue"].astype(np.int64), key)

    def _pair_heads(self, near: Ints, side: int) -> _Calls:
        peers = self._situation.evidence.peers[near]
        key = self._pair_key(self._peer_kind[near], peers["peer"], side)
        return _Calls(peers["rank"].astype(np.int64), peers["head_issue"][:, side].astype(np.int64), key)

    def _pair_key(self, kind: Ints, peer: npt.NDArray[np.int32], side: int | Ints) -> Ints:
        """One number for sends to, or receives from, a place in a kind of groups; above all kinds."""
        count = len(self._kinds)
        found: Ints = count + ((peer.astype(np.int64) + 2) * count + kind) * 2 + side
        return found

    def _name_key(self, column: int) -> Key:
        count = len(self._kinds)
        if column < count:
            return ("kind", column)
        rest, side = divmod(column - count, 2)
        return ("pair", rest % count, rest // count - 2, side)

    # ------------------------------------------------------------------ comparing

    def _compare(
        self, counts: _Counts, chosen: Ints, makers: Ints, issues: Ints, asked: list[int]
    ) -> dict[int, Answer]:
        """Answers for the ranks of `asked` that are known to have made the call."""
        both = np.intersect1d(chosen, makers, assume_unique=True)
        issue = np.zeros(len(counts.ranks), np.int64)
        rows = np.searchsorted(counts.ranks, both)
        issue[rows] = issues[np.searchsorted(makers, both)]
        before, usable = self._before(counts, issue)
        keep = usable[rows]
        both, rows = both[keep], rows[keep]
        spare = issue[rows] - 1 - before[rows].sum(axis=1)  # calls that no row explains
        places = self._place[both]
        marks = np.column_stack([places, spare, counts.present[rows]])
        _, alike = np.unique(marks, axis=0, return_inverse=True)
        alike = alike.reshape(-1)
        found: dict[int, Answer] = {}
        known: dict[tuple[int, bytes], Answer] = {}
        wanted = set(asked)
        for at, rank in enumerate(both.tolist()):
            if rank not in wanted:
                continue
            mark = (int(alike[at]), before[rows[at]].tobytes())
            if mark not in known:
                others = rows[(alike == alike[at]) & (both != rank)][:SIBLINGS_MAX]
                known[mark] = _vote(before[rows[at]], before[others], counts.columns)
            found[rank] = known[mark]
        return found

    def _before(self, counts: _Counts, issue: Ints) -> tuple[Ints, Mask]:
        """R x C: what each rank had called before its call number `issue`, and where that is known."""
        calls, width = counts.calls, counts.totals.shape[1]
        later = calls.issue >= issue[calls.rank]
        places = calls.rank[later] * width + calls.key[later]
        since = np.bincount(places, minlength=counts.totals.size).reshape(-1, width)
        evidence = self._situation.evidence
        issued = evidence.processes["issued"][counts.ranks].astype(np.int64)
        whole = since.sum(axis=1) == issued - issue + 1
        known = whole & evidence.process_seen[counts.ranks] & self._situation.observed[counts.ranks]
        before = counts.totals - since
        return before, known & (issue > 0) & (before >= 0).all(axis=1)

    def instead(self, asked: dict[int, int]) -> dict[int, tuple[Key, Key]]:
        """Rank -> issue index of one of its calls: what it called there and what its siblings, all
        alike and after the same calls, called there instead. Ranks without such siblings are left out.
        """
        if not asked:
            return {}
        everybody = np.arange(self._situation.evidence.world_size, dtype=np.int64)
        counts = self._count(self._choose(everybody, set(asked)))
        place = self._place[counts.ranks]
        found: dict[int, tuple[Key, Key]] = {}
        for rank, issue in asked.items():
            before, usable = self._before(counts, np.full(len(counts.ranks), issue))
            here = counts.calls.issue == issue
            key = np.full(len(counts.ranks), -1, np.int64)
            key[counts.calls.rank[here]] = counts.calls.key[here]
            mine = int(np.searchsorted(counts.ranks, rank))
            alike = usable & (key >= 0) & (place == place[mine]) & (before == before[mine]).all(axis=1)
            if not alike[mine]:
                continue
            alike[mine] = False
            theirs = distinct(key[alike])
            if int(alike.sum()) >= SIBLINGS_MIN and len(theirs) == 1 and int(theirs[0]) != int(key[mine]):
                found[rank] = counts.columns[int(key[mine])], counts.columns[int(theirs[0])]
        return found

    # ------------------------------------------------------------------ votes over all ranks

    def outvoted(self, ranks: Ints, inside: int, lacking: int) -> Ints:
        """Those of `ranks`, all inside one operation and lacking in another, that took the two kinds
        one way where at least twice as many ranks took them the other way round."""
        taken, skipped = self._rounds_of(inside), self._rounds_of(lacking)
        if taken is None or skipped is None:
            return ranks[:0]
        observed = self._situation.observed
        ranks = ranks[observed[ranks]]
        base = int(max(taken.max(initial=0), skipped.max(initial=0))) + 2
        if not 0 <= int(min(taken.min(initial=0), skipped.min(initial=0))) <= base < ROUNDS_MAX:
            return ranks[:0]
        codes, number = np.unique((taken * base + skipped)[observed], return_counts=True)

        def count(first: Ints, second: Ints) -> Ints:
            wanted = first * base + second
            at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
            return np.where((codes[at] == wanted) & (first >= 0), number[at], 0)

        if len(codes) == 0:
            return ranks[:0]
        against = count(taken[ranks] - 1, skipped[ranks] + 1)
        return ranks[(against >= 2) & (against >= 2 * count(taken[ranks], skipped[ranks]))]

    def _rounds_of(self, op: int) -> Ints | None:
        """W: rounds entered in all groups of the kind of `op`."""
        evidence = self._situation.evidence
        if op >= self._situation.graph.pair_base:
            return None
        kind = int(self._kind_of[op])
        if kind not in self._entered:
            mine = (self._kind_of[evidence.comm_of] == kind) & evidence.seen
            counts = np.bincount(
                evidence.member_rank[mine], evidence.column("entered")[mine], evidence.world_size
            )
            self._entered[kind] = counts.astype(np.int64)
        return self._entered[kind]


def _once(rank: Ints, issue: Ints, key: Ints) -> _Calls:
    """Each (rank, issue) once: a head is a recorded round as well."""
    order = np.lexsort((key, issue, rank))
    rank, issue, key = rank[order], issue[order], key[order]
    new = np.ones(len(rank), np.bool_)
    new[1:] = (rank[1:] != rank[:-1]) | (issue[1:] != issue[:-1])
    return _Calls(rank[new], issue[new], key[new])


def _vote(mine: Ints, others: Ints, columns: list[Key]) -> Answer:
    if len(others) < SIBLINGS_MIN:
        return UNKNOWN
    agreed = (others == others[0]).all(axis=0)
    differs = np.flatnonzero(agreed & (mine != others[0])).tolist()
    if not differs:
        return Answer(Standing.NORMAL) if bool(agreed.all()) else UNKNOWN
    by = {columns[at]: int(mine[at] - others[0][at]) for at in differs}
    for key, count in by.items():
        for other in by:
            if count < 0 and by[other] == -count and is_same_but_peer(key, other):
                return Answer(Standing.ODD, key, count, other)
    first = columns[differs[0]]
    return Answer(Standing.ODD, first, by[first])


def is_same_but_peer(key: Key, other: Key) -> bool:
    """Sends to, or receives from, two places in one kind of groups."""
    alike = key[0] == other[0] == "pair" and (key[1], key[3]) == (other[1], other[3])
    return alike and key[2] != other[2]
