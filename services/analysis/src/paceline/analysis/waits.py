"""Who waits for whom: every open operation of the job as one node of a wait-for graph.

An operation is a collective round, one direction of a point-to-point pair, or a host wait with a
known target. It `holds` the ranks inside it and `lacks` ranks that were observed and have not
entered it; members that nobody reported make it `blind`. An operation waits on another one

- where a rank it lacks is held by the other one, or
- where it lacks nobody and a rank inside it entered the other one earlier: streams run in order,
  so the later operation may not have started (issue order is process-wide).

Only the smallest unfinished round of a communicator counts; later rounds wait behind it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.analysis.arrays import fold_at
from paceline.analysis.evidence import Ints, JobEvidence, Mask
from paceline.analysis.pairs import PairWaits, complete_pages, read_pairs, reported
from paceline.analysis.processes import Processes
from paceline.contracts.codes import FrameFlag, Function, HostWait

_NEVER = np.iinfo(np.uint64).max
# Nobody leaves such a round before everybody has entered it.
SYNCHRONISING = (
    Function.ALL_REDUCE,
    Function.ALL_GATHER,
    Function.REDUCE_SCATTER,
    Function.ALL_TO_ALL,
    Function.BARRIER,
)
_SYNCHRONISES = np.isin(np.arange(256), SYNCHRONISING)  # by code of the function, one byte


@dataclass(frozen=True, eq=False)
class Links:
    """Pairs (operation, rank) as two parallel arrays, with what the rank says about it."""

    op: Ints
    rank: Ints
    issue: npt.NDArray[np.uint64]
    age_ms: Ints

    @staticmethod
    def join(parts: list["Links"]) -> "Links":
        return Links(
            np.concatenate([part.op for part in parts]),
            np.concatenate([part.rank for part in parts]),
            np.concatenate([part.issue for part in parts]),
            np.concatenate([part.age_ms for part in parts]),
        )

    def where(self, mask: Mask) -> "Links":
        return Links(self.op[mask], self.rank[mask], self.issue[mask], self.age_ms[mask])


@dataclass(frozen=True, eq=False)
class Collectives:
    """Masks over members (M) at the smallest unfinished round of each communicator (K)."""

    round: npt.NDArray[np.uint64]  # K, 0 = nothing open
    inside: Mask
    lacking: Mask  # observed, has not entered
    passed: Mask  # observed, has left the round
    behind: Mask  # stands in a later round, which cannot begin before this one
    blind: Mask  # no report
    stale: Mask  # a report that contradicts the others: they left a round it never entered
    level: Mask  # K: all have entered the same rounds and nobody can say whether they are out again


@dataclass(frozen=True, eq=False)
class WaitGraph:
    """Operations 0..K-1 are the communicators, then pair waits, then host waits."""

    collectives: Collectives
    pairs: PairWaits
    pair_base: int
    host_base: int
    ops: int
    holds: Links
    lacks: Links
    blind: Links
    behind: Links  # ranks that wait in later rounds of the same communicator
    mirrored: Links  # the far ends of pairs that both sides have posted, for the order of issue
    weak: Mask  # ops: sends, which a rank may leave open while it does other things
    opaque: Mask  # ops: receives from any source, which may wait for anybody
    age_ms: Ints  # ops: oldest holder
    host_ranks: Ints  # ranks of the host waits with a known target

    @cached_property
    def lack_count(self) -> Ints:
        return np.bincount(self.lacks.op, minlength=self.ops)

    @cached_property
    def blind_count(self) -> Ints:
        return np.bincount(self.blind.op, minlength=self.ops)

    @cached_property
    def hold_count(self) -> Ints:
        return np.bincount(self.holds.op, minlength=self.ops)


def build_graph(evidence: JobEvidence, processes: Processes) -> WaitGraph:
    """The wait-for graph of all communicators, pairs and host waits of the job."""
    world, comms = evidence.world_size, evidence.communicators
    collectives = _collectives(evidence, processes)
    rank, comm_of = evidence.member_rank, evidence.comm_of
    inside = Links(
        comm_of[collectives.inside],
        rank[collectives.inside],
        evidence.column("head_issue")[collectives.inside],
        evidence.column("head_age_ms")[collectives.inside].astype(np.int64),
    )
    pairs = read_pairs(evidence, processes)
    count = len(pairs.rank)
    pair_ops = comms + np.arange(count, dtype=np.int64)
    in_pairs = Links(pair_ops, pairs.rank, pairs.issue, pairs.age_ms)
    pair_lacks = pairs.known & ~pairs.posted
    host = _host_waits(evidence, processes)
    host_base = comms + count
    host_ops = host_base + np.arange(len(host), dtype=np.int64)
    rows = evidence.processes[host]
    in_hosts = Links(host_ops, host, rows["issued"] + np.uint64(1), rows["host_wait_age_ms"].astype(np.int64))
    ops = host_base + len(host)
    holds = Links.join([inside, in_pairs, in_hosts])
    age = np.zeros(ops, np.int64)
    fold_at(np.maximum, age, holds.op, holds.age_ms)
    both = pairs.peer_issue > 0
    weak = np.zeros(ops, np.bool_)
    weak[pair_ops] = pairs.sends
    opaque = np.zeros(ops, np.bool_)
    opaque[pair_ops] = pairs.peer < 0
    lacking = _links(comm_of[collectives.lacking], rank[collectives.lacking])
    blind_pairs = ~pairs.known & (pairs.peer >= 0)
    return WaitGraph(
        collectives=collectives,
        pairs=pairs,
        pair_base=comms,
        host_base=host_base,
        ops=ops,
        holds=holds,
        lacks=Links.join(
            [
                lacking,
                _links(pair_ops[pair_lacks], pairs.peer[pair_lacks]),
                _links(host_ops, np.clip(rows["host_wait_rank"].astype(np.int64), 0, max(world - 1, 0))),
            ]
        ),
        blind=Links.join(
            [
                _links(comm_of[collectives.blind], rank[collectives.blind]),
                _links(pair_ops[blind_pairs], pairs.peer[blind_pairs]),
            ]
        ),
        behind=Links(
            comm_of[collectives.behind],
            rank[collectives.behind],
            evidence.column("head_issue")[collectives.behind],
            evidence.column("head_age_ms")[collectives.behind].astype(np.int64),
        ),
        mirrored=Links(pair_ops[both], pairs.peer[both], pairs.peer_issue[both], pairs.age_ms[both]),
        weak=weak,
        opaque=opaque,
        age_ms=age,
        host_ranks=host,
    )


def _links(op: Ints, rank: Ints) -> Links:
    return Links(op, rank, np.zeros(len(op), np.uint64), np.zeros(len(op), np.int64))


def _per_communicator(
    evidence: JobEvidence, values: npt.NDArray[np.uint64], how: np.ufunc
) -> npt.NDArray[np.uint64]:
    """`how` over the members of each communicator; the builder leaves none without members."""
    if evidence.communicators == 0:
        return np.zeros(0, np.uint64)
    reduced: npt.NDArray[np.uint64] = how.reduceat(values, evidence.offsets[:-1])
    return reduced


def _any_member(evidence: JobEvidence, mask: Mask) -> Mask:
    """K: communicators with a member in `mask`."""
    found = np.zeros(evidence.communicators, np.bool_)
    found[evidence.comm_of[mask]] = True
    return found


def _collectives(evidence: JobEvidence, processes: Processes) -> Collectives:
    entered, seen = evidence.column("entered"), reported(evidence, processes.lost)
    closed = (evidence.column("flags") & FrameFlag.CLOSED) != 0
    head = np.where(seen & ~closed, evidence.column("head_round"), 0)
    head = _entered_heads(evidence, seen & ~closed, head)
    first = _per_communicator(evidence, np.where(head > 0, head, _NEVER), np.minimum)
    first = np.where(first == _NEVER, 0, first).astype(np.uint64)
    here = evidence.spread(first)
    is_open = here > 0
    inside = is_open & (head == here)
    complete = complete_pages(evidence, processes.lost)
    known = seen | complete[evidence.member_rank]  # a whole page without this frame: never entered
    lacking = is_open & known & ~inside & (entered < here)
    completed = np.where(seen, evidence.column("completed"), 0)
    most = evidence.spread(_per_communicator(evidence, completed, np.maximum))
    synchronising = _any_member(evidence, inside & _SYNCHRONISES[evidence.column("function")])
    # Others left a round that needs everybody, and this row says its rank never entered it. One
    # round back is compared by what left; the head itself cannot have been left.
    stale = lacking & evidence.spread(synchronising) & (entered < np.minimum(most, here - np.uint64(1)))
    stale = _without_loose_rounds(evidence, stale)
    return Collectives(
        round=first,
        inside=inside,
        lacking=lacking & ~stale,
        passed=is_open & seen & ~inside & ~lacking,
        behind=is_open & (head > here),
        blind=is_open & (~known | stale),
        stale=stale,
        level=_level(evidence, seen, first),
    )


def _level(evidence: JobEvidence, seen: Mask, first: npt.NDArray[np.uint64]) -> Mask:
    hidden = seen & evidence.hidden_completion
    if not hidden.any():
        return np.zeros(evidence.communicators, np.bool_)
    entered = np.where(hidden, evidence.column("entered"), 0)
    mask: Mask = (_per_communicator(evidence, entered, np.maximum) > 0) & (first == 0)
    return mask


def _entered_heads(evidence: JobEvidence, seen: Mask, head: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Heads where no source shows completion: the smallest round that some have entered and some not.

    Where all have entered the same rounds nothing is known to be open, so H3 cannot follow.
    """
    hidden = seen & evidence.hidden_completion
    if not hidden.any():
        return head
    blind = evidence.spread(_any_member(evidence, hidden))
    entered = evidence.column("entered")
    least = evidence.spread(_per_communicator(evidence, np.where(seen, entered, _NEVER), np.minimum))
    inside = seen & (entered > least)
    return np.where(blind, np.where(inside, least + np.uint64(1), np.uint64(0)), head)


def _without_loose_rounds(evidence: JobEvidence, stale: Mask) -> Mask:
    """Drop members whose next round is known not to need everybody: its root may leave early."""
    at = np.flatnonzero(stale)
    if len(at) == 0:
        return stale
    rounds = evidence.rounds
    loose = rounds[(rounds["round"] > 0) & ~np.isin(rounds["function"], SYNCHRONISING)]
    if len(loose) == 0:
        return stale
    known = set(zip(loose["comm"].tolist(), loose["round"].tolist(), strict=True))
    result = stale.copy()
    for member in at:
        comm = int(evidence.comm_ids[evidence.comm_of[member]])
        result[member] = (comm, int(evidence.state["entered"][member]) + 1) not in known
    return result


def _host_waits(evidence: JobEvidence, processes: Processes) -> Ints:
    """Ranks in a host wait whose target is known."""
    rows = evidence.processes
    target = rows["host_wait_rank"].astype(np.int64)
    mask = evidence.process_seen & (rows["host_wait"] != HostWait.NONE) & ~processes.lost
    mask &= (target >= 0) & (target < evidence.world_size)
    mask &= target != np.arange(evidence.world_size)
    return np.flatnonzero(mask)
