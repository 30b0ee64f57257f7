"""Dead and frozen processes and lost nodes: causes wherever somebody waits for them."""

import numpy as np

from paceline.analysis.arrays import common, distinct, without
from paceline.analysis.evidence import Ints
from paceline.analysis.findings import Finding, group_root, name_ranks, note, phrase, rank_roots, seconds
from paceline.analysis.situation import Situation
from paceline.analysis.unseen_ends import stopped_beside
from paceline.contracts.registry import HealthKind
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Owner,
    Role,
    Root,
    RootKind,
    SubReason,
    VerdictClass,
)


def dead(situation: Situation) -> Finding | None:
    """A process is gone while somebody needs it."""
    processes, evidence = situation.processes, situation.evidence
    gone = np.flatnonzero(processes.dead)
    if len(gone) == 0:
        return None
    waited = _waited_for(situation, gone)
    untold = gone[~processes.told[gone]]
    explained = gone[~processes.vanished[gone] & ~processes.told[gone]]
    crashed = len(explained) > 0 and (len(gone) > 1 or evidence.job_state == "failed")
    if len(waited) == 0 and not crashed:
        return None  # nobody waits (yet): the end of a job, or peers that have not noticed
    candidates = untold if len(untold) else gone
    roots, certain, why = _first_deaths(situation, candidates)
    if len(processes.lost_nodes) and not (processes.exit_code[roots] < 0).any():
        return None  # peers of a lost node fail with errors; the node is the cause
    op = shown_operation(situation, roots)
    told_only = len(untold) == 0
    inside = op >= 0 and bool(np.isin(situation.holders(op), roots).any())
    where = f" {'inside' if inside else 'before'} {phrase(situation, op)}" if op >= 0 else ""
    how = "; ".join(sorted({_how(int(code)) for code in processes.exit_code[roots]})[:3])
    rest = without(gone, roots)
    named: tuple[Root, ...] = rank_roots(evidence, roots, situation.policy.roots_max)
    if not certain:
        named = (group_root(evidence, [int(rank) for rank in roots], "failed first"),)
    signalled = bool((processes.exit_code[roots] < 0).any())
    notes = [note("dead_process", why, ranks=name_ranks(roots), exit=how)]
    if len(rest):
        notes.append(
            note(
                "teardown", f"{name_ranks(rest)} ended afterwards", ranks=len(rest), role=Role.TEARDOWN.value
            )
        )
    return Finding(
        "dead_process" if certain else "dead_process_unordered",
        VerdictClass.DEAD_PROCESS,
        f"{name_ranks(roots)} died ({how}){where}",
        SubReason.PROCESS_KILLED if signalled else SubReason.PROCESS_EXITED,
        named,
        op,
        Owner.HOST if signalled else Owner.USER_CODE,
        Action(ActionKind.RESTART_PROCESS, name_ranks(roots), "the process is gone"),
        (0.97 if certain else 0.5) * (0.6 if told_only else 1.0),
        tuple(notes),
        # A stop signal that reaches the nodes one after the other looks like this at first.
        settle_s=10.0 if told_only else 0.0,
    )


def _how(code: int) -> str:
    if code < 0:
        return f"killed by signal {-code}"
    return f"exit status {code}" if code else "exit status not known"


def _waited_for(situation: Situation, ranks: Ints) -> Ints:
    """Those of `ranks` that a stalled operation lacks, holds beside others, or cannot see, and where no
    source shows completion those whose groups have stopped calling."""
    graph = situation.graph
    touched = np.concatenate(
        [
            situation.stalled_lacks.rank,
            graph.blind.rank[situation.stalled[graph.blind.op]],
            _held_beside_others(situation, ranks),
            stopped_beside(situation.evidence, graph, ranks, situation.stall_age_ms),
        ]
    )
    return common(ranks, touched)


def _held_beside_others(situation: Situation, ranks: Ints) -> Ints:
    """Ranks of `ranks` inside a stalled operation in which another rank stands as well."""
    holds = situation.graph.holds.where(situation.stalled[situation.graph.holds.op])
    mine = np.isin(holds.rank, ranks)
    others = np.bincount(holds.op[~mine], minlength=situation.graph.ops) > 0
    return holds.rank[mine & others[holds.op]]


def _first_deaths(situation: Situation, gone: Ints) -> tuple[Ints, bool, str]:
    """The deaths that came first, whether that is certain, and why.

    A signal (out of memory, abort, segmentation fault) is a cause; an error exit may be the
    consequence of a closed connection. Among error exits the rank that never entered what others
    did comes first, else the earliest report of one node; wall clocks of nodes are not compared.
    """
    processes, evidence = situation.processes, situation.evidence
    if len(gone) == 1:
        return gone, True, "the only process that died"
    signalled = gone[processes.exit_code[gone] < 0]
    if 0 < len(signalled) < len(gone):
        return signalled, True, "killed by a signal, the others ended with an error"
    silent = gone[processes.vanished[gone]]
    if 0 < len(silent) < len(gone):
        return silent, True, "ended without a word, the others with an error"
    behind = _behind(situation, gone)
    if 0 < len(behind) < len(gone):
        return behind, True, "did not enter what the others had entered"
    nodes = {evidence.node(int(rank)) for rank in gone}
    if len(nodes) == 1:
        times = {
            event.rank: event.at_unix_s
            for event in evidence.health
            if event.kind is HealthKind.PROCESS_EXIT and event.rank is not None
        }
        dated = sorted((times[int(rank)], int(rank)) for rank in gone if int(rank) in times)
        if len(dated) > 1 and dated[1][0] - dated[0][0] >= 0.05 and len(dated) == len(gone):
            return np.array([dated[0][1]], np.int64), True, "the earliest exit on its node"
    return gone, False, "their order was not observed"


def _behind(situation: Situation, gone: Ints) -> Ints:
    """Ranks of `gone` that entered fewer rounds of some communicator than another member."""
    evidence = situation.evidence
    if evidence.communicators == 0:
        return np.zeros(0, np.int64)
    entered = np.where(evidence.seen, evidence.column("entered"), 0)
    most = np.maximum.reduceat(entered, evidence.offsets[:-1])[evidence.comm_of]
    late = evidence.seen & (entered < most)
    return common(gone, evidence.member_rank[late])


def frozen(situation: Situation) -> Finding | None:
    """A process is stopped while its peers wait: H3 inside the operation, else H1."""
    evidence, processes = situation.evidence, situation.processes
    ranks = _waited_for(situation, np.flatnonzero(processes.frozen))
    if len(ranks) == 0:
        return None
    op = shown_operation(situation, ranks, inside_first=True)
    first = int(ranks[0])
    inside = op >= 0 and first in situation.holders(op)
    stopped = bool(processes.stopped[ranks].all())
    word = "stopped" if stopped else "frozen"
    age = int(evidence.processes["native_age_ms"][first])
    verb = "is" if len(ranks) == 1 else "are"
    place = f"inside {phrase(situation, op)}" if inside else f"and never entered {phrase(situation, op)}"
    if op < 0:
        place = "and the ranks beside it call nothing any more"
    return Finding(
        "frozen_inside" if inside else "frozen_outside",
        VerdictClass.H3 if inside else VerdictClass.H1,
        f"{name_ranks(ranks)} {verb} {word} {place}",
        SubReason.FROZEN_PROCESS,
        rank_roots(evidence, ranks, situation.policy.roots_max),
        op,
        Owner.HOST,
        Action(ActionKind.RESTART_PROCESS, name_ranks(ranks), "the process does not run"),
        0.97 if stopped else 0.85,
        (
            note(
                "frozen",
                f"the native heartbeat of rank {first} is {seconds(age)} old"
                + (" and the kernel reports it stopped" if stopped else ""),
                threshold=f">= {situation.policy.frozen_age_s:g} s, or stopped",
                native_age_ms=age,
            ),
        ),
    )


def lost_node(situation: Situation) -> Finding | None:
    """A node fell silent and everything that stands still waits for ranks on it."""
    evidence, processes = situation.evidence, situation.processes
    lost = np.flatnonzero(processes.lost)
    needed = _waited_for(situation, lost)
    failed = np.flatnonzero(processes.dead & ~processes.told)
    if len(lost) == 0 or (len(needed) == 0 and len(failed) == 0):
        return None
    if len(needed) and not _explains_all(situation, lost):
        return None
    nodes = sorted({evidence.node(int(rank)) or "" for rank in (needed if len(needed) else lost)})
    ranks = np.array([rank for rank in lost if evidence.node(int(rank)) in nodes], np.int64)
    op = shown_operation(situation, needed) if len(needed) else -1
    return Finding(
        "node_lost",
        VerdictClass.DEAD_PROCESS,
        f"{', '.join(nodes)} fell silent with {name_ranks(ranks)}",
        SubReason.NODE_LOST,
        tuple(
            Root(
                RootKind.NODE, node=node, ranks=tuple(int(r) for r in ranks if evidence.node(int(r)) == node)
            )
            for node in nodes[: situation.policy.roots_max]
        ),
        op,
        Owner.HOST,
        Action(ActionKind.REPLACE_NODE, nodes[0], "the node does not answer"),
        0.8,
        (
            note("node_lost", f"no heartbeat from {', '.join(nodes)}", ranks=len(ranks)),
            note("counter", "the agent alone may have died", supports=False),
        ),
        settle_s=3.0,  # rows of other shards may show a cause on a node that reports
    )


def _explains_all(situation: Situation, ranks: Ints) -> bool:
    """Whether every stalled operation without an observed cause is blind for one of `ranks` only."""
    blind = situation.graph.blind
    open_ends = situation.unanswered
    others = blind.op[~np.isin(blind.rank, ranks)]
    mine = blind.op[np.isin(blind.rank, ranks)]
    ends = np.flatnonzero(open_ends)
    return bool(len(ends)) and not np.isin(ends, others).any() and bool(np.isin(ends, mine).all())


def shown_operation(situation: Situation, ranks: Ints, inside_first: bool = False) -> int:
    """The stalled operation that shows best what `ranks` did: the one they are inside beside
    others (`inside_first`), else the oldest that lacks them, else the oldest they hold, else -1."""
    graph, stalled = situation.graph, situation.stalled
    holds = graph.holds.where(stalled[graph.holds.op])
    mine = np.isin(holds.rank, ranks)
    others = np.bincount(holds.op[~mine], minlength=graph.ops) > 0
    inside = holds.op[mine & others[holds.op]]
    lacks = situation.stalled_lacks
    outside = lacks.op[np.isin(lacks.rank, ranks)]
    blind = graph.blind.op[np.isin(graph.blind.rank, ranks) & stalled[graph.blind.op]]
    choices = (inside, outside) if inside_first else (outside, inside)
    for ops in (*choices, blind, holds.op[mine]):
        if len(ops):
            return situation.oldest(distinct(ops))
    return -1
