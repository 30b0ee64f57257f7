"""The detector without Kafka: records in, outputs out. Pure but for its own state."""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from paceline.analysis.detection import Decision, DecisionKind, DetectionPolicy, JobBlock, Reason
from paceline.contracts.batch import Batch, BatchFlag, BatchKind
from paceline.contracts.batch_run import BatchRun
from paceline.contracts.ids import derived_id
from paceline.contracts.registry import HealthEvent, HealthKind, JobRecord, JobState

T = TypeVar("T")
ENDED_MAX = 4096  # attempts remembered as over, so that late records do not revive them
FAILED_QUIET_NS = 10 * 10**9  # of a failed job without suspicion: nothing more will come
_SIGNALS = {
    DecisionKind.STALLED: BatchKind.STALLED,
    DecisionKind.SLOW: BatchKind.SLOW,
    DecisionKind.STATE: BatchKind.STATE,
    DecisionKind.CLEAR: BatchKind.CLEAR,
    DecisionKind.SCALING: BatchKind.SCALING,
}
_HEARTBEATS = {
    DecisionKind.HEARTBEAT_LOST: HealthKind.HEARTBEAT_LOST,
    DecisionKind.HEARTBEAT_BACK: HealthKind.HEARTBEAT_BACK,
}


class BlockKey(NamedTuple):
    """Which attempt of which job, and which part of its communicators."""

    job: str
    attempt: str
    shard: int

    @property
    def text(self) -> str:
        return f"{self.job}:{self.attempt}:{self.shard}"


class Placed(NamedTuple):
    """A decoded record and where it stands in the log."""

    partition: int
    offset: int
    batch: Batch


class PlacedRun(NamedTuple):
    """Records of FRAMES of one partition that were read together; offsets grow."""

    partition: int
    offsets: Sequence[int]
    run: BatchRun


@dataclass(frozen=True)
class Signal:
    """One signal, not yet cut into records."""

    batch: Batch
    reason: Reason


@dataclass(frozen=True)
class Forgotten:
    """A block is gone; its snapshot may be removed."""

    key: BlockKey


Output = Signal | HealthEvent | Forgotten


@dataclass
class Held:
    """A block and its place in the log."""

    key: BlockKey
    shards: int
    partition: int
    block: JobBlock
    next_offset: int = 0  # first record not yet taken
    first_offset: int = 0  # where the attempt was first seen; a later one is a newer attempt
    signal_seq: int = 0
    tick_seq: int = 0
    sampled_unix_ns: int = 0  # newest of any sender
    failed: bool = False  # the registry says so; kept while suspect
    waiting: list[Batch | BatchRun] = field(default_factory=list)  # frames not yet applied


class DetectorCore:
    """All blocks of one detector instance."""

    def __init__(
        self,
        instance: str,
        policy: DetectionPolicy,
        *,
        jobs_max: int = 1024,
        idle_job_s_max: float = 1800.0,
    ) -> None:
        self.instance = instance
        self.policy = policy
        self.held: dict[BlockKey, Held] = {}
        self.refused: Counter[str] = Counter()
        self.has_grown = False  # by the last `apply`: then few large ones are cheaper than many small ones
        self._attempts: dict[tuple[str, int], set[BlockKey]] = {}  # held blocks by (job, shard)
        self._jobs_max = jobs_max
        self._idle_ns = int(idle_job_s_max * 1e9)
        self._over: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._worlds: OrderedDict[tuple[str, str], int] = OrderedDict()

    # ------------------------------------------------------------------ the log of frames

    def apply(self, records: Iterable[Placed | PlacedRun]) -> list[Output]:
        """Take records in log order; outputs in the order in which they follow."""
        outputs: list[Output] = []
        members = sum(len(held.block.members) for held in self.held.values())
        for record in records:
            if isinstance(record, PlacedRun):
                self._collect_run(record)
            elif record.batch.kind is BatchKind.TICK:
                outputs.extend(self._tick(record))
            else:
                self._collect(record)
        for held in self.held.values():
            self._flush(held)
        self.has_grown = sum(len(held.block.members) for held in self.held.values()) > members
        return outputs

    def _collect(self, record: Placed) -> None:
        batch = record.batch
        held = self._find(record)
        if held is None or not self._advance(held, record):
            return
        held.sampled_unix_ns = max(held.sampled_unix_ns, batch.sampled_unix_ns)
        held.waiting.append(batch)

    def _collect_run(self, record: PlacedRun) -> None:
        """By block; what is not simply the next part of a block that we hold goes record by record."""
        run, shards = record.run, record.run.heads["shard"]
        if len({origin.attempt for origin in run.origins}) == 1 and bool((shards == shards[0]).all()):
            return self._collect_part(BlockKey(*run.origins[0].attempt, int(shards[0])), record)
        parts: dict[BlockKey, list[int]] = {}
        for at, (origin, shard) in enumerate(zip(run.origins, shards.tolist(), strict=True)):
            parts.setdefault(BlockKey(*origin.attempt, shard), []).append(at)
        for key, places in parts.items():
            offsets = [record.offsets[at] for at in places]
            self._collect_part(key, PlacedRun(record.partition, offsets, run.take(places)))

    def _collect_part(self, key: BlockKey, record: PlacedRun) -> None:
        held = self.held.get(key)
        if held is None or held.partition != record.partition or record.offsets[0] < held.next_offset:
            for at, offset in enumerate(record.offsets):
                self._collect(Placed(record.partition, offset, record.run.batch(at)))
            return
        held.next_offset = record.offsets[-1] + 1
        held.sampled_unix_ns = max(held.sampled_unix_ns, int(record.run.heads["sampled_unix_ns"].max()))
        held.waiting.append(record.run)

    def _find(self, record: Placed) -> Held | None:
        batch = record.batch
        key = BlockKey(batch.job, batch.attempt, batch.shard)
        held = self.held.get(key)
        if held is not None:
            return held
        if (batch.job, batch.attempt) in self._over:
            self.refused["attempt_over"] += 1
            return None
        if len(self.held) >= self._jobs_max:
            self.refused["jobs_full"] += 1
            return None
        block = JobBlock(self.policy)
        block.world_size = self._worlds.get((batch.job, batch.attempt), 0)
        held = Held(key, batch.shards, record.partition, block, record.offset, record.offset)
        self._hold(held)
        return held

    def _hold(self, held: Held) -> None:
        self.held[held.key] = held
        self._attempts.setdefault((held.key.job, held.key.shard), set()).add(held.key)

    def _let_go(self, key: BlockKey) -> None:
        self.held.pop(key, None)
        attempts = self._attempts.get((key.job, key.shard), set())
        attempts.discard(key)
        if not attempts:
            self._attempts.pop((key.job, key.shard), None)

    def _other_attempts(self, held: Held) -> list[Held]:
        """Blocks of the same job and shard; looked up, because this is asked for every record."""
        keys = self._attempts.get((held.key.job, held.key.shard), set())
        return [self.held[key] for key in keys if key != held.key]

    def _advance(self, held: Held, record: Placed) -> bool:
        """False for a record that a snapshot already contains."""
        if record.partition != held.partition:
            held.partition, held.next_offset = record.partition, record.offset
        if record.offset < held.next_offset:
            return False
        held.next_offset = record.offset + 1
        return True

    def _flush(self, held: Held) -> None:
        if not held.waiting:
            return
        waiting, held.waiting = held.waiting, []
        if len(waiting) == 1 and isinstance(waiting[0], BatchRun):
            held.block.apply_run(waiting[0])
            self._retire_elsewhere(held, [origin.node for origin in waiting[0].origins])
            return
        batches: list[Batch] = []
        for one in waiting:
            batches.extend([one] if isinstance(one, Batch) else map(one.batch, range(len(one))))
        held.block.apply(batches)
        self._retire_elsewhere(held, [batch.node for batch in batches])

    def _retire_elsewhere(self, held: Held, nodes: Sequence[str]) -> None:
        """A node that reports a newer attempt has left the older ones."""
        for other in self._other_attempts(held):
            if other.first_offset < held.first_offset:
                for node in nodes:
                    other.block.retire(node)

    def _tick(self, record: Placed) -> list[Output]:
        tick = record.batch
        held = self.held.get(BlockKey(tick.job, tick.attempt, tick.shard))
        if held is None or not self._advance(held, record):
            return []
        self._flush(held)
        decisions = held.block.tick(tick.node, tick.sampled_ns)
        if self._is_replaced(held):
            decisions = held.block.end(Reason.ATTEMPT_REPLACED)
        elif held.failed and not held.block.suspicion.active and held.block.quiet_ns > FAILED_QUIET_NS:
            decisions = held.block.end(Reason.JOB_RECORD_ENDED)
        elif held.block.quiet_ns > self._idle_ns:
            decisions = [Decision(DecisionKind.ENDED, Reason.SILENT)]
        return self._publish(held, decisions, tick.sampled_ns, tick.sampled_unix_ns)

    def _is_replaced(self, held: Held) -> bool:
        newer = any(other.first_offset > held.first_offset for other in self._other_attempts(held))
        return newer and held.block.is_left

    # ------------------------------------------------------------------ other topics

    def note_job(self, record: JobRecord) -> list[Output]:
        """Membership and end of an attempt, from the registry."""
        key = (record.job, record.attempt)
        _remember(self._worlds, key, record.world_size)
        outputs: list[Output] = []
        mine = [held for held in self.held.values() if (held.key.job, held.key.attempt) == key]
        for held in mine:
            held.block.world_size = record.world_size
            held.failed = record.state is JobState.FAILED
            if record.state.is_orderly_end:
                decisions = held.block.end(Reason.JOB_RECORD_ENDED)
                outputs.extend(
                    self._publish(held, decisions, held.block.tick_sampled_ns, held.sampled_unix_ns)
                )
        if record.state.is_orderly_end:
            _remember(self._over, key, None)
        else:
            self._over.pop(key, None)
        return outputs

    def note_signal(self, batch: Batch) -> None:
        """Another shard suspects a job of ours: its state is wanted."""
        if batch.kind not in (BatchKind.STALLED, BatchKind.SLOW):
            return
        for held in self.held.values():
            if (held.key.job, held.key.attempt) == (
                batch.job,
                batch.attempt,
            ) and held.key.shard != batch.shard:
                held.block.ask()

    def take_refused(self) -> Counter[str]:
        """What was refused since the last call, by reason, over all blocks."""
        taken, self.refused = self.refused, Counter()
        for held in self.held.values():
            for reason, number in held.block.refused.items():
                taken[reason.name.lower()] += number
            held.block.refused.clear()
        return +taken

    # ------------------------------------------------------------------ ticks, partitions

    def make_ticks(self, sampled_ns: int, sampled_unix_ns: int, keys: Collection[BlockKey]) -> list[Batch]:
        """One tick record for each of `keys`; the caller writes them into the log of frames."""
        ticks = []
        for held in self.held.values():
            if held.key not in keys:
                continue
            held.tick_seq += 1
            ticks.append(
                Batch(
                    kind=BatchKind.TICK,
                    job=held.key.job,
                    attempt=held.key.attempt,
                    node=self.instance,
                    shard=held.key.shard,
                    shards=held.shards,
                    seq=held.tick_seq,
                    sampled_ns=sampled_ns,
                    sampled_unix_ns=sampled_unix_ns,
                )
            )
        return ticks

    def adopt(self, held: Held) -> None:
        """Take over a block from a snapshot; one that we hold further along is kept."""
        known = self.held.get(held.key)
        if known is None or known.next_offset < held.next_offset:
            self._hold(held)

    def drop_partitions(self, partitions: Iterable[int]) -> None:
        """Forget the blocks of partitions that are no longer ours."""
        gone = set(partitions)
        for key in [key for key, held in self.held.items() if held.partition in gone]:
            self._let_go(key)

    # ------------------------------------------------------------------ outputs

    def _publish(
        self, held: Held, decisions: Sequence[Decision], sampled_ns: int, sampled_unix_ns: int
    ) -> list[Output]:
        outputs: list[Output] = []
        for decision in decisions:
            if decision.kind is DecisionKind.ENDED:
                self._let_go(held.key)
                outputs.append(Forgotten(held.key))
            elif decision.kind in _HEARTBEATS:
                outputs.append(self._heartbeat(held, decision, sampled_unix_ns))
            else:
                outputs.append(self._signal(held, decision, sampled_ns, sampled_unix_ns))
        return outputs

    def _signal(self, held: Held, decision: Decision, sampled_ns: int, sampled_unix_ns: int) -> Signal:
        held.signal_seq += 1
        rows, cut = ({}, 0) if decision.kind is DecisionKind.CLEAR else held.block.evidence(decision)
        self.refused["evidence_rows_cut"] += cut
        key = held.key
        flags = BatchFlag.SUSPECT if decision.kind is DecisionKind.STALLED else BatchFlag.NONE
        if decision.kind is DecisionKind.CLEAR and decision.reason is Reason.PROGRESS:
            flags |= BatchFlag.PROGRESS
        batch = Batch(
            kind=_SIGNALS[decision.kind],
            job=key.job,
            attempt=key.attempt,
            node=self.instance,
            shard=key.shard,
            shards=held.shards,
            seq=held.signal_seq,
            sampled_ns=sampled_ns,
            sampled_unix_ns=sampled_unix_ns,
            rows=rows,
            flags=flags | (BatchFlag.DROPPED if cut else BatchFlag.NONE),
            episode=_episode(key, decision),
        )
        return Signal(batch, decision.reason)

    def _heartbeat(self, held: Held, decision: Decision, sampled_unix_ns: int) -> HealthEvent:
        kind = _HEARTBEATS[decision.kind]
        key = held.key
        silence_s = self.policy.stall.silence_s
        lost = kind is HealthKind.HEARTBEAT_LOST
        return HealthEvent(
            id=derived_id("health", kind.value, key.job, key.attempt, decision.node, decision.node_seq),
            kind=kind,
            node=decision.node,
            job=key.job,
            attempt=key.attempt,
            rank=None,
            pid=None,
            at_unix_s=sampled_unix_ns / 1e9,
            message=f"agent silent for more than {silence_s:g} s" if lost else "agent reports again",
        )


def _episode(key: BlockKey, decision: Decision) -> str:
    """The same id for every signal of one episode, also after a restart; none for a mere state."""
    if decision.kind in (DecisionKind.STATE, DecisionKind.SCALING):
        return ""
    kind = "slow" if decision.slow else "stall"
    return derived_id("epi", key.job, key.attempt, kind, decision.communicator, decision.round)


def _remember(table: "OrderedDict[tuple[str, str], T]", key: tuple[str, str], value: T) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > ENDED_MAX:
        table.popitem(last=False)
