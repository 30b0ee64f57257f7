"""A job of per-rank programs over world, tensor, data and pipeline groups, run to where it stands still.

Every rank issues its calls in order, at most `window` outstanding (1 = blocking calls as on gloo);
operations complete in order of issue. Faults are changes of one rank's program or behaviour. What
stands still is written as the rows an agent would send, through the real codec.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from paceline.analysis import JobEvidence, build_evidence
from paceline.contracts.batch import (
    PEER_ROW,
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    Batch,
    BatchKind,
    RowKind,
    decode_batch,
    encode_batch,
)
from paceline.contracts.codes import (
    DType,
    FrameFlag,
    Function,
    OpKind,
    OpState,
    Phase,
    ProcessState,
    ReduceOp,
    Source,
)
from paceline.contracts.ids import communicator_id, derived_id, format_communicator, format_ranks, shard_of
from paceline.contracts.registry import (
    CommunicatorRecord,
    HealthEvent,
    JobRecord,
    JobState,
    NodeRecord,
    RankRecord,
)

JOB, ATTEMPT = "job-1", "a1"


@dataclass(frozen=True)
class Call:
    """One call of one rank; `peer` is a root or, for send and receive, the other global rank."""

    group: str
    function: Function
    count: int = 1024
    dtype: DType = DType.FLOAT32
    reduce_op: ReduceOp = ReduceOp.SUM
    peer: int = -1

    @property
    def pairwise(self) -> bool:
        return self.function in (Function.SEND, Function.RECV)

    def signature(self, members: Sequence[int]) -> int:
        """What all members must agree on; a root counts by its place in the communicator."""
        root = members.index(self.peer) if self.peer in members else -1
        text = derived_id("s", self.function, self.count, self.dtype, self.reduce_op, root)
        return int(text[2:18], 16) | 1


@dataclass
class Open:
    call: Call
    number: int  # round, or pair sequence
    issue: int
    tick: int


@dataclass
class Rank:
    program: list[Call]
    position: int = 0
    issued: int = 0
    open: list[Open] = field(default_factory=list)
    entered: dict[str, int] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)
    posted: dict[tuple[str, int, int], int] = field(default_factory=dict)  # group, peer, direction
    done: dict[tuple[str, int, int], int] = field(default_factory=dict)
    history: list[Open] = field(default_factory=list)
    halt_at: int = -1  # stops issuing before this position
    halt_inside: int = -1  # never completes the call at this position, and issues nothing more
    halted: bool = False


@dataclass(frozen=True)
class Shape:
    tp: int
    dp: int
    pp: int

    @property
    def world(self) -> int:
        return self.tp * self.dp * self.pp

    def place(self, rank: int) -> tuple[int, int, int]:
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def rank(self, t: int, d: int, p: int) -> int:
        return t + self.tp * (d + self.dp * p)

    def groups(self) -> dict[str, list[int]]:
        groups = {"world": list(range(self.world))}
        for rank in range(self.world):
            t, d, p = self.place(rank)
            groups.setdefault(f"tp_{d + self.dp * p}", []).append(rank)
            groups.setdefault(f"dp_{t + self.tp * p}", []).append(rank)
            groups.setdefault(f"pp_{t + self.tp * d}", []).append(rank)
        return {name: ranks for name, ranks in groups.items() if len(ranks) > 1}

    def group_of(self, rank: int, kind: str) -> str:
        t, d, p = self.place(rank)
        return {
            "tp": f"tp_{d + self.dp * p}",
            "dp": f"dp_{t + self.tp * p}",
            "pp": f"pp_{t + self.tp * d}",
            "world": "world",
        }[kind]


def program(shape: Shape, rank: int, steps: int) -> list[Call]:
    """Forward, pipeline, backward, gradient reduction, a broadcast and a barrier in every step."""
    t, d, p = shape.place(rank)
    tp, dp, pp = (shape.group_of(rank, kind) for kind in ("tp", "dp", "pp"))
    calls: list[Call] = []
    for _ in range(steps):
        if p > 0:
            calls.append(Call(pp, Function.RECV, 512, peer=shape.rank(t, d, p - 1)))
        calls += [Call(tp, Function.ALL_REDUCE, 2048), Call(tp, Function.ALL_GATHER, 4096)]
        calls.append(Call(tp, Function.BROADCAST, 16, reduce_op=ReduceOp.UNKNOWN, peer=shape.rank(0, d, p)))
        if p < shape.pp - 1:
            calls.append(Call(pp, Function.SEND, 512, peer=shape.rank(t, d, p + 1)))
            calls.append(Call(pp, Function.RECV, 512, peer=shape.rank(t, d, p + 1)))
        calls.append(Call(tp, Function.REDUCE_SCATTER, 4096))
        if p > 0:
            calls.append(Call(pp, Function.SEND, 512, peer=shape.rank(t, d, p - 1)))
        calls += [Call(dp, Function.ALL_REDUCE, 8192), Call(dp, Function.ALL_REDUCE, 8193)]
        calls.append(Call("world", Function.BARRIER, 0, DType.UNKNOWN, ReduceOp.UNKNOWN))
    groups = shape.groups()
    return [call for call in calls if call.group in groups]


def plain(row: np.ndarray) -> np.void:
    """The one row of a zero-dimensional array."""
    return cast(np.void, row[()])


class SimulatedJob:
    """Runs to the fixed point; afterwards `rows` and `evidence` show what agents would report."""

    def __init__(self, shape: Shape, seed: int, steps: int = 3, window: int = 1, backend: str = "gloo"):
        self.shape, self.window, self.backend = shape, window, backend
        self.random = random.Random(seed)
        self.groups = shape.groups()
        self.ids = {name: communicator_id(name, ranks) for name, ranks in self.groups.items()}
        self.ranks = [Rank(program(shape, rank, steps)) for rank in range(shape.world)]
        self.stuck: tuple[str, int] | None = None  # (group, round) that never completes: H3
        self.tick = 0
        self.health: list[HealthEvent] = []
        self.process: dict[int, dict[str, int]] = {}
        self.job_state = JobState.RUNNING

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> "SimulatedJob":
        moved = True
        while moved:
            moved = False
            order = list(range(len(self.ranks)))
            self.random.shuffle(order)
            for rank in order:
                moved |= self._issue(rank)
            moved |= self._complete()
        return self

    def _issue(self, number: int) -> bool:
        rank, moved = self.ranks[number], False
        while not rank.halted and rank.position < len(rank.program) and len(rank.open) < self.window:
            if rank.position == rank.halt_at:
                rank.halted = True
                break
            call = rank.program[rank.position]
            rank.halted = rank.position == rank.halt_inside
            rank.position += 1
            rank.issued += 1
            self.tick += 1
            if call.pairwise:
                key = (call.group, call.peer, 0 if call.function is Function.SEND else 1)
                rank.posted[key] = sequence = rank.posted.get(key, 0) + 1
            else:
                rank.entered[call.group] = sequence = rank.entered.get(call.group, 0) + 1
            rank.open.append(Open(call, sequence, rank.issued, self.tick))
            moved = True
        return moved

    def _complete(self) -> bool:
        moved = False
        for name, members in self.groups.items():
            heads = [self._head(rank, name) for rank in members]
            if all(heads) and self._agree(name, heads):
                moved = True
                for rank in members:
                    done = self.ranks[rank].open.pop(0)
                    self.ranks[rank].completed[name] = done.number
                    self.ranks[rank].history.append(done)
        for number, sender in enumerate(self.ranks):
            moved |= self._complete_pair(number, sender)
        return moved

    def _head(self, number: int, group: str) -> Open | None:
        """The rank's first open call where it is a collective of `group`."""
        rank = self.ranks[number]
        if rank.open and rank.open[0].call.group == group and not rank.open[0].call.pairwise:
            inside = rank.halted and rank.halt_inside == rank.position - 1 and len(rank.open) == 1
            return None if inside else rank.open[0]
        return None

    def _agree(self, name: str, heads: Sequence[Open | None]) -> bool:
        numbers = {head.number for head in heads if head}
        signatures = {head.call.signature(self.groups[name]) for head in heads if head}
        return len(numbers) == 1 and len(signatures) == 1 and (name, min(numbers)) != self.stuck

    def _complete_pair(self, number: int, rank: Rank) -> bool:
        if not rank.open or rank.open[0].call.function is not Function.SEND:
            return False
        send = rank.open[0]
        other = self.ranks[send.call.peer]
        if not other.open or other.open[0].call.function is not Function.RECV:
            return False
        receive = other.open[0]
        if receive.call.peer != number or receive.number != send.number:
            return False
        for owner, item, direction in ((rank, send, 0), (other, receive, 1)):
            owner.open.pop(0)
            owner.history.append(item)
            owner.done[(item.call.group, item.call.peer, direction)] = item.number
        return True

    # -- reporting -------------------------------------------------------------------------------

    def rows(self, rank: int, shards: int, shard: int) -> dict[RowKind, list[np.void]]:
        mine = {name: ranks for name, ranks in self.groups.items() if rank in ranks}
        found: dict[RowKind, list[np.void]] = {kind: [] for kind in RowKind}
        found[RowKind.PROCESS].append(self._process_row(rank, len(mine)))
        for name in mine:
            if shard_of(self.ids[name], shards) == shard:
                found[RowKind.STATE].append(self._state_row(rank, name))
                found[RowKind.ROUND] += self._round_rows(rank, name)
                found[RowKind.PEER] += self._peer_rows(rank, name)
        return found

    def age_ms(self, item: Open) -> int:
        return 6000 + (self.tick - item.tick)

    def _state_row(self, number: int, name: str) -> np.void:
        rank, row = self.ranks[number], np.zeros((), STATE_ROW)
        mine = [item for item in rank.open if item.call.group == name]
        heads = [item for item in mine if not item.call.pairwise]
        row["comm"], row["rank"] = self.ids[name], number
        row["comm_rank"] = self.groups[name].index(number)
        row["entered"], row["completed"] = rank.entered.get(name, 0), rank.completed.get(name, 0)
        row["open_ops"], row["flags"] = len(mine), FrameFlag.COUNTS_UNOBSERVABLE
        row["sources"], row["peer"] = Source.SIMULATOR, -1
        newest = [item for item in [*rank.history, *rank.open] if item.call.group == name]
        shown = heads[0] if heads else newest[-1] if newest else None
        if heads:
            row["head_round"] = heads[0].number
            row["head_signature"] = heads[0].call.signature(self.groups[name])
            row["head_issue"], row["head_age_ms"] = heads[0].issue, self.age_ms(heads[0])
        if shown:
            self._describe(row, shown.call)
        return plain(row)

    def _describe(self, row: np.ndarray, call: Call) -> None:
        row["function"], row["dtype"], row["reduce_op"] = call.function, call.dtype, call.reduce_op
        members = self.groups[call.group]
        row["peer"] = members.index(call.peer) if call.peer in members else -1

    def _round_rows(self, number: int, name: str) -> Iterator[np.void]:
        rank = self.ranks[number]
        recent = [item for item in rank.history if item.call.group == name][-4:]
        for item in [*recent, *(item for item in rank.open if item.call.group == name)]:
            row = np.zeros((), ROUND_ROW)
            row["comm"], row["rank"] = self.ids[name], number
            row["issue"], row["count"] = item.issue, item.call.count
            row["signature"] = item.call.signature(self.groups[name])
            row["round"] = 0 if item.call.pairwise else item.number
            row["pair_seq"] = item.number if item.call.pairwise else 0
            row["kind"] = OpKind.POINT_TO_POINT if item.call.pairwise else OpKind.COLLECTIVE
            self._describe(row, item.call)
            done = item in rank.history
            row["state"] = OpState.COMPLETED if done else OpState.ENTERED
            row["duration_ns"] = 1_000_000 if done else 0
            row["age_ms"] = self.age_ms(item)
            yield plain(row)

    def _peer_rows(self, number: int, name: str) -> Iterator[np.void]:
        rank = self.ranks[number]
        for peer in sorted({key[1] for key in rank.posted if key[0] == name}):
            row = np.zeros((), PEER_ROW)
            row["comm"], row["rank"] = self.ids[name], number
            row["comm_rank"], row["peer"] = self.groups[name].index(number), self.groups[name].index(peer)
            for direction, function in ((0, Function.SEND), (1, Function.RECV)):
                key = (name, peer, direction)
                row["posted"][direction] = rank.posted.get(key, 0)
                row["completed"][direction] = rank.done.get(key, 0)
                for item in rank.open:
                    same = (item.call.group, item.call.peer, item.call.function) == (name, peer, function)
                    if same and row["head_issue"][direction] == 0:
                        row["head_issue"][direction] = item.issue
                        row["head_age_ms"][direction] = self.age_ms(item)
            yield plain(row)

    def _process_row(self, number: int, communicators: int) -> np.void:
        row = np.zeros((), PROCESS_ROW)
        row["rank"], row["pid"], row["communicators"] = number, 1000 + number, communicators
        row["issued"], row["phase"] = self.ranks[number].issued, Phase.TRAIN
        row["process_state"], row["native_age_ms"], row["python_age_ms"] = ProcessState.SLEEPING, 80, 90
        row["host_wait_rank"] = -1
        for key, value in self.process.get(number, {}).items():
            row[key] = value
        return plain(row)

    def batches(self, shards: int = 2, hidden: Sequence[int] = (), lost_rows: float = 0.0) -> list[Batch]:
        """Signal batches of all shards, through the codec; `hidden` ranks report nothing."""
        batches = []
        for shard in range(shards):
            tables: dict[RowKind, list[np.void]] = {kind: [] for kind in RowKind}
            for rank in range(self.shape.world):
                if rank not in hidden:
                    for kind, rows in self.rows(rank, shards, shard).items():
                        keep = rows
                        if kind is RowKind.STATE and lost_rows:
                            keep = [row for row in rows if self.random.random() >= lost_rows]
                        tables[kind] += keep
            packed = {kind: np.array(rows) for kind, rows in tables.items() if rows}
            signal = BatchKind.STALLED if shard == 0 else BatchKind.STATE
            batch = Batch(
                signal, JOB, ATTEMPT, f"detector-{shard}", shard, shards, 1, 1, 1, packed, episode="e"
            )
            batches.append(decode_batch(encode_batch(batch)))
        return batches

    def registry(self) -> tuple[JobRecord, list[NodeRecord], list[CommunicatorRecord]]:
        world = self.shape.world
        job = JobRecord(
            JOB, ATTEMPT, "lab", "t", "u", "train", world, 2, self.job_state, "declared", "declared", 0.0
        )
        nodes = [
            NodeRecord(
                JOB,
                ATTEMPT,
                f"node{first // 8}",
                "agent",
                tuple(
                    RankRecord(rank, rank - first, 1000 + rank, 1, rank - first)
                    for rank in range(first, min(first + 8, world))
                ),
            )
            for first in range(0, world, 8)
        ]
        comms = [
            CommunicatorRecord(
                JOB,
                ATTEMPT,
                format_communicator(self.ids[name]),
                name,
                format_ranks(ranks),
                0,
                shard_of(self.ids[name], 2),
                self.backend,
                name.partition("_")[0],
            )
            for name, ranks in self.groups.items()
        ]
        return job, nodes, comms

    def evidence(self, hidden: Sequence[int] = (), lost_rows: float = 0.0) -> JobEvidence:
        job, nodes, comms = self.registry()
        return build_evidence(self.batches(2, hidden, lost_rows), job, nodes, comms, self.health)
