"""From the windows that detector shards publish to what `scaling` judges: ranks x iterations."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline.analysis.evidence import Ints
from paceline.analysis.scaling import ScalingWindow
from paceline.contracts.batch import ROW_DTYPES, RowKind, Rows, StepFlag
from paceline.contracts.ids import format_communicator, parse_ranks
from paceline.contracts.registry import CommunicatorRecord, NodeRecord

COMMS_MAX = 512
SEEN_SHARE = 0.9  # of the iterations: a rank that shows fewer is left out
OVERLAP_SHARE = 0.1  # of the iterations: who waits longer than its steps more often computes meanwhile
COUNTED_STEPS_MIN = 20  # behind the counter of a process
COUNTED_MORE = 0.01  # of an iteration: what the counter has more than the rounds are receives

Tables = Mapping[RowKind, Rows]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Assembled:
    """A window to judge, between two steps. `refused` says why there is none."""

    window: ScalingWindow | None
    first_step: int = 0
    last_step: int = 0
    refused: str = ""


def assemble_window(
    shards: Mapping[int, Sequence[Tables]],
    nodes: Iterable[NodeRecord],
    communicators: Iterable[CommunicatorRecord],
) -> Assembled:
    """Windows of each shard, oldest first, as one. Places come from the registry, -1 where it is silent;
    there are none, so no slow place either, while receives cannot be told from own time."""
    rows = {shard: _join(windows, RowKind.ITERATION) for shard, windows in shards.items()}
    rows = {shard: table for shard, table in rows.items() if len(table)}
    if not rows:
        return Assembled(
            None, refused="no whole iteration was seen: no step is declared, or rounds are not reported"
        )
    ranks, steps, step_us, waited_us = _add_shards(rows)
    ranks, steps, step_us, waited_us = _whole(ranks, steps, step_us, waited_us)
    if not len(ranks) or not len(steps):
        return Assembled(None, refused="no rank shows the duration of its iterations and all its waits")
    waited_us, counted = _count_receives(shards, ranks, step_us, waited_us)
    alone = (waited_us > step_us).mean(axis=0) <= OVERLAP_SHARE
    if not alone.any():
        return Assembled(None, refused="communication runs beside computation: own time is not known")
    ranks, step_us, waited_us = ranks[alone], step_us[:, alone], waited_us[:, alone]
    names, members, transfer_us = _transfers(shards, steps, communicators)
    places, node_of = _places(ranks, nodes)
    window = ScalingWindow(
        step_s=step_us / 1e6,
        waited_s=np.minimum(waited_us, step_us) / 1e6,
        ranks=ranks,
        transfer_s=transfer_us / 1e6,
        comm_names=names,
        places=places if counted else {},  # who waits for a receive would look slow
        comm_nodes=[frozenset(node_of[rank] for rank in of if rank in node_of) for of in members],
    )
    return Assembled(window, int(steps[0]), int(steps[-1]))


def _join(windows: Sequence[Tables], kind: RowKind) -> Rows:
    tables = [window[kind] for window in windows if kind in window and len(window[kind])]
    return np.concatenate(tables) if tables else np.zeros(0, ROW_DTYPES[kind])


def _add_shards(rows: Mapping[int, Rows]) -> tuple[Ints, Ints, F64, F64]:
    """Ranks, steps, and duration and waits as steps x ranks; NaN where a shard of the rank says nothing."""
    everything = np.concatenate(list(rows.values()))
    ranks, steps = np.unique(everything["rank"]), np.unique(everything["step"])
    shape = (len(steps), len(ranks))
    step_us, waited_us = np.zeros(shape), np.zeros(shape)
    seen, needed = np.zeros(shape), np.zeros(len(ranks))
    for table in rows.values():
        row, column = np.searchsorted(steps, table["step"]), np.searchsorted(ranks, table["rank"])
        step_us[row, column] = np.maximum(step_us[row, column], table["step_us"])
        waited_us[row, column] += table["waited_us"]
        seen[row, column] += 1
        needed[np.unique(column)] += 1
    blank = (seen < needed) | (step_us <= 0)
    step_us[blank] = waited_us[blank] = np.nan
    return ranks.astype(np.int64), steps.astype(np.int64), step_us, waited_us


def _whole(ranks: Ints, steps: Ints, step_us: F64, waited_us: F64) -> tuple[Ints, Ints, F64, F64]:
    """Ranks that show nearly all steps, and the steps that all of those show."""
    known = np.isfinite(step_us)
    most = known.mean(axis=1).max(initial=0.0)
    usual = known[known.mean(axis=1) >= 0.5 * most]
    mine = usual.mean(axis=0) >= SEEN_SHARE if len(usual) else np.zeros(len(ranks), np.bool_)
    mine &= known.any(axis=0)
    all_of = known[:, mine].all(axis=1) if mine.any() else np.zeros(len(steps), np.bool_)
    return ranks[mine], steps[all_of], step_us[all_of][:, mine], waited_us[all_of][:, mine]


def _count_receives(
    shards: Mapping[int, Sequence[Tables]], ranks: Ints, step_us: F64, waited_us: F64
) -> tuple[F64, bool]:
    """Add what the counter of a process has more than its rounds, the same to each step: receives of a
    pipeline have no rounds. It is a mean over the window, so a rank that waits there is not called slow.
    False where some rank has no counter, or one over too few steps."""
    rows = _join(next(iter(shards.values())), RowKind.STEP)
    rows = rows[(rows["flags"] & int(StepFlag.OWN_UNOBSERVED)) == 0]
    at = np.searchsorted(ranks, rows["rank"])
    at[at == len(ranks)] = 0
    mine = ranks[at] == rows["rank"]
    at, rows = at[mine], rows[mine]
    steps = np.bincount(at, rows["steps"], len(ranks))
    counted = rows["step_us"].astype(np.float64) - rows["own_us"]
    waits = np.bincount(at, counted * rows["steps"], len(ranks)) / np.maximum(steps, 1)
    more = waits - waited_us.mean(axis=0)
    more[(steps < COUNTED_STEPS_MIN) | (more < COUNTED_MORE * step_us.mean(axis=0))] = 0.0
    return waited_us + more, bool((steps >= COUNTED_STEPS_MIN).all())


def _transfers(
    shards: Mapping[int, Sequence[Tables]], steps: Ints, communicators: Iterable[CommunicatorRecord]
) -> tuple[list[str], list[list[int]], F64]:
    """Names, members and transfer times (steps x communicators) of those that every step has."""
    rows = np.concatenate([_join(windows, RowKind.TRANSFER) for windows in shards.values()])
    rows = rows[np.isin(rows["step"], steps)]
    comms, column = np.unique(rows["comm"], return_inverse=True)
    found = np.full((len(steps), len(comms)), np.nan)
    found[np.searchsorted(steps, rows["step"]), column] = rows["transfer_us"]
    whole = np.flatnonzero(np.isfinite(found).all(axis=0))[:COMMS_MAX]
    known = {record.communicator: record for record in communicators}
    ids = [format_communicator(int(comms[at])) for at in whole]
    names = [known[each].name if each in known else each for each in ids]
    members = [parse_ranks(known[each].ranks) if each in known else [] for each in ids]
    return names, members, found[:, whole]


def _places(ranks: Ints, nodes: Iterable[NodeRecord]) -> tuple[dict[str, Ints], dict[int, str]]:
    node_of: dict[int, str] = {}
    local: dict[int, int] = {}
    for node in nodes:
        for rank in node.ranks:
            node_of[rank.rank], local[rank.rank] = node.node, rank.local_rank
    names = {name: number for number, name in enumerate(sorted(set(node_of.values())))}
    listed = [int(rank) for rank in ranks]
    places = {
        "node": np.array([names.get(node_of.get(rank, ""), -1) for rank in listed], np.int64),
        "local_rank": np.array([local.get(rank, -1) for rank in listed], np.int64),
    }
    return places, node_of
