"""H1: somebody never entered what the others wait in."""

from dataclasses import replace

import numpy as np

from paceline.analysis.arrays import common, distinct
from paceline.analysis.evidence import Ints
from paceline.analysis.findings import (
    Finding,
    name_ranks,
    note,
    nothing,
    phrase,
    plain_pair,
    rank_roots,
    seconds,
)
from paceline.analysis.situation import Situation
from paceline.contracts.codes import FrameFlag, HostWait, Phase, ProcessState
from paceline.contracts.verdicts import Action, ActionKind, Owner, SubReason, VerdictClass

_STACK = "take its stack before anything is killed"


def not_entered(situation: Situation) -> Finding | None:
    """Ranks with nothing outstanding that a stalled operation lacks."""
    lacking = np.zeros(situation.evidence.world_size, np.bool_)
    lacking[situation.idle_lacks.rank] = True
    roots = _without_level_groups(situation, np.flatnonzero(lacking))
    if len(roots) == 0:
        return None
    # Store and barrier waits without a known target are for anybody: they do not come first.
    free = roots[~situation.hosted[roots]]
    if len(free) == 0:
        return _absent(situation, roots)
    gate = declared_phase(situation, free)
    return gate or blame(situation, free, "not_entered", 0.97)


def _without_level_groups(situation: Situation, roots: Ints) -> Ints:
    """`roots` without communicators of which every member is a root and nobody can say whether the
    round that all of them entered is over: that would be a stuck round as well as idle ranks."""
    level = situation.graph.collectives.level
    if len(roots) == 0 or not level.any():
        return roots
    evidence = situation.evidence
    named = np.zeros(evidence.world_size, np.bool_)
    named[roots] = True
    whole = np.logical_and.reduceat(named[evidence.member_rank], evidence.offsets[:-1])
    doubtful = level & whole & (np.diff(evidence.offsets) > 1)
    named[evidence.member_rank[doubtful[evidence.comm_of]]] = False
    return np.flatnonzero(named)


def _absent(situation: Situation, hosted: Ints) -> Finding | None:
    """Everybody idle waits in a store or barrier of the host: who is neither there nor elsewhere?"""
    processes = situation.processes
    away = ~situation.busy & ~situation.sending & ~situation.hosted
    away &= ~processes.dead & ~processes.ended & ~processes.lost
    unknown = away & ~situation.observed
    absent = np.flatnonzero(away & situation.observed)
    if unknown.any():
        return None  # one of them may be what the host waits for
    if len(absent) == 0:
        return declared_phase(situation, hosted) or blame(situation, hosted, "not_entered_hosted", 0.8)
    if (gate := declared_phase(situation, absent)) is not None:
        return gate
    found = blame(situation, hosted, "absent_from_host_wait", 0.85)
    sub, owner, why = _finer(situation, int(absent[0]), found.op)
    word = HostWait(int(situation.evidence.processes["host_wait"][hosted[0]])).name.lower()
    return replace(
        found,
        statement=f"{name_ranks(absent)} never reached the {word} in which {name_ranks(hosted)} wait{why}",
        sub_reason=sub,
        owner=owner,
        roots=rank_roots(situation.evidence, absent, situation.policy.roots_max),
        action=Action(ActionKind.COLLECT, name_ranks(absent), _STACK),
    )


def arrived_late(situation: Situation) -> Finding | None:
    """Everybody is inside, some only since a moment: the operation may be about to complete."""
    graph = situation.graph
    mask = situation.stalled & ~situation.settled & (graph.lack_count == 0) & (graph.blind_count == 0)
    mask[graph.pair_base :] = False
    mask[situation.edges.source] = False
    ops = np.flatnonzero(mask)
    if len(ops) == 0:
        return None
    op = situation.oldest(ops)
    holds = graph.holds.where(graph.holds.op == op)
    young = distinct(holds.rank[holds.age_ms < situation.policy.stall_age_s * 1000])
    oldest = int(graph.age_ms[op])
    return Finding(
        "arrived_late",
        VerdictClass.H1,
        f"{name_ranks(young)} entered {phrase(situation, op)} up to {seconds(oldest)} after the others",
        SubReason.DELAYED_ENTER,
        rank_roots(situation.evidence, young, situation.policy.roots_max),
        op,
        Owner.USER_CODE,
        Action(ActionKind.WAIT, name_ranks(young), "it has just arrived"),
        0.6,
        (
            note(
                "arrived_late",
                f"the newest arrival is younger than {situation.policy.stall_age_s:g} s",
                threshold=f"< {situation.policy.stall_age_s:g} s",
                oldest_ms=oldest,
            ),
        ),
        settle_s=4.0,  # it goes on, or it stands still by itself
    )


def declared_phase(situation: Situation, roots: Ints) -> Finding | None:
    """Every root says that it is in a checkpoint, evaluation, compilation or the like."""
    rows = situation.evidence.processes[roots]
    gated = situation.processes.gated[roots]
    ages_ms = situation.graph.age_ms[situation.stalled]
    if not gated.all() or int(ages_ms.max()) >= situation.policy.phase_patience_s * 1000:
        return None
    phases = sorted({Phase(int(code)).name.lower() for code in distinct(rows["phase"])})
    return nothing("declared_phase", f"{name_ranks(roots)} declared the phase {', '.join(phases)}")


def blame(situation: Situation, roots: Ints, reason: str, confidence: float) -> Finding:
    """H1 for `roots`, with the finer word that their processes give."""
    evidence, lacks = situation.evidence, situation.stalled_lacks
    ops = distinct(lacks.op[np.isin(lacks.rank, roots)])
    rounds = ops[ops < situation.graph.pair_base]  # a round says more than a pair: who else is inside
    op = situation.first_in_program(rounds) if len(rounds) else situation.oldest(ops)
    here = common(situation.lacking(op), roots)
    first = int((here if len(here) else roots)[0])
    sub, owner, why = _finer(situation, first, op)
    dropped = _dropped(situation, roots)
    notes = [
        note(
            "not_entered",
            f"{name_ranks(here if len(here) else roots)} did not enter {phrase(situation, op)} "
            f"and has nothing outstanding; {name_ranks(situation.holders(op))} did enter",
            threshold=f"head of line >= {situation.policy.stall_age_s:g} s",
            head_age_ms=int(situation.graph.age_ms[op]),
            holders=len(situation.holders(op)),
        )
    ]
    if dropped:
        notes.append(
            note("dropped", f"the probe dropped {dropped} operations of these ranks", supports=False)
        )
    return Finding(
        reason,
        VerdictClass.H1,
        _statement(situation, roots, op) + why,
        sub,
        rank_roots(evidence, roots, situation.policy.roots_max),
        op,
        owner,
        Action(ActionKind.COLLECT, name_ranks(roots), _STACK),
        confidence * (0.6 if dropped else 1.0) * (0.95 if not evidence.process_seen[roots].all() else 1.0),
        tuple(notes),
    )


def _statement(situation: Situation, roots: Ints, op: int) -> str:
    if situation.graph.pair_base <= op < situation.graph.host_base:
        at = op - situation.graph.pair_base
        side = "receive" if bool(situation.graph.pairs.sends[at]) else "send"
        comm = situation.evidence.comm_name(situation.comm_of_op(op))
        return f"{name_ranks(roots)} never posted its {side} of the {plain_pair(situation, op)} in {comm}"
    return f"{name_ranks(roots)} never entered {phrase(situation, op)}"


def _finer(situation: Situation, rank: int, op: int) -> tuple[SubReason, Owner, str]:
    """Sub-reason, owner and half a sentence for rank `rank`."""
    evidence = situation.evidence
    row = evidence.processes[rank]
    wait = int(row["host_wait"])
    if situation.processes.gil[rank]:
        age = seconds(int(row["python_age_ms"]))
        return SubReason.GIL_HELD, Owner.USER_CODE, f": something has held its GIL for {age}"
    if wait and evidence.process_seen[rank]:
        word = HostWait(wait).name.lower() if wait in HostWait._value2member_map_ else "host"
        owner = {HostWait.DATALOADER: Owner.STORAGE, HostWait.CHECKPOINT: Owner.STORAGE}.get(
            HostWait(wait) if word != "host" else HostWait.NONE, Owner.FRAMEWORK
        )
        age = seconds(int(row["host_wait_age_ms"]))
        return SubReason.HOST_WAIT, owner, f": it has waited for its {word} for {age}"
    owner = Owner.STORAGE if row["process_state"] == ProcessState.DISK_SLEEP else Owner.USER_CODE
    if situation.graph.pair_base <= op < situation.graph.host_base:
        return SubReason.P2P_MISSING_COUNTERPART, owner, ""
    return SubReason.MISSING_ENTER, owner, ""


def _dropped(situation: Situation, roots: Ints) -> int:
    """Operations the probe could not record at these ranks: absence may be a gap of the record."""
    evidence = situation.evidence
    mine = np.isin(evidence.member_rank, roots) & evidence.seen
    flagged = int(np.count_nonzero(evidence.column("flags")[mine] & FrameFlag.DROPPED))
    return int(evidence.processes["dropped"][roots].sum()) + flagged


def delayed(situation: Situation) -> Finding | None:
    """A rank that others wait for keeps making progress elsewhere, for too long."""
    graph, lacks = situation.graph, situation.stalled_lacks
    old = graph.age_ms[lacks.op] >= situation.policy.delayed_enter_s * 1000
    lacks = lacks.where(old)
    holds = situation.strong_holds
    stuck = np.zeros(situation.evidence.world_size, np.bool_)
    stuck[holds.rank[situation.stalled[holds.op]]] = True
    moving = distinct(lacks.rank[situation.busy[lacks.rank] & ~stuck[lacks.rank]])
    if len(moving) == 0:
        return None
    found = blame(situation, moving, "delayed_enter", 0.5)
    return replace(found, sub_reason=SubReason.DELAYED_ENTER)


def open_send(situation: Situation) -> Finding | None:
    """As `not_entered`, for ranks that only have a send open, which need not hold them back."""
    lacks, processes = situation.stalled_lacks, situation.processes
    graph = situation.graph
    idle = situation.sending & situation.observed & ~processes.dead & ~processes.ended
    # Its peer may keep it, or whoever keeps its peer, where that cannot be seen.
    unclear = ~situation.observed
    unclear[graph.holds.rank[graph.blind_count[graph.holds.op] > 0]] = True
    sends = graph.pairs.sends & (graph.pairs.peer >= 0)
    idle[graph.pairs.rank[sends & unclear[graph.pairs.peer]]] = False
    idle &= ~unclear
    roots = distinct(lacks.rank[idle[lacks.rank]])
    if len(roots) == 0:
        return None
    gate = declared_phase(situation, roots)
    return gate or blame(situation, roots, "not_entered_open_send", 0.6)
