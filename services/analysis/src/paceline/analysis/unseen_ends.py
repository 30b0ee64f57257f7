"""Where no source shows completion: who may be held without a sign of it.

An operation that all observed members have entered may be over or not. Where one of its members was
not reported, or is held by something else, it may be open and hold them all: none of them is idle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.analysis.arrays import common, number_cells, without
from paceline.analysis.evidence import Ints, JobEvidence, Mask, take_columns
from paceline.analysis.pairs import complete_pages, reported
from paceline.analysis.processes import Processes
from paceline.analysis.waits import WaitGraph
from paceline.contracts.codes import Function

_NEVER = np.iinfo(np.int64).max
CROSSED_MAX = 4_000_000  # pairs of a message and a collective that are compared: about 300 MB
_PASSES_MAX = 64  # stages that a wait is followed through; a pipeline has fewer


@dataclass(frozen=True, eq=False)
class _Calls:
    """Calls of which a row says when they were issued; messages have a key that is the same at both ends."""

    rank: Ints
    issue: Ints
    comm: Ints
    round: npt.NDArray[np.uint64]  # 0 for messages
    rounds: Ints  # positions of the calls that are rounds
    messages: Ints  # positions of the others
    key: npt.NDArray[np.uint64]  # of each message


def unseen_operations(evidence: JobEvidence, graph: WaitGraph) -> Mask:
    """Operations of communicators of which some member's source does not show completion."""
    mask = np.zeros(graph.ops, np.bool_)
    hidden = evidence.hidden_completion
    if hidden.any():
        per_comm = np.logical_or.reduceat(hidden, evidence.offsets[:-1])
        mask[: evidence.communicators] = per_comm
        mask[graph.pair_base : graph.host_base] = per_comm[graph.pairs.comm]
    return mask


def obscured_ranks(evidence: JobEvidence, processes: Processes, graph: WaitGraph) -> Mask:
    """Ranks that may be held although nothing shows it: by an operation that stands behind another one
    (`_behind_held`), or by an unreported rank, directly or through others.

    The second begins with communicators that have an unreported member and of which all others stand level,
    and with who waits for an unreported rank alone; it goes on through everything that may be open.
    """
    rank, comm_of = evidence.member_rank, evidence.comm_of
    found = np.zeros(evidence.world_size, np.bool_)
    hidden = evidence.hidden_completion & ~processes.lost[rank]
    if not hidden.any():
        return found
    starts = evidence.offsets[:-1]
    seen = reported(evidence, processes.lost)
    known = seen | complete_pages(evidence, processes.lost)[rank]
    partial = np.logical_or.reduceat(~known, starts) & graph.collectives.level
    found[rank[hidden & partial[comm_of] & (evidence.column("entered") > 0)]] = True
    unanswered = (graph.blind_count > 0) & (graph.lack_count == 0) & unseen_operations(evidence, graph)
    found[graph.holds.rank[unanswered[graph.holds.op]]] = True
    followed = _follow(evidence, graph, hidden, found) if found.any() else found
    return np.logical_or(followed, _behind_held(evidence, graph))


def _follow(evidence: JobEvidence, graph: WaitGraph, hidden: Mask, found: Mask) -> Mask:
    """`found`, with the ranks that share a level round or a pair with one of them, or lack one."""
    rank, comm_of = evidence.member_rank, evidence.comm_of
    level = hidden & graph.collectives.level[comm_of]
    rows = evidence.peers
    comm, local = evidence.index_of_runs(rows["comm"]), rows["peer"].astype(np.int64)
    valid = (comm >= 0) & (local >= 0) & (local < np.diff(evidence.offsets)[comm])
    mine = rows["rank"].astype(np.int64)[valid]
    peer = rank[evidence.offsets[comm[valid]] + local[valid]]
    reached = found.copy()
    for _ in range(_PASSES_MAX):
        before = int(reached.sum())
        is_open = np.logical_or.reduceat(level & reached[rank], evidence.offsets[:-1])
        reached[rank[level & is_open[comm_of]]] = True
        reached[mine[reached[peer]]] = True
        lacking = np.bincount(graph.lacks.op, reached[graph.lacks.rank], graph.ops) > 0
        reached[graph.holds.rank[lacking[graph.holds.op]]] = True
        if int(reached.sum()) == before:
            break
    return reached


def stopped_beside(evidence: JobEvidence, graph: WaitGraph, ranks: Ints, age_ms: float) -> Ints:
    """Those of `ranks` whose level communicators all stand still: the others have called nothing for
    `age_ms`. Nobody can be seen to wait for them there."""
    comm_of, rank = evidence.comm_of, evidence.member_rank
    if len(ranks) == 0 or not graph.collectives.level.any():
        return ranks[:0]
    mine = np.isin(rank, ranks)
    ages = evidence.column("head_age_ms").astype(np.int64)
    others = evidence.hidden_completion & ~mine
    youngest = np.minimum.reduceat(np.where(others, ages, _NEVER), evidence.offsets[:-1])
    still = graph.collectives.level & (youngest >= age_ms) & (youngest < _NEVER)
    moving = graph.collectives.level & (youngest < age_ms)
    stopped = common(ranks, rank[mine & still[comm_of]])
    return without(stopped, rank[mine & moving[comm_of]])


def unreported_in_level(evidence: JobEvidence, processes: Processes, graph: WaitGraph) -> Mask:
    """Members without a report of communicators of which all others stand level."""
    seen = reported(evidence, processes.lost)
    known = seen | complete_pages(evidence, processes.lost)[evidence.member_rank]
    mask: Mask = ~known & graph.collectives.level[evidence.comm_of]
    return mask


def _behind_held(evidence: JobEvidence, graph: WaitGraph) -> Mask:
    """Ranks inside an operation that has not begun, because a member stands in one that it called earlier.

    Such an operation looks over where all have entered it. Calls of one rank are done in their order, so
    what it called after the operation that holds it is open, for all its members. So are a message and a
    collective that its two ends called in opposite order (`_crossed`).
    """
    calls = _read_calls(evidence)
    since = _held_since(evidence, graph, calls)
    held = since < _NEVER
    rank, issue = calls.rank, calls.issue
    if len(rank) == 0 or not held.any():
        return np.zeros(evidence.world_size, np.bool_)
    operation, operations = _number(calls)
    crossed, crossed_issue = _crossed(graph, evidence.world_size, calls, operation, operations)
    np.minimum.at(since, crossed, crossed_issue)
    for _ in range(_PASSES_MAX):
        limit = since[rank]
        is_open = np.zeros(operations, np.bool_)
        is_open[operation[issue > limit]] = True
        at = is_open[operation] & (issue < limit)
        if not at.any():
            break
        np.minimum.at(since, rank[at], issue[at])
    return np.logical_and(since < _NEVER, ~held)


def _number(calls: _Calls) -> tuple[Ints, int]:
    """A number for each call, the same at all members of an operation, and how many there may be."""
    numbers, count = np.empty(len(calls.rank), np.int64), 0
    if len(calls.rounds):
        cells = number_cells(calls.comm[calls.rounds] + 1, calls.round[calls.rounds])
        numbers[calls.rounds], count = cells, int(cells.max()) + 1
    if len(calls.messages):
        order = np.argsort(calls.key)
        keys = calls.key[order]
        numbers[calls.messages[order]] = count + np.cumsum(np.r_[False, keys[1:] != keys[:-1]])
        count += len(keys)
    return numbers, count


def _crossed(
    graph: WaitGraph, world: int, calls: _Calls, operation: Ints, operations: int
) -> tuple[Ints, Ints]:
    """Ranks and issue indices of messages that one end called before a collective and the other after it.

    Only of ranks that something lacks: no other rank is named for being idle. Two messages may cross, as in
    exchanges that are posted together.
    """
    rank, issue = calls.rank, calls.issue
    lacking = np.zeros(world, np.bool_)
    lacking[graph.lacks.rank] = True
    wanted = np.zeros(operations, np.bool_)
    wanted[operation[calls.messages[lacking[rank[calls.messages]]]]] = True
    at = calls.messages[wanted[operation[calls.messages]]]
    at = at[np.argsort(operation[at], kind="stable")]
    one, two = at[:-1], at[1:]
    both = (operation[one] == operation[two]) & (rank[one] != rank[two])
    both &= lacking[rank[one]] | lacking[rank[two]]
    one, two = one[both], two[both]
    ends = np.zeros(world, np.bool_)
    ends[rank[one]] = ends[rank[two]] = True
    rounds = calls.rounds[ends[rank[calls.rounds]]]
    if len(one) == 0 or len(rounds) == 0:
        return rank[:0], issue[:0]
    rounds = rounds[np.argsort(rank[rounds], kind="stable")]
    starts = np.searchsorted(rank[rounds], np.arange(world + 1))
    counts = (starts[1:] - starts[:-1])[rank[one]]
    if (
        int(counts.sum()) > CROSSED_MAX
    ):  # too many to compare: all of them may be open, nobody is named for them
        all_messages = np.concatenate([one, two])
        return rank[all_messages], issue[all_messages]
    message = np.repeat(np.arange(len(one)), counts)
    nth = np.arange(len(message)) - np.repeat(np.cumsum(counts) - counts, counts)
    near = rounds[starts[rank[one[message]]] + nth]
    keys = operation[rounds] * world + rank[rounds]
    order = np.argsort(keys, kind="stable")
    sought = operation[near] * world + rank[two[message]]
    place = order[np.minimum(np.searchsorted(keys[order], sought), len(keys) - 1)]
    far = rounds[place]
    cross = keys[place] == sought
    cross &= (issue[near] < issue[one[message]]) != (issue[far] < issue[two[message]])
    found = np.concatenate([one[message[cross]], two[message[cross]], near[cross], far[cross]])
    return rank[found], issue[found]


def _held_since(evidence: JobEvidence, graph: WaitGraph, calls: _Calls) -> Ints:
    """Issue index of the first call that each rank stands in, `_NEVER` for ranks that are free.

    The row of the very call is best; the newest call of its communicator is later than it.
    """
    since = np.full(evidence.world_size, _NEVER, np.int64)
    holds = graph.holds.where((graph.holds.op < graph.host_base) & (graph.holds.issue > 0))
    np.minimum.at(since, holds.rank, holds.issue.astype(np.int64))
    rank, issue = calls.rank, calls.issue
    here = np.append(graph.collectives.round, 0)[calls.comm]
    first = (calls.comm >= 0) & (here > 0) & (calls.round >= here) & (since[rank] < _NEVER)
    np.minimum.at(since, rank[first], issue[first])
    pairs = graph.pairs
    keys = _pair_keys(pairs.comm, pairs.rank, pairs.peer, pairs.sends, pairs.sequence)
    matched = calls.messages[np.isin(calls.key, keys)]
    matched = matched[np.isin(rank[matched], pairs.rank)]
    np.minimum.at(since, rank[matched], issue[matched])
    return since


def _read_calls(evidence: JobEvidence) -> _Calls:
    columns = take_columns(evidence.rounds, ("rank", "issue", "round", "function", "peer", "pair_seq"))
    comm = evidence.round_comm
    known = columns["issue"] > 0
    if not known.all():
        columns, comm = {name: column[known] for name, column in columns.items()}, comm[known]
    rank, peer = columns["rank"].astype(np.int64), columns["peer"].astype(np.int64)
    is_round = columns["round"] > 0
    at = np.flatnonzero(~is_round)
    local, part = peer[at], comm[at]
    named = (part >= 0) & (local >= 0) & (local < np.diff(evidence.offsets)[part])
    other = np.where(named, evidence.member_rank[np.where(named, evidence.offsets[part] + local, 0)], -1)
    sends = columns["function"][at] == Function.SEND
    key = _pair_keys(part, rank[at], other, sends, columns["pair_seq"][at])
    issue = columns["issue"].astype(np.int64)
    return _Calls(rank, issue, comm, columns["round"], np.flatnonzero(is_round), at, key)


def _pair_keys(
    comm: Ints, rank: Ints, peer: Ints, sends: Mask, sequence: npt.NDArray[Any]
) -> npt.NDArray[np.uint64]:
    return _mix((comm, np.where(sends, rank, peer), np.where(sends, peer, rank), sequence))


def _mix(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """A 64-bit mixture; two of the at most some million operations are practically never alike."""
    mixed = np.full(len(parts[0]), len(parts), np.uint64)
    for part in parts:
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed + part.astype(np.uint64) + np.uint64(0x632BE59BD9B4E019)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ (mixed >> np.uint64(29))
