"""A job of our own making: ranks on nodes, communicators with rounds, exact samples of them."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from paceline.analysis.detection import Decision, DecisionKind, DetectionPolicy, JobBlock
from paceline.contracts.batch import (
    PEER_ROW,
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    Batch,
    BatchFlag,
    BatchKind,
    RowKind,
)
from paceline.contracts.codes import (
    ExitKind,
    Function,
    HostWait,
    OpKind,
    OpState,
    Phase,
    ProcessState,
)

# property tests cannot take a function-scoped fixture and import the job by this name
sys.modules.setdefault("paceline_tests_fake_job", sys.modules[__name__])
UNIX_NS = 1_800_000_000 * 10**9
SECOND = 10**9


@dataclass
class FakeRank:
    """One process; times are seconds of the fake job's own clock."""

    rank: int
    phase: Phase = Phase.TRAIN
    step: int = 10
    state: ProcessState = ProcessState.SLEEPING
    exit_kind: ExitKind = ExitKind.NONE
    exit_code: int = 0
    finished: bool = False
    native_age_ms: int = 50
    host_wait: HostWait = HostWait.NONE
    host_wait_age_ms: int = 0
    step_age_ms: int = 0
    waited_ms: int = 0


@dataclass
class FakeMember:
    """One rank in one communicator."""

    entered: int = 100
    completed: int = 100
    head_since_s: float = 0.0
    progress_s: float = 0.0
    send_count: int = 0
    flags: int = 0
    rounds: list[tuple[int, float, float]] = field(default_factory=list)  # (round, T, gap) not yet sent


@dataclass
class FakeJob:
    """`comms` maps a communicator to its global ranks; `per_node` ranks live on a node."""

    ranks: int = 8
    per_node: int = 4
    comms: dict[int, Sequence[int]] = field(default_factory=dict)
    job: str = "train"
    attempt: str = "a1"
    shards: int = 1
    now_s: float = 1000.0
    function: Function = Function.ALL_REDUCE
    count: int = 1 << 20

    def __post_init__(self) -> None:
        self.comms = self.comms or {7: range(self.ranks)}
        self.process = {rank: FakeRank(rank) for rank in range(self.ranks)}
        self.member = {
            (comm, rank): FakeMember(progress_s=self.now_s)
            for comm, ranks in self.comms.items()
            for rank in ranks
        }
        self.peers: dict[tuple[int, int], list[tuple[int, int, float]]] = {}  # -> (peer, direction, since)
        self.seq = dict.fromkeys(self.nodes, 0)
        self.silent: set[str] = set()

    @property
    def nodes(self) -> list[str]:
        return [f"node{i}" for i in range((self.ranks + self.per_node - 1) // self.per_node)]

    def node_of(self, rank: int) -> str:
        return f"node{rank // self.per_node}"

    def ranks_of(self, node: str) -> list[int]:
        return [rank for rank in range(self.ranks) if self.node_of(rank) == node]

    # -------------------------------------------------------------- what the job does

    def run(self, seconds: float, rounds: int = 10, *, without: Sequence[int] = ()) -> None:
        """All but `without` complete `rounds` rounds of every communicator within `seconds`."""
        self.now_s += seconds
        for (_, rank), member in self.member.items():
            if rank not in without:
                member.entered += rounds
                member.completed = member.entered
                member.progress_s = self.now_s
                member.head_since_s = 0.0

    def hang(self, comm: int, *, missing: Sequence[int] = ()) -> None:
        """Everybody but `missing` enters the next round of `comm` and waits."""
        for rank in self.comms[comm]:
            if rank not in missing:
                member = self.member[comm, rank]
                member.entered += 1
                member.head_since_s = self.now_s

    def release(self, comm: int) -> None:
        """The missing ones enter, the round completes."""
        newest = max(self.member[comm, rank].entered for rank in self.comms[comm])
        for rank in self.comms[comm]:
            member = self.member[comm, rank]
            member.entered = member.completed = newest
            member.head_since_s, member.progress_s = 0.0, self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def record_round(self, comm: int, durations_s: Sequence[float], gap_s: float = 0.001) -> None:
        """One completed kept round of `comm` with T of each member in its order."""
        for rank, duration in zip(self.comms[comm], durations_s, strict=True):
            member = self.member[comm, rank]
            member.entered += 1
            member.completed = member.entered
            member.progress_s = self.now_s
            member.rounds.append((member.entered, duration, gap_s))

    # -------------------------------------------------------------- what agents see

    def sample(self, *, nodes: Sequence[str] | None = None, shard: int = 0) -> list[Batch]:
        """One record of each node that is not silent."""
        return [self.batch(node, shard) for node in nodes or self.nodes if node not in self.silent]

    def batch(self, node: str, shard: int = 0) -> Batch:
        self.seq[node] += 1
        rows = {
            RowKind.PROCESS: self._process_rows(node),
            RowKind.STATE: self._state_rows(node, shard),
            RowKind.ROUND: self._round_rows(node, shard),
            RowKind.PEER: self._peer_rows(node),
        }
        return Batch(
            kind=BatchKind.FRAMES,
            job=self.job,
            attempt=self.attempt,
            node=node,
            shard=shard,
            shards=self.shards,
            seq=self.seq[node],
            sampled_ns=int(self.now_s * SECOND),
            sampled_unix_ns=UNIX_NS + int(self.now_s * SECOND),
            rows={kind: table for kind, table in rows.items() if len(table)},
            flags=BatchFlag.NONE,
        )

    def _process_rows(self, node: str) -> np.ndarray:
        ranks = self.ranks_of(node)
        rows = np.zeros(len(ranks), PROCESS_ROW)
        for row, rank in zip(rows, ranks, strict=True):
            process = self.process[rank]
            row["rank"], row["pid"], row["step"] = rank, 1000 + rank, process.step
            row["phase"], row["process_state"] = process.phase, process.state
            row["exit_kind"], row["exit_code"] = process.exit_kind, process.exit_code
            row["finished"], row["native_age_ms"] = process.finished, process.native_age_ms
            row["host_wait"], row["host_wait_age_ms"] = process.host_wait, process.host_wait_age_ms
            row["step_age_ms"], row["waited_ms"] = process.step_age_ms, process.waited_ms
        return rows

    def _own(self, node: str, shard: int) -> list[tuple[int, int]]:
        """Members that the agent still sees: pages of dead processes are released."""
        own = set(self.ranks_of(node))
        return [
            (comm, rank)
            for comm, rank in self.member
            if rank in own and comm % self.shards == shard and self.process[rank].exit_kind is ExitKind.NONE
        ]

    def _state_rows(self, node: str, shard: int) -> np.ndarray:
        own = self._own(node, shard)
        rows = np.zeros(len(own), STATE_ROW)
        for row, (comm, rank) in zip(rows, own, strict=True):
            member = self.member[comm, rank]
            row["comm"], row["rank"], row["comm_rank"] = comm, rank, list(self.comms[comm]).index(rank)
            row["entered"], row["completed"] = member.entered, member.completed
            if member.head_since_s:
                row["head_round"] = member.completed + 1
                row["head_age_ms"] = int((self.now_s - member.head_since_s) * 1000)
            row["idle_ms"] = int((self.now_s - member.progress_s) * 1000)
            row["send_count"], row["flags"] = member.send_count, member.flags
            row["function"] = self.function
        return rows

    def _round_rows(self, node: str, shard: int) -> np.ndarray:
        own = self._own(node, shard)
        table = [(key, entry) for key in own for entry in self.member[key].rounds]
        rows = np.zeros(len(table), ROUND_ROW)
        for row, ((comm, rank), (number, duration, gap)) in zip(rows, table, strict=True):
            row["comm"], row["rank"], row["round"] = comm, rank, number
            row["comm_rank"] = list(self.comms[comm]).index(rank)
            row["kind"], row["function"], row["state"] = OpKind.COLLECTIVE, self.function, OpState.COMPLETED
            row["count"], row["duration_ns"] = self.count, int(duration * SECOND)
            row["gap_ns"] = int(gap * SECOND)
        for key in own:
            self.member[key].rounds.clear()
        return rows

    def _peer_rows(self, node: str) -> np.ndarray:
        own = set(self.ranks_of(node))
        table = [(key, entry) for key, entries in self.peers.items() if key[1] in own for entry in entries]
        rows = np.zeros(len(table), PEER_ROW)
        for row, ((comm, rank), (peer, direction, since_s)) in zip(rows, table, strict=True):
            row["comm"], row["rank"], row["peer"] = comm, rank, peer
            row["head_age_ms"][direction] = max(int((self.now_s - since_s) * 1000), 1)
        return rows


class Watch:
    """A block fed by a fake job, one sample of every node and one tick a second."""

    def __init__(self, job: FakeJob, policy: DetectionPolicy | None = None) -> None:
        self.job = job
        self.block = JobBlock(policy or DetectionPolicy())
        self.decisions: list[Decision] = []
        self.tick_ns = 5 * SECOND

    def tick(self, batches: Sequence[Batch] | None = None, seconds: float = 1.0) -> list[Decision]:
        if DecisionKind.ENDED in self.kinds():
            return []  # the owner has dropped the block
        self.block.apply(self.job.sample() if batches is None else batches)
        self.tick_ns += int(seconds * SECOND)
        decided = self.block.tick("d", self.tick_ns)
        # a window of iterations says nothing about faults and comes from healthy jobs too
        found = [decision for decision in decided if decision.kind is not DecisionKind.SCALING]
        self.decisions += found
        return found

    def healthy(self, seconds: int = 5) -> "Watch":
        for _ in range(seconds):
            self.job.run(1.0)
            self.tick()
        return self

    def idle(self, seconds: int) -> list[Decision]:
        """Time passes, nothing moves; returns what was decided."""
        found: list[Decision] = []
        for _ in range(seconds):
            self.job.wait(1.0)
            found += self.tick()
        return found

    def kinds(self) -> list[DecisionKind]:
        return [decision.kind for decision in self.decisions]


@pytest.fixture
def fake_job() -> Callable[..., FakeJob]:
    return FakeJob


@pytest.fixture
def watch() -> Callable[..., Watch]:
    """`watch(job)`: a block that has seen some healthy seconds of `job`."""

    def make(job: FakeJob, policy: DetectionPolicy | None = None, healthy: int = 5) -> Watch:
        return Watch(job, policy).healthy(healthy)

    return make
