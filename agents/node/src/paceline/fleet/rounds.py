"""ROUND rows: kept rounds since the last sample, and open and recent ones while suspect."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.contracts.batch import ROUND_ROW, Rows, pack_path
from paceline.contracts.codes import Algorithm, FrameFlag, OpKind, OpState, Protocol
from paceline.contracts.layout import KEPT_LEVELS, ROUNDS_KEPT_MAX
from paceline.fleet.engine import Engine
from paceline.fleet.history import Ints, Op
from paceline.fleet.instant import Instant, millis
from paceline.fleet.layout import CommKind, Groups
from paceline.fleet.tree_reading import uses_tree

NEWEST_ONLY = 255


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
    since_s, until_s = float(instant.before.min()), float(instant.at.max())
    for op in instant.views[kind].ops:
        if (op.over and op.latest <= since_s) or op.first_s > until_s:
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
    rows["path"] = np.repeat([_path(engine, groups, pick.op) for pick in picks], sizes)
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


def _path(engine: Engine, groups: Groups, op: Op) -> int:
    """Algorithm and protocol in one byte; gloo tells neither."""
    if engine.profile.blocking:
        return 0
    tree = uses_tree(groups, op.call.function)
    return pack_path(Algorithm.TREE if tree else Algorithm.RING, Protocol.SIMPLE)


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
    rows["flags"][hidden] |= np.uint8(FrameFlag.COUNTS_UNOBSERVABLE)
