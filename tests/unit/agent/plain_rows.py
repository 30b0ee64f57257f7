"""What kernels/native/reduction.cc does, in numpy as plainly as it can be said: the judge of its rows."""

import numpy as np
import numpy.typing as npt

from paceline.agent.pages import Array, PageView
from paceline.agent.rows import (
    EDGE_PERIOD_NS,
    NS_PER_MS,
    U32_MAX,
    Facts,
    Reduction,
    RowMemory,
    RowPolicy,
    Suspicion,
)
from paceline.contracts.batch import EDGE_ROW, PEER_ROW, PROCESS_ROW, ROUND_ROW, STATE_ROW, RowKind, Rows
from paceline.contracts.codes import FrameFlag, OpKind, OpState, ProcessState
from paceline.contracts.layout import KEPT_LEVELS, ROUNDS_KEPT_MAX, ROUNDS_NEWEST_MAX

# Level of each slot of the round ring; 255 marks the newest rounds.
SLOT_LEVELS = np.concatenate(
    [np.full(ROUNDS_NEWEST_MAX, 255, np.uint8), np.repeat(np.array(KEPT_LEVELS, np.uint8), ROUNDS_KEPT_MAX)]
)


def ages_ms(now_ns: int, stamps: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Milliseconds since each stamp; 0 where there is none or where it lies in the future."""
    now = np.uint64(now_ns)
    known = (stamps > 0) & (stamps <= now)
    return clip_u32(np.where(known, (now - np.where(known, stamps, now)) // np.uint64(NS_PER_MS), 0))


def clip_u32(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    return np.minimum(values, U32_MAX).astype(np.uint32)


def plain_suspicion(view: PageView, facts: Facts, now_ns: int, policy: RowPolicy) -> Suspicion:
    """The first reason to look closely at this process, NONE where there is none."""
    limit = policy.suspect_ms
    if facts.state in (ProcessState.GONE, ProcessState.ZOMBIE):
        return Suspicion.GONE
    if facts.state is ProcessState.STOPPED:
        return Suspicion.STOPPED
    live = (view.frames["flags"] & FrameFlag.CLOSED) == 0
    heads = np.where((view.frames["head_round"] > 0) & live, view.frames["head_entered_ns"], 0)
    if (ages_ms(now_ns, heads.astype(np.uint64)) >= limit).any():
        return Suspicion.HEAD_OLD
    peers = view.peers
    if (ages_ms(now_ns, np.where(peers["head_seq"] > 0, peers["head_entered_ns"], 0)) >= limit).any():
        return Suspicion.PEER_HEAD_OLD
    beats = np.array([view.process["native_beat_ns"], view.process["python_beat_ns"]], np.uint64)
    native_ms, python_ms = ages_ms(now_ns, beats)
    if view.process["finished"]:
        return Suspicion.NONE
    if native_ms >= limit:
        return Suspicion.NATIVE_BEAT_STALE
    return Suspicion.PYTHON_BEAT_STALE if python_ms >= limit else Suspicion.NONE


def plain_standing(view: PageView, now_ns: int, limit_ns: int) -> bool:
    """Whether an operation of this process stands still for `limit_ns` or longer."""
    frames = view.frames[(view.frames["flags"] & FrameFlag.CLOSED) == 0]
    if len(frames) == 0 or view.process["finished"]:
        return False
    before_ns = max(now_ns - limit_ns, 0)
    old = (
        (frames["head_round"] > 0)
        & (frames["head_entered_ns"] > 0)
        & (frames["head_entered_ns"] <= before_ns)
    )
    seen = (frames["flags"] & FrameFlag.COMPLETION_UNOBSERVABLE) == 0
    if (old & seen).any():
        return True
    return bool(old.any() and frames["entered_ns"].max() <= before_ns)


def plain_reduction(
    view: PageView, facts: Facts, memory: RowMemory, now_ns: int, policy: RowPolicy, *, detail: bool
) -> Reduction:
    """Rows of one process at `now_ns`; with `detail` also open rounds, edges, peers and full frames."""
    state = _state_rows(view, facts, now_ns)
    kept = _kept_mask(view, memory.sampled_ns, now_ns, policy)
    rows: dict[RowKind, Rows] = {RowKind.PROCESS: _process_row(view, facts, now_ns), RowKind.STATE: state}
    framed = memory.framed
    if detail:
        keys = [(int(frame["comm"]), int(frame["head_round"]), int(frame["round"])) for frame in view.frames]
        still = np.maximum(state["head_age_ms"], state["idle_ms"]) >= policy.suspect_ms
        gone = facts.state in (ProcessState.GONE, ProcessState.ZOMBIE)
        fresh = np.array([key not in framed for key in keys], bool) & (still | gone)
        # Only frames in use are remembered, so the memory is bounded like the page.
        framed = frozenset(key for key, is_still in zip(keys, still | gone, strict=True) if is_still)
        kept |= _open_mask(view, policy) | _recent_mask(view, still | gone, policy)
        rows[RowKind.EDGE] = _edge_rows(view, facts)
        rows[RowKind.PEER] = _peer_rows(view, facts, now_ns)
        rows[RowKind.FRAME] = view.frames[fresh].view(f"V{view.frames.dtype.itemsize}")
    elif now_ns // EDGE_PERIOD_NS != memory.sampled_ns // EDGE_PERIOD_NS:
        edges = _edge_rows(view, facts)
        rows[RowKind.EDGE] = edges[edges["wait_ns"] > 0]
    rows[RowKind.ROUND] = _round_rows(view, facts, kept, now_ns)
    return Reduction(rows, RowMemory(now_ns, framed))


def _put_facts(row: Rows, facts: Facts) -> None:
    row["rank"], row["pid"], row["pid_start"] = facts.rank, facts.pid, facts.pid_start
    row["cpu_ms"] = facts.cpu_ms
    row["context_switches"] = facts.context_switches & U32_MAX
    row["process_state"], row["exit_kind"], row["exit_code"] = facts.state, facts.exit_kind, facts.exit_code


def _process_row(view: PageView, facts: Facts, now_ns: int) -> Rows:
    page = view.process
    row = np.zeros(1, PROCESS_ROW)
    _put_facts(row, facts)
    row["step"], row["issued"] = page["step"], page["issued"]
    row["paced_ms"] = page["paced_ns"] // np.uint64(NS_PER_MS)
    for name, stamp in (
        ("native_age_ms", "native_beat_ns"),
        ("python_age_ms", "python_beat_ns"),
        ("phase_age_ms", "phase_entered_ns"),
        ("step_age_ms", "step_entered_ns"),
    ):
        row[name] = ages_ms(now_ns, np.array([page[stamp]], np.uint64))
    row["phase"] = np.minimum(page["phase"], 255)
    row["host_wait"] = np.minimum(page["host_wait"], 255)
    row["host_wait_rank"] = page["host_wait_rank"] if page["host_wait"] else -1
    if page["host_wait"]:
        row["host_wait_age_ms"] = ages_ms(now_ns, np.array([page["host_wait_entered_ns"]], np.uint64))
    row["communicators"] = len(view.frames)
    row["finished"] = 1 if page["finished"] else 0
    row["flags"] = FrameFlag.PARTIAL if view.partial else 0
    unrecorded = sum(int(page[name]) for name in ("communicators_dropped", "operations_dropped", "errors"))
    row["dropped"] = min(unrecorded, U32_MAX)
    row["waited_ms"] = _waited_ns(view) // NS_PER_MS & U32_MAX
    return row


def _waited_ns(view: PageView) -> int:
    """Time in completed collectives and receives; sends are left out, they run beside computation."""
    mine = view.rounds["kind"] == OpKind.COLLECTIVE  # other entries hold the total of their pair
    collectives = np.where(mine, view.round_times["total_ns"], 0).max(axis=1, initial=0).sum()
    return int(collectives) + int(view.peers["total_ns"][:, 1].sum())


def _state_rows(view: PageView, facts: Facts, now_ns: int) -> Rows:
    frames = view.frames
    rows = np.zeros(len(frames), STATE_ROW)
    rows["rank"] = facts.rank
    for name in (
        "comm", "comm_rank", "completed", "head_round", "head_signature", "send_count", "recv_count",
        "function", "dtype", "reduce_op", "state", "peer", "sources",
    ):  # fmt: skip
        rows[name] = frames[name]
    rows["entered"] = frames["round"]
    rows["open_ops"] = np.minimum(frames["open_ops"], 0xFFFF)
    rows["flags"] = frames["flags"] & (0xFFFF - FrameFlag.KERNEL_STARTED.value)
    rows["flags"][frames["kernels_started"] > 0] |= np.uint16(FrameFlag.KERNEL_STARTED)
    heads = np.where(frames["head_round"] > 0, frames["head_entered_ns"], 0)
    rows["head_age_ms"] = ages_ms(now_ns, heads.astype(np.uint64))
    progress = frames["progress_ns"].astype(np.uint64)
    # A communicator that never progressed has been idle since its first open round, or since it exists.
    since = np.where(progress > 0, progress, np.where(heads > 0, heads, view.process["created_ns"]))
    rows["idle_ms"] = ages_ms(now_ns, since.astype(np.uint64))
    _describe_heads(rows, view)
    return rows


def _describe_heads(rows: Rows, view: PageView) -> None:
    """Take what is said of the operation from the head's own ring entry where it is still there."""
    if len(rows) == 0:
        return
    rounds = view.rounds
    is_head = (rounds["round"] == rows["head_round"][:, None]) & (rows["head_round"] > 0)[:, None]
    is_head &= (rounds["kind"] == OpKind.COLLECTIVE) & (rounds["state"] != OpState.EMPTY)
    found = is_head.any(axis=1)
    entry = rounds[np.arange(len(rows)), is_head.argmax(axis=1)][found]
    for name in ("function", "dtype", "reduce_op", "state", "peer"):
        rows[name][found] = entry[name]
    rows["head_issue"][found] = entry["issue"]


def _is_live(rounds: Array) -> npt.NDArray[np.bool_]:
    live: npt.NDArray[np.bool_] = (rounds["state"] != OpState.EMPTY) & (rounds["issue"] > 0)
    return live


def _kept_mask(view: PageView, since_ns: int, now_ns: int, policy: RowPolicy) -> npt.NDArray[np.bool_]:
    """Rounds completed since the last sample, at the finest level that stays within the bound.

    All members choose by the number of rounds per sample, so they mostly choose the same level;
    where they do not, the rounds of the coarser one are on both sides.
    """
    rounds = view.rounds
    done = _is_live(rounds) & (rounds["completed_ns"] > since_ns) & (rounds["completed_ns"] <= now_ns)
    done &= SLOT_LEVELS != 255
    counts = np.array([(done & (level == SLOT_LEVELS)).sum(axis=1) for level in KEPT_LEVELS])
    # A full level may have lost rounds that others kept.
    fits = counts < min(ROUNDS_KEPT_MAX, policy.kept_rounds_max)
    fits[-1] = True
    finest = np.array(KEPT_LEVELS)[fits.argmax(axis=0)]
    kept: npt.NDArray[np.bool_] = done & (finest[:, None] <= SLOT_LEVELS)
    return kept


def _open_mask(view: PageView, policy: RowPolicy) -> npt.NDArray[np.bool_]:
    rounds = view.rounds
    is_open = _is_live(rounds) & (rounds["completed_ns"] == 0) & (rounds["state"] < OpState.COMPLETED)
    return _oldest(is_open, rounds["issue"], policy.open_rounds_max)


def _recent_mask(view: PageView, still: npt.NDArray[np.bool_], policy: RowPolicy) -> npt.NDArray[np.bool_]:
    rounds = view.rounds
    recent = _is_live(rounds) & (rounds["completed_ns"] > 0) & still[:, None]
    return _oldest(recent, np.uint64(2**64 - 1) - rounds["issue"], policy.recent_rounds_max)


def _oldest(
    mask: npt.NDArray[np.bool_], order: npt.NDArray[np.uint64], count_max: int
) -> npt.NDArray[np.bool_]:
    """The `count_max` entries of each row of `mask` with the smallest `order`."""
    if mask.size == 0 or int(mask.sum(axis=1).max()) <= count_max:
        return mask
    ranked = np.where(mask, order, np.uint64(2**64 - 1))
    chosen = np.argsort(ranked, axis=1, kind="stable")[:, :count_max]
    limited = np.zeros_like(mask)
    np.put_along_axis(limited, chosen, True, axis=1)
    return limited & mask


def _round_rows(view: PageView, facts: Facts, mask: npt.NDArray[np.bool_], now_ns: int) -> Rows:
    slots, places = np.nonzero(mask)
    if len(slots) == 0:
        return np.zeros(0, ROUND_ROW)
    entries, times = view.rounds[slots, places], view.round_times[slots, places]
    rows = np.zeros(len(slots), ROUND_ROW)
    rows["rank"] = facts.rank
    rows["comm"], rows["comm_rank"] = view.frames["comm"][slots], view.frames["comm_rank"][slots]
    for name in (
        "round", "issue", "signature", "count", "kind", "function", "dtype", "reduce_op", "state", "peer",
        "pair_seq",
    ):  # fmt: skip
        rows[name] = entries[name]
    rows["step"], rows["flags"] = times["step"], times["flags"] & 0xFF
    rows["path"] = (entries["algorithm"] << 4) | entries["protocol"]
    rows["level"] = SLOT_LEVELS[places]
    completed, started = entries["completed_ns"], times["started_ns"]
    closed = (completed >= started) & (completed > 0) & (started > 0)
    rows["duration_ns"] = np.where(closed, completed - started, 0)
    rows["gap_ns"] = _gaps(view, slots, entries["round"], started)
    rows["age_ms"] = ages_ms(now_ns, entries["entered_ns"])
    rows["send_wait_us"] = clip_u32(times["send_wait_ns"] // np.uint64(1000))
    rows["recv_wait_us"] = clip_u32(times["recv_wait_ns"] // np.uint64(1000))
    return _once(rows)


def _gaps(
    view: PageView,
    slots: npt.NDArray[np.intp],
    numbers: npt.NDArray[np.uint64],
    started: npt.NDArray[np.uint64],
) -> npt.NDArray[np.uint64]:
    """started - completion of the round before; 0 where that round is no longer in the ring."""
    gaps = np.zeros(len(numbers), np.uint64)
    ring_numbers, ring_completed = view.rounds["round"], view.rounds["completed_ns"]
    for slot in np.unique(slots):
        here = np.flatnonzero((slots == slot) & (numbers > 1))
        is_before = ring_numbers[slot] == numbers[here, None] - np.uint64(1)
        previous = np.where(is_before, ring_completed[slot], 0).max(axis=1)
        known = (previous > 0) & (previous <= started[here])
        gaps[here] = np.where(known, started[here] - previous, 0)
    return gaps


def _once(rows: Rows) -> Rows:
    """One row per operation, at its coarsest kept level; 'newest only' loses to every level."""
    rank_of_level = np.where(rows["level"] == 255, -1, rows["level"].astype(np.int16))
    order = np.lexsort((-rank_of_level, rows["issue"], rows["comm"]))
    rows = rows[order]
    first = np.ones(len(rows), bool)
    first[1:] = (rows["comm"][1:] != rows["comm"][:-1]) | (rows["issue"][1:] != rows["issue"][:-1])
    return rows[first]


def _edge_rows(view: PageView, facts: Facts) -> Rows:
    edges = view.edges
    used = (edges["count"] > 0) | (edges["bytes"] > 0) | (edges["wait_ns"] > 0)
    rows = _peer_table(view, facts, edges[used], view.edge_frames[used], EDGE_ROW)
    if len(rows):
        channels = view.frames["channel"][view.edge_frames[used]]
        states = np.where(
            rows["direction"] == 0, channels["send_state"].max(axis=1), channels["recv_state"].max(axis=1)
        )
        # A channel has one neighbour on each side of a ring, and several in a tree.
        rows["state"] = np.where(rows["group"] == 0, states, 0)
    return rows


def _peer_rows(view: PageView, facts: Facts, now_ns: int) -> Rows:
    rows = _peer_table(view, facts, view.peers, view.peer_frames, PEER_ROW)
    # 0 means 'nothing open', so an open operation is at least 1 ms old.
    ages = np.maximum(ages_ms(now_ns, view.peers["head_entered_ns"]), 1)
    rows["head_age_ms"] = np.where(view.peers["head_seq"] > 0, ages, 0)
    return rows


def _peer_table(
    view: PageView,
    facts: Facts,
    entries: Array,
    frames: npt.NDArray[np.intp],
    dtype: np.dtype[np.void],
) -> Rows:
    """Rows of `dtype` with everything that `entries` has under the same name."""
    rows = np.zeros(len(entries), dtype)
    rows["rank"] = facts.rank
    rows["comm"], rows["comm_rank"] = view.frames["comm"][frames], view.frames["comm_rank"][frames]
    for name in set(entries.dtype.names or ()) & set(dtype.names or ()):
        rows[name] = entries[name]
    return rows
