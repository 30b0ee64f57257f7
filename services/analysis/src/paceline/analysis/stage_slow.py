"""S1, S2, S3 from kept rounds: the same round on every member, each by its own clock.

papers.md 1.4 rule 4: R = Tmax / Tbase against the threshold of the key; P = (Tmax - Tmin) /
(Tmax - Tbase). A late rank waits least, so it is argmin T; that only holds for rounds that need
everybody. A rank that is late because it waited elsewhere is a victim: who spends more of a step on
its own decides where that is observed (docs/adr/0020-slow-without-clock-sync.md).
"""

from dataclasses import replace

import numpy as np

from paceline.analysis.arrays import without
from paceline.analysis.findings import Finding, function_name, group_root, name_ranks, note, rank_roots
from paceline.analysis.situation import Situation
from paceline.analysis.slow_keys import SlowKey, measure
from paceline.analysis.slow_own import OwnTimes, read_own_times
from paceline.analysis.slow_paths import path_roots
from paceline.analysis.slow_shared import held_together
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

WEAK_CONFIDENCE = 0.8  # below the paper's threshold: a warning, and never more than that
_LIKE_KINDS = frozenset({"tp", "dp", "cp", "ep"})  # whose members do the same work


def slow(situation: Situation) -> Finding | None:
    """The first cause among the slow keys, None where no key is slow by the repeat rule."""
    evidence, policy = situation.evidence, situation.policy
    measured = [measure(evidence, row, policy) for row in evidence.baselines]
    keys = [key for key in measured if key is not None and _comparable(situation, key)]
    own = read_own_times(evidence)
    if not keys:
        return _late_by_itself(situation, own)
    transfer = [key for key in keys if key.share <= policy.beta and key.slow.links]
    key = _first_cause(situation, keys, own)
    steady = key.is_steady(policy.slow_rounds_min, evidence.communicators)
    # What comes in turn does so in the whole job, though not every key shows it for as long.
    since_s = max(int(other.row["in_turn_s"]) for other in keys)
    rotating = key.is_in_turn(since_s)
    if key.share >= policy.alpha:
        in_turn = key.is_in_turn(since_s, least_s=1) and not steady  # own times then rise by turns as well
        if own.guilty and key.late_rank not in own.guilty and not in_turn:
            return _late(situation, key, keys, own.guilty[0], own)
        made = own.explains(key.late_rank, key.lateness_us)
        together = None if made or in_turn else held_together(evidence, key, keys)
        if together is not None:
            return _unexplained(situation, key, keys, steady, together)
        if made is not False and (steady or (key.late_rank in own.guilty[:1] and not in_turn)):
            if key.slow.distinct and not key.weak:
                return _link(situation, key, keys, key.late_rank)
            return _late(situation, key, keys, key.late_rank, own)
        if transfer:
            return _link(situation, max(transfer, key=_cost), keys, None)
        if steady or not rotating:
            return _unexplained(situation, key, keys, steady)
        return _rotating(situation, key, keys)
    if key.share <= policy.beta:
        return _link(situation, key, keys, None)
    if not key.is_steady(policy.slow_rounds_min):
        if key.judged < policy.slow_window and key.slow.links and not rotating:
            return _unexplained(situation, key, keys, steady=False)  # the next rounds say who is late
        return _link(situation, key, keys, None)
    if key.slow.even and own.explains(key.late_rank, key.lateness_us) is not False:
        # Everybody slower beside a late rank, and no link waited for more than another: hosts short of CPU.
        finding = _late(situation, key, keys, key.late_rank, own)
        return replace(finding, confidence=finding.confidence * WEAK_CONFIDENCE)
    return _link(situation, key, keys, key.late_rank)


def _cost(key: SlowKey) -> float:
    return key.worst * max(float(key.row["rounds_per_step"]), 1.0)


def _comparable(situation: Situation, key: SlowKey) -> bool:
    """Lateness that was always there is only known to be one among ranks that do the same work.

    Where all members take equally long nobody is accused of being late.
    """
    if not key.constant or (key.share <= situation.policy.beta and not key.weak):
        return True
    evidence = situation.evidence
    if evidence.comm_kinds[key.comm]:
        return evidence.comm_kinds[key.comm] in _LIKE_KINDS
    stage = evidence.coordinates.get("pp")
    members = evidence.members(key.comm)
    return stage is not None and bool((stage[members] == stage[members[0]]).all()) and stage[members[0]] >= 0


def _first_cause(situation: Situation, keys: list[SlowKey], own: OwnTimes) -> SlowKey:
    """The key whose late rank made its lateness itself, waits nowhere else and is late most widely.

    A rank that computes slowly is late wherever it synchronises; one that only got its input late is
    not late against ranks that got theirs at the same time. Among equals the communicator with most
    rounds decides: lateness shows first where ranks meet most often.
    """
    waited = np.zeros(situation.evidence.world_size, np.int64)  # in how many keys
    for key in keys:
        waited[key.ranks[key.excess > 0.5 * key.worst]] += 1
    late_in: dict[int, set[int]] = {}
    for key in keys:
        late_in.setdefault(key.late_rank, set()).add(key.comm)

    def order(key: SlowKey) -> tuple[bool, int, int, int, float]:
        late = key.late_rank
        guilty = late in own.guilty[:1] and key.share > situation.policy.beta
        return (guilty, -int(waited[late]), len(late_in[late]), key.last_round, key.worst)

    return max(keys, key=order)


def _late(situation: Situation, key: SlowKey, keys: list[SlowKey], rank: int, own: OwnTimes) -> Finding:
    name = situation.evidence.comm_name(key.comm)
    if rank == key.late_rank:
        statement = (
            f"rank {rank} is late in {_function(key)} of {name} in {key.late[rank]} of {key.judged} rounds, "
            f"which take {key.ratio:.1f} times as long as usual"
        )
    else:
        statement = (
            f"rank {rank} spends {own.rise_of(rank) / 1e3:.0f} ms more of each step on its own, and all wait "
            f"for it; {_function(key)} of {name} takes {key.ratio:.1f} times as long as usual"
        )
    confirmed = own.explains(rank, own.lost_us) is True
    confidence = 0.95 if confirmed else 0.9 if len(key.ranks) > 2 else 0.8
    return Finding(
        "late_rank",
        VerdictClass.S1,
        statement,
        SubReason.LATE_RANK,
        rank_roots(situation.evidence, [rank], 1),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, name_ranks([rank]), "profile what this rank does between rounds"),
        confidence=confidence * (WEAK_CONFIDENCE if key.weak else 1.0),
        evidence=(*_notes(situation, key, keys), *_own_notes(own, rank)),
        operation=_operation(situation, key),
        waiting=_waiters(keys, {rank}),
    )


def _late_by_itself(situation: Situation, own: OwnTimes) -> Finding | None:
    """Steps take longer, no collective shows it, and one rank does more on its own: pipelines."""
    if len(own.guilty) != 1:
        return None
    rank = own.guilty[0]
    return Finding(
        "late_rank_by_own_time",
        VerdictClass.S1,
        f"rank {rank} spends {own.rise_of(rank) / 1e3:.0f} ms more of each step on its own; "
        f"steps take {own.step_us / max(own.base_step_us, 1):.2f} times as long as usual",
        SubReason.LATE_RANK,
        rank_roots(situation.evidence, [rank], 1),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.COLLECT, name_ranks([rank]), "profile what this rank does in a step"),
        confidence=0.75,
        evidence=_own_notes(own, rank),
        waiting=tuple(int(other) for other in own.rank if other != rank),
    )


def _unexplained(
    situation: Situation, key: SlowKey, keys: list[SlowKey], steady: bool, together: int | None = None
) -> Finding:
    """The late rank waited for something that is not observed, or it is not yet clear who is late.

    `together`: the communicator whose members are all late, each in a group of its own.
    """
    evidence, rank = situation.evidence, key.late_rank
    if together is not None:
        group = evidence.comm_name(together)
        why = f"and so are other members of {group}, each in its own group: one of them holds up the others"
        would = f"kept rounds of {group}, or own times of its members"
    elif steady:
        why = "yet spends no more time on its own than usual: it waited for something that is not observed"
        would = "own times of the ranks that it depends on, or its waits outside collectives"
    else:
        why = f"but not in enough of {key.rounds} slow rounds to tell it from chance"
        would = "more rounds"
    return Finding(
        "late_together" if together is not None else "late_by_waiting" if steady else "late_undecided",
        VerdictClass.INCONCLUSIVE,
        f"rank {rank} is late in {_function(key)} of {evidence.comm_name(key.comm)}, {why}",
        SubReason.MISSING_EVIDENCE,
        confidence=0.4,
        evidence=_notes(situation, key, keys),
        would_decide=would,
        operation=_operation(situation, key),
        waiting=_waiters(keys, set()),
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
    evidence, policy = situation.evidence, situation.policy
    name = evidence.comm_name(key.comm)
    mixed = key.share > policy.beta
    path = path_roots(evidence, key, [other for other in keys if other.share < policy.alpha])
    would = ""
    if path is None:
        members = list(key.slow.stretch) or [int(rank) for rank in evidence.members(key.comm)]
        roots: tuple[Root, ...] = (group_root(evidence, members, name),)
        where = f"a path among {name_ranks(members)}"
        would = "waits per neighbour, which this source does not show"
    else:
        roots, where = path.roots, path.where
    if late is not None:
        roots = (*rank_roots(evidence, [late], 1), *roots)
        where = f"rank {late} is late and {where}"
    shared = path is not None and path.shared
    confidence = 0.85 if path is not None else 0.5
    return Finding(
        "slow_mixed" if mixed else "shared_path" if shared else "slow_link",
        VerdictClass.S3 if mixed else VerdictClass.S2,
        f"{where} is slow in {_function(key)} of {name}; rounds take {key.ratio:.1f} times as long as usual",
        SubReason.SHARED_PATH if shared else SubReason.SLOW_LINK,
        roots,
        # Everybody slow alike, with no neighbour's wait to show for it: a host short of CPU looks the same.
        owner=Owner.UNKNOWN if path is None else Owner.FABRIC,
        action=Action(ActionKind.COLLECT, where, "compare the hosts' load before the network's")
        if path is None
        else Action(ActionKind.NETWORK_TICKET, where, "measure this path"),
        confidence=confidence * (WEAK_CONFIDENCE if key.weak else 1.0),
        evidence=_notes(situation, key, keys),
        would_decide=would,
        operation=_operation(situation, key),
        waiting=_waiters(keys, {late} if late is not None else set()),
    )


def _waiters(keys: list[SlowKey], roots: set[int]) -> tuple[int, ...]:
    return tuple(without(np.concatenate([key.ranks for key in keys]), sorted(roots)).tolist())


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
    rule = (
        "sum of evidence, warning band" if key.weak else f"{policy.slow_rounds_min} of {policy.slow_window}"
    )
    return (
        note(
            "ratio",
            f"R = Tmax / Tbase = {key.ratio:.2f} in {key.rounds} of {key.judged} rounds",
            threshold=f"R >= {key.threshold:.3g} in {rule}",
            t_base_ns=int(key.row["t_base_ns"]),
            samples=int(key.row["samples"]),
        ),
        note(
            "share",
            f"P = (Tmax - Tmin) / (Tmax - Tbase) = {key.share:.2f}",
            threshold=f"S1 from {policy.alpha:g}, S2 up to {policy.beta:g}",
            argmin=dict(key.late.most_common(8)),
            late_rank=int(key.row["late_rank"]),
            late_nats=f"{float(key.row['late_nats']):.1f}",
        ),
        note("slow_keys", f"{len(keys)} keys are slow", keys=len(keys)),
    )


def _own_notes(own: OwnTimes, rank: int) -> tuple[Evidence, ...]:
    if not own.observed(rank):
        return ()
    return (
        note(
            "own_time",
            f"own time of rank {rank} has risen by {own.rise_of(rank) / 1e3:.1f} ms a step, that of the "
            f"median rank by {np.median(own.rise) / 1e3:.1f} ms; steps take {own.lost_us / 1e3:.1f} longer",
            ranks=len(own.rank),
            guilty=list(own.guilty[:8]),
        ),
    )
