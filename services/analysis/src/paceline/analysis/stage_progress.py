"""H3: everybody entered alike and nothing moves."""

import numpy as np

from paceline.analysis.findings import (
    Finding,
    group_root,
    name_ranks,
    note,
    phrase,
    plural,
    rank_roots,
    seconds,
)
from paceline.analysis.situation import Situation
from paceline.contracts.codes import FrameFlag
from paceline.contracts.verdicts import Action, ActionKind, Owner, Root, SubReason, VerdictClass


def no_progress(situation: Situation) -> Finding | None:
    """Stalled operations that everybody entered and that wait behind no other operation."""
    ops = np.flatnonzero(situation.satisfied)
    if len(ops) == 0:
        return None
    op = situation.oldest(ops)
    roots, sub, how, confidence = [], SubReason.ALL_RANKS_STUCK, "group", 0.7
    for each in ops[: situation.policy.roots_max]:
        found, sub_each, how_each, confidence_each = _narrow(situation, int(each))
        roots.extend(found)
        if int(each) == op:
            sub, how, confidence = sub_each, how_each, confidence_each
    ranks = sorted({rank for root in roots for rank in (root.ranks or (root.rank or 0,))})
    age = seconds(int(situation.graph.age_ms[op]))
    single = len(roots) == 1 and roots[0].rank is not None
    tail = f"; the cause is {name_ranks(ranks)}" if single else f"; the cause is among {name_ranks(ranks)}"
    members = len(situation.holders(op)) if op >= situation.graph.pair_base else _size(situation, op)
    return Finding(
        f"no_progress_{how}",
        VerdictClass.H3,
        f"{plural(members, 'rank')} entered {phrase(situation, op)} alike and nothing moved for {age}{tail}",
        sub,
        tuple(roots)[: situation.policy.roots_max],
        op,
        Owner.FABRIC if not single else Owner.GPU,
        Action(ActionKind.COLLECT, name_ranks(ranks), "collect stacks, kernel logs and link counters"),
        confidence,
        (
            note(
                "no_progress",
                f"all members entered with one signature; oldest wait {age}",
                threshold=f">= {situation.policy.stall_age_s:g} s",
                operations=len(ops),
                located_by=how,
            ),
        ),
        would_decide="" if single else "send and receive counts of the members (not visible to this source)",
    )


def _size(situation: Situation, op: int) -> int:
    return len(situation.evidence.members(op))


def _narrow(situation: Situation, op: int) -> tuple[list[Root], SubReason, str, float]:
    """Roots of one operation: by counts where they are observable, else the smallest group."""
    evidence = situation.evidence
    if op >= situation.graph.pair_base:
        at = op - situation.graph.pair_base
        pair = [int(situation.graph.pairs.rank[at]), int(situation.graph.pairs.peer[at])]
        return [group_root(evidence, pair, "pair")], SubReason.MISSING_EXIT, "group", 0.7
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    rows, ranks = evidence.state[part], evidence.member_rank[part]
    inside = situation.graph.collectives.inside[part]
    if int(inside.sum()) == 1 and len(ranks) > 2:
        roots = list(rank_roots(evidence, ranks[inside], 1))
        return roots, SubReason.MISSING_EXIT, "last_inside", 0.75
    counted = (rows["flags"] & FrameFlag.COUNTS_UNOBSERVABLE) == 0
    progress = rows["send_count"] + rows["recv_count"]
    sub = SubReason.ALL_RANKS_STUCK if inside.all() else SubReason.MISSING_EXIT
    if counted.all() and bool(progress.any()):
        # papers.md 1.4 rule 3: in a ring the counts form a V around the culprit.
        order = np.lexsort((rows["recv_count"], rows["send_count"]))
        lowest = rows[["send_count", "recv_count"]][order[0]]
        alike = (rows["send_count"] == lowest["send_count"]) & (rows["recv_count"] == lowest["recv_count"])
        if int(alike.sum()) == 1:
            return list(rank_roots(evidence, ranks[alike], 1)), sub, "counts", 0.9
        if int(alike.sum()) < len(ranks):
            return [group_root(evidence, [int(r) for r in ranks[alike]], "lowest counts")], sub, "counts", 0.8
    name = evidence.comm_name(op)
    return [group_root(evidence, [int(rank) for rank in ranks], name)], sub, "group", 0.7
