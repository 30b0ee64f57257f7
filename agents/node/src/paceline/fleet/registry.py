"""What agents say once: the job, its nodes, its communicators, and the ends of processes."""

from collections.abc import Iterator

import numpy as np

from paceline.contracts import ids
from paceline.contracts.registry import (
    CommunicatorRecord,
    CoordinateSource,
    HealthEvent,
    HealthKind,
    JobRecord,
    JobState,
    NodeRecord,
    RankRecord,
)
from paceline.fleet.engine import Engine
from paceline.fleet.faults import Fault, FaultKind
from paceline.fleet.history import Ints
from paceline.fleet.layout import Topology, ranks_text

VERSIONS = {"paceline": "0.1.0", "framework": "simulator"}


def job_record(
    job: str, attempt: str, topology: Topology, shards: int, started_unix_s: float, state: JobState
) -> JobRecord:
    return JobRecord(
        job=job,
        attempt=attempt,
        cluster="simulated",
        tenant="",
        user="simulator",
        name=f"simulated {topology.tp}x{topology.pp}x{topology.dp}",
        world_size=topology.ranks,
        shards=shards,
        state=state,
        id_source="declared",
        attempt_source="declared",
        started_unix_s=started_unix_s,
        versions=dict(VERSIONS),
        coordinate_source=CoordinateSource.DECLARED,
    )


def node_records(
    job: str, attempt: str, topology: Topology, pids: Ints, pid_starts: Ints, unobserved: frozenset[int]
) -> Iterator[NodeRecord]:
    """One record per node that has an observed rank."""
    for node in range(topology.nodes):
        first = node * topology.ranks_per_node
        ranks = tuple(
            RankRecord(
                rank=rank,
                local_rank=rank - first,
                pid=int(pids[rank]),
                pid_start=int(pid_starts[rank]),
                gpu=rank - first,
                coordinates=dict(sorted(topology.coordinates(rank).items())),
            )
            for rank in range(first, min(first + topology.ranks_per_node, topology.ranks))
            if rank not in unobserved
        )
        if ranks:
            name = topology.node_name(node)
            yield NodeRecord(job, attempt, name, f"agent-{name}", ranks)


def communicator_records(
    job: str, attempt: str, topology: Topology, shards: int, backend: str
) -> Iterator[CommunicatorRecord]:
    for kind, groups in topology.groups.items():
        for index, name in enumerate(groups.names):
            comm = int(groups.ids[index])
            yield CommunicatorRecord(
                job=job,
                attempt=attempt,
                communicator=ids.format_communicator(comm),
                name=name,
                ranks=ranks_text(groups.members[index]),
                instance=0,
                shard=ids.shard_of(comm, shards),
                backend=backend,
                kind=kind.value,
            )


def draw_pids(topology: Topology, seed: int) -> tuple[Ints, Ints]:
    """(pid, start time in clock ticks) of every rank."""
    random = np.random.default_rng([seed, 41])
    pids = random.integers(1000, 4_000_000, topology.ranks)
    return pids.astype(np.int64), random.integers(10_000, 10_000_000, topology.ranks).astype(np.int64)


def health_events(
    job: str, attempt: str, engine: Engine, pids: Ints, since_s: float, until_s: float, unix_s: float
) -> Iterator[HealthEvent]:
    """Ends and stops of processes in (since, until], as their agent sees them; `unix_s` is second 0."""
    for fault in engine.injector.faults:
        if since_s < fault.at_s <= until_s and fault.kind in _HEALTH:
            yield _event(job, attempt, engine.topology, fault, int(pids[fault.rank]), unix_s)


_HEALTH = {
    FaultKind.DEAD_PROCESS: HealthKind.PROCESS_EXIT,
    FaultKind.FROZEN_PROCESS: HealthKind.PROCESS_FROZEN,
}


def _event(job: str, attempt: str, topology: Topology, fault: Fault, pid: int, unix_s: float) -> HealthEvent:
    kind = _HEALTH[fault.kind]
    node = topology.node_name(int(topology.node_of[fault.rank]))
    dead = kind is HealthKind.PROCESS_EXIT
    code = fault.exit_code
    how = f"signal: killed by signal {-code}" if code < 0 else f"error: exited with status {code}"
    return HealthEvent(
        id=ids.derived_id("hlt", node, job, attempt, kind.value, fault.rank, pid),
        kind=kind,
        node=node,
        job=job,
        attempt=attempt,
        rank=fault.rank,
        pid=pid,
        at_unix_s=unix_s + fault.at_s,
        exit_code=code if dead else None,
        gpu=fault.rank % topology.ranks_per_node,
        message=how if dead else "stopped by a signal (state T)",
    )
