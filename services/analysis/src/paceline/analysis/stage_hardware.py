"""Hardware events come first, where a stalled operation needs what they hit."""

import numpy as np

from paceline.analysis.arrays import common
from paceline.analysis.evidence import Ints
from paceline.analysis.findings import Finding, name_ranks, note
from paceline.analysis.situation import Situation
from paceline.analysis.stage_processes import shown_operation
from paceline.contracts.registry import HealthEvent, HealthKind
from paceline.contracts.verdicts import Action, ActionKind, Owner, Root, RootKind, SubReason, VerdictClass

# Recovery actions of NVIDIA's Xid catalog, as gpud mirrors them; 43, 45 and 63 are consequences.
_XID_IGNORED = (43, 45, 63)
_XID_APPLICATION = (13, 31, 94)
_XID_MACHINE = (79,)


def hardware(situation: Situation) -> Finding | None:
    """A hardware event on a GPU or node of a rank that a stalled operation needs."""
    for event in situation.processes.hardware:
        if event.kind is HealthKind.XID and event.code in _XID_IGNORED:
            continue
        ranks = _concerned(situation, _ranks_of(situation, event))
        if len(ranks) == 0:
            continue
        op = shown_operation(situation, ranks)
        what = event.kind.value.upper() + (f" {event.code}" if event.code is not None else "")
        root = Root(
            RootKind.GPU if event.gpu is not None else RootKind.NODE,
            rank=int(ranks[0]),
            node=event.node,
            gpu=event.gpu,
        )
        return Finding(
            "hardware_event",
            VerdictClass.H3,
            f"{name_ranks(ranks)} stopped after {what} on {event.node}",
            SubReason.HARDWARE_EVENT,
            (root,),
            op,
            Owner.FABRIC if event.kind in (HealthKind.LINK, HealthKind.NVLINK) else Owner.GPU,
            _hardware_action(event),
            0.95,
            (note("hardware_first", f"{what} on {event.node}: {event.message}", code=event.code),),
        )
    return None


def _hardware_action(event: HealthEvent) -> Action:
    if event.kind is HealthKind.XID and event.code in _XID_APPLICATION:
        return Action(ActionKind.RESTART_PROCESS, event.node, f"Xid {event.code} ends with the process")
    if event.kind is HealthKind.XID and event.code not in _XID_MACHINE:
        return Action(ActionKind.RESET_GPU, event.node, f"Xid {event.code} needs a reset of the GPU")
    if event.kind is HealthKind.LINK:
        return Action(ActionKind.NETWORK_TICKET, event.node, "a link of the node failed")
    return Action(ActionKind.REPLACE_NODE, event.node, "the hardware reported a fault")


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


def _concerned(situation: Situation, ranks: Ints) -> Ints:
    """Those of `ranks` that a stalled operation lacks while they do nothing, or that stand inside
    one that everybody has entered."""
    graph = situation.graph
    satisfied = situation.satisfied[graph.holds.op]
    blamed = np.concatenate([situation.idle_lacks.rank, graph.holds.rank[satisfied]])
    return common(ranks, blamed)
