"""What became of each process: alive, ended in order, dead, frozen, traced, silent."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from paceline.analysis.evidence import Ints, JobEvidence, Mask
from paceline.analysis.health_bound import HARDWARE, REMARKS
from paceline.analysis.policy import JudgePolicy
from paceline.contracts.codes import ExitKind, Phase, ProcessState
from paceline.contracts.registry import HealthEvent, HealthKind

# Told to stop: SIGTERM and SIGINT as the kernel says it, and as shells and Python pass it on.
STOP_CODES = (-15, -2, 143, 130)
_TAKES_BACK = {HealthKind.GPU_ANSWERS: HealthKind.GPU_SILENT, HealthKind.LINK_BACK: HealthKind.LINK}
_GATED = (Phase.INIT, Phase.COMPILE, Phase.CHECKPOINT, Phase.EVALUATE, Phase.DATA, Phase.FINISH)


@dataclass(frozen=True, eq=False)
class Processes:
    """Masks over ranks. A rank without any report is in none of them but `silent`."""

    ended: Mask  # finished in order
    dead: Mask  # gone, and not in order
    vanished: Mask  # the part of `dead` of which nobody can say how it ended
    told: Mask  # dead because it was told to stop
    exit_code: Ints
    frozen: Mask  # stopped, or its native heartbeat stands still
    stopped: Mask  # stopped by a signal, as the kernel says
    traced: Mask
    gil: Mask  # native heartbeat beats, Python's does not
    lost: Mask  # on a node that fell silent: its rows are history
    silent: Mask  # no report of the process at all
    gated: Mask  # in a declared phase other than training
    cancelled: bool
    lost_nodes: tuple[str, ...]
    hardware: tuple[HealthEvent, ...]  # what may stop a rank, and was not taken back
    remarks: tuple[HealthEvent, ...]


def read_processes(evidence: JobEvidence, policy: JudgePolicy) -> Processes:
    """Masks of the ranks, from the process rows and the health events."""
    rows, seen = evidence.processes, evidence.process_seen
    kind, state = rows["exit_kind"], rows["process_state"]
    exit_code = rows["exit_code"].astype(np.int64)
    ended = (kind == ExitKind.CLEAN) | (rows["finished"] == 1)
    gone = seen & (kind != ExitKind.NONE) | np.isin(state, [ProcessState.GONE, ProcessState.ZOMBIE])
    explained = np.isin(kind, [ExitKind.ERROR, ExitKind.SIGNAL])
    # An agent that only has the goodbye of a process that was told to stop knows no number.
    stopping = (kind == ExitKind.SIGNAL) & (exit_code == 0)
    frozen = np.zeros(evidence.world_size, np.bool_)
    lost_nodes: dict[str, bool] = {}
    cancelled = evidence.job_state == "cancelled"
    for event in evidence.health:
        rank = event.rank
        if event.kind in (HealthKind.HEARTBEAT_LOST, HealthKind.HEARTBEAT_BACK):
            lost_nodes[event.node] = event.kind is HealthKind.HEARTBEAT_LOST
        elif event.kind is HealthKind.CANCELLED:
            cancelled = True
        elif rank is not None and 0 <= rank < evidence.world_size:
            if event.kind is HealthKind.PROCESS_EXIT:
                gone[rank] = True
                ended[rank] |= event.exit_code == 0
                if event.exit_code is not None:
                    explained[rank] |= event.exit_code != 0
                    exit_code[rank] = event.exit_code
            elif event.kind in (HealthKind.PROCESS_FROZEN, HealthKind.PROCESS_RESUMED):
                frozen[rank] = event.kind is HealthKind.PROCESS_FROZEN
    silent_nodes = [node for node, is_lost in lost_nodes.items() if is_lost]
    lost_index = [index for index, node in enumerate(evidence.nodes) if node in silent_nodes]
    dead = gone & ~ended
    lost = np.isin(evidence.node_of, lost_index) & ~ended & ~dead
    alive = ~ended & ~dead & ~lost
    stopped = seen & (state == ProcessState.STOPPED) & alive
    traced = seen & (state == ProcessState.TRACED) & alive
    stale = seen & (rows["native_age_ms"] >= policy.frozen_age_s * 1000) & alive & ~traced
    gil = seen & (rows["python_age_ms"] >= policy.gil_age_s * 1000) & alive & ~stale & ~stopped
    return Processes(
        ended=ended,
        dead=dead,
        vanished=dead & ~explained,
        told=dead & (np.isin(exit_code, STOP_CODES) | stopping),
        exit_code=exit_code,
        frozen=(stopped | stale | (frozen & alive)) & ~traced,
        stopped=stopped,
        traced=traced,
        gil=gil,
        lost=lost,
        silent=~seen & ~ended & ~dead & ~lost,
        gated=seen & np.isin(rows["phase"], _GATED),
        cancelled=cancelled,
        lost_nodes=tuple(silent_nodes),
        hardware=_standing(evidence.health, HARDWARE),
        remarks=_standing(evidence.health, REMARKS),
    )


def _standing(health: Iterable[HealthEvent], kinds: frozenset[HealthKind]) -> tuple[HealthEvent, ...]:
    """Events of `kinds` that nothing took back, in order; the copy that names a rank before that of its
    node, and of two copies of one occasion that."""
    found: dict[tuple[object, ...], HealthEvent] = {}
    for event in health:
        if (over := _TAKES_BACK.get(event.kind)) in kinds:
            for key in [key for key in found if key[:4] == (over, event.node, event.gpu, event.device)]:
                del found[key]
        if event.kind not in kinds:
            continue
        key = (event.kind, event.node, event.gpu, event.device, event.code, event.at_unix_s)
        known = found.get(key)
        if known is None or (known.rank is None and event.rank is not None):
            found[key] = event
        elif known.rank != event.rank and event.rank is not None:
            found[(*key, event.rank)] = event  # two ranks share the GPU
    return tuple(found.values())
