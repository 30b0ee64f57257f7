"""DEADLOCK: operations that wait for each other in a circle, and who turned the order round."""

from dataclasses import dataclass

import numpy as np

from paceline.analysis.arrays import distinct
from paceline.analysis.evidence import Ints, Mask
from paceline.analysis.findings import Finding, group_root, name_ranks, note, phrase, rank_roots
from paceline.analysis.programs import UNKNOWN, Answer, Key, Programs, Standing
from paceline.analysis.situation import Edges, Situation
from paceline.analysis.stage_peers import peer_mismatch, wrong_peer_of
from paceline.contracts.codes import OpState
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Evidence,
    Owner,
    Root,
    SubReason,
    VerdictClass,
)

# An operation that the device has started on some ranks and not on others, while these run another one.
_NOT_STARTED, _STARTED = OpState.ENTERED, OpState.STARTED
TURNS_MAX = 4096
RANKS_COMPARED_MAX = 4096


@dataclass(frozen=True)
class Turn:
    """Rank `rank` is inside `inside` and keeps `lacking` waiting: it took `inside` first."""

    rank: int
    inside: int
    lacking: int


def cycle(situation: Situation) -> Finding | None:
    """A circle of stalled operations. Runs only where no rank is free and no signature differs.

    Sends count in a second try: a rank need not stand in a send that it has left open, so a circle
    that only a send closes may be a rank that stopped elsewhere (`open_send` judges that).
    """
    for edges, sends in ((situation.edges, False), (situation.edges_with_sends, True)):
        ops = np.flatnonzero(_core(situation, edges))
        if len(ops):
            found = _judge_circle(situation, _turns(edges, ops), ops, sends)
            deadlock = found is not None and found.verdict_class is VerdictClass.DEADLOCK
            return None if deadlock and bool(situation.unseen_ends[ops].any()) else found
    return None


def queue_exhausted(situation: Situation) -> Finding | None:
    """Everybody has entered alike, and the device of some ranks never starts the operation.

    Where such a rank runs a later operation instead, and others wait for its part in the earlier one,
    the queues of the devices wait for each other although all calls came in one order.
    """
    evidence, collectives = situation.evidence, situation.graph.collectives
    count = evidence.communicators
    if count == 0:
        return None
    state = evidence.column("state")
    waiting = collectives.inside & (state == _NOT_STARTED)
    running = collectives.inside & (state == _STARTED)
    starts = evidence.offsets[:-1]
    mixed = np.logical_or.reduceat(waiting, starts) & np.logical_or.reduceat(running, starts)
    mixed &= (situation.satisfied | situation.satisfied_but_blind)[:count]
    ops = np.flatnonzero(mixed)
    if len(ops) == 0:
        return None
    op = situation.first_in_program(ops)
    part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
    ranks = evidence.member_rank[part][waiting[part]]
    if 2 * len(ranks) > part.stop - part.start or not situation.observed[ranks].all():
        return None
    elsewhere = distinct(evidence.member_rank[running & np.isin(evidence.member_rank, ranks)])
    circular = len(elsewhere) == len(ranks)
    unknown = len(situation.blind(op))
    if unknown and not circular:
        return None  # the rank may start it when the one that nobody reports has entered
    what = "runs a later operation" if circular else "runs nothing"
    action = Action(ActionKind.COLLECT, name_ranks(ranks), "see what occupies the device")
    if circular:
        action = Action(
            ActionKind.FIX_CONFIGURATION, name_ranks(ranks), "give the streams more device queues"
        )
    return Finding(
        "queue_exhausted" if circular else "never_started",
        VerdictClass.DEADLOCK if circular else VerdictClass.H3,
        f"{phrase(situation, op)} never started on the device of {name_ranks(ranks)}, which {what}",
        SubReason.QUEUE_EXHAUSTION if circular else SubReason.DEVICE_QUEUE,
        rank_roots(evidence, ranks, situation.policy.roots_max),
        op,
        Owner.FRAMEWORK if circular else Owner.GPU,
        action,
        0.85 if circular else 0.75,
        (
            note(
                "not_started",
                f"entered by {part.stop - part.start - unknown} of {part.stop - part.start} members, "
                f"started by {int(running[part].sum())}; the order of calls is the same",
                not_started=len(ranks),
                running_elsewhere=len(elsewhere),
            ),
        ),
    )


def _core(situation: Situation, edges: Edges) -> Mask:
    """Stalled operations on a circle, or between two circles: peel both ends until nothing goes."""
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


def _turns(edges: Edges, ops: Ints) -> list[Turn]:
    """The steps of the circle."""
    inside = np.zeros(
        int(max(edges.source.max(initial=0), edges.target.max(initial=0), ops.max())) + 1, np.bool_
    )
    inside[ops] = True
    core = np.flatnonzero(inside[edges.source] & inside[edges.target])
    if len(core) > TURNS_MAX:  # few ranks do what is rare, and the odd one is among them
        step = edges.source[core] * len(inside) + edges.target[core]
        _, which, count = np.unique(step, return_inverse=True, return_counts=True)
        core = core[np.argsort(count[which.reshape(-1)], kind="stable")][:TURNS_MAX]
    found = zip(
        edges.rank[core].tolist(), edges.target[core].tolist(), edges.source[core].tolist(), strict=True
    )
    return [Turn(rank, inside, lacking) for rank, inside, lacking in found]


def _judge_circle(situation: Situation, turns: list[Turn], ops: Ints, sends: bool) -> Finding | None:
    """Name the ranks that differ from their siblings; else all ranks of the circle as a group."""
    programs = Programs(situation)
    standings = _standings(programs, turns)
    odd = {rank for rank, answer in standings.items() if answer.standing is Standing.ODD}
    involved = sorted(standings)
    unsure = any(answer.standing is Standing.UNKNOWN for answer in standings.values())
    if not odd and not sends:
        odd = _outvoted(programs, turns)
    if sends and not odd and not unsure and not _only_sends(situation, involved):
        return None  # everybody did what its siblings did: the circle is not one
    if not odd or len(odd) == len(involved):
        return _circle(situation, turns, ops, involved)
    if (swapped := wrong_peer_of(situation, programs, sorted(odd))) is not None:
        return swapped
    shown = next(turn for turn in turns if turn.rank in odd)
    answer = standings[shown.rank]
    notes = (
        note(
            "circle",
            f"{len(ops)} operations wait for each other and no rank is free",
            operations=len(ops),
            ranks=len(involved),
            oldest_ms=int(situation.graph.age_ms[ops].max()),
        ),
        _why(programs, odd, answer.key, answer.by),
    )
    if answer.key is not None and answer.instead is not None:
        return peer_mismatch(situation, shown.rank, shown.inside, answer.instead, answer.key, notes)
    if answer.key is not None and answer.key[0] == "pair":
        return _counterpart(situation, turns, sorted(odd), answer.key, answer.by, notes)
    first, second = phrase(situation, shown.inside), phrase(situation, shown.lacking)
    return Finding(
        "order_inversion",
        VerdictClass.DEADLOCK,
        f"{name_ranks(sorted(odd))} entered {first} before {second}, the others after it",
        SubReason.ORDER_INVERSION,
        rank_roots(situation.evidence, sorted(odd), situation.policy.roots_max),
        shown.inside,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, name_ranks(sorted(odd)), "enter them in one order"),
        0.9 if not unsure else 0.85,
        notes,
    )


def _only_sends(situation: Situation, ranks: list[int]) -> bool:
    """Every rank of the circle stands in sends only, each to one that stands in sends: blocking sends
    that wait for each other, whatever the siblings do."""
    return bool(situation.sending[ranks].all())


def _circle(situation: Situation, turns: list[Turn], ops: Ints, involved: list[int]) -> Finding:
    """Nobody can be told from the others."""
    first, second = phrase(situation, turns[0].inside), phrase(situation, turns[0].lacking)
    roots: tuple[Root, ...] = (group_root(situation.evidence, involved, "circle"),)
    return Finding(
        "circle",
        VerdictClass.DEADLOCK,
        f"{name_ranks(involved)} wait for each other in {first} and {second}",
        SubReason.ORDER_INVERSION,
        roots,
        turns[0].inside,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, name_ranks(involved), "compare the order of their calls"),
        0.7,
        (
            note(
                "circle",
                f"{len(ops)} operations wait for each other and no rank is free",
                operations=len(ops),
                ranks=len(involved),
                oldest_ms=int(situation.graph.age_ms[ops].max()),
            ),
        ),
        would_decide="the order of calls that the training script means, or the calls of other pipelines",
    )


def _standings(programs: Programs, turns: list[Turn]) -> dict[int, Answer]:
    """What the siblings of each rank of the circle say; bounded, the rest stays unknown."""
    ranks = dict.fromkeys(turn.rank for turn in turns)
    compared = set(list(ranks)[:RANKS_COMPARED_MAX])
    mine = [turn for turn in turns if turn.rank in compared]
    # Nobody else may have made the call that a rank stands in; with run-ahead it has made the other, too.
    pairs = [(turn.rank, turn.inside) for turn in mine] + [(turn.rank, turn.lacking) for turn in mine]
    found = programs.standings(pairs)
    return {rank: found.get(rank, UNKNOWN) for rank in ranks}


def _outvoted(programs: Programs, turns: list[Turn]) -> set[int]:
    """Ranks that took two kinds of groups one way where at least twice as many took them the other."""
    asked: dict[tuple[int, int], set[int]] = {}
    for turn in turns[:RANKS_COMPARED_MAX]:
        asked.setdefault((turn.inside, turn.lacking), set()).add(turn.rank)
    odd: set[int] = set()
    for (inside, lacking), ranks in asked.items():
        odd.update(programs.outvoted(np.array(sorted(ranks), np.int64), inside, lacking).tolist())
    return odd


def _why(programs: Programs, odd: set[int], key: Key | None, by: int) -> Evidence:
    if key is None:
        return note(
            "votes", f"other ranks entered the two the other way round than {name_ranks(sorted(odd))}"
        )
    what = f"rounds of kind {programs.kind_name(int(str(key[1])))}"
    if key[0] == "pair":
        what = f"{'receives' if key[3] else 'sends'} with place {key[2]}"
    return note(
        "siblings",
        f"before the same call the siblings of {name_ranks(sorted(odd))} had called "
        f"{abs(by)} {'more' if by < 0 else 'fewer'} {what}",
        difference=by,
    )


def _counterpart(
    situation: Situation,
    turns: list[Turn],
    odd: list[int],
    key: Key,
    by: int,
    notes: tuple[Evidence, ...],
) -> Finding:
    """A send or receive was left out, or made once too often."""
    pairs = [turn.lacking for turn in turns if turn.rank in odd and turn.lacking >= situation.graph.pair_base]
    op = pairs[0] if pairs else next(turn.inside for turn in turns if turn.rank in odd)
    side = "receive" if key[3] else "send"
    what = f"left out a {side}" if by < 0 else f"posted one {side} too many"
    return Finding(
        "missing_counterpart",
        VerdictClass.H1 if by < 0 else VerdictClass.H2,
        f"{name_ranks(odd)} {what}; {phrase(situation, op)} never met its counterpart",
        SubReason.P2P_MISSING_COUNTERPART,
        rank_roots(situation.evidence, odd, situation.policy.roots_max),
        op,
        Owner.USER_CODE,
        Action(ActionKind.FIX_CODE, name_ranks(odd), "sends and receives must come in pairs"),
        0.85,
        notes,
    )
