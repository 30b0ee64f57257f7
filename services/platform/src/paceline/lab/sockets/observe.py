"""Pages to batches to detector to localizer, in memory: the code of the agent and of both services.

Each rank is a node of its own. What is left out is Kafka, and with it the clock of other machines.
"""

import time
from collections.abc import Sequence

from paceline.agent.batches import merge_rows
from paceline.agent.process import ProcReader
from paceline.agent.rows import Facts, RowMemory, RowPolicy, Suspicion, find_suspicion, reduce_page
from paceline.analysis.detection import DetectionPolicy
from paceline.analysis.detection.policy import SlowPolicy, StallPolicy
from paceline.collectives.host.schedule import Topology
from paceline.contracts.batch import Batch, BatchFlag, BatchKind
from paceline.contracts.codes import Algorithm
from paceline.contracts.ids import format_communicator, format_ranks
from paceline.contracts.registry import (
    CommunicatorRecord,
    JobRecord,
    JobState,
    NodeRecord,
    RankRecord,
)
from paceline.contracts.verdicts import Verdict, VerdictClass
from paceline.detector.core import DetectorCore, Placed, Signal
from paceline.lab.sockets.team import Member
from paceline.localizer.core import LocalizerCore

COMM_NAME = "world"
SUSPECT_MS = 1_000
# Limits for runs of a few seconds. The lag floor is what the scheduler alone does to eight processes on
# two cores; the judge's own floor is 2 s.
STALL = StallPolicy(floor_s=2.5, dead_floor_s=2.0)
SLOW = SlowPolicy(persist_s=1.0, lag_floor_ms=40.0)


class Observer:
    """What agents, detector and localizer make of one run."""

    def __init__(
        self, job: str, attempt: str, comm: int, topology: Topology, *, see_processes: bool, close: bool
    ) -> None:
        self.job = job
        self.attempt = attempt
        self.verdicts: list[tuple[int, Verdict]] = []  # (CLOCK_MONOTONIC ns, verdict)
        self.reasons: dict[str, int] = {}  # of detector and localizer, to explain what did not happen
        self._topology = topology
        self._see_processes = see_processes
        self._close = close  # edges in every sample: a run is shorter than the agent's period
        self._policy = RowPolicy(suspect_ms=SUSPECT_MS)
        self._memories: dict[int, RowMemory] = {}
        self._seq = 0
        self._offset = 0
        self._proc = ProcReader()
        self._detector = DetectorCore("lab", DetectionPolicy(stall=STALL, slow=SLOW))
        self._localizer = LocalizerCore()
        self._comm = comm

    def register(self, members: Sequence[Member]) -> None:
        """What agents would put into the registry, ring and tree order included."""
        size, order = self._topology.size, self._topology.order
        job = JobRecord(
            self.job, self.attempt, "lab", "lab", "root", "sockets", size, 1, JobState.RUNNING,
            "declared", "declared", time.time(),
        )  # fmt: skip
        ring = self._topology.algorithm is Algorithm.RING
        communicator = CommunicatorRecord(
            self.job, self.attempt, format_communicator(self._comm), COMM_NAME, format_ranks(range(size)), 0,
            0, "host", "world", ring=format_ranks(order) if ring else "",
            tree="" if ring else ",".join(map(str, self._topology.parents(0))),
        )  # fmt: skip
        self._detector.note_job(job)
        self._localizer.note_registry(job)
        self._localizer.note_registry(communicator)
        for member in members:
            rank = RankRecord(member.rank, 0, member.pid, member.pid_start)
            node = NodeRecord(self.job, self.attempt, _node(member.rank), "lab", (rank,))
            self._localizer.note_registry(node)

    def sample(self, members: Sequence[Member]) -> None:
        """One sample of every page and one tick of the detector; new verdicts are in `verdicts`."""
        self._seq += 1
        records = [self._place(self._batch(member)) for member in members]
        outputs = self._detector.apply(records)
        ticks = self._detector.make_ticks(time.monotonic_ns(), time.time_ns(), list(self._detector.held))
        outputs += self._detector.apply([self._place(tick) for tick in ticks])
        for output in outputs:
            if isinstance(output, Signal):
                self._count(f"signal_{output.batch.kind.name.lower()}_{output.reason.name.lower()}")
                self._judge(output.batch)

    @property
    def conclusive(self) -> list[Verdict]:
        """The verdicts that name something, oldest first."""
        return [v for _, v in self.verdicts if v.verdict_class is not VerdictClass.INCONCLUSIVE]

    @property
    def verdict(self) -> Verdict | None:
        """The newest one that names something, else the newest one."""
        said = self.conclusive or [verdict for _, verdict in self.verdicts]
        return said[-1] if said else None

    def explain(self) -> dict[str, int]:
        """How often what was decided."""
        return {**self.reasons, **{f"localizer_{k}": v for k, v in self._localizer.decisions.items()}}

    def _judge(self, batch: Batch) -> None:
        for published in self._localizer.apply(batch):
            if not published.record.resolved:
                self.verdicts.append((time.monotonic_ns(), published.record.verdict))

    def _batch(self, member: Member) -> Batch:
        now_ns = time.monotonic_ns()
        member.page.beat()
        view = member.page.read()
        reading = self._proc.read(member.pid)
        facts = Facts(member.rank, member.pid, member.pid_start, cpu_ms=reading.cpu_ms)
        if self._see_processes:
            facts = Facts(member.rank, member.pid, member.pid_start, reading.state, reading.cpu_ms)
        suspicion = find_suspicion(view, facts, now_ns, self._policy)
        detail = suspicion is not Suspicion.NONE
        memory = self._memories.get(member.rank, RowMemory())
        reduction = reduce_page(view, facts, memory, now_ns, self._policy, detail=detail or self._close)
        self._memories[member.rank] = reduction.memory
        return Batch(
            kind=BatchKind.FRAMES, job=self.job, attempt=self.attempt, node=_node(member.rank),
            shard=0, shards=1, seq=self._seq, sampled_ns=now_ns, sampled_unix_ns=time.time_ns(),
            rows=merge_rows([reduction.rows]), flags=BatchFlag.SUSPECT if detail else BatchFlag.NONE,
        )  # fmt: skip

    def _place(self, batch: Batch) -> Placed:
        self._offset += 1
        return Placed(0, self._offset, batch)

    def _count(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


def _node(rank: int) -> str:
    return f"node-{rank}"
