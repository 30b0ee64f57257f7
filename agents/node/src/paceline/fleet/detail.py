"""What agents add while a rank of their node is suspicious: full frames, edges, peers, more rounds."""

import numpy as np
import numpy.typing as npt

from paceline.contracts.batch import EDGE_ROW, FRAME_ROW, Rows
from paceline.contracts.codes import Algorithm, FrameFlag, OpKind, OpState, ProcessState, Protocol
from paceline.contracts.dtypes import FRAME_DTYPE
from paceline.contracts.layout import FRAME, FRAME_MAGIC, LAYOUT_VERSION
from paceline.fleet import trees
from paceline.fleet.activity import Activity, as_kernels, read_activity
from paceline.fleet.counters import Totals
from paceline.fleet.engine import Engine
from paceline.fleet.history import F64, Ints
from paceline.fleet.instant import Instant
from paceline.fleet.layout import CommKind
from paceline.fleet.tree_reading import End, uses_tree

Bools = npt.NDArray[np.bool_]
NS = 1_000_000_000


def find_suspects(instant: Instant, state: Rows, processes: Rows, suspect_ms: int) -> Bools:
    """(N,) ranks that their agent looks at closely; the rules are those of `paceline.agent.rows`."""
    live = (state["flags"] & FrameFlag.CLOSED) == 0
    suspects: Bools = ((state["head_age_ms"] >= suspect_ms) & (state["head_round"] > 0) & live).any(axis=1)
    if instant.pairs is not None:
        suspects |= ((instant.at - instant.pairs.oldest_s) * 1000 >= suspect_ms).reshape(-1)
    suspects |= np.isin(
        processes["process_state"], (ProcessState.STOPPED, ProcessState.GONE, ProcessState.ZOMBIE)
    )
    beats = np.maximum(processes["native_age_ms"], processes["python_age_ms"])
    suspects |= (beats >= suspect_ms) & (processes["finished"] == 0)
    return suspects


def edge_rows(engine: Engine, instant: Instant, kind: CommKind, wanted: Bools) -> Rows:
    """Traffic of each neighbour that the profile counts, for the ranks of `wanted` (N,)."""
    totals, counters = engine.totals[kind], instant.counters[kind]
    groups = totals.groups
    if not totals.active:
        return np.zeros(0, EDGE_ROW)
    now = _activity(engine, instant, kind)
    members = groups.members
    following, before = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
    place = np.arange(groups.size, dtype=np.int64)
    following[members], before[members] = (place + 1) % groups.size, (place - 1) % groups.size
    parts = []
    for direction, peer, seen, count, wait, state in (
        (
            0,
            following,
            totals.sees_sends,
            counters.ring_sends,
            _total(totals.send_wait - totals.tree_send_wait, now.send_wait_s),
            now.sends,
        ),
        (
            1,
            before,
            totals.sees_receives,
            counters.ring_receives,
            _total(totals.recv_wait - totals.tree_recv_wait, now.recv_wait_s),
            now.receives,
        ),
    ):
        ranks = np.flatnonzero(wanted & seen & ((count > 0) | (state > 0)))
        rows = _edges(engine, kind, ranks)
        rows["peer"], rows["direction"], rows["count"] = peer[ranks], direction, count[ranks]
        rows["wait_ns"], rows["state"] = (wait[ranks] * NS).astype(np.uint64), state[ranks]
        parts.append(rows)
    parts += _tree_edges(engine, instant, kind, wanted)
    return _with_bytes(np.concatenate(parts))


def _activity(engine: Engine, instant: Instant, kind: CommKind) -> Activity:
    proxies = not engine.profile.local_counts
    return read_activity(engine.totals[kind], instant.views[kind], instant.at, proxies=proxies)


def _total(over: F64, going_on: F64) -> F64:
    """Waits of operations that are over, and the one that is going on, (N,)."""
    found: F64 = over.reshape(-1) + going_on
    return found


def _tree_edges(engine: Engine, instant: Instant, kind: CommKind, wanted: Bools) -> list[Rows]:
    """Links to parents and children; past waits of a member are shared evenly among its links."""
    totals, found = engine.totals[kind], instant.counters[kind].trees
    if found is None:
        return []
    links = trees.links_of(totals.groups.size)[totals.groups.place_of]
    parts = []
    for tree, end in found.ends:
        past = (totals.tree_send_wait if end.is_send else totals.tree_recv_wait).reshape(-1)
        at = _shown(totals, end, wanted)
        owner = end.owner[at]
        rows = _edges(engine, kind, owner)
        rows["peer"] = totals.groups.place_of[end.peer[at]]
        rows["direction"], rows["group"], rows["count"] = 0 if end.is_send else 1, 1 + tree, end.count[at]
        wait_s = past[owner] / np.maximum(links[owner], 1) + end.wait_s[at]
        rows["wait_ns"] = (wait_s * NS).astype(np.uint64)
        rows["state"] = as_kernels(end.state[at]) if engine.profile.local_counts else end.state[at]
        parts.append(rows)
    return parts


def _shown(totals: Totals, end: End, wanted: Bools) -> Ints:
    """Links of which this end is in the rows of a rank of `wanted`."""
    linked = np.flatnonzero(end.owner >= 0)
    linked = linked[wanted[end.owner[linked]] & ((end.count[linked] > 0) | (end.state[linked] > 0))]
    found: Ints = linked[totals.sees(end.owner[linked], end.peer[linked])]
    return found


def _edges(engine: Engine, kind: CommKind, ranks: Ints) -> Rows:
    groups = engine.topology.groups[kind]
    rows = np.zeros(len(ranks), EDGE_ROW)
    rows["rank"], rows["comm"] = ranks, groups.ids[groups.comm_of[ranks]]
    rows["comm_rank"] = groups.place_of[ranks]
    return rows


def _with_bytes(rows: Rows) -> Rows:
    rows["bytes"] = rows["count"] << np.uint64(19)  # slices of 512 KiB
    return rows


def frame_rows(engine: Engine, instant: Instant, state: Rows, fresh: Bools, clock_ns: Ints) -> Rows:
    """Full frames where `fresh` (N, kinds); `clock_ns` (N,) is each node's own clock at the sample."""
    ranks, columns = np.nonzero(fresh)
    frames = np.zeros(len(ranks), FRAME_DTYPE)
    rows, now = state[ranks, columns], clock_ns[ranks].astype(np.uint64)
    frames["magic"], frames["version"], frames["frame_bytes"] = FRAME_MAGIC, LAYOUT_VERSION, FRAME.size
    for name in (
        "sources", "comm", "comm_rank", "flags", "function", "dtype", "reduce_op", "state", "peer",
        "open_ops", "completed", "head_round", "head_signature", "send_count", "recv_count",
    ):  # fmt: skip
        frames[name] = rows[name]
    frames["global_rank"], frames["slot"], frames["kind"] = rows["rank"], columns, OpKind.COLLECTIVE
    frames["round"] = frames["started"] = frames["enqueued"] = rows["entered"]
    frames["state"] = np.where(rows["open_ops"] > 0, rows["state"], OpState.COMPLETED)
    age = rows["head_age_ms"].astype(np.uint64) * np.uint64(1_000_000)
    frames["head_entered_ns"] = np.where(rows["head_round"] > 0, now - age, np.uint64(0))
    frames["entered_ns"] = frames["head_entered_ns"]
    frames["progress_ns"] = now - rows["idle_ms"].astype(np.uint64) * np.uint64(1_000_000)
    for column, kind in enumerate(engine.topology.kinds):
        mine = columns == column
        groups = engine.topology.groups[kind]
        frames["nranks"][mine], frames["channels"][mine] = groups.size, 2
        frames["nnodes"][mine] = min(engine.topology.nodes, groups.size)
        if kind is CommKind.PP:
            continue
        tree = np.array([uses_tree(groups, int(function)) for function in frames["function"][mine]], bool)
        frames["algorithm"][mine] = np.where(tree, Algorithm.TREE, Algorithm.RING)
        frames["protocol"][mine] = Protocol.SIMPLE
        totals = engine.totals[kind]
        if totals.active:
            waits = np.stack([totals.send_wait.reshape(-1), totals.recv_wait.reshape(-1)])
            mine_waits = (waits[:, ranks[mine]] * NS).astype(np.uint64)
            frames["send_wait_ns"][mine, 0], frames["recv_wait_ns"][mine, 0] = mine_waits
    return frames.view(FRAME_ROW)
