"""DEADLOCK: operations that wait for each other in a circle, and who turned the order round."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints, Mask
from paceline.analysis.findings import Finding, group_root, name_ranks, note, phrase, rank_roots
from paceline.analysis.situation import Situation
from paceline.contracts.verdicts import Action, ActionKind, Owner, Root, SubReason, VerdictClass

TURNS_MAX = 4096


def cycle(situation: Situation) -> Finding | None:
    """A circle of stalled operations. Runs only where no rank is free and no signature differs."""
    core = _core(situation)
    ops = np.flatnonzero(core)
    if len(ops) == 0:
        return None
    pair = _missing_counterpart(situation, ops)
    if pair is not None:
        return pair
    return _inversion(situation, ops)


def _core(situation: Situation) -> Mask:
    """Stalled operations on a circle, or between two circles: peel both ends until nothing goes."""
    edges = situation.edges
    source, target = edges.source, edges.target
    alive = situation.stalled.copy()
    for _ in range(situation.graph.ops + 1):
        keep = alive[source] & alive[target]
        source, target = source[keep], target[keep]
        has_out = np.zeros(len(alive), np.bool_)
        has_out[source] = True
        has_in = np.zeros(len(alive), np.bool_)
        has_in[target] = True
        remaining = alive & has_out & has_in
        if bool((remaining == alive).all()):
            break
        alive = remaining
    return alive


def _inversion(situation: Situation, ops: Ints) -> Finding:
    """Somebody turned the order of two operations round; named where the others show the order."""
    graph, evidence = situation.graph, situation.evidence
    turns = _turns(situation, ops)
    odd = who_turned(situation, turns)
    involved = sorted({turn.rank for turn in turns})
    clear = len(odd) > 0 and len(odd) < len(involved)
    shown = next((turn for turn in turns if turn.rank in odd), turns[0])
    first, second = phrase(situation, shown.inside), phrase(situation, shown.lacking)
    roots: tuple[Root, ...] = (group_root(evidence, involved, "circle"),)
    statement = f"{name_ranks(involved)} wait for each other in {first} and {second}"
    if clear:
        roots = rank_roots(evidence, sorted(odd), situation.policy.roots_max)
        statement = f"{name_ranks(sorted(odd))} entered {first} before {second}, the others after it"
    return Finding(
        "order_inversion" if clear else "circle",
        VerdictClass.DEADLOCK,
        statement,
        SubReason.ORDER_INVERSION,
        roots,
        shown.inside,
        Owner.USER_CODE,
        Action(
            ActionKind.FIX_CODE, name_ranks(sorted(odd) if clear else involved), "enter them in one order"
        ),
        0.9 if clear else 0.7,
        (
            note(
                "circle",
                f"{len(ops)} operations wait for each other and no rank is free",
                operations=len(ops),
                ranks=len(involved),
                oldest_ms=int(graph.age_ms[ops].max()),
            ),
        ),
        would_decide="" if clear else "the order in which the training script means to enter them",
    )


@dataclass(frozen=True)
class Turn:
    """Rank `rank` is inside `inside` and keeps `lacking` waiting: it took `inside` first."""

    rank: int
    inside: int
    lacking: int


def _turns(situation: Situation, ops: Ints) -> list[Turn]:
    """The steps of the circle, at most a few thousand."""
    edges = situation.edges
    core = np.isin(edges.source, ops) & np.isin(edges.target, ops)
    found = zip(edges.rank[core], edges.target[core], edges.source[core], strict=True)
    return [Turn(int(rank), int(inside), int(lacking)) for rank, inside, lacking in list(found)[:TURNS_MAX]]


def who_turned(situation: Situation, turns: list[Turn]) -> set[int]:
    """Ranks that took two operations the other way round than the others; empty where unclear.

    Counted in kinds of groups, because the ranks of one job run one program: how many rounds of
    the kind of `lacking` had a rank entered when it entered `inside`?
    """
    counts = _Counts(situation)
    by_step: dict[tuple[int, int], set[int]] = {}
    for turn in turns:
        by_step.setdefault((turn.inside, turn.lacking), set()).add(turn.rank)
    odd: set[int] = set()
    for (inside, lacking), ranks in by_step.items():
        peers = [int(rank) for rank in situation.holders(inside) if int(rank) not in ranks]
        before = [counts.before(rank, inside, lacking) for rank in peers]
        for rank in ranks:
            mine = counts.before(rank, inside, lacking)
            if len(before) >= 2 and all(other == mine + 1 for other in before):
                odd.add(rank)
    if odd:
        return odd
    for (inside, lacking), ranks in by_step.items():
        for rank in ranks:
            against, alike = counts.votes(rank, inside, lacking)
            if against >= 2 and against >= 2 * alike:
                odd.add(rank)
    return odd


class _Counts:
    """Rounds entered by each rank, summed over the groups of one kind."""

    def __init__(self, situation: Situation) -> None:
        evidence = situation.evidence
        self._situation = situation
        sizes = np.diff(evidence.offsets)
        names = [kind or f"size {size}" for kind, size in zip(evidence.comm_kinds, sizes, strict=True)]
        self._kinds = {name: index for index, name in enumerate(dict.fromkeys(names))}
        self._kind_of = np.array([self._kinds[name] for name in names], np.int64)
        self._sums: dict[int, Ints] = {}
        rounds = evidence.rounds
        is_open = (rounds["duration_ns"] == 0) & (rounds["round"] > 0)
        self._open = rounds[is_open & (evidence.index_of(rounds["comm"]) >= 0)]
        self._open_kind = self._kind_of[evidence.index_of(self._open["comm"])]

    def kind(self, op: int) -> int:
        comm = self._situation.comm_of_op(op)
        return int(self._kind_of[comm]) if comm >= 0 else -1

    def entered(self, kind: int) -> Ints:
        """W: rounds entered in groups of `kind`."""
        if kind not in self._sums:
            evidence = self._situation.evidence
            mine = (self._kind_of[evidence.comm_of] == kind) & evidence.seen
            self._sums[kind] = np.bincount(
                evidence.member_rank[mine], evidence.state["entered"][mine], evidence.world_size
            ).astype(np.int64)
        return self._sums[kind]

    def before(self, rank: int, inside: int, lacking: int) -> int:
        """Rounds of the kind of `lacking` that `rank` entered before it entered `inside`."""
        kind = self.kind(lacking)
        holds = self._situation.graph.holds
        issue = holds.issue[(holds.op == inside) & (holds.rank == rank)]
        later = (self._open["rank"] == rank) & (self._open_kind == kind)
        after = int(np.count_nonzero(self._open["issue"][later] > issue.max())) if len(issue) else 0
        return int(self.entered(kind)[rank]) - after

    def votes(self, rank: int, inside: int, lacking: int) -> tuple[int, int]:
        """Ranks that have taken the two kinds the other way round, and as `rank` did."""
        taken, skipped = self.entered(self.kind(inside)), self.entered(self.kind(lacking))
        mine, other = int(taken[rank]), int(skipped[rank])
        against = int(np.count_nonzero((taken == mine - 1) & (skipped == other + 1)))
        return against, int(np.count_nonzero((taken == mine) & (skipped == other)))


def _missing_counterpart(situation: Situation, ops: Ints) -> Finding | None:
    """A circle through a point-to-point pair: one side left out a call, or the other made one more.

    The circle alone does not tell which. Ranks at the same place of other pipelines do: they stand
    in the same collectives and have posted as much as this rank should have.
    """
    graph = situation.graph
    for op in ops[(ops >= graph.pair_base) & (ops < graph.host_base)]:
        at = int(op) - graph.pair_base
        waiter, other = int(graph.pairs.rank[at]), int(graph.pairs.peer[at])
        waits_to_send = bool(graph.pairs.sends[at])
        behind = _against_siblings(situation, other, 1 if waits_to_send else 0)
        ahead = _against_siblings(situation, waiter, 0 if waits_to_send else 1)
        if behind < 0 or ahead > 0:
            root = other if behind < 0 else waiter
            return _counterpart(situation, int(op), root, waits_to_send, left_out=behind < 0)
    return None


def _against_siblings(situation: Situation, rank: int, direction: int) -> int:
    """Posted operations of `rank` minus the median of its siblings; 0 where there are none.

    Siblings are the other members of collectives that share a kind with the rank's data groups:
    members of the communicators of `rank` in which nobody of the pair's own group stands.
    """
    evidence = situation.evidence
    if len(evidence.peers) == 0:
        return 0
    pair_comms = np.unique(evidence.index_of(evidence.peers["comm"]))
    mine = np.unique(evidence.comm_of[evidence.member_rank == rank])
    related = {int(r) for comm in mine if comm in pair_comms for r in evidence.members(int(comm))}
    best: npt.NDArray[np.int64] | None = None
    for comm in mine:
        if comm in pair_comms:
            continue
        members = evidence.members(int(comm))
        siblings = members[~np.isin(members, [*related])]
        if 2 <= len(siblings) < len(members) and (best is None or len(siblings) < len(best)):
            best = siblings
    if best is None:
        return 0
    posted = np.zeros(evidence.world_size, np.int64)
    rows = evidence.peers
    np.add.at(posted, rows["rank"].astype(np.int64), rows["posted"][:, direction].astype(np.int64))
    usual = int(np.median(posted[best]))
    if not bool((np.abs(posted[best] - usual) <= 0).all()):
        return 0
    return int(posted[rank]) - usual


def _counterpart(situation: Situation, op: int, root: int, waits_to_send: bool, left_out: bool) -> Finding:
    side = ("receive" if waits_to_send else "send") if left_out else ("send" if waits_to_send else "receive")
    what = "never posted its" if left_out else "posted one more"
    return Finding(
        "missing_counterpart",
        VerdictClass.H1 if left_out else VerdictClass.H2,
        f"{name_ranks([root])} {what} {side} of {phrase(situation, op)}",
        SubReason.P2P_MISSING_COUNTERPART,
        rank_roots(situation.evidence, [root], 1),
        op,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, name_ranks([root]), "send and receive must come in pairs"),
        0.85,
        (
            note(
                "siblings",
                f"rank {root} has posted {'fewer' if left_out else 'more'} {side}s than the ranks at "
                "its place in other pipelines",
            ),
        ),
    )
