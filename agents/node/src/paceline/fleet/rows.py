"""STATE rows of all ranks at one instant, in rank order."""

import numpy as np

from paceline.contracts.batch import STATE_ROW, Rows
from paceline.contracts.codes import FrameFlag, OpState
from paceline.fleet.engine import Engine
from paceline.fleet.history import F64, Ints, KindView
from paceline.fleet.instant import Instant, millis
from paceline.fleet.layout import CommKind
from paceline.fleet.pairs import PairView


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
    _put_calls(out, view, shown)
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
    _put_calls(out, view, view.newest)
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


def _put_calls(out: Rows, view: KindView, which: Ints) -> None:
    """What operation `which` of each rank was called with."""
    codes = np.array([*(op.call.codes for op in view.ops), (0, 0, 0, -1)], np.int64)[which.reshape(-1)]
    for index, name in enumerate(("function", "dtype", "reduce_op", "peer")):
        out[name] = codes[:, index]
