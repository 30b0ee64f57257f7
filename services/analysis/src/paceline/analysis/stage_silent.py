"""Stalled operations with members that nobody reported: what the ranks beside them show all the same.

The cause that is seen comes first: a rank or link whose place the observed members show needs no silent
rank. Only where everything that stands still ends at one silent rank, and nothing else explains it, that
rank is named.
"""

import numpy as np

from paceline.analysis.arrays import distinct
from paceline.analysis.findings import Finding, name_ranks, phrase
from paceline.analysis.situation import Situation
from paceline.analysis.stage_init import is_first_use
from paceline.analysis.stage_progress import Narrow, narrow_down, progress_note, stuck_finding
from paceline.contracts.verdicts import Action, ActionKind, Owner, SubReason, VerdictClass

Places = list[tuple[int, Narrow]]


def seen_through(situation: Situation) -> Finding | None:
    """As `no_progress` for operations with members that nobody reported, where waits or counts show
    the place all the same: the ranks beside a silent one tell whether it does its part."""
    ops = np.flatnonzero(situation.satisfied_but_blind)[: situation.policy.roots_max]
    places = [(int(op), narrow_down(situation, int(op))) for op in ops]
    seen = [(op, narrow) for op, narrow in places if narrow.is_exact and not narrow.unseen]
    if seen:
        return stuck_finding(situation, seen)
    return _silent(situation, places)


def _silent(situation: Situation, places: Places) -> Finding | None:
    """H1 of the one silent rank at which everything ends; None where something else may hold it."""
    decided = [(op, narrow) for op, narrow in places if narrow.is_exact]
    ranks = sorted({root.rank for _, narrow in decided for root in narrow.roots if root.rank is not None})
    if len(ranks) != 1 or not _ends_at(situation, ranks[0], decided):
        return None
    op = situation.first_in_program(np.array([op for op, _ in decided], np.int64))
    narrow = dict(decided)[op]
    return Finding(
        "silent_by_neighbours",
        VerdictClass.H1,
        f"{name_ranks(ranks)}, of which nothing is known, does not take part in {phrase(situation, op)}",
        SubReason.MISSING_ENTER,
        narrow.roots,
        op,
        Owner.UNKNOWN,
        Action(ActionKind.COLLECT, name_ranks(ranks), "see whether the process and its agent run"),
        0.6,
        (progress_note(situation, op, narrow, len(decided)),),
        would_decide=f"a sample of {name_ranks(ranks)}",
        settle_s=3.0,
    )


def _ends_at(situation: Situation, rank: int, decided: Places) -> bool:
    """Whether every wait ends at `rank`, and nothing but its absence can be the reason.

    Not so where another operation stands still by itself and comes no later in the program (it may hold
    the rank as well), where connections are only being made, and where the members call what was never
    called here before (the silent rank may have called something else).
    """
    graph = situation.graph
    ops = np.array([op for op, _ in decided], np.int64)
    ends = situation.open_ends
    blind_for_it = np.isin(ends, graph.blind.op[graph.blind.rank == rank])
    if not bool((blind_for_it & ~graph.opaque[ends]).all()) or bool(is_first_use(situation, ops).any()):
        return False
    others = ends[(ends < graph.pair_base) & ~np.isin(ends, ops)]
    if not all(any(_comes_later(situation, int(other), op) for op in ops) for other in others):
        return False
    return all(_is_usual(situation, int(op)) for op in ops)


def _comes_later(situation: Situation, other: int, op: int) -> bool:
    """Whether the ranks inside `other` were through the round of `op` in their own group of that kind:
    ranks of one program enter them in one order, so nobody is in `other` who is not through `op`."""
    evidence = situation.evidence
    kind, size = evidence.comm_kinds[op], len(evidence.members(op))
    if not kind or evidence.comm_kinds[other] == kind:
        return False
    alike = np.array([each == kind for each in evidence.comm_kinds], np.bool_)
    alike &= np.diff(evidence.offsets) == size
    at = np.flatnonzero(evidence.seen & alike[evidence.comm_of])
    holders = situation.holders(other)
    mine = at[np.isin(evidence.member_rank[at], holders)]
    through = evidence.state["completed"][mine] >= situation.graph.collectives.round[op]
    return len(mine) > 0 and bool(through.all())


def _is_usual(situation: Situation, op: int) -> bool:
    """Whether the members' call was recorded in another round of this communicator, too."""
    evidence = situation.evidence
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    inside = situation.graph.collectives.inside[part]
    called = distinct(evidence.state["head_signature"][part][inside])
    rows = evidence.rounds
    others = (rows["comm"] == evidence.comm_ids[op]) & (rows["round"] > 0)
    others &= rows["round"] != situation.graph.collectives.round[op]
    return bool(np.isin(called, rows["signature"][others]).all())
