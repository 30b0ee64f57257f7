"""H2: the members of one communicator disagree about the operation of one round."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

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
from paceline.contracts.verdicts import Action, ActionKind, Owner, SubReason, VerdictClass

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
    """The stalled round with the most waiting ranks whose members' signatures differ."""
    ops = _suspicious(situation)
    for op in sorted(ops, key=lambda op: (-int(situation.graph.age_ms[op]), op)):
        calls = _calls(situation, op)
        if len({call.signature for call in calls.values()}) > 1:
            return _judge_calls(situation, op, calls)
    return None


def _suspicious(situation: Situation) -> list[int]:
    """Stalled collectives whose members inside differ, or that somebody has already left."""
    evidence, collectives = situation.evidence, situation.graph.collectives
    count = evidence.communicators
    if count == 0:
        return []
    signature, starts = evidence.state["head_signature"], evidence.offsets[:-1]
    highest = np.maximum.reduceat(np.where(collectives.inside, signature, 0), starts)
    top = np.uint64(np.iinfo(np.uint64).max)
    lowest = np.minimum.reduceat(np.where(collectives.inside, signature, top), starts)
    passed = np.maximum.reduceat(collectives.passed.astype(np.int64), starts) > 0
    stalled = situation.stalled[:count]
    return [int(op) for op in np.flatnonzero(stalled & ((highest != lowest) | passed))]


def _calls(situation: Situation, op: int) -> dict[int, _Call]:
    """What each member called in the round, from its head of line or from its recorded rounds."""
    evidence, collectives = situation.evidence, situation.graph.collectives
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    inside = collectives.inside[part]
    state, ranks = evidence.state[part][inside], evidence.member_rank[part][inside]
    rows = evidence.rounds
    at = (rows["comm"] == evidence.comm_ids[op]) & (rows["round"] == collectives.round[op])
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


def _judge_calls(situation: Situation, op: int, calls: dict[int, _Call]) -> Finding:
    evidence = situation.evidence
    votes = Counter(call.signature for call in calls.values())
    winner, most = max(votes.items(), key=lambda item: (item[1], -item[0]))
    odd = sorted(rank for rank, call in calls.items() if call.signature != winner)
    unknown = len(situation.blind(op))
    siblings, sibling_winner = (0, 0)
    decided = most > len(odd) + unknown
    if not decided:
        siblings, sibling_winner = _sibling_vote(situation, op, votes)
        if siblings:
            winner, decided = sibling_winner, True
            odd = sorted(rank for rank, call in calls.items() if call.signature != winner)
    usual = next(call for call in calls.values() if call.signature == winner)
    sub, words = _difference(situation, usual, calls[odd[0]])
    notes = [
        note(
            "signatures",
            f"{len(calls) - len(odd)} ranks agree, {name_ranks(odd)} differ in round "
            f"{int(situation.graph.collectives.round[op])}: {words}",
            threshold="strict majority of the ranks inside, unknown ranks counted against",
            votes=dict(sorted((f"{key:016x}", value) for key, value in votes.items())),
            unknown=unknown,
        )
    ]
    if siblings:
        notes.append(
            note("siblings", f"{siblings} rounds of equal groups agree with the majority", rounds=siblings)
        )
    if not decided:
        return Finding(
            "mismatch_without_majority",
            VerdictClass.H2,
            f"{name_ranks(sorted(calls))} disagree in {phrase(situation, op)}: {words}",
            SubReason.NO_MAJORITY,
            (group_root(evidence, sorted(calls), "disagree"),),
            op,
            Owner.USER_CODE,
            Action(ActionKind.FIX_CODE, name_ranks(sorted(calls)), "compare what these ranks call here"),
            0.7,
            tuple(notes),
            would_decide="the call that the training script expects here",
        )
    return Finding(
        "mismatch",
        VerdictClass.H2,
        f"{name_ranks(odd)} disagrees in {phrase(situation, op)}: {words}"
        if len(odd) == 1
        else f"{name_ranks(odd)} disagree in {phrase(situation, op)}: {words}",
        sub,
        rank_roots(evidence, odd, situation.policy.roots_max),
        op,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, name_ranks(odd), "make every rank call the same operation"),
        (0.8 if siblings else 0.97) * (1.0 if most >= 3 or siblings else 0.85),
        tuple(notes),
    )


def _sibling_vote(situation: Situation, op: int, votes: Counter[int]) -> tuple[int, int]:
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
    number = situation.graph.collectives.round[op]
    rounds = evidence.rounds
    at = np.isin(rounds["comm"], evidence.comm_ids[alike]) & (rounds["round"] == number)
    seen = [int(value) for value in rounds["signature"][at]]
    members = np.isin(evidence.comm_of, alike) & evidence.seen & (evidence.state["head_round"] == number)
    seen += [int(value) for value in evidence.state["head_signature"][members]]
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
