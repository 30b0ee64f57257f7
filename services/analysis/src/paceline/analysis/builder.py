"""From decoded batches, registry records and health events to `JobEvidence`.

Rows of later batches replace those of earlier ones (same communicator, rank and so on). Rows that
contradict the registry or a bound are counted in `ignored_rows` and otherwise ignored: hostile
input can hide evidence, it cannot break the judge.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paceline.analysis.arrays import distinct
from paceline.analysis.evidence import (
    COMMUNICATORS_MAX,
    HEALTH_MAX,
    MEMBERS_MAX,
    RANKS_MAX,
    Ints,
    JobEvidence,
    Mask,
)
from paceline.analysis.health_bound import bounded_health
from paceline.analysis.order_memory import JoinedOrders, JoinedTexts
from paceline.analysis.orders import MEMBERS_MAX as ORDER_MEMBERS_MAX
from paceline.contracts.batch import ROW_DTYPES, Batch, RowKind, Rows
from paceline.contracts.ids import format_communicator, parse_communicator, rank_spans
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord, OrderPart

_MEMBERS_UNKNOWN = JoinedTexts("", "", ("order_members_unknown",))


@dataclass(frozen=True)
class _Communicator:
    name: str
    kind: str
    backend: str
    ranks: Sequence[int]
    inferred: bool
    ring: str = ""
    tree: str = ""


def build_evidence(
    batches: Sequence[Batch],
    job: JobRecord | None = None,
    nodes: Iterable[NodeRecord] = (),
    communicators: Iterable[CommunicatorRecord] = (),
    health: Iterable[HealthEvent] = (),
    job_id: str = "",
    attempt: str = "",
    orders: JoinedOrders | None = None,
) -> JobEvidence:
    """Evidence of one job attempt; `batches` oldest first. Never raises for odd content.

    `job_id` and `attempt` are needed only where there is neither a batch nor a job record. `orders` keeps
    what was read of ring and tree orders from one call to the next.
    """
    name = job.job if job else batches[-1].job if batches else job_id
    run = job.attempt if job else batches[-1].attempt if batches else attempt
    mine = [batch for batch in batches if batch.job == name and batch.attempt == run]
    tables: dict[RowKind, Rows] = {kind: _gather(mine, kind) for kind in RowKind if kind is not RowKind.FRAME}
    node_records = sorted((n for n in nodes if n.attempt == run), key=lambda n: n.node)
    world = _world_size(job, tables, node_records)
    ignored = _drop_strangers(tables, world)
    comms = _communicators(tables[RowKind.STATE], [c for c in communicators if c.attempt == run], world)
    refused = _join_orders(comms, tables[RowKind.STATE], node_records, orders)
    comm_ids = np.array(sorted(comms), np.uint64)
    ordered = [comms[int(comm)] for comm in comm_ids]
    sizes = np.array([len(comm.ranks) for comm in ordered], np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    member_rank = (
        np.concatenate([np.asarray(comm.ranks, np.int64) for comm in ordered])
        if ordered
        else np.zeros(0, np.int64)
    )
    state, seen, strangers = _align_members(tables[RowKind.STATE], comm_ids, offsets, member_rank, world)
    processes, process_seen = _align_ranks(tables[RowKind.PROCESS], world)
    places = _places(node_records, world)
    return JobEvidence(
        job=name,
        attempt=run,
        job_name=job.name if job else "",
        job_state=job.state.value if job else "",
        world_size=world,
        nodes=tuple(record.node for record in node_records),
        node_of=places["node"],
        local_rank=places["local_rank"],
        gpu=places["gpu"],
        coordinates=_coordinates(node_records, world),
        comm_ids=comm_ids,
        comm_names=tuple(comm.name for comm in ordered),
        comm_kinds=tuple(comm.kind for comm in ordered),
        comm_backends=tuple(comm.backend for comm in ordered),
        inferred=np.array([comm.inferred for comm in ordered], np.bool_),
        offsets=offsets,
        member_rank=member_rank,
        state=state,
        seen=seen,
        processes=processes,
        process_seen=process_seen,
        peers=newest(tables[RowKind.PEER], ("comm", "rank", "peer")),
        rounds=newest(tables[RowKind.ROUND], ("comm", "rank", "round", "issue")),
        edges=newest(tables[RowKind.EDGE], ("comm", "rank", "peer", "group", "direction")),
        baselines=newest(
            tables[RowKind.BASELINE], ("comm", "function", "dtype", "bucket", "algorithm", "protocol")
        ),
        steps=newest(tables[RowKind.STEP], ("rank",)),
        health=bounded_health(list(_relevant(health, name, run)), HEALTH_MAX),
        ignored_rows=ignored + strangers,
        comm_rings=tuple(comm.ring for comm in ordered),
        comm_trees=tuple(comm.tree for comm in ordered),
        orders_refused=refused,
    )


def _drop_strangers(tables: dict[RowKind, Rows], world: int) -> int:
    """Takes rows of ranks that the job does not have out of `tables`; how many there were."""
    ignored = 0
    for kind in tables:
        if "rank" in (tables[kind].dtype.names or ()):
            inside = tables[kind]["rank"] < world
            ignored += int(np.count_nonzero(~inside))
            tables[kind] = tables[kind][inside]
    return ignored


def newest(rows: Rows, keys: tuple[str, ...]) -> Rows:
    """Rows without those that a later row of the same key replaces; in key order."""
    if len(rows) < 2:
        return rows
    order = np.lexsort([np.arange(len(rows)), *(rows[key] for key in reversed(keys))])
    ordered = rows[order]
    last = np.ones(len(rows), np.bool_)
    same = np.ones(len(rows) - 1, np.bool_)
    for key in keys:
        same &= ordered[key][1:] == ordered[key][:-1]
    last[:-1] = ~same
    result: Rows = ordered[last]
    return result


def _gather(batches: Sequence[Batch], kind: RowKind) -> Rows:
    found = [table for batch in batches if len(table := batch.table(kind))]
    if not found:
        return np.zeros(0, ROW_DTYPES[kind])
    return found[0] if len(found) == 1 else np.concatenate(found)


def _world_size(job: JobRecord | None, tables: dict[RowKind, Rows], nodes: Sequence[NodeRecord]) -> int:
    if job is not None and 0 < job.world_size <= RANKS_MAX:
        return job.world_size
    highest = [
        int(rows["rank"].max())
        for rows in tables.values()
        if len(rows) and "rank" in (rows.dtype.names or ())
    ]
    highest += [rank.rank for node in nodes for rank in node.ranks]
    return max((rank + 1 for rank in highest if 0 <= rank < RANKS_MAX), default=0)


def _communicators(
    state: Rows, records: Sequence[CommunicatorRecord], world: int
) -> dict[int, _Communicator]:
    found: dict[int, _Communicator] = {}
    closed: set[int] = set()
    members = 0
    for record in records[:COMMUNICATORS_MAX]:
        try:
            comm = parse_communicator(record.communicator)
            spans = rank_spans(record.ranks, RANKS_MAX)
        except ValueError:
            continue
        if not 0 < comm < 1 << 64:
            continue
        size = sum(map(len, spans))
        if record.closed:
            closed.add(comm)
        elif spans and max(span[-1] for span in spans) < world and members + size <= MEMBERS_MAX:
            # Only here the ranks are expanded: a record of eight bytes may name a million of them.
            members += size
            ranks = [rank for span in spans for rank in span]
            found[comm] = _Communicator(
                record.name, record.kind, record.backend, ranks, False, record.ring, record.tree
            )
    known = np.array(sorted([*found, *closed]), np.uint64)
    orphans = state[~np.isin(state["comm"], known)]
    for comm in distinct(orphans["comm"])[:COMMUNICATORS_MAX]:
        rows = orphans[orphans["comm"] == comm]
        order = np.argsort(rows["comm_rank"], kind="stable")
        ranks_seen = list(dict.fromkeys(int(rank) for rank in rows["rank"][order]))
        found[int(comm)] = _Communicator("", "", "", ranks_seen, True)
    return found


def _join_orders(
    comms: dict[int, _Communicator], state: Rows, nodes: Sequence[NodeRecord], kept: JoinedOrders | None
) -> dict[str, int]:
    """Give communicators on several nodes the order that their nodes know together; reasons where there
    is none."""
    parts: dict[str, list[OrderPart]] = {}
    for node in nodes:
        for part in node.orders:
            parts.setdefault(part.communicator, []).append(part)
    if not parts:
        return {}
    refused: dict[str, int] = {}
    joined = JoinedOrders() if kept is None else kept
    for number, comm in list(comms.items()):
        name = format_communicator(number)
        mine = parts.get(name)
        if mine is None or comm.ring or comm.tree:
            continue
        whole = not comm.inferred or _is_whole(state, number, len(comm.ranks))
        order = joined.find(name, comm.ranks, mine) if whole else _MEMBERS_UNKNOWN
        for reason in order.reasons:
            refused[reason] = refused.get(reason, 0) + 1
        comms[number] = replace(comm, ring=order.ring, tree=order.tree)
    return refused


def _is_whole(state: Rows, comm: int, size: int) -> bool:
    """Whether the members that report are all there are, so that each one's place is known."""
    places = state["comm_rank"][state["comm"] == comm]
    return size <= ORDER_MEMBERS_MAX and np.array_equal(distinct(places), np.arange(size))


def _align_members(
    rows: Rows, comm_ids: npt.NDArray[np.uint64], offsets: Ints, member_rank: Ints, world: int
) -> tuple[Rows, Mask, int]:
    """STATE rows in member order, which of them were seen, and how many fit no member."""
    state = np.zeros(len(member_rank), ROW_DTYPES[RowKind.STATE])
    seen = np.zeros(len(member_rank), np.bool_)
    if len(rows) == 0 or len(comm_ids) == 0:
        return state, seen, len(rows)
    comm_of = np.repeat(np.arange(len(comm_ids), dtype=np.int64), np.diff(offsets))
    at = np.searchsorted(comm_ids, rows["comm"])
    at = np.minimum(at, len(comm_ids) - 1)
    known = comm_ids[at] == rows["comm"]
    keys = comm_of * world + member_rank
    order = np.argsort(keys, kind="stable")
    wanted = at.astype(np.int64) * world + rows["rank"].astype(np.int64)
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    fits = known & (keys[order][place] == wanted)
    targets = order[place[fits]]
    state[targets] = rows[fits]  # duplicates: numpy keeps the last one, which is the newest
    seen[targets] = True
    return state, seen, int(np.count_nonzero(~fits))


def _align_ranks(rows: Rows, world: int) -> tuple[Rows, Mask]:
    table = np.zeros(world, ROW_DTYPES[RowKind.PROCESS])
    seen = np.zeros(world, np.bool_)
    table[rows["rank"]] = rows
    seen[rows["rank"]] = True
    return table, seen


def _places(nodes: Sequence[NodeRecord], world: int) -> dict[str, Ints]:
    places = {name: np.full(world, -1, np.int64) for name in ("node", "local_rank", "gpu")}
    for index, node in enumerate(nodes):
        for rank in node.ranks:
            if 0 <= rank.rank < world:
                places["node"][rank.rank] = index
                places["local_rank"][rank.rank] = _bounded(rank.local_rank)
                places["gpu"][rank.rank] = -1 if rank.gpu is None else _bounded(rank.gpu)
    return places


def _coordinates(nodes: Sequence[NodeRecord], world: int) -> dict[str, Ints]:
    axes: dict[str, Ints] = {}
    for node in nodes:
        for rank in node.ranks:
            for axis, value in rank.coordinates.items():
                if axis not in axes and len(axes) < 16:
                    axes[axis] = np.full(world, -1, np.int64)
                if axis in axes and 0 <= rank.rank < world:
                    axes[axis][rank.rank] = _bounded(value)
    return axes


def _bounded(value: int) -> int:
    """JSON knows integers of any size, the tables do not: -1, unknown, for what no job can have."""
    return value if 0 <= value < RANKS_MAX else -1


def _relevant(health: Iterable[HealthEvent], job: str, attempt: str) -> Iterable[HealthEvent]:
    """Events of this attempt, and of nodes as such."""
    for event in health:
        odd = event.exit_code is not None and abs(event.exit_code) >= 1 << 31
        if event.job in ("", job) and event.attempt in ("", attempt) and not odd:
            yield event
