"""H2 of messages: a rank sends to, or receives from, another peer than its siblings do."""

import numpy as np

from paceline.analysis.evidence import Ints
from paceline.analysis.findings import Finding, note, rank_roots
from paceline.analysis.programs import Key, Programs, is_same_but_peer
from paceline.analysis.situation import Situation
from paceline.contracts.verdicts import Action, ActionKind, Evidence, Owner, SubReason, VerdictClass

COMPARED_MAX = 64


def wrong_peer(situation: Situation) -> Finding | None:
    """A message that nobody expects, of a rank from which somebody else waits for one.

    That alone is usual wherever ranks wait for each other; what the siblings called instead decides.
    """
    at = _crossed(situation)
    return _compare(situation, Programs(situation), at[:COMPARED_MAX]) if len(at) else None


def wrong_peer_of(situation: Situation, programs: Programs, ranks: list[int]) -> Finding | None:
    """As `wrong_peer`, of ranks that are known to differ from their siblings."""
    pairs = situation.graph.pairs
    at = np.flatnonzero(np.isin(pairs.rank, ranks) & (pairs.peer >= 0) & (pairs.issue > 0))
    return _compare(situation, programs, at[:COMPARED_MAX])


def _compare(situation: Situation, programs: Programs, at: Ints) -> Finding | None:
    pairs = situation.graph.pairs
    first: dict[int, int] = {}  # rank -> its earliest call of them
    for index in sorted(at.tolist(), key=lambda index: int(pairs.issue[index])):
        first.setdefault(int(pairs.rank[index]), index)
    found = programs.instead({rank: int(pairs.issue[index]) for rank, index in first.items()})
    for rank, (mine, theirs) in found.items():
        if is_same_but_peer(mine, theirs):
            why = note("siblings", f"after the same calls all siblings of rank {rank} called another peer")
            op = situation.graph.pair_base + first[rank]
            return peer_mismatch(situation, rank, op, mine, theirs, (why,))
    return None


def _crossed(situation: Situation) -> Ints:
    """Open pair operations that their peer has not posted, of ranks for which others of the group wait
    in the same direction. Those whose like no other rank has come first: there are many where a
    whole stage waits."""
    graph, world = situation.graph, situation.evidence.world_size
    pairs = graph.pairs
    unmet = situation.stalled[graph.pair_base : graph.host_base] & ~pairs.posted
    at = np.flatnonzero(unmet & pairs.known & (pairs.peer >= 0) & (pairs.issue > 0))
    mine = (pairs.comm[at] * world + pairs.rank[at]) * 2 + pairs.sends[at]
    wanted = (pairs.comm[at] * world + pairs.peer[at]) * 2 + ~pairs.sends[at]
    crossed = np.isin(mine, wanted)
    if not crossed.any():
        return at[:0]
    like = (pairs.issue[at].astype(np.int64) * 2 + pairs.sends[at]) * 2 * world
    like += pairs.peer[at] - pairs.rank[at] + world
    _, which, count = np.unique(like, return_inverse=True, return_counts=True)
    order = np.argsort(count[which.reshape(-1)], kind="stable")
    return at[order][crossed[order]]


def peer_mismatch(
    situation: Situation, rank: int, op: int, mine: Key, theirs: Key, notes: tuple[Evidence, ...]
) -> Finding:
    """Rank `rank` called `mine` where its siblings call `theirs`."""
    members = situation.evidence.members(situation.comm_of_op(op))
    verb = "receives from" if mine[3] else "sends to"
    told = [f"{verb} {_name(members, key)}" for key in (mine, theirs)]
    return Finding(
        "peer_mismatch",
        VerdictClass.H2,
        f"rank {rank} {told[0]} where its siblings' program {told[1]}",
        SubReason.PEER_MISMATCH,
        rank_roots(situation.evidence, [rank], situation.policy.roots_max),
        op,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, f"rank {rank}", "compare the peers of its sends and receives"),
        0.85,
        notes,
    )


def _name(members: Ints, key: Key) -> str:
    local = int(str(key[2]))
    return f"rank {int(members[local])}" if 0 <= local < len(members) else "any rank"
