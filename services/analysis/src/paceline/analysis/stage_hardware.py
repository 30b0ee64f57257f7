"""Hardware events come first, where a stalled operation needs what they hit."""

from dataclasses import replace

import numpy as np

from paceline.analysis.arrays import common
from paceline.analysis.evidence import Ints
from paceline.analysis.findings import Finding, name_ranks, note
from paceline.analysis.situation import Situation
from paceline.analysis.stage_processes import shown_operation
from paceline.contracts.registry import HealthEvent, HealthKind
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

# Recovery actions of NVIDIA's Xid catalog, as gpud mirrors them; 43, 45 and 63 are consequences.
_XID_IGNORED = (43, 45, 63)
_XID_APPLICATION = (13, 31, 94)
_XID_MACHINE = (79,)
REMARKS_MAX = 3


def hardware(situation: Situation) -> Finding | None:
    """A hardware event on a GPU or node of a rank that a stalled operation needs.

    What says that a fault happened comes before a GPU that does not answer: one that is dead can hold up
    the driver's answers about others.
    """
    silent = HealthKind.GPU_SILENT
    for event in sorted(situation.processes.hardware, key=lambda event: event.kind is silent):
        if event.kind is HealthKind.XID and event.code in _XID_IGNORED:
            continue
        ranks = _concerned(situation, event.kind, _ranks_of(situation, event))
        if len(ranks) == 0:
            continue
        op = shown_operation(situation, ranks)
        what = _words(event)
        gpu = None if _others_silent(situation, event) else event.gpu
        kind = RootKind.NODE if gpu is None else RootKind.GPU
        root = Root(kind, rank=int(ranks[0]), node=event.node, gpu=gpu)
        return Finding(
            "hardware_event",
            VerdictClass.H3,
            f"{name_ranks(ranks)} stopped after {what} on {event.node}",
            SubReason.HARDWARE_EVENT,
            (root,),
            op,
            Owner.FABRIC if event.kind in (HealthKind.LINK, HealthKind.NVLINK) else Owner.GPU,
            _hardware_action(event),
            0.8 if event.kind is silent else 0.95,
            (note("hardware_first", f"{what} on {event.node}: {event.message}", code=event.code),),
        )
    return None


def _hardware_action(event: HealthEvent) -> Action:
    if event.kind is HealthKind.XID and event.code in _XID_APPLICATION:
        return Action(ActionKind.RESTART_PROCESS, event.node, f"Xid {event.code} ends with the process")
    if event.kind is HealthKind.XID and event.code not in _XID_MACHINE:
        return Action(ActionKind.RESET_GPU, event.node, f"Xid {event.code} needs a reset of the GPU")
    if event.kind is HealthKind.GPU_SILENT:
        return Action(ActionKind.RESET_GPU, event.node, "the driver gives no answer about the GPU")
    if event.kind is HealthKind.LINK:
        return Action(ActionKind.NETWORK_TICKET, event.node, "a link of the node failed")
    return Action(ActionKind.REPLACE_NODE, event.node, "the hardware reported a fault")


def _words(event: HealthEvent) -> str:
    """`XID 79`, `LINK mlx5_0/1`."""
    number = "" if event.code is None else f" {event.code}"
    return event.kind.value.upper().replace("_", " ") + number + (f" {event.device}" if event.device else "")


def _others_silent(situation: Situation, event: HealthEvent) -> bool:
    """Whether the driver answers about no single GPU: then which one is at fault is not known."""
    if event.kind is not HealthKind.GPU_SILENT:
        return False
    alike = [each for each in situation.processes.hardware if each.kind is event.kind]
    return len({each.gpu for each in alike if each.node == event.node}) > 1


def _ranks_of(situation: Situation, event: HealthEvent) -> Ints:
    evidence = situation.evidence
    if event.rank is not None and 0 <= event.rank < evidence.world_size:
        return np.array([event.rank], np.int64)
    if event.node not in evidence.nodes:
        return np.zeros(0, np.int64)
    mask = evidence.node_of == evidence.nodes.index(event.node)
    if event.gpu is not None:
        mask &= evidence.gpu == event.gpu
    return np.flatnonzero(mask)


def _concerned(situation: Situation, kind: HealthKind, ranks: Ints) -> Ints:
    """Those of `ranks` that a stalled operation lacks while they do nothing, or that stand inside
    one that everybody has entered. A link keeps nobody from entering."""
    graph = situation.graph
    inside = graph.holds.rank[situation.satisfied[graph.holds.op]]
    if kind is HealthKind.LINK:
        return common(ranks, inside)
    return common(ranks, np.concatenate([situation.idle_lacks.rank, inside]))


def remarks(situation: Situation, finding: Finding) -> tuple[Evidence, ...]:
    """What else was seen on the GPUs and nodes of the roots; it decides nothing."""
    notes = {}
    for event in situation.processes.remarks:
        if not any(_is_of(event, root) for root in finding.roots):
            continue
        where = event.node if event.gpu is None else f"GPU {event.gpu} of {event.node}"
        # A kernel that spins was launched: its rank has entered something.
        against = event.kind is HealthKind.GPU_SPINNING and finding.verdict_class is VerdictClass.H1
        words = f"{where}: {event.message}"
        notes[words] = note("seen_beside", words, supports=not against, kind=event.kind.value)
    return tuple(notes.values())[:REMARKS_MAX]


def _is_of(event: HealthEvent, root: Root) -> bool:
    if event.rank is not None:
        return event.rank in (root.rank, root.peer_rank) or event.rank in root.ranks
    return event.pid is None and event.node == root.node and event.gpu in (None, root.gpu)


def with_remarks(situation: Situation, finding: Finding) -> Finding:
    """`finding` with `remarks`; a late rank whose GPU is slowed down is the GPU's."""
    if not situation.processes.remarks or not finding.roots:
        return finding
    notes = remarks(situation, finding)
    slowed = any(item.inputs["kind"] == HealthKind.THERMAL.value for item in notes)
    owner = Owner.GPU if slowed and finding.verdict_class is VerdictClass.S1 else finding.owner
    return replace(finding, evidence=(*finding.evidence, *notes), owner=owner)
