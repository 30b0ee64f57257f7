"""H2: the members of one communicator disagree about the operation of one round."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from paceline.analysis.arrays import distinct, number_cells
from paceline.analysis.findings import (
    Finding,
    function_name,
    group_root,
    name_ranks,
    note,
    phrase,
    rank_roots,
)
from paceline.analysis.situation import Situation
from paceline.contracts.codes import DType, ReduceOp
from paceline.contracts.ids import format_communicator
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Operation,
    Owner,
    SubReason,
    VerdictClass,
)

_FIELDS = (
    ("function", SubReason.OPERATION_MISMATCH),
    ("dtype", SubReason.DTYPE_MISMATCH),
    ("reduce_op", SubReason.REDUCE_OP_MISMATCH),
    ("peer", SubReason.ROOT_MISMATCH),
    ("count", SubReason.SIZE_MISMATCH),
)


@dataclass(frozen=True)
class _Call:
    """What one rank called in the round; -1 where it was not observed."""

    signature: int
    function: int
    dtype: int
    reduce_op: int
    peer: int
    count: int


def mismatch(situation: Situation) -> Finding | None:
    """The first round in which members' signatures differ: a slip may surface only rounds later."""
    earlier = _diverged(situation)
    ops = _suspicious(situation)
    for op in sorted(ops, key=lambda op: (-int(situation.graph.age_ms[op]), op)):
        number = int(situation.graph.collectives.round[op])
        if op in earlier and earlier[op] < number:
            continue
        calls = _calls(situation, op, number)
        if len({call.signature for call in calls.values()}) > 1:
            return _judge_calls(situation, op, calls, number)
    for op, number in sorted(earlier.items(), key=lambda item: (item[1], item[0])):
        return _judge_calls(situation, op, _calls(situation, op, number), number)
    return pair_mismatch(situation)


def _diverged(situation: Situation) -> dict[int, int]:
    """Communicator -> its earliest recorded round with differing signatures, where it stands still or
    nobody can say whether it does."""
    evidence, collectives = situation.evidence, situation.graph.collectives
    comm = evidence.round_comm
    if len(comm) == 0 or evidence.communicators == 0:
        return {}
    number, signature = evidence.round_columns["round"], evidence.round_columns["signature"]
    eligible = collectives.level | situation.stalled[: evidence.communicators]
    usable = (number > 0) & (signature > 0) & (comm >= 0) & eligible[comm]
    number, signature, comm = number[usable], signature[usable], comm[usable]
    if len(comm) == 0:
        return {}
    key = number_cells(comm, number)
    some = np.zeros(int(key.max()) + 1, np.uint64)
    some[key] = signature
    differs = np.flatnonzero(some[key] != signature)
    found: dict[int, int] = {}
    for at in differs[np.argsort(number[differs], kind="stable")][::-1]:
        found[int(comm[at])] = int(number[at])  # rounds descend, so the earliest stays
    return found


def pair_mismatch(situation: Situation) -> Finding | None:
    """A message whose two ends have both been posted and differ in size or type. Two ranks: no vote."""
    graph, evidence = situation.graph, situation.evidence
    pairs = graph.pairs
    both = np.flatnonzero(situation.stalled[graph.pair_base : graph.host_base] & (pairs.peer_issue > 0))
    both = both[pairs.sends[both]]
    if len(both) == 0 or len(evidence.rounds) == 0:
        return None
    messages = np.flatnonzero(evidence.round_columns["round"] == 0)
    issues = np.concatenate([pairs.issue[both], pairs.peer_issue[both]])
    rows = evidence.rounds[messages[np.isin(evidence.rounds["issue"][messages], issues)]]
    table = {(int(row["rank"]), int(row["issue"])): row for row in rows[np.isin(rows["rank"], pairs.rank)]}
    for at in both:
        sender, receiver = int(pairs.rank[at]), int(pairs.peer[at])
        left = table.get((sender, int(pairs.issue[at])))
        right = table.get((receiver, int(pairs.peer_issue[at])))
        if left is None or right is None:
            continue
        for field, sub in (("dtype", SubReason.DTYPE_MISMATCH), ("count", SubReason.SIZE_MISMATCH)):
            if int(left[field]) != int(right[field]) and min(int(left[field]), int(right[field])) > 0:
                words = f"{_word(field, int(left[field]))} sent, {_word(field, int(right[field]))} expected"
                return _no_vote(situation, graph.pair_base + int(at), [sender, receiver], words, sub)
    return None


def _no_vote(situation: Situation, op: int, ranks: list[int], words: str, sub: SubReason) -> Finding:
    return Finding(
        "pair_mismatch",
        VerdictClass.H2,
        f"{name_ranks(ranks)} disagree in {phrase(situation, op)}: {words}",
        sub,
        (group_root(situation.evidence, ranks, "disagree"),),
        op,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, name_ranks(ranks), "compare what these ranks call here"),
        0.7,
        (note("pair", words, threshold="two ranks: no vote"),),
        would_decide="the message that the training script expects here",
    )


def _suspicious(situation: Situation) -> list[int]:
    """Stalled collectives whose members inside differ, or that somebody has already left."""
    evidence, collectives = situation.evidence, situation.graph.collectives
    count = evidence.communicators
    if count == 0:
        return []
    signature, starts = evidence.column("head_signature"), evidence.offsets[:-1]
    highest = np.maximum.reduceat(np.where(collectives.inside, signature, 0), starts)
    top = np.uint64(np.iinfo(np.uint64).max)
    lowest = np.minimum.reduceat(np.where(collectives.inside, signature, top), starts)
    passed = np.maximum.reduceat(collectives.passed.astype(np.int64), starts) > 0
    stalled = situation.stalled[:count]
    return [int(op) for op in np.flatnonzero(stalled & ((highest != lowest) | passed))]


def _calls(situation: Situation, op: int, number: int) -> dict[int, _Call]:
    """What each member called in the round, from its head of line or from its recorded rounds."""
    evidence, collectives = situation.evidence, situation.graph.collectives
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    inside = collectives.inside[part] & (evidence.column("head_round")[part] == number)
    state, ranks = evidence.state[part][inside], evidence.member_rank[part][inside]
    rows = evidence.rounds_of(op)
    at = rows["round"] == number
    known = set(evidence.member_rank[part].tolist())
    calls = {
        int(row["rank"]): _call(int(row["signature"]), row, int(row["count"]))
        for row in rows[at]
        if int(row["rank"]) in known
    }
    for rank, row in zip(ranks.tolist(), state, strict=True):
        count = calls[rank].count if rank in calls else -1
        calls[rank] = _call(int(row["head_signature"]), row, count)
    return calls


def _call(signature: int, row: np.void, count: int) -> _Call:
    return _Call(
        signature,
        int(row["function"]),
        int(row["dtype"]),
        int(row["reduce_op"]),
        int(row["peer"]),
        count,
    )


def _judge_calls(situation: Situation, op: int, calls: dict[int, _Call], number: int) -> Finding:
    evidence = situation.evidence
    here = number == int(situation.graph.collectives.round[op])
    shown = None if here else _operation(situation, op, calls, number)
    place = (
        phrase(situation, op)
        if shown is None
        else f"{shown.function} round {number} of {evidence.comm_name(op)}"
    )
    votes = Counter(call.signature for call in calls.values())
    winner, most = max(votes.items(), key=lambda item: (item[1], -item[0]))
    odd = _others(calls, winner)
    unknown = len(situation.blind(op)) if here else len(evidence.members(op)) - len(calls)
    siblings, usual_call, decided = 0, False, most > len(odd) + unknown
    if not decided:
        siblings, sibling_winner = _sibling_vote(situation, op, votes, number)
        if siblings:
            winner, decided = sibling_winner, True
            odd = _others(calls, winner)
    if not decided:  # unreported members may all side with the others: what was called before decides
        decided = usual_call = most > len(odd) and _is_usual(situation, op, votes, winner, number)
    usual = next(call for call in calls.values() if call.signature == winner)
    sub, words = _difference(situation, usual, calls[odd[0]])
    notes = [
        note(
            "signatures",
            f"{len(calls) - len(odd)} ranks agree, {name_ranks(odd)} differ in round {number}: {words}",
            threshold="strict majority of the ranks inside, unknown ranks counted against",
            votes=dict(sorted((f"{key:016x}", value) for key, value in votes.items())),
            unknown=unknown,
        )
    ]
    if siblings:
        notes.append(
            note("siblings", f"{siblings} rounds of equal groups agree with the majority", rounds=siblings)
        )
    if usual_call:
        notes.append(
            note("usual", "other rounds of this group agree with the majority, none with the others")
        )
    if not decided:
        return Finding(
            "mismatch_without_majority",
            VerdictClass.H2,
            f"{name_ranks(sorted(calls))} disagree in {place}: {words}",
            SubReason.NO_MAJORITY,
            (group_root(evidence, sorted(calls), "disagree"),),
            op,
            Owner.USER_CODE,
            Action(ActionKind.FIX_CODE, name_ranks(sorted(calls)), "compare what these ranks call here"),
            0.7,
            tuple(notes),
            would_decide="the call that the training script expects here",
            operation=shown,
        )
    return Finding(
        "mismatch",
        VerdictClass.H2,
        f"{name_ranks(odd)} {'disagrees' if len(odd) == 1 else 'disagree'} in {place}: {words}",
        sub,
        rank_roots(evidence, odd, situation.policy.roots_max),
        op,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, name_ranks(odd), "make every rank call the same operation"),
        (0.8 if siblings or usual_call else 0.97)
        * (1.0 if most >= 3 or siblings else 0.85)
        * (1.0 if here else 0.9),
        tuple(notes),
        operation=shown,
    )


def _others(calls: dict[int, _Call], winner: int) -> list[int]:
    return sorted(rank for rank, call in calls.items() if call.signature != winner)


def _is_usual(situation: Situation, op: int, votes: Counter[int], winner: int, number: int) -> bool:
    """Whether other recorded rounds of the communicator have the signature of the majority, and none has
    another one of the `votes`."""
    rows = situation.evidence.rounds
    at = (rows["comm"] == situation.evidence.comm_ids[op]) & (rows["round"] > 0) & (rows["round"] != number)
    called = {int(value) for value in distinct(rows["signature"][at])}
    return called & set(votes) == {winner}


def _operation(situation: Situation, op: int, calls: dict[int, _Call], number: int) -> Operation:
    """An earlier round than the one that stands still."""
    evidence = situation.evidence
    usual = Counter(call.function for call in calls.values()).most_common(1)[0][0]
    return Operation(
        communicator=format_communicator(int(evidence.comm_ids[op])),
        communicator_name=evidence.comm_name(op),
        function=function_name(usual),
        round=number,
        size=len(evidence.members(op)),
    )


def _sibling_vote(situation: Situation, op: int, votes: Counter[int], number: int) -> tuple[int, int]:
    """(rounds, signature) with which groups of the same kind and size decide a tie; (0, 0) if none.

    Tensor groups of one job run the same program, so round n of one is round n of the others.
    """
    evidence = situation.evidence
    kind, size = evidence.comm_kinds[op], len(evidence.members(op))
    if not kind:
        return 0, 0
    alike = [
        index
        for index, other in enumerate(evidence.comm_kinds)
        if other == kind and index != op and len(evidence.members(index)) == size
    ]
    rounds = evidence.rounds
    at = np.isin(rounds["comm"], evidence.comm_ids[alike]) & (rounds["round"] == number)
    seen = [int(value) for value in rounds["signature"][at]]
    members = np.isin(evidence.comm_of, alike) & evidence.seen & (evidence.column("head_round") == number)
    seen += [int(value) for value in evidence.column("head_signature")[members]]
    tally = Counter(value for value in seen if value in votes)
    if len(tally) != 1 or sum(tally.values()) < 2:
        return 0, 0
    signature, count = tally.popitem()
    return count, signature


def _difference(situation: Situation, usual: _Call, odd: _Call) -> tuple[SubReason, str]:
    """The first field in which two calls differ, in words."""
    for field, sub in _FIELDS:
        left, right = getattr(usual, field), getattr(odd, field)
        if left != right and min(left, right) >= (-1 if field == "peer" else 0):
            return sub, f"{_word(field, right)} where the others call {_word(field, left)}"
    # The signature covers these fields and the size, and the fields agree.
    return SubReason.SIZE_MISMATCH, "another size than the others"


def _word(field: str, value: int) -> str:
    if field == "function":
        return function_name(value)
    if field == "dtype":
        return DType(value).name.lower() if value in DType._value2member_map_ else f"dtype {value}"
    if field == "reduce_op":
        return ReduceOp(value).name.lower() if value in ReduceOp._value2member_map_ else f"reduce op {value}"
    return f"root {value}" if field == "peer" else f"{value} elements"
