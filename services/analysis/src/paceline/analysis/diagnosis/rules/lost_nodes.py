"""Machines that a scheduler lost: Slurm, Kubernetes or Ray says that the node itself is gone."""

from paceline.analysis.diagnosis.answer import Blame, Ground
from paceline.analysis.diagnosis.case import Case
from paceline.analysis.diagnosis.rules.finding import Finding, main_operation, operation_text, origins_of
from paceline.analysis.facts import Fact, Membership, ProcessEnd
from paceline.contracts.verdicts import Action, ActionKind, Owner, RootKind, SubReason, VerdictClass

NODES_MAX = 8  # more at once: the fabric, the power, or whoever counts them


def node_lost(case: Case) -> Finding | None:
    """The processes on a lost node are gone; who waits for them, or was ended with the job, is healthy."""
    ends = [end for end in case.of(ProcessEnd) if end.node_lost]
    nodes = sorted({end.speaker.host for end in ends if end.speaker.host})
    if not nodes or len(nodes) > NODES_MAX:
        return None
    certain = any(end.signal is not None for end in ends)  # the scheduler has taken it out
    ranks = _ranks_on(case, set(nodes))
    communicator, operation = main_operation(case)
    who = ", ".join(nodes)
    waiting = f"; its peers wait in {operation_text(operation)}" if operation else ""
    return Finding(
        reason="node_lost",
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.PROCESS_KILLED,
        roots=tuple(
            Blame(RootKind.NODE, node=node, ranks=tuple(_ranks_on(case, {node})), why="the scheduler lost it")
            for node in nodes
        ),
        victims=tuple(rank for rank in case.ranks_named if rank not in ranks),
        communicator=communicator,
        operation=operation,
        phase="" if operation else "training (collective of the step)",
        owner=Owner.HOST,
        action=Action(
            ActionKind.REPLACE_NODE if certain else ActionKind.RESTART_PROCESS,
            who,
            "leave it out and look at its console, power and kernel log"
            if certain
            else "find out whether the machine or only its agent died, restart",
        ),
        confidence=0.85,
        grounds=(Ground("node_lost", ends[0].text[:200], origins_of(ends)),),
        summary=f"The node {who} is gone with the processes on it{waiting}; other ends are consequences",
        would_decide=() if certain else (f"kernel log and uptime of {who}",),
    )


def _ranks_on(case: Case, hosts: set[str]) -> list[int]:
    ranks = {rank for rank, place in case.places.items() if place.host in hosts}
    facts: list[Fact] = [*case.of(Membership)]
    ranks |= {r for fact in facts if fact.speaker.host in hosts and (r := case.rank_of(fact)) is not None}
    return sorted(ranks)
