"""Kept rounds until every member has reported them: T of round x member, nothing else compared.

Each communicator has a few cells (`round mod cells`). A round claims a free cell; the cell is free
again once the round is complete or has waited `PENDING_S` for a member. Where rounds compete, the
coarser kept level wins: those are the ones that all members keep. So memory is bounded whatever the
rate is, and what is judged is a sample of the rounds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.analysis.detection.arrays import (
    F32,
    SECOND_NS,
    U8,
    U32,
    U64,
    Bools,
    Ints,
    Rows,
    group_max,
    group_min,
    group_sum,
)
from paceline.analysis.detection.members import Members
from paceline.analysis.detection.placing import Table, address, placing_of
from paceline.contracts.codes import OpKind, OpState

PENDING_S = 6  # two ragged samples at 0.5 Hz, and a late record
CELLS_MIN, CELLS_MAX = 8, 32
_MEMBER_BYTES = 16  # per cell and member: T, gap, two waits
_NEWEST_ONLY = 255
_ROUND_BITS = np.uint64(48)
_NOT_KEPT = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Complete:
    """Complete rounds of one cell row, one entry per communicator; T in ns."""

    cell: int
    comm: Ints  # index in Members.comms
    number: U64
    t_min: F32
    t_max: F32
    late: F32  # how much the one with the smallest T came after the mean of the others
    members: Ints
    function: U8
    dtype: U8
    reduce_op: U8
    path: U8  # algorithm and protocol
    count: U64


class RoundWindow:
    """Cells x members; laid out again, empty, when members appear."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.dropped_rows = 0  # no cell was free
        self._generation = -1
        self._lay_out(0, 0)

    def _lay_out(self, members: int, comms: int) -> None:
        fitting = self.bytes_max // max(members * _MEMBER_BYTES, 1)
        cells = self.cells = int(min(max(fitting, CELLS_MIN), CELLS_MAX))
        self.duration: F32 = np.zeros((cells, members), np.float32)
        self.gap: F32 = np.zeros((cells, members), np.float32)
        self.send_wait: U32 = np.zeros((cells, members), np.uint32)
        self.recv_wait: U32 = np.zeros((cells, members), np.uint32)
        self.number: U64 = np.zeros((cells, comms), np.uint64)
        self.count: U64 = np.zeros((cells, comms), np.uint64)
        self.function: U8 = np.zeros((cells, comms), np.uint8)
        self.dtype: U8 = np.zeros((cells, comms), np.uint8)
        self.reduce_op: U8 = np.zeros((cells, comms), np.uint8)
        self.path: U8 = np.zeros((cells, comms), np.uint8)
        self._since_ns: Ints = np.zeros((cells, comms), np.int64)
        self._judged: Bools = np.ones((cells, comms), np.bool_)
        self._touched: Bools = np.zeros(cells, np.bool_)
        # scratch of `_claim`: valid only where it has just written
        self._best: U64 = np.zeros(cells * comms, np.uint64)
        self._row: Ints = np.zeros(cells * comms, np.int64)

    def apply(self, rows: Rows, members: Members, now_ns: int, sent: Ints | None = None) -> None:
        """Take ROUND rows of any state; only completed collectives of known members count.

        `sent`: positions of members in the order in which rows of them may come; only a hint.
        """
        if members.generation != self._generation:
            self._lay_out(len(members), len(members.comms))
            self._generation = members.generation
        if sent is not None and self._place(rows, members, now_ns, sent):
            return
        usable = (rows["round"] > 0) & (rows["duration_ns"] > 0) & (rows["state"] == OpState.COMPLETED)
        usable &= (rows["kind"] == OpKind.COLLECTIVE) & (rows["level"] != _NEWEST_ONLY)
        position = _locate(rows, members, sent)
        usable &= position >= 0
        rows, position = _only(usable, rows, position)
        if len(rows) == 0:
            return
        comm = members.group[position]
        number = np.ascontiguousarray(rows["round"])
        cell = (number % np.uint64(self.cells)).astype(np.int64)
        flat = cell * len(members.comms) + comm
        self._claim(rows, flat, members, now_ns)
        fits = self.number.reshape(-1)[flat] == number
        self.dropped_rows += int(len(rows) - np.count_nonzero(fits))
        rows, cell, position = _only(fits, rows, cell, position)
        place = cell * self.duration.shape[1] + position
        self.duration.reshape(-1)[place] = rows["duration_ns"]
        self.gap.reshape(-1)[place] = rows["gap_ns"]
        self.send_wait.reshape(-1)[place] = rows["send_wait_us"]
        self.recv_wait.reshape(-1)[place] = rows["recv_wait_us"]
        self._touched[cell] = True

    def _place(self, rows: Rows, members: Members, now_ns: int, sent: Ints) -> bool:
        """The whole of `apply` in one pass; False, and nothing done, where `sent` does not fit or no way is
        at hand."""
        placing = placing_of(rows, sent)
        if placing is None:
            return False
        tables: list[Table] = [
            members.comm, members.rank, members.group, members.starts,
            self.duration, self.gap, self.send_wait, self.recv_wait,
            self.number, self.count, self.function, self.dtype, self.reduce_op, self.path,
            self._since_ns, self._judged, self._touched, self._best,
        ]  # fmt: skip
        dropped = placing.place_rounds(
            address(rows), len(rows), address(sent), len(sent), len(members), len(members.comms), self.cells,
            *map(address, tables),
            now_ns, PENDING_S * SECOND_NS, OpState.COMPLETED, OpKind.COLLECTIVE, _NEWEST_ONLY,
        )  # fmt: skip
        self.dropped_rows += max(dropped, 0)
        return dropped >= 0

    def _claim(self, rows: Rows, flat: Ints, members: Members, now_ns: int) -> None:
        """Give free cells to rounds that are not in the window yet."""
        number = self.number.reshape(-1)
        free = self._judged.reshape(-1)[flat]
        free |= now_ns - self._since_ns.reshape(-1)[flat] > PENDING_S * SECOND_NS
        wants = free & (rows["round"] > number[flat])
        if not wants.any():
            return
        rows, flat = rows[wants], flat[wants]
        rank_of = (np.uint64(255) - rows["level"].astype(np.uint64)) << _ROUND_BITS
        rank_of |= rows["round"] & np.uint64((1 << 48) - 1)
        best = self._best
        best[flat] = _NOT_KEPT
        np.minimum.at(best, flat, rank_of)
        rows, flat = _only(best[flat] == rank_of, rows, flat)
        order = np.arange(len(flat))
        self._row[flat] = order
        cells = flat[self._row[flat] == order]  # each once
        number[flat] = rows["round"]
        self.count.reshape(-1)[flat] = rows["count"]
        for name in ("function", "dtype", "reduce_op", "path"):
            getattr(self, name).reshape(-1)[flat] = rows[name]
        self._since_ns.reshape(-1)[cells] = now_ns
        self._judged.reshape(-1)[cells] = False
        self._empty(cells, members)

    def _empty(self, cells: Ints, members: Members) -> None:
        cell, comm = np.divmod(cells, len(members.comms))
        starts = members.starts[comm]
        place, _ = _ranges(starts, members.starts[comm + 1])
        place += np.repeat(cell * self.duration.shape[1], members.starts[comm + 1] - starts)
        self.duration.reshape(-1)[place] = 0

    def complete(self, members: Members) -> Iterator[Complete]:
        """Rounds that every member has reported since the last call, each once."""
        if members.generation != self._generation:
            return
        for cell in np.flatnonzero(self._touched):
            self._touched[cell] = False
            t_min = group_min(self.duration[cell], members.starts)
            ready = np.flatnonzero((t_min > 0) & ~self._judged[cell])
            if len(ready) == 0:
                continue
            self._judged[cell, ready] = True
            t_max = group_max(self.duration[cell], members.starts)
            sums = group_sum(self.duration[cell], members.starts)
            sizes = np.diff(members.starts)[ready]
            others = np.maximum(sizes - 1, 1)
            yield Complete(
                cell=int(cell),
                comm=ready,
                number=self.number[cell, ready],
                t_min=t_min[ready],
                t_max=t_max[ready],
                late=((sums[ready] - sizes * t_min[ready].astype(np.float64)) / others).astype(np.float32),
                members=sizes,
                function=self.function[cell, ready],
                dtype=self.dtype[cell, ready],
                reduce_op=self.reduce_op[cell, ready],
                path=self.path[cell, ready],
                count=self.count[cell, ready],
            )

    def last_ranks(self, cell: int, comms: Ints, members: Members) -> Ints:
        """Global rank with the smallest T in `cell` of each communicator of `comms`: it came last."""
        place, offsets = _ranges(members.starts[comms], members.starts[comms + 1])
        values = self.duration[cell, place]
        lowest = np.flatnonzero(values == np.repeat(group_min(values, offsets), np.diff(offsets)))
        first = lowest[np.searchsorted(lowest, offsets[:-1])]
        ranks: Ints = members.rank[place[first]].astype(np.int64)
        return ranks


def _ranges(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """All numbers of the ranges one after the other, and where each range begins (and the end)."""
    sizes = ends - starts
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, sizes), offsets


def _only(mask: Bools, *tables: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Rows where `mask` holds; no copy where it holds everywhere, which is usual."""
    return tables if mask.all() else tuple(table[mask] for table in tables)


def _locate(rows: Rows, members: Members, sent: Ints | None) -> Ints:
    """Position of the member of each row, -1 where unknown. Rows of one member come together."""
    if len(rows) == 0:
        return np.zeros(0, np.int64)
    comm, rank = np.ascontiguousarray(rows["comm"]), np.ascontiguousarray(rows["rank"])
    first = np.ones(len(rows), np.bool_)
    first[1:] = (comm[1:] != comm[:-1]) | (rank[1:] != rank[:-1])
    heads = np.flatnonzero(first)
    if sent is not None and len(sent) == len(heads) and members.verify(sent, comm[heads], rank[heads]):
        found = sent
    else:
        found = members.locate(comm[heads], rank[heads])
    return found if len(heads) == len(rows) else np.repeat(found, np.diff(np.append(heads, len(rows))))
