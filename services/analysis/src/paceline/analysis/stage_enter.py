"""H1: somebody never entered what the others wait in."""

import numpy as np

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
    lacks = situation.idle_lacks
    roots = np.unique(lacks.rank)
    if len(roots) == 0:
        return None
    # Store and barrier waits without a known target are for anybody: they do not come first.
    free = roots[~situation.hosted[roots]]
    roots = free if len(free) else roots
    gate = declared_phase(situation, roots)
    return gate or blame(situation, roots, "not_entered", 0.97)


def declared_phase(situation: Situation, roots: Ints) -> Finding | None:
    """Every root says that it is in a checkpoint, evaluation, compilation or the like."""
    rows = situation.evidence.processes[roots]
    gated = situation.processes.gated[roots]
    ages_ms = situation.graph.age_ms[situation.stalled]
    if not gated.all() or int(ages_ms.max()) >= situation.policy.phase_patience_s * 1000:
        return None
    phases = sorted({Phase(int(code)).name.lower() for code in np.unique(rows["phase"])})
    return nothing("declared_phase", f"{name_ranks(roots)} declared the phase {', '.join(phases)}")


def blame(situation: Situation, roots: Ints, reason: str, confidence: float) -> Finding:
    """H1 for `roots`, with the finer word that their processes give."""
    evidence, lacks = situation.evidence, situation.stalled_lacks
    ops = np.unique(lacks.op[np.isin(lacks.rank, roots)])
    rounds = ops[ops < situation.graph.pair_base]  # a round says more than a pair: who else is inside
    op = situation.first_in_program(rounds) if len(rounds) else situation.oldest(ops)
    here = np.intersect1d(situation.lacking(op), roots)
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
    flagged = int(np.count_nonzero(evidence.state["flags"][mine] & FrameFlag.DROPPED))
    return int(evidence.processes["dropped"][roots].sum()) + flagged


def delayed(situation: Situation) -> Finding | None:
    """A rank that others wait for keeps making progress elsewhere, for too long."""
    graph, lacks = situation.graph, situation.stalled_lacks
    old = graph.age_ms[lacks.op] >= situation.policy.delayed_enter_s * 1000
    lacks = lacks.where(old)
    holds = situation.strong_holds
    stuck = np.zeros(situation.evidence.world_size, np.bool_)
    stuck[holds.rank[situation.stalled[holds.op]]] = True
    moving = np.unique(lacks.rank[situation.busy[lacks.rank] & ~stuck[lacks.rank]])
    if len(moving) == 0:
        return None
    found = blame(situation, moving, "delayed_enter", 0.5)
    return Finding(**{**found.__dict__, "sub_reason": SubReason.DELAYED_ENTER})


def open_send(situation: Situation) -> Finding | None:
    """As `not_entered`, for ranks that only have a send open, which need not hold them back."""
    lacks, processes = situation.stalled_lacks, situation.processes
    graph = situation.graph
    idle = situation.sending & situation.observed & ~processes.dead & ~processes.ended
    idle[graph.holds.rank[graph.blind_count[graph.holds.op] > 0]] = False  # its peer may keep it
    roots = np.unique(lacks.rank[idle[lacks.rank]])
    if len(roots) == 0:
        return None
    gate = declared_phase(situation, roots)
    return gate or blame(situation, roots, "not_entered_open_send", 0.6)
