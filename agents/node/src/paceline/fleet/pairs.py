"""Point-to-point between pipeline stages as seen at one instant: PEER rows and open operations."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.contracts.batch import PEER_ROW, ROUND_ROW, Rows
from paceline.contracts.codes import DType, Function, OpKind, OpState, ReduceOp
from paceline.fleet.history import F64, Ints, PairHistory, PairOp
from paceline.fleet.layout import CommKind, Groups
from paceline.fleet.program import Call

AGE_MS_MIN = 1  # 0 means nothing open


@dataclass(eq=False)
class PairView:
    """Arrays are (stages, ranks)."""

    open_ops: Ints
    posted: Ints
    function: Ints  # of the newest operation
    last_s: F64  # last completion, -inf = none
    waited_s: F64  # in completed receives so far
    oldest_s: F64  # when the oldest open operation was posted, inf = none
    ops: list[PairOp]
    directions: dict[tuple[int, int, bool], tuple[Ints, Ints, npt.NDArray[np.float64], Ints]]


def view_pairs(history: PairHistory, at: F64) -> PairView:
    """State at the sample times `at` (stages, ranks)."""
    shape = at.shape
    opened, posted = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    function = np.zeros(shape, np.int64)
    last, oldest = np.full(shape, -np.inf), np.full(shape, np.inf)
    waited = np.zeros(shape)
    for stage, seconds in history.waited_s.items():
        waited[stage] = seconds
    for stage, when in history.last_s.items():
        last[stage] = when
    for stage, count in history.over.items():
        posted[stage] += count
        function[stage] = Function.RECV
    directions = {}
    for key in history.posted:
        base = np.full(shape[1], history.base.get(key, 0), np.int64)
        directions[key] = (base, base.copy(), np.full(shape[1], np.inf), np.zeros(shape[1], np.int64))
    from_s, until_s = at.min(axis=1).tolist(), at.max(axis=1).tolist()
    for op in history.ops:
        if float(op.enter.min()) > until_s[op.stage]:
            continue
        if float(op.complete.max()) <= from_s[op.stage]:
            posted[op.stage] += 1
            function[op.stage] = Function.SEND if op.sends else Function.RECV
            np.maximum(last[op.stage], op.complete, out=last[op.stage])
            if not op.sends:
                waited[op.stage] += op.complete - op.start
            in_count, out_count, _, _ = directions[(op.stage, op.peer, op.sends)]
            in_count += 1
            out_count += 1
            continue
        now = at[op.stage]
        is_in, is_out = op.enter <= now, op.complete <= now
        is_open = is_in & ~is_out
        opened[op.stage] += is_open
        posted[op.stage] += is_in
        function[op.stage] = np.where(is_in, Function.SEND if op.sends else Function.RECV, function[op.stage])
        last[op.stage] = np.where(is_out, np.maximum(last[op.stage], op.complete), last[op.stage])
        if not op.sends:
            spent = np.where(is_out, op.complete, 0.0) - np.where(is_out, op.start, 0.0)
            waited[op.stage] += spent
        oldest[op.stage] = np.where(is_open, np.minimum(oldest[op.stage], op.enter), oldest[op.stage])
        in_count, out_count, head_s, head_issue = directions[(op.stage, op.peer, op.sends)]
        in_count += is_in
        out_count += is_out
        first = is_open & (head_s == np.inf)
        head_s[first] = op.enter[first]
        head_issue[first] = op.issue
    return PairView(opened, posted, function, last, waited, oldest, history.ops, directions)


def pair_signature(count: int) -> int:
    return Call(CommKind.PP, Function.SEND, count, 0.0, DType.BFLOAT16).signature


def peer_rows(view: PairView, groups: Groups, at: F64, wanted: npt.NDArray[np.bool_]) -> Rows:
    """One row per rank of `wanted` (stages, ranks) and neighbour it ever posted to."""
    parts = []
    ranks_per_stage = at.shape[1]
    for stage, peer in sorted({(key[0], key[1]) for key in view.directions}):
        places = np.flatnonzero(wanted[stage])
        if len(places) == 0:
            continue
        rows = np.zeros(len(places), PEER_ROW)
        ranks = stage * ranks_per_stage + places
        rows["rank"], rows["comm"] = ranks, groups.ids[groups.comm_of[ranks]]
        rows["comm_rank"], rows["peer"] = stage, peer
        for direction in (0, 1):
            found = view.directions.get((stage, peer, direction == 0))
            if found is None:
                continue
            in_count, out_count, head_s, head_issue = (column[places] for column in found)
            is_open = head_s < np.inf
            age = np.where(is_open, (at[stage, places] - np.where(is_open, head_s, 0.0)) * 1000, 0)
            rows["posted"][:, direction], rows["completed"][:, direction] = in_count, out_count
            rows["head_age_ms"][:, direction] = np.where(is_open, np.maximum(age, AGE_MS_MIN), 0)
            rows["head_issue"][:, direction] = np.where(is_open, head_issue, 0)
            rows["head_signature"][:, direction] = np.where(is_open, pair_signature(1 << 20), 0)
        parts.append(rows[(rows["posted"] > 0).any(axis=1)])
    return np.concatenate(parts) if parts else np.zeros(0, PEER_ROW)


def open_pair_rounds(view: PairView, groups: Groups, at: F64, wanted: npt.NDArray[np.bool_]) -> Rows:
    """ROUND rows of open and recent sends and receives of the ranks of `wanted`."""
    parts = []
    ranks_per_stage = at.shape[1]
    for op in view.ops:
        places = np.flatnonzero(wanted[op.stage] & (op.enter <= at[op.stage]))
        if len(places) == 0:
            continue
        rows = np.zeros(len(places), ROUND_ROW)
        ranks = op.stage * ranks_per_stage + places
        done = op.complete[places] <= at[op.stage, places]
        rows["rank"], rows["comm"] = ranks, groups.ids[groups.comm_of[ranks]]
        rows["comm_rank"], rows["peer"], rows["pair_seq"] = op.stage, op.peer, op.sequence
        rows["issue"], rows["signature"], rows["count"] = op.issue, pair_signature(op.count), op.count
        rows["kind"], rows["level"], rows["step"] = OpKind.POINT_TO_POINT, 255, op.step
        rows["function"] = Function.SEND if op.sends else Function.RECV
        rows["dtype"], rows["reduce_op"] = DType.BFLOAT16, ReduceOp.UNKNOWN
        rows["state"] = np.where(done, OpState.COMPLETED, OpState.ENTERED)
        seconds = np.where(done, np.where(done, op.complete[places], 0.0) - op.start[places], 0.0)
        rows["duration_ns"] = (np.clip(seconds, 0.0, None) * 1e9).astype(np.uint64)
        rows["age_ms"] = ((at[op.stage, places] - op.enter[places]) * 1000).astype(np.uint32)
        parts.append(rows)
    return np.concatenate(parts) if parts else np.zeros(0, ROUND_ROW)
