"""INIT: ranks that never got as far as exchanging data: bootstrap, host barriers, first connections."""

import numpy as np

from paceline.analysis.arrays import without
from paceline.analysis.evidence import Ints, JobEvidence, Mask
from paceline.analysis.findings import (
    Finding,
    group_root,
    name_ranks,
    note,
    nothing,
    phrase,
    plural,
    rank_roots,
    seconds,
)
from paceline.analysis.situation import Situation
from paceline.contracts.codes import FrameFlag, HostWait
from paceline.contracts.verdicts import Action, ActionKind, Owner, Role, Root, SubReason, VerdictClass

_RENDEZVOUS = (HostWait.BOOTSTRAP, HostWait.STORE, HostWait.BARRIER)


def lazy_connect(situation: Situation) -> Finding | None:
    """The first round of a communicator, or the first message of a pair, that never completes although
    everybody has entered it. Connections are made then, so until `connect_age_s` nothing is wrong."""
    ops = np.flatnonzero(situation.satisfied)
    first = ops[is_first_use(situation, ops)]
    if len(first) == 0 and len(ops) == 0:
        ops = first = _first_uses_with_unreported(situation)
    if len(first) == 0:
        return None
    later = without(ops, first)
    if len(later) and situation.first_in_program(ops) in later:
        return None
    op = situation.first_in_program(first)
    age_ms = int(situation.graph.age_ms[op])
    if age_ms < situation.policy.connect_age_s * 1000:
        return nothing("connecting", f"{phrase(situation, op)} is the first use and may still connect")
    evidence, graph = situation.evidence, situation.graph
    if op >= graph.pair_base:
        at = op - graph.pair_base
        ranks, name = [int(graph.pairs.rank[at]), int(graph.pairs.peer[at])], "pair"
    else:
        ranks, name = [int(rank) for rank in evidence.members(op)], evidence.comm_name(op)
    blind = situation.blind(op)
    unknown = f"; nothing is known of {name_ranks(blind)}" if len(blind) else ""
    return Finding(
        "lazy_connect",
        VerdictClass.INIT,
        f"{plural(len(ranks) - len(blind), 'rank')} entered {phrase(situation, op)}, the first use, and it "
        f"has not completed for {seconds(age_ms)}{unknown}",
        SubReason.LAZY_CONNECT,
        (group_root(evidence, ranks, name),),
        op,
        Owner.FABRIC,
        Action(ActionKind.COLLECT, name_ranks(ranks), "check interfaces, routes and firewalls between them"),
        0.75 if len(blind) == 0 else 0.6,
        (
            note(
                "first_use",
                "all that are seen have entered and nothing was ever completed here",
                threshold=f">= {situation.policy.connect_age_s:g} s",
                head_age_ms=age_ms,
            ),
        ),
        would_decide="connection logs of the members",
    )


def _first_uses_with_unreported(situation: Situation) -> Ints:
    """First rounds that all who are seen have entered, where nothing else stands still by itself. A
    member without a report may not have entered; the group that is named contains it."""
    ends = situation.open_ends
    blind = situation.satisfied_but_blind
    if len(ends) == 0 or not bool(blind[ends].all()) or not bool(is_first_use(situation, ends).all()):
        return np.zeros(0, np.int64)
    return ends


def is_first_use(situation: Situation, ops: Ints) -> Mask:
    """Rounds number 1 that nobody has left and in which nothing has begun to move, and pairs that never
    completed anything."""
    graph, evidence = situation.graph, situation.evidence
    answers = []
    for op in ops:
        if op < graph.pair_base:
            part = slice(int(evidence.offsets[op]), int(evidence.offsets[op + 1]))
            done = evidence.state["completed"][part]
            untouched = int(graph.collectives.round[op]) == 1 and not done.any()
            answers.append(untouched and not _has_begun(evidence, int(op), part))
        else:
            answers.append(int(graph.pairs.sequence[op - graph.pair_base]) == 1)
    return np.array(answers, np.bool_)


def _has_begun(evidence: JobEvidence, op: int, part: slice) -> bool:
    """Whether a slice of the first round was transferred, or its kernel runs: then connections are made.

    Where messages ran in the communicator as well, either may be theirs.
    """
    if bool((evidence.peers["comm"] == evidence.comm_ids[op]).any()):
        return False
    rows, seen = evidence.state[part], evidence.seen[part]
    begun = (rows["send_count"] > 0) | (rows["recv_count"] > 0)
    begun |= (rows["flags"] & FrameFlag.KERNEL_STARTED.value) != 0
    return bool((begun & seen).any())


def bootstrap(situation: Situation) -> Finding | None:
    """Ranks have waited long for the rendezvous or a host barrier that others never reached."""
    evidence = situation.evidence
    rows = evidence.processes
    waiting = evidence.process_seen & np.isin(rows["host_wait"], _RENDEZVOUS)
    if not waiting.any():
        return None
    age_ms = int(rows["host_wait_age_ms"][waiting].max())
    if age_ms < situation.policy.init_age_s * 1000 or bool(situation.busy[~waiting].any()):
        return None
    started = bool((evidence.column("entered") > 0).any())
    gone = situation.processes.ended | situation.processes.dead
    absent = np.flatnonzero(~waiting & ~gone)
    if len(absent) == 0:
        return None if started else _all_wait(situation, waiting, age_ms)
    reported = evidence.process_seen[absent] & ~situation.processes.lost[absent]
    unreported = absent[~reported]
    # Who was seen elsewhere is evidence; who has no probe may wait there like all others.
    absent = absent[reported] if reported.any() else absent
    words = "never reached" if reported.any() else "never reported from"
    place = "a barrier of the host" if started else "bootstrap"
    role = Role.INITIATING if reported.any() or len(absent) == 1 else Role.UNKNOWN
    roots: tuple[Root, ...] = rank_roots(evidence, absent, situation.policy.roots_max, role)
    return Finding(
        "host_barrier_missing" if started else "bootstrap_missing",
        VerdictClass.H1 if started else VerdictClass.INIT,
        f"{name_ranks(absent)} {words} {place}",
        SubReason.MISSING_ENTER if started else SubReason.BOOTSTRAP,
        roots,
        owner=Owner.USER_CODE if started else Owner.HOST,
        action=Action(ActionKind.COLLECT, name_ranks(absent), "see whether it started; take its stack"),
        confidence=0.8,
        evidence=(
            note(
                "bootstrap",
                f"{int(waiting.sum())} ranks wait",
                threshold=f">= {situation.policy.init_age_s:g} s",
                host_wait_age_ms=age_ms,
                unreported=len(unreported),
            ),
        ),
        waiting=tuple(np.flatnonzero(waiting).tolist()),
    )


def _all_wait(situation: Situation, waiting: Mask, age_ms: int) -> Finding:
    return Finding(
        "bootstrap_all",
        VerdictClass.INIT,
        f"all {situation.evidence.world_size} ranks wait in bootstrap",
        SubReason.BOOTSTRAP,
        owner=Owner.FRAMEWORK,
        action=Action(ActionKind.COLLECT, "all ranks", "check the store address and the network"),
        confidence=0.6,
        evidence=(note("bootstrap", "nobody is missing", host_wait_age_ms=age_ms, supports=False),),
        waiting=tuple(np.flatnonzero(waiting).tolist()),
    )
