"""From the job at one instant to the rows of all agents: tables over all ranks, in rank order.

Every rank is read at the sample time of its node, so members of one communicator are seen at
different instants, as in life.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.contracts.batch import PROCESS_ROW, ROUND_ROW, STATE_ROW, Rows
from paceline.contracts.codes import (
    ExitKind,
    FrameFlag,
    HostWait,
    OpKind,
    OpState,
    Phase,
    ProcessState,
)
from paceline.contracts.layout import KEPT_LEVELS, ROUNDS_KEPT_MAX
from paceline.fleet.counters import Counters
from paceline.fleet.engine import Engine
from paceline.fleet.faults import Fault, FaultKind
from paceline.fleet.history import F64, Ints, KindView, Op
from paceline.fleet.layout import CommKind, Groups
from paceline.fleet.pairs import PairView, view_pairs

U32_MAX = 0xFFFFFFFF
NEWEST_ONLY = 255
TICKS_PER_S = 100


@dataclass(eq=False)
class Instant:
    """The job as read at `at` (seconds of the job, (stages, ranks)); `before` is the last reading."""

    at: F64
    before: F64
    views: dict[CommKind, KindView]
    pairs: PairView | None
    counters: dict[CommKind, Counters]


def read_instant(engine: Engine, at: F64, before: F64) -> Instant:
    """State of every communicator; the engine must have advanced beyond every time in `at`."""
    views = {kind: history.view(at) for kind, history in engine.histories.items()}
    pairs = view_pairs(engine.pairs, at) if CommKind.PP in engine.topology.groups else None
    counters = {kind: Counters.read(engine.totals[kind], view, at) for kind, view in views.items()}
    return Instant(at, before, views, pairs, counters)


def millis(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.uint32]:
    """Whole milliseconds as the agent writes them; negative and infinite values are cut."""
    return np.clip(seconds * 1000.0, 0.0, float(U32_MAX)).astype(np.uint32)


# ---------------------------------------------------------------------- STATE


def state_rows(engine: Engine, instant: Instant) -> Rows:
    """(N, kinds) rows, one per rank and communicator, in the order of frame slots."""
    topology, profile = engine.topology, engine.profile
    rows = np.zeros((topology.ranks, len(topology.kinds)), STATE_ROW)
    ranks = np.arange(topology.ranks, dtype=np.uint32)
    for column, kind in enumerate(topology.kinds):
        groups, out = topology.groups[kind], rows[:, column]
        out["comm"], out["rank"] = groups.ids[groups.comm_of], ranks
        out["comm_rank"] = groups.place_of
        out["sources"], out["flags"], out["peer"] = profile.sources, profile.flags, -1
        if kind is CommKind.PP:
            out["flags"] |= np.uint16(FrameFlag.COUNTS_UNOBSERVABLE)
            if instant.pairs is not None:
                _pair_state(out, instant.pairs, instant.at)
        else:
            _kind_state(engine, out, kind, instant)
    return rows


def _pair_state(out: Rows, pairs: PairView, at: F64) -> None:
    out["open_ops"] = pairs.open_ops.reshape(-1)
    out["function"] = np.where(pairs.posted.reshape(-1) > 0, pairs.function.reshape(-1), 0)
    out["state"] = np.where(out["open_ops"] > 0, OpState.ENTERED, OpState.COMPLETED)
    out["state"][pairs.posted.reshape(-1) == 0] = OpState.EMPTY
    out["idle_ms"] = millis((at - np.maximum(pairs.last_s, 0.0)).reshape(-1))


def _kind_state(engine: Engine, out: Rows, kind: CommKind, instant: Instant) -> None:
    view, at, profile = instant.views[kind], instant.at, engine.profile
    shape = at.shape
    stage = np.broadcast_to(np.arange(shape[0])[:, None], shape)
    numbers, issues = view.table("numbers"), view.table("issues")
    has_head = view.head >= 0
    enter = _gather(view, at, "enter", view.head)
    out["entered"] = view.entered.reshape(-1)
    out["completed"] = view.completed.reshape(-1) if profile.completion else 0
    out["open_ops"] = np.minimum(view.entered - view.completed, 0xFFFF).reshape(-1)
    shown = np.where(has_head, view.head, view.newest)
    for name in ("function", "dtype", "reduce_op", "peer"):
        out[name] = _of_calls(view, shown, name).reshape(-1)
    state = np.where(has_head, OpState.ENTERED, np.where(view.newest >= 0, OpState.COMPLETED, OpState.EMPTY))
    if not profile.blocking and profile.completion:
        started = has_head & (_gather(view, at, "start", view.head) <= at)
        state = np.where(started, OpState.STARTED, state)
    out["state"] = state.reshape(-1)
    out["head_round"] = np.where(has_head, numbers[view.head, stage], 0).reshape(-1)
    out["head_issue"] = np.where(has_head, issues[view.head, stage], 0).reshape(-1)
    signature = np.array([op.call.signature for op in view.ops] + [0], np.uint64)
    out["head_signature"] = np.where(has_head, signature[view.head], np.uint64(0)).reshape(-1)
    out["head_age_ms"] = np.where(has_head, millis(np.where(has_head, at - enter, 0.0)), 0).reshape(-1)
    since = np.where(view.last_s > -np.inf, view.last_s, np.where(has_head, enter, 0.0))
    out["idle_ms"] = millis(at - since).reshape(-1)
    counters = instant.counters[kind]
    out["flags"] = np.where(
        counters.visible, out["flags"], out["flags"] | np.uint16(FrameFlag.COUNTS_UNOBSERVABLE)
    )
    out["send_count"] = np.where(counters.visible, counters.sends, 0)
    out["recv_count"] = np.where(counters.visible, counters.receives, 0)
    if not profile.completion:
        _hide_completion(out, view, at)
    _apply_exceptions(out, view)


def _hide_completion(out: Rows, view: KindView, at: F64) -> None:
    """Calls are all that the source sees: the newest one is the head and stays it until the next."""
    stage = np.broadcast_to(np.arange(at.shape[0])[:, None], at.shape)
    any_call = view.newest >= 0
    enter = _gather(view, at, "enter", view.newest)
    signature = np.array([op.call.signature for op in view.ops] + [0], np.uint64)
    numbers, issues = view.table("numbers"), view.table("issues")
    out["head_round"] = np.where(any_call, numbers[view.newest, stage], 0).reshape(-1)
    out["head_issue"] = np.where(any_call, issues[view.newest, stage], 0).reshape(-1)
    out["head_signature"] = np.where(any_call, signature[view.newest], np.uint64(0)).reshape(-1)
    age = np.where(any_call, at - enter, 0.0)
    out["head_age_ms"] = out["idle_ms"] = millis(age).reshape(-1)
    out["open_ops"] = any_call.reshape(-1)
    for name in ("function", "dtype", "reduce_op", "peer"):
        out[name] = _of_calls(view, view.newest, name).reshape(-1)
    out["state"] = np.where(any_call, OpState.ENTERED, OpState.EMPTY).reshape(-1)


def _apply_exceptions(out: Rows, view: KindView) -> None:
    """Heads of ranks that called something else, or in another order, than their peers."""
    ranks_per_stage = view.entered.shape[1]
    for index, op in enumerate(view.ops):
        for rank in {*op.exceptions, *op.reissued, *op.inverted}:
            stage, place = divmod(rank, ranks_per_stage)
            if view.head[stage, place] != index:
                continue
            call = op.exceptions.get(rank, op.call)
            out["head_signature"][rank] = call.signature
            out["function"][rank], out["dtype"][rank] = call.function, call.dtype
            out["reduce_op"][rank], out["peer"][rank] = call.reduce_op, call.root
            if rank in op.reissued:
                out["head_issue"][rank] = op.reissued[rank]


def _gather(view: KindView, at: F64, name: str, which: Ints) -> F64:
    """Field `name` (enter, start) of operation `which` of each rank; 0 where there is none."""
    found = np.zeros(at.shape)
    for index in np.unique(which):
        if index < 0:
            continue
        op = view.ops[int(index)]
        mask = which[op.stages] == index
        part = found[op.stages]
        part[mask] = getattr(op, name)[mask]
        found[op.stages] = part
    return found


def _of_calls(view: KindView, which: Ints, name: str) -> Ints:
    field, empty = ("root", -1) if name == "peer" else (name, 0)
    table = np.array([int(getattr(op.call, field)) for op in view.ops] + [empty], np.int64)
    return table[which]


# ---------------------------------------------------------------------- ROUND


@dataclass(eq=False)
class RoundPick:
    """Rows to make: flat ranks of one operation, and whether they are kept rounds or evidence."""

    op: Op
    ranks: Ints
    rows: Ints  # index of the stage in the operation's arrays
    places: Ints  # index of the rank inside its stage
    kept: bool


def kept_rounds(engine: Engine, instant: Instant, kind: CommKind) -> list[RoundPick]:
    """Rounds completed since the last sample, at the finest level that stays within the bound."""
    picks: list[tuple[Op, npt.NDArray[np.bool_]]] = []
    stages = instant.at.shape[0]
    for op in instant.views[kind].ops:
        if op.over and op.latest <= float(instant.before.min()):
            continue
        done = (op.complete <= instant.at[op.stages]) & (op.complete > instant.before[op.stages])
        if done.any():
            picks.append((op, done))
    finest = np.zeros(stages, np.uint8)
    if len(picks) >= ROUNDS_KEPT_MAX:
        finest = _finest_levels(picks, stages)
    found = []
    for op, done in picks:
        done = done & (op.levels >= finest[op.stages])[:, None]
        found.append(_pick(op, done, kept=True))
    return [pick for pick in found if len(pick.ranks)]


def _finest_levels(picks: list[tuple[Op, npt.NDArray[np.bool_]]], stages: int) -> npt.NDArray[np.uint8]:
    """All members of a stage choose by the rounds of their sample; here by those of the stage."""
    finest = np.full(stages, KEPT_LEVELS[-1], np.uint8)
    for level in reversed(KEPT_LEVELS):
        count = np.zeros(stages, np.int64)
        for op, done in picks:
            count[op.stages] += (op.levels >= level) & done.any(axis=1)
        finest[count < ROUNDS_KEPT_MAX] = level
    return finest


def _pick(op: Op, mask: npt.NDArray[np.bool_], *, kept: bool) -> RoundPick:
    rows, places = np.nonzero(mask)
    return RoundPick(op, op.stages[rows] * mask.shape[1] + places, rows, places, kept)


def evidence_rounds(
    instant: Instant, kind: CommKind, suspect: npt.NDArray[np.bool_], recent_max: int, open_max: int
) -> list[RoundPick]:
    """Open rounds of `suspect` ranks (stages, ranks), and recent ones where a communicator stands still."""
    view, at = instant.views[kind], instant.at
    found = []
    opened = np.zeros(at.shape, np.int64)
    recent = np.zeros(at.shape, np.int64)
    for op in view.ops:
        here = suspect[op.stages] & (op.enter <= at[op.stages]) & (op.complete > at[op.stages])
        here &= opened[op.stages] < open_max
        opened[op.stages] += here
        found.append(_pick(op, here, kept=False))
    still = suspect & (view.head >= 0)
    for op in reversed(view.ops):
        here = still[op.stages] & (op.complete <= at[op.stages]) & (recent[op.stages] < recent_max)
        recent[op.stages] += here
        found.append(_pick(op, here, kept=False))
    return [pick for pick in found if len(pick.ranks)]


def round_rows(engine: Engine, instant: Instant, kind: CommKind, picks: list[RoundPick]) -> Rows:
    """ROUND rows of `picks`, in their order."""
    count = sum(len(pick.ranks) for pick in picks)
    rows = np.zeros(count, ROUND_ROW)
    if count == 0:
        return rows
    groups, at = engine.topology.groups[kind], instant.at.reshape(-1)
    ranks = np.concatenate([pick.ranks for pick in picks])
    sizes = [len(pick.ranks) for pick in picks]
    columns = {
        name: np.concatenate([getattr(pick.op, name)[pick.rows, pick.places] for pick in picks])
        for name in ("enter", "start", "complete", "gap")
    }
    _describe(rows, picks, sizes)
    rows["rank"], rows["comm"] = ranks, groups.ids[groups.comm_of[ranks]]
    rows["comm_rank"], rows["kind"] = groups.place_of[ranks], OpKind.COLLECTIVE
    done = columns["complete"] <= at[ranks]
    if not engine.profile.completion:
        done[:] = False
    with np.errstate(invalid="ignore"):
        duration = np.where(done, columns["complete"] - columns["start"], 0.0)
    rows["duration_ns"] = (duration * 1e9).astype(np.uint64)
    rows["gap_ns"] = np.where(done, np.clip(columns["gap"], 0.0, None) * 1e9, 0.0).astype(np.uint64)
    rows["age_ms"] = millis(at[ranks] - columns["enter"])
    rows["flags"] = engine.profile.flags
    started = (columns["start"] <= at[ranks]) & (not engine.profile.blocking) & engine.profile.completion
    rows["state"] = np.where(done, OpState.COMPLETED, np.where(started, OpState.STARTED, OpState.ENTERED))
    if engine.profile.network_counts:
        _put_waits(engine, rows, groups, picks, ranks, done)
    return rows


def _describe(rows: Rows, picks: list[RoundPick], sizes: list[int]) -> None:
    """What is the same for all ranks of an operation, then the ranks that differ."""
    calls = [pick.op.call for pick in picks]
    for name, values in (
        ("signature", [call.signature for call in calls]),
        ("count", [call.count for call in calls]),
        ("function", [call.function for call in calls]),
        ("dtype", [call.dtype for call in calls]),
        ("reduce_op", [call.reduce_op for call in calls]),
        ("peer", [call.root for call in calls]),
        ("step", [pick.op.step for pick in picks]),
    ):
        rows[name] = np.repeat(np.array(values, rows.dtype[name]), sizes)
    for name in ("numbers", "issues", "levels"):
        field = {"numbers": "round", "issues": "issue", "levels": "level"}[name]
        rows[field] = np.concatenate([getattr(pick.op, name)[pick.rows] for pick in picks])
    evidence = np.repeat(np.array([not pick.kept for pick in picks]), sizes)
    rows["level"][evidence] = NEWEST_ONLY
    start = 0
    for pick, size in zip(picks, sizes, strict=True):
        op = pick.op
        for rank in (*op.exceptions, *op.reissued):
            at = start + np.flatnonzero(pick.ranks == rank)
            call = op.exceptions.get(rank, op.call)
            rows["signature"][at], rows["count"][at] = call.signature, call.count
            rows["function"][at], rows["dtype"][at] = call.function, call.dtype
            rows["reduce_op"][at], rows["peer"][at] = call.reduce_op, call.root
            if rank in op.reissued:
                rows["issue"][at] = op.reissued[rank]
        start += size


def _put_waits(
    engine: Engine,
    rows: Rows,
    groups: Groups,
    picks: list[RoundPick],
    ranks: Ints,
    done: npt.NDArray[np.bool_],
) -> None:
    waits = [engine.totals[groups.kind].waits(pick.op) for pick in picks]
    for name, index in (("send_wait_us", 0), ("recv_wait_us", 1)):
        values = np.concatenate(
            [wait[index][pick.rows, pick.places] for wait, pick in zip(waits, picks, strict=True)]
        )
        seen = (
            engine.totals[groups.kind].sees_sends if index == 0 else engine.totals[groups.kind].sees_receives
        )
        rows[name] = np.where(done & seen[ranks], values * 1e6, 0.0).astype(np.uint32)
    hidden = ~(engine.totals[groups.kind].sees_sends & engine.totals[groups.kind].sees_receives)[ranks]
    rows["flags"][hidden] |= np.uint16(FrameFlag.COUNTS_UNOBSERVABLE)


# ---------------------------------------------------------------------- PROCESS


def process_rows(engine: Engine, instant: Instant, now: F64, pids: Ints, pid_starts: Ints) -> Rows:
    """One row per rank at the sample times `now`."""
    topology, at = engine.topology, instant.at.reshape(-1)
    rows = np.zeros(topology.ranks, PROCESS_ROW)
    rows["rank"] = np.arange(topology.ranks)
    rows["pid"], rows["pid_start"] = pids, pid_starts
    issued = sum((view.entered for view in instant.views.values()), np.zeros(instant.at.shape, np.int64))
    if instant.pairs is not None:
        issued = issued + instant.pairs.posted
    rows["issued"] = issued.reshape(-1)
    rows["cpu_ms"], rows["context_switches"] = millis(at * 0.9), (at * 200).astype(np.uint64) & U32_MAX
    rows["native_age_ms"], rows["python_age_ms"] = (at * 1000 % 100), (at * 1000 % 190)
    rows["host_wait_rank"], rows["phase"] = -1, Phase.TRAIN
    rows["process_state"], rows["communicators"] = ProcessState.SLEEPING, len(topology.kinds)
    steps, since = np.zeros(at.shape, np.int64), np.zeros(at.shape)
    for done, when in engine.steps:
        passed = when.reshape(-1) <= at
        steps, since = np.where(passed, done, steps), np.where(passed, when.reshape(-1), since)
    rows["step"], rows["step_age_ms"], rows["phase_age_ms"] = steps, millis(at - since), millis(at)
    for span in engine.phases:
        inside = ((span.enter <= instant.at) & (instant.at < span.leave)).reshape(-1)
        rows["phase"][inside] = span.phase
        rows["phase_age_ms"][inside] = millis(at - span.enter.reshape(-1))[inside]
    for fault in engine.injector.faults:
        _process_fault(rows, fault, now.reshape(-1))
    return rows


def _process_fault(rows: Rows, fault: Fault, at: F64) -> None:
    """What the kernel and the heartbeat say of the rank of a fault."""
    rank = fault.rank
    if fault.kind is FaultKind.BOOTSTRAP:
        others = np.arange(len(rows)) != rank
        rows["phase"], rows["communicators"] = Phase.INIT, 0
        rows["host_wait"][others] = HostWait.BOOTSTRAP
        rows["host_wait_age_ms"][others] = millis(at[others])
        return
    age = float(at[rank]) - fault.at_s
    if age < 0:
        return
    if fault.kind is FaultKind.FROZEN_PROCESS:
        rows["process_state"][rank] = ProcessState.STOPPED
        rows["native_age_ms"][rank] = rows["python_age_ms"][rank] = int(age * 1000)
        rows["cpu_ms"][rank] = int(fault.at_s * 900)
        rows["context_switches"][rank] = int(fault.at_s * 200) & U32_MAX
    elif fault.kind is FaultKind.DEAD_PROCESS:
        rows["process_state"][rank] = ProcessState.GONE
        rows["exit_code"][rank] = fault.exit_code
        rows["exit_kind"][rank] = ExitKind.SIGNAL if fault.exit_code < 0 else ExitKind.ERROR
