"""H3: everybody entered alike and nothing moves."""

from dataclasses import dataclass, replace

import numpy as np

from paceline.analysis.arrays import distinct
from paceline.analysis.evidence import JobEvidence, Mask
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
from paceline.analysis.locate import Place, by_waits, ring_by_counts, slices_by_role, tree_by_counts
from paceline.analysis.situation import Situation
from paceline.analysis.transfers import (
    FIRST_TREE,
    SECOND_TREE,
    Transfers,
    counts_visible,
    edge_transfers,
    ring_transfers,
    tree_parents,
)
from paceline.analysis.waits import SYNCHRONISING
from paceline.contracts.codes import Algorithm, Function
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Evidence,
    Owner,
    Root,
    RootKind,
    SubReason,
    VerdictClass,
)

# Each link of a ring carries the same number of slices of these; a round with a root does not.
_ALIKE = (Function.ALL_REDUCE, Function.ALL_GATHER, Function.REDUCE_SCATTER)
_WAITS_WOULD_DECIDE = "which ranks wait on which link (edge waits of the members)"
_COUNTS_WOULD_DECIDE = "send and receive counts of the members (not visible to this source)"


@dataclass(frozen=True)
class Narrow:
    """What is known of the place of one operation."""

    roots: tuple[Root, ...]
    sub: SubReason
    how: str
    confidence: float
    unseen: bool = False
    would_decide: str = ""

    @property
    def is_exact(self) -> bool:
        return all(root.kind in (RootKind.RANK, RootKind.LINK) for root in self.roots)


def no_progress(situation: Situation) -> Finding | None:
    """Stalled operations that everybody entered and that wait behind no other operation."""
    ops = np.flatnonzero(situation.satisfied)
    if len(ops) == 0:
        return None
    found = [(int(op), narrow_down(situation, int(op))) for op in ops[: situation.policy.roots_max]]
    return stuck_finding(situation, found)


def stuck_finding(situation: Situation, found: list[tuple[int, Narrow]]) -> Finding:
    """One finding for all operations that stand still by themselves; the oldest is shown."""
    op = situation.oldest(np.array([op for op, _ in found], np.int64))
    narrow = next(each for at, each in found if at == op)
    roots = tuple(root for _, each in found for root in each.roots)[: situation.policy.roots_max]
    exact = all(each.is_exact for _, each in found)
    broken = bool(roots) and roots[0].kind is RootKind.LINK
    ranks = sorted({rank for root in roots for rank in _ranks_of(root)})
    age = seconds(int(situation.graph.age_ms[op]))
    members = len(situation.holders(op)) if op >= situation.graph.pair_base else _size(situation, op)
    return Finding(
        f"no_progress_{narrow.how}",
        VerdictClass.H3,
        f"{plural(members, 'rank')} entered {phrase(situation, op)} alike and nothing moved for {age}; "
        f"the cause is {_where(roots, exact)}",
        narrow.sub,
        roots,
        op,
        Owner.GPU if exact and not broken else Owner.FABRIC,
        _action(roots, name_ranks(ranks)),
        min(each.confidence for _, each in found),
        (progress_note(situation, op, narrow, len(found)),),
        would_decide=narrow.would_decide,
    )


def _where(roots: tuple[Root, ...], exact: bool) -> str:
    if exact and roots[0].kind is RootKind.LINK:
        links = [f"from rank {root.rank} to rank {root.peer_rank}" for root in roots[:4]]
        return f"the link{'s' if len(roots) > 1 else ''} {', '.join(links)}"
    ranks = name_ranks(sorted({rank for root in roots for rank in _ranks_of(root)}))
    return ranks if exact else f"among {ranks}"


def _action(roots: tuple[Root, ...], target: str) -> Action:
    if roots and all(root.kind is RootKind.LINK for root in roots):
        return Action(ActionKind.NETWORK_TICKET, target, "the link carries nothing any more")
    return Action(ActionKind.COLLECT, target, "collect stacks, kernel logs and link counters")


def progress_note(situation: Situation, op: int, narrow: Narrow, operations: int) -> Evidence:
    return note(
        "no_progress",
        f"all members entered with one signature; oldest wait {seconds(int(situation.graph.age_ms[op]))}",
        threshold=f">= {situation.policy.stall_age_s:g} s",
        operations=operations,
        located_by=narrow.how,
    )


def _ranks_of(root: Root) -> tuple[int, ...]:
    if root.ranks:
        return root.ranks
    return tuple(rank for rank in (root.rank, root.peer_rank) if rank is not None)


def _size(situation: Situation, op: int) -> int:
    return len(situation.evidence.members(op))


def narrow_down(situation: Situation, op: int) -> Narrow:
    """Roots of one operation: where waits or counts show the place, else the smallest group."""
    evidence = situation.evidence
    if op >= situation.graph.pair_base:
        at = op - situation.graph.pair_base
        pair = [int(situation.graph.pairs.rank[at]), int(situation.graph.pairs.peer[at])]
        return Narrow((group_root(evidence, pair, "pair"),), SubReason.MISSING_EXIT, "group", 0.7)
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    members, inside = evidence.member_rank[part], situation.graph.collectives.inside[part]
    passed = situation.graph.collectives.passed[part]
    sub = SubReason.MISSING_EXIT if passed.any() else SubReason.ALL_RANKS_STUCK
    place = _place(situation, op, inside)
    if place is not None:
        return replace(_named(evidence, place, members), sub=sub)
    # Who has left did its part, except that of two the root of a round may leave before the other has it.
    did_theirs = passed.any() and bool(np.isin(evidence.state["function"][part][inside], SYNCHRONISING).all())
    if int(inside.sum()) == 1 and passed.any() and (did_theirs or len(members) > 2):
        roots = rank_roots(evidence, members[inside], 1)
        return Narrow(roots, sub, "last_inside", 0.75 if len(members) > 2 else 0.6)
    name, among = evidence.comm_name(op), members[inside] if did_theirs else members
    visible = bool(counts_visible(evidence, op).all())
    would = _WAITS_WOULD_DECIDE if visible else _COUNTS_WOULD_DECIDE
    return Narrow((group_root(evidence, among.tolist(), name),), sub, "group", 0.7, would_decide=would)


def _named(
    evidence: JobEvidence, place: Place, members: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Narrow:
    """Roots of a place inside a communicator."""
    ranks = [int(members[rank]) for rank in place.ranks]
    if place.links:
        roots = tuple(
            Root(
                RootKind.LINK,
                rank=int(members[tail]),
                node=evidence.node(int(members[tail])),
                peer_rank=int(members[head]),
            )
            for tail, head in place.links
        )
        confidence = 0.8 if place.how == "delivers_nothing" else 0.9
        return Narrow(roots, SubReason.NONE, place.how, confidence)
    if place.among:
        root = group_root(evidence, ranks, "part of the ring")
        return Narrow((root,), SubReason.NONE, place.how, 0.7, would_decide=_COUNTS_WOULD_DECIDE)
    confidence = 0.9 if place.how == "waits_for_nobody" else 0.8
    return Narrow(
        rank_roots(evidence, ranks, len(ranks)), SubReason.NONE, place.how, confidence, unseen=place.unseen
    )


def _place(situation: Situation, op: int, inside: Mask) -> Place | None:
    """The place by waits, else by counts of the algorithm that the round used."""
    evidence = situation.evidence
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    visible = counts_visible(evidence, op)
    if not visible[inside].any():
        return None
    ring = ring_transfers(evidence, op, visible)
    trees = [edge_transfers(evidence, op, group, visible) for group in (FIRST_TREE, SECOND_TREE)]
    links = [each for each in (ring, *trees) if each is not None]
    if links:
        needed = inside | situation.graph.collectives.blind[part]
        place = by_waits(Transfers.join(links), inside, needed)
        if place is not None:
            return place
    functions = evidence.state["function"][part][inside]
    if not np.isin(functions, _ALIKE).all():
        return None
    algorithm = _algorithm(situation, op, ring is not None, any(tree is not None for tree in trees))
    if algorithm is Algorithm.RING and ring is not None:
        return ring_by_counts(ring)
    if algorithm is Algorithm.TREE and bool(visible.all()):
        return _tree_place(evidence, op, inside, [tree for tree in trees if tree is not None])
    return None


def _tree_place(evidence: JobEvidence, op: int, inside: Mask, trees: list[Transfers]) -> Place | None:
    if trees:
        return tree_by_counts(*slices_by_role(Transfers.join(trees), len(inside)), inside)
    parents = tree_parents(evidence, op)
    if not parents:
        return None
    degree = np.zeros(len(inside), np.int64)
    for tree in parents:
        degree += 2 * (np.bincount(tree[tree >= 0], minlength=len(tree)) + (tree >= 0))
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    rows = evidence.state[part]
    return tree_by_counts((rows["send_count"] + rows["recv_count"]).astype(np.int64), degree, inside)


def _algorithm(situation: Situation, op: int, has_ring: bool, has_trees: bool) -> Algorithm:
    """What the round ran by its own rows, else what the communicator only has links for."""
    evidence = situation.evidence
    rows = evidence.rounds
    mine = rows[
        (rows["comm"] == evidence.comm_ids[op]) & (rows["round"] == situation.graph.collectives.round[op])
    ]
    if "path" in (rows.dtype.names or ()):
        codes = distinct(mine["path"] >> 4)
        codes = codes[codes > 0]
        if len(codes) == 1 and int(codes[0]) in Algorithm._value2member_map_:
            return Algorithm(int(codes[0]))
    named_trees = bool(evidence.tree_of(op))
    if has_ring and not has_trees and not named_trees:
        return Algorithm.RING
    if not has_ring and (has_trees or named_trees):
        return Algorithm.TREE
    return Algorithm.UNKNOWN
