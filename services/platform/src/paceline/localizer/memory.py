"""What the localizer remembers of each job: registry, health and the newest signals, all bounded."""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.analysis import JobEvidence, build_evidence
from paceline.analysis.health_bound import REMARKS, fresh_health
from paceline.analysis.order_memory import JoinedOrders
from paceline.contracts.batch import Batch, BatchKind
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord
from paceline.localizer.health_log import HealthLog

NODE_EVENTS_MAX = 32

Registry = JobRecord | NodeRecord | CommunicatorRecord


@dataclass(frozen=True)
class MemoryBounds:
    jobs_max: int = 4096
    attempts_max: int = 3  # of one job
    nodes_max: int = 20_000  # of one attempt
    communicators_max: int = 500_000
    health_max: int = 4096
    shards_max: int = 1024
    signal_bytes_max: int = 256 << 20


@dataclass
class ShardSignals:
    """The newest complete signal of one shard, and the chunks of the one that is arriving."""

    batches: list[Batch] = field(default_factory=list)
    slow: list[Batch] = field(default_factory=list)
    arriving: dict[int, Batch] = field(default_factory=dict)
    arriving_name: tuple[str, int] = ("", 0)

    @property
    def size_bytes(self) -> int:
        held = (*self.batches, *self.slow, *self.arriving.values())
        return sum(rows.nbytes for batch in held for rows in batch.rows.values())

    def take(self, batch: Batch) -> bool:
        """Add a chunk; True once a whole signal is there."""
        name = (batch.node, batch.seq)
        if name != self.arriving_name:
            self.arriving, self.arriving_name = {}, name
        self.arriving[batch.chunk] = batch
        if len(self.arriving) < batch.chunks:
            return False
        whole = [self.arriving[chunk] for chunk in sorted(self.arriving)]
        if batch.kind is BatchKind.SLOW:
            self.slow = whole
        elif batch.kind is not BatchKind.CLEAR:
            self.batches = whole
        self.arriving = {}
        return True


@dataclass
class AttemptMemory:
    """One attempt of one job."""

    job: str
    attempt: str
    record: JobRecord | None = None
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    communicators: dict[str, CommunicatorRecord] = field(default_factory=dict)
    health: HealthLog = field(default_factory=HealthLog)
    shards: dict[int, ShardSignals] = field(default_factory=dict)
    orders: JoinedOrders = field(default_factory=JoinedOrders)

    def note(self, record: Registry, bounds: MemoryBounds) -> bool:
        """Keep a registry record; False where a bound forbids it."""
        if isinstance(record, JobRecord):
            self.record = record
            return True
        if isinstance(record, NodeRecord):
            if record.node not in self.nodes and len(self.nodes) >= bounds.nodes_max:
                return False
            self.nodes[record.node] = record
            return True
        known = record.communicator in self.communicators
        if not known and len(self.communicators) >= bounds.communicators_max:
            return False
        self.communicators[record.communicator] = record
        return True

    def evidence(
        self, *, slow: bool, node_health: Iterable[HealthEvent] = (), stalled_unix_s: float
    ) -> JobEvidence:
        """All that is known; slow rounds only where asked for, because a hang does not need them."""
        batches = [batch for shard in self.shards.values() for batch in shard.batches]
        if slow:
            batches = [batch for shard in self.shards.values() for batch in (*shard.slow, *shard.batches)]
        return build_evidence(
            batches,
            self.record,
            self.nodes.values(),
            self.communicators.values(),
            fresh_health([*node_health, *self.health], stalled_unix_s),
            job_id=self.job,
            attempt=self.attempt,
            orders=self.orders,
        )

    def forget_signals(self) -> None:
        """Rows of an episode that is over say nothing about the next one."""
        self.shards.clear()


class Memory:
    """All jobs, least recently used first out."""

    def __init__(self, bounds: MemoryBounds) -> None:
        self.bounds = bounds
        self.dropped: Counter[str] = Counter()
        self._jobs: OrderedDict[str, OrderedDict[str, AttemptMemory]] = OrderedDict()
        self._nodes: OrderedDict[str, deque[HealthEvent]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def attempt(self, job: str, attempt: str) -> AttemptMemory:
        """The memory of an attempt, made where it is new."""
        attempts = self._jobs.setdefault(job, OrderedDict())
        self._jobs.move_to_end(job)
        if attempt not in attempts:
            attempts[attempt] = AttemptMemory(job, attempt)
            while len(attempts) > self.bounds.attempts_max:
                attempts.popitem(last=False)
                self.dropped["attempt"] += 1
        while len(self._jobs) > self.bounds.jobs_max:
            self._jobs.popitem(last=False)
            self.dropped["job"] += 1
        return attempts[attempt]

    def find(self, job: str, attempt: str) -> AttemptMemory | None:
        return self._jobs.get(job, OrderedDict()).get(attempt)

    def take_signal(self, batch: Batch) -> bool:
        """Keep a signal's rows; True once it is complete."""
        memory = self.attempt(batch.job, batch.attempt)
        if batch.shard not in memory.shards and len(memory.shards) >= self.bounds.shards_max:
            self.dropped["shard"] += 1
            return False
        shard = memory.shards.setdefault(batch.shard, ShardSignals())
        complete = shard.take(batch)
        self._bound_rows(memory)
        return complete

    def note_node(self, event: HealthEvent) -> None:
        """Health of a node as such: it concerns every job there."""
        events = self._nodes.setdefault(event.node, deque(maxlen=NODE_EVENTS_MAX))
        self._nodes.move_to_end(event.node)
        if all(event.id != known.id for known in events):
            if len(events) == NODE_EVENTS_MAX:  # remarks go before faults, of each the oldest
                del events[next((at for at, known in enumerate(events) if known.kind in REMARKS), 0)]
            events.append(event)
        while len(self._nodes) > self.bounds.nodes_max:
            self._nodes.popitem(last=False)
            self.dropped["node"] += 1

    def node_health(self, memory: AttemptMemory) -> list[HealthEvent]:
        """Health of the nodes of an attempt, in order of nodes and arrival."""
        return [event for node in sorted(memory.nodes) for event in self._nodes.get(node, ())]

    def _bound_rows(self, keep: AttemptMemory) -> None:
        """Drop the rows of the longest untouched jobs until all rows fit."""
        held = [m for attempts in self._jobs.values() for m in attempts.values() if m.shards]
        sizes = {id(m): sum(shard.size_bytes for shard in m.shards.values()) for m in held}
        total = sum(sizes.values())
        for memory in held:
            if total <= self.bounds.signal_bytes_max:
                return
            if memory is not keep:
                total -= sizes[id(memory)]
                memory.forget_signals()
                self.dropped["signals"] += 1
