"""S1, S2, S3 from kept rounds: the same round on every member, each by its own clock.

papers.md 1.4 rule 4: R = Tmax / Tbase against the threshold of the key, in 3 of the last 5 rounds;
P = (Tmax - Tmin) / (Tmax - Tbase). A late rank waits least, so it is argmin T; that only holds for
rounds that need everybody, and a rank that itself waits long in another slow communicator is late
because of somebody else.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints
from paceline.analysis.findings import Finding, function_name, group_root, name_ranks, note, rank_roots
from paceline.analysis.situation import Situation
from paceline.analysis.waits import SYNCHRONISING
from paceline.contracts.batch import Rows
from paceline.contracts.ids import format_communicator
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Evidence,
    Operation,
    Owner,
    Root,
    RootKind,
    SubReason,
    VerdictClass,
)


@dataclass(frozen=True)
class SlowKey:
    """One slow key: communicator, function, dtype and size bucket."""

    comm: int  # index
    row: np.void  # its baseline row
    rounds: int  # slow rounds among the judged ones
    judged: int
    ratio: float  # median R of the slow rounds
    share: float  # median P
    late: Counter[int]  # argmin T of each slow round
    excess: dict[int, float]  # rank -> median (T - Tbase) in ns, of the slow rounds
    last_round: int
    link: int | None  # receiving rank of the largest step in recv_wait


def slow(situation: Situation) -> Finding | None:
    """The first cause among the slow keys, None where no key is slow by the repeat rule."""
    keys = [key for row in situation.evidence.baselines if (key := _measure(situation, row)) is not None]
    if not keys:
        return None
    key = _first_cause(situation, keys)
    policy = situation.policy
    late, times = key.late.most_common(1)[0]
    steady = times >= min(policy.slow_rounds_min, key.rounds)
    if key.share >= policy.alpha:
        return _late(situation, key, keys, late) if steady else _rotating(situation, key, keys)
    if key.share <= policy.beta:
        return _link(situation, key, keys, None)
    return _link(situation, key, keys, late if steady else None)


def _measure(situation: Situation, base: np.void) -> SlowKey | None:
    evidence, policy = situation.evidence, situation.policy
    comm = int(evidence.index_of(np.array([base["comm"]], np.uint64))[0])
    if comm < 0 or not int(base["t_base_ns"]) or int(base["function"]) not in SYNCHRONISING:
        return None
    rounds, times, waits, ranks = _table(evidence.rounds, base, evidence.members(comm))
    if len(rounds) < policy.slow_rounds_min:
        return None
    newest = slice(-policy.slow_window, None)
    rounds, times, waits = rounds[newest], times[newest], waits[newest]
    t_base = float(base["t_base_ns"])
    highest, lowest = times.max(axis=1), times.min(axis=1)
    ratio = highest / t_base
    threshold = float(base["threshold"]) or policy.slow_ratio
    is_slow = ratio >= threshold
    if int(is_slow.sum()) < policy.slow_rounds_min:
        return None
    share = (highest - lowest) / np.maximum(highest - t_base, 1.0)
    slow_times = times[is_slow]
    excess = np.median(slow_times - t_base, axis=0)
    return SlowKey(
        comm=comm,
        row=base,
        rounds=int(is_slow.sum()),
        judged=len(rounds),
        ratio=float(np.median(ratio[is_slow])),
        share=float(np.median(share[is_slow])),
        late=Counter(int(ranks[at]) for at in slow_times.argmin(axis=1)),
        excess={int(rank): float(value) for rank, value in zip(ranks, excess, strict=True)},
        last_round=int(rounds[-1]),
        link=_wait_step(waits[is_slow], ranks),
    )


def _table(
    rows: Rows, base: np.void, members: Ints
) -> tuple[Ints, npt.NDArray[np.float64], npt.NDArray[np.float64], Ints]:
    """Completed kept rounds that every reporting member has: rounds, T (round x member), waits.

    Members without any round are left out; rounds that a reporting member lacks as well.
    """
    mine = (rows["comm"] == base["comm"]) & (rows["function"] == base["function"])
    mine &= (rows["dtype"] == base["dtype"]) & (rows["duration_ns"] > 0) & (rows["round"] > 0)
    rows = rows[mine]
    bits = np.frexp(rows["count"].astype(np.float64))[1]  # bit length, exact up to 2^53 elements
    rows = rows[(bits == int(base["bucket"])) & np.isin(rows["rank"], members)]
    order = members[np.isin(members, rows["rank"])]
    numbers = np.unique(rows["round"])
    times = np.zeros((len(numbers), len(order)))
    waits = np.zeros_like(times)
    by_rank = np.argsort(order)
    line = np.searchsorted(numbers, rows["round"])
    place = by_rank[np.searchsorted(order[by_rank], rows["rank"])] if len(rows) else line
    times[line, place], waits[line, place] = rows["duration_ns"], rows["recv_wait_us"]
    whole = (times > 0).all(axis=1) if len(order) >= 2 else np.zeros(len(numbers), np.bool_)
    return numbers[whole].astype(np.int64), times[whole], waits[whole], order


def _wait_step(waits: npt.NDArray[np.float64], ranks: Ints) -> int | None:
    """Receiver of the slow link: where recv_wait rises most along the ring; None if not observed."""
    if not waits.any():
        return None
    step = waits - np.roll(waits, 1, axis=1)
    return int(Counter(ranks[step.argmax(axis=1)].tolist()).most_common(1)[0][0])


def _first_cause(situation: Situation, keys: list[SlowKey]) -> SlowKey:
    """The key whose late rank waits nowhere else and is late in most communicators.

    A rank that computes slowly is late wherever it synchronises; one that only got its input late is
    not late against ranks that got theirs at the same time. Among equals the communicator with most
    rounds decides: lateness shows first where ranks meet most often.
    """
    waited: Counter[int] = Counter()
    for key in keys:
        worst = max(key.excess.values())
        for rank, excess in key.excess.items():
            if excess > 0.5 * worst:
                waited[rank] += 1

    late_in: dict[int, set[int]] = {}
    for key in keys:
        late_in.setdefault(key.late.most_common(1)[0][0], set()).add(key.comm)

    def order(key: SlowKey) -> tuple[int, int, int, float]:
        late = key.late.most_common(1)[0][0]
        return (-waited[late], len(late_in[late]), key.last_round, max(key.excess.values()))

    return max(keys, key=order)


def _late(situation: Situation, key: SlowKey, keys: list[SlowKey], rank: int) -> Finding:
    name = situation.evidence.comm_name(key.comm)
    return Finding(
        "late_rank",
        VerdictClass.S1,
        f"rank {rank} is late in {_function(key)} of {name} in {key.late[rank]} of {key.judged} rounds, "
        f"which take {key.ratio:.1f} times as long as usual",
        SubReason.LATE_RANK,
        rank_roots(situation.evidence, [rank], 1),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, name_ranks([rank]), "profile what this rank does between rounds"),
        confidence=0.9 if len(key.excess) > 2 else 0.8,
        evidence=_notes(situation, key, keys),
        operation=_operation(situation, key),
        waiting=_waiters(keys, {rank}),
    )


def _rotating(situation: Situation, key: SlowKey, keys: list[SlowKey]) -> Finding:
    ranks = sorted(key.late)
    return Finding(
        "rotating_straggler",
        VerdictClass.S1,
        f"{name_ranks(ranks)} are late in turn in {_function(key)} of "
        f"{situation.evidence.comm_name(key.comm)}; none of them is the cause",
        SubReason.ROTATING_STRAGGLER,
        (Root(RootKind.ROTATING, ranks=tuple(ranks)),),
        owner=Owner.USER_CODE,
        action=Action(
            ActionKind.COLLECT, "", "look for garbage collection, data loading and host contention"
        ),
        confidence=0.6,
        evidence=_notes(situation, key, keys),
        operation=_operation(situation, key),
        waiting=_waiters(keys, set()),
    )


def _link(situation: Situation, key: SlowKey, keys: list[SlowKey], late: int | None) -> Finding:
    """S2, or S3 where `late` is also late."""
    evidence = situation.evidence
    members = [int(rank) for rank in evidence.members(key.comm)]
    name = evidence.comm_name(key.comm)
    mixed = key.share > situation.policy.beta
    if key.link is None:
        roots: tuple[Root, ...] = (group_root(evidence, members, name),)
        where = f"a path among {name_ranks(members)}"
        would = "waits per neighbour, which this source does not show"
    else:
        source = members[members.index(key.link) - 1]
        roots = (Root(RootKind.LINK, rank=source, node=evidence.node(source), peer_rank=key.link),)
        where, would = f"the link from rank {source} to rank {key.link}", ""
    if late is not None:
        roots = (*rank_roots(evidence, [late], 1), *roots)
        where = f"rank {late} is late and {where}"
    return Finding(
        "slow_mixed" if mixed else "slow_link",
        VerdictClass.S3 if mixed else VerdictClass.S2,
        f"{where} is slow in {_function(key)} of {name}; rounds take {key.ratio:.1f} times as long as usual",
        SubReason.SLOW_LINK,
        roots,
        owner=Owner.FABRIC,
        action=Action(ActionKind.NETWORK_TICKET, where, "measure this path"),
        confidence=0.85 if key.link is not None else 0.5,
        evidence=_notes(situation, key, keys),
        would_decide=would,
        operation=_operation(situation, key),
        waiting=_waiters(keys, {late} if late is not None else set()),
    )


def _waiters(keys: list[SlowKey], roots: set[int]) -> tuple[int, ...]:
    return tuple(sorted({rank for key in keys for rank in key.excess} - roots))


def _function(key: SlowKey) -> str:
    return function_name(int(key.row["function"]))


def _operation(situation: Situation, key: SlowKey) -> Operation:
    evidence = situation.evidence
    return Operation(
        format_communicator(int(evidence.comm_ids[key.comm])),
        evidence.comm_name(key.comm),
        _function(key),
        key.last_round,
        len(evidence.members(key.comm)),
        f"about {int(key.row['count'])} elements",
    )


def _notes(situation: Situation, key: SlowKey, keys: list[SlowKey]) -> tuple[Evidence, ...]:
    policy = situation.policy
    threshold = float(key.row["threshold"]) or policy.slow_ratio
    return (
        note(
            "ratio",
            f"R = Tmax / Tbase = {key.ratio:.2f} in {key.rounds} of {key.judged} rounds",
            threshold=f"R >= {threshold:g} in {policy.slow_rounds_min} of {policy.slow_window}",
            t_base_ns=int(key.row["t_base_ns"]),
            samples=int(key.row["samples"]),
        ),
        note(
            "share",
            f"P = (Tmax - Tmin) / (Tmax - Tbase) = {key.share:.2f}",
            threshold=f"S1 from {policy.alpha:g}, S2 up to {policy.beta:g}",
            argmin=dict(key.late.most_common(8)),
        ),
        note("slow_keys", f"{len(keys)} keys are slow", keys=len(keys)),
    )
