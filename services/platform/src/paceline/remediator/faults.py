"""From an incident to a fault that can be repaired, or to the reason why it is none."""

from paceline.contracts.events import EventType, IncidentEvent
from paceline.contracts.repair import RepairCause
from paceline.contracts.verdicts import ActionKind, Role, RootKind, SubReason, Verdict, VerdictClass
from paceline.remediator.model import Judged

# Most hangs are software: only hardware, death or a freeze move a job to another machine.
SOFTWARE = (VerdictClass.H1, VerdictClass.H2, VerdictClass.DEADLOCK, VerdictClass.INIT)
MACHINE_ACTIONS = (ActionKind.REPLACE_NODE, ActionKind.RESET_GPU)
REPAIRED_TYPES = (
    EventType.INCIDENT_OPENED,
    EventType.INCIDENT_UPDATED,
    EventType.INCIDENT_REOPENED,
    EventType.INCIDENT_RESOLVED,
)


def cause_of(verdict: Verdict) -> RepairCause | None:
    """The class of the fault; None where nothing may follow (no cause, no decision)."""
    found = verdict.verdict_class
    if found in (VerdictClass.NONE, VerdictClass.INCONCLUSIVE):
        return None
    if verdict.sub_reason is SubReason.NODE_LOST:
        return RepairCause.NODE_LOST
    if found is VerdictClass.DEAD_PROCESS:
        return RepairCause.PROCESS_EXIT
    if verdict.sub_reason is SubReason.FROZEN_PROCESS:
        return RepairCause.FROZEN
    if found in SOFTWARE:
        return RepairCause.SOFTWARE
    if verdict.sub_reason is SubReason.HARDWARE_EVENT or verdict.action.kind in MACHINE_ACTIONS:
        return RepairCause.SLOW if found.is_slow else RepairCause.HARDWARE
    if found.is_slow:
        return None  # a slow link or a late rank without a machine to blame is not repaired by a swap
    return RepairCause.HANG


def judged_of(event: IncidentEvent) -> Judged | None:
    """What repair makes of an incident event; None for one that changes nothing for it."""
    if event.type not in REPAIRED_TYPES:
        return None
    ranks: list[int] = []
    nodes: list[str] = []
    for root in event.verdict.roots:
        if root.role is not Role.INITIATING or root.kind in (RootKind.GROUP, RootKind.ROTATING):
            continue  # the smallest group that contains the cause is not the cause
        if root.kind is RootKind.NODE and root.node:
            nodes.append(root.node)
        elif root.kind in (RootKind.RANK, RootKind.GPU) and root.rank is not None:
            ranks.append(root.rank)
    cause = cause_of(event.verdict)
    return Judged(
        id=event.id,
        at_s=event.at_unix_s,
        incident=event.incident,
        cause=cause,
        planned=cause is RepairCause.SLOW,
        ranks=tuple(sorted(set(ranks))),
        nodes=tuple(sorted(set(nodes))),
        message=event.verdict.summary,
        opened_s=event.opened_unix_s,
        resolved=event.type is EventType.INCIDENT_RESOLVED,
        reopened=event.type is EventType.INCIDENT_REOPENED,
    )
