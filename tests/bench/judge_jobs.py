"""Evidence of big jobs, one per class, for the cost of a judgement.

Hangs come from the fleet simulator, as the agents of all nodes would report them some seconds after
the fault; slow jobs are written down as the detector sends them: kept rounds of the slow keys.
"""

from dataclasses import dataclass

import numpy as np

from paceline.analysis import JobEvidence, build_evidence
from paceline.contracts.batch import (
    BASELINE_ROW,
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    Batch,
    BatchKind,
    RowKind,
    Rows,
    pack_path,
)
from paceline.contracts.codes import Algorithm, DType, Function, OpKind, OpState, Phase, Protocol
from paceline.contracts.registry import CommunicatorRecord, JobRecord, NodeRecord
from paceline.fleet import (
    CommKind,
    Conditions,
    Fault,
    FaultKind,
    FleetJob,
    Profile,
    ProfileName,
    Program,
    Topology,
    draw_faults,
)

FAULT_AT_S = 3.0
ROUNDS = 4  # kept rounds of a slow key
BASE_NS = 2_000_000


@dataclass(frozen=True)
class Hang:
    """What the simulator is asked for; `second` is when the agents are read."""

    kind: FaultKind
    profile: ProfileName = ProfileName.NCCL1
    second: int = 16
    group: CommKind | None = None
    blind: bool = False  # the guilty rank has no probe


HANGS: dict[str, Hang] = {
    "H1": Hang(FaultKind.MISSING_ENTER, group=CommKind.TP),
    "H2": Hang(FaultKind.OPERATION, group=CommKind.TP),
    "H3": Hang(FaultKind.STUCK, ProfileName.KERNELS, group=CommKind.DP),
    "DEADLOCK order": Hang(FaultKind.ORDER_INVERSION),
    "DEADLOCK order, blocking": Hang(FaultKind.ORDER_INVERSION, ProfileName.GLOO),
    "DEADLOCK queue": Hang(FaultKind.QUEUE_EXHAUSTION),
    "INIT bootstrap": Hang(FaultKind.BOOTSTRAP, second=150),
    "INIT connect": Hang(FaultKind.LAZY_CONNECT, second=40),
    "INCONCLUSIVE": Hang(FaultKind.MISSING_ENTER, group=CommKind.TP, blind=True),
    # No completion is seen: what may be open has to be worked out from the order of the calls.
    "H1 calls only": Hang(FaultKind.MISSING_ENTER, ProfileName.NCCL0, group=CommKind.TP),
    "H2 calls only": Hang(FaultKind.OPERATION, ProfileName.NCCL0, group=CommKind.TP),
    "INCONCLUSIVE calls only": Hang(
        FaultKind.MISSING_ENTER, ProfileName.NCCL0, group=CommKind.TP, blind=True
    ),
}
SLOW = {"S1": (5.0, 0.0), "S2": (0.0, 5.0), "S3": (4.0, 5.0)}  # lateness and transfer, in multiples of T


def hang_evidence(name: str, ranks: int, seed: int = 1, recent_rounds: int = 3) -> JobEvidence:
    """A job of `ranks` that stands still."""
    hang, topology = HANGS[name], Topology.for_ranks(ranks)
    faults = draw_faults(hang.kind, topology, seed, FAULT_AT_S, hang.group)
    return fleet_evidence(topology, hang, faults, seed, recent_rounds)


def fleet_evidence(
    topology: Topology, hang: Hang, faults: tuple[Fault, ...], seed: int, recent_rounds: int = 16
) -> JobEvidence:
    """What all agents together report at `hang.second`."""
    rows, records = fleet_rows(topology, hang, faults, seed, recent_rounds)
    return make_evidence(rows, *records)


Records = tuple[JobRecord, list[NodeRecord], list[CommunicatorRecord]]


def fleet_rows(
    topology: Topology, hang: Hang, faults: tuple[Fault, ...], seed: int, recent_rounds: int = 16
) -> tuple[dict[RowKind, Rows], Records]:
    """The rows of all agents, and the registry."""
    conditions = Conditions(unobserved=tuple(fault.rank for fault in faults) if hang.blind else ())
    job = FleetJob(
        topology,
        Profile.named(hang.profile),
        Program(warmup_s=0.0),
        conditions,
        faults,
        seed,
        job="j",
        attempt="a",
        full_frames=False,
        recent_rounds_max=recent_rounds,
    )
    job.tables(hang.second - 1)
    rows = job.tables(hang.second)
    events = [event for second in (0, 1) for _, _, event in job.events(second)]
    return rows, (
        [event for event in events if isinstance(event, JobRecord)][-1],
        [event for event in events if isinstance(event, NodeRecord)],
        [event for event in events if isinstance(event, CommunicatorRecord)],
    )


def make_evidence(
    rows: dict[RowKind, Rows],
    job: JobRecord,
    nodes: list[NodeRecord],
    communicators: list[CommunicatorRecord],
    kind: BatchKind = BatchKind.STALLED,
) -> JobEvidence:
    """As the localizer puts one signal together."""
    rows = {name: table for name, table in rows.items() if len(table) and name is not RowKind.FRAME}
    batch = Batch(kind, "j", "a", "d", 0, 1, 1, 1, 1, rows)
    return build_evidence([batch], job, nodes, communicators)


def slow_evidence(name: str, ranks: int) -> JobEvidence:
    """A job with one rank that comes late, one slow link, or both; every communicator of the guilty
    rank's tensor group is slow, and the world."""
    topology = Topology.for_ranks(ranks)
    late, transfer = SLOW[name]
    guilty, rng = ranks // 2 + 5, np.random.default_rng(3)
    job = FleetJob(topology, Profile.named(ProfileName.KERNELS), seed=1, job="j", attempt="a")
    state = _state(topology)
    tables, bases = [], []
    for comm_kind, index in _slow_groups(topology, guilty, only_link=late == 0):
        groups = topology.groups[comm_kind]
        members = groups.members[index]
        is_link = transfer > 0 and comm_kind is CommKind.DP and guilty in members
        factor = np.full(len(members), 1.0 + late + (transfer if is_link else 0.0))
        factor[members == guilty] -= late
        for number in range(400, 400 + ROUNDS):
            rows = np.zeros(len(members), ROUND_ROW)
            rows["comm"], rows["rank"], rows["comm_rank"] = (
                groups.ids[index],
                members,
                np.arange(len(members)),
            )
            rows["round"], rows["count"], rows["kind"] = number, 4096, OpKind.COLLECTIVE
            rows["function"], rows["dtype"], rows["state"] = (
                Function.ALL_REDUCE,
                DType.FLOAT32,
                OpState.COMPLETED,
            )
            rows["path"], rows["peer"] = pack_path(Algorithm.RING, Protocol.SIMPLE), -1
            rows["duration_ns"] = BASE_NS * factor * rng.normal(1, 0.01, len(members))
            rows["recv_wait_us"] = 100 + 1000 * late
            if is_link:
                starved = np.argmax(members == guilty)
                rows["recv_wait_us"][starved] += int(BASE_NS / 1e3 * transfer)
            tables.append(rows)
        base = np.zeros(1, BASELINE_ROW)
        base["comm"], base["count"], base["t_base_ns"], base["samples"] = groups.ids[index], 4096, BASE_NS, 20
        base["threshold"], base["slow"], base["window"] = 3.0, ROUNDS, ROUNDS
        base["function"], base["dtype"], base["bucket"] = Function.ALL_REDUCE, DType.FLOAT32, 13
        base["algorithm"], base["protocol"] = Algorithm.RING, Protocol.SIMPLE
        bases.append(base)
    process = np.zeros(ranks, PROCESS_ROW)
    process["rank"], process["host_wait_rank"] = np.arange(ranks), -1
    process["phase"], process["communicators"] = Phase.TRAIN, len(topology.kinds)
    signal = {
        RowKind.STATE: state,
        RowKind.PROCESS: process,
        RowKind.ROUND: np.concatenate(tables),
        RowKind.BASELINE: np.concatenate(bases),
    }
    events = [event for _, _, event in job.events(0)]
    return make_evidence(
        signal,
        next(event for event in events if isinstance(event, JobRecord)),
        [event for event in events if isinstance(event, NodeRecord)],
        [event for event in events if isinstance(event, CommunicatorRecord)],
        BatchKind.SLOW,
    )


def _slow_groups(topology: Topology, guilty: int, *, only_link: bool) -> list[tuple[CommKind, int]]:
    """(kind, index) of the communicators that a late rank makes slow, or one slow link."""
    if only_link:
        return [(CommKind.DP, int(topology.groups[CommKind.DP].comm_of[guilty]))]
    tensor = topology.groups[CommKind.TP]
    index = int(tensor.comm_of[guilty])
    others = topology.groups[CommKind.DP].comm_of[tensor.members[index]].tolist()
    return [(CommKind.TP, index), (CommKind.WORLD, 0), *((CommKind.DP, comm) for comm in others)]


def _state(topology: Topology) -> Rows:
    """Everybody between two rounds."""
    parts = []
    for kind in topology.kinds:
        groups = topology.groups[kind]
        rows = np.zeros(topology.ranks, STATE_ROW)
        rows["comm"], rows["rank"] = groups.ids[groups.comm_of], np.arange(topology.ranks)
        rows["comm_rank"], rows["entered"], rows["completed"] = groups.place_of, 404, 404
        rows["function"], rows["state"], rows["peer"] = Function.ALL_REDUCE, OpState.COMPLETED, -1
        parts.append(rows)
    return np.concatenate(parts)
