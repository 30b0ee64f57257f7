"""Windows of iterations in, findings out: why a job that is not broken scales badly."""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from paceline.analysis.scaling import ScalingPolicy, find_scaling_modes
from paceline.analysis.scaling_window import Tables, assemble_window
from paceline.contracts.batch import Batch, RowKind
from paceline.contracts.ids import derived_id
from paceline.contracts.scaling import CV_MAX, FINDINGS_MAX, ScalingRecord
from paceline.localizer.memory import AttemptMemory

WINDOWS_MAX = 8  # of one shard: jobs with long steps need several
BYTES_MAX = 128 << 20
SHARDS_MAX = 1024
ATTEMPTS_MAX = 4096


@dataclass
class _Shard:
    windows: "deque[Tables]" = field(default_factory=lambda: deque(maxlen=WINDOWS_MAX))
    arriving: dict[int, Batch] = field(default_factory=dict)
    arriving_name: tuple[str, int] = ("", 0)
    newest: tuple[int, int] = (-1, -1)  # (sent at, seq) of the newest whole window

    @property
    def size_bytes(self) -> int:
        whole = sum(table.nbytes for window in self.windows for table in window.values())
        parts = sum(table.nbytes for batch in self.arriving.values() for table in batch.rows.values())
        return whole + parts

    def take(self, batch: Batch) -> bool:
        """Add a chunk; True once a window is whole and newer than the last one."""
        name = (batch.node, batch.seq)
        if name != self.arriving_name:
            self.arriving, self.arriving_name = {}, name
        self.arriving[batch.chunk] = batch
        if len(self.arriving) < batch.chunks:
            return False
        parts = [self.arriving[chunk] for chunk in sorted(self.arriving)]
        self.arriving = {}
        sent = (batch.sampled_unix_ns, batch.seq)
        if sent <= self.newest:
            return False  # comes again
        self.newest = sent
        kinds = {kind for part in parts for kind in part.rows}
        self.windows.append({kind: np.concatenate([part.table(kind) for part in parts]) for kind in kinds})
        return True


class ScalingWatch:
    """The newest windows of each attempt, least recently heard first out."""

    def __init__(self, policy: ScalingPolicy | None = None, bytes_max: int = BYTES_MAX) -> None:
        self.policy = policy or ScalingPolicy()
        self.dropped: Counter[str] = Counter()
        self._bytes_max = bytes_max
        self._held: OrderedDict[tuple[str, str], dict[int, _Shard]] = OrderedDict()
        self._sizes: dict[tuple[str, str], int] = {}
        self._fresh: dict[tuple[str, str], set[int]] = {}  # shards with a window that is not yet judged

    def apply(self, batch: Batch, memory: AttemptMemory) -> ScalingRecord | None:
        """Take one record of a window; what it shows, once all shards have sent theirs."""
        key = (batch.job, batch.attempt)
        shards = self._held.setdefault(key, {})
        self._held.move_to_end(key)
        if batch.shard not in shards and len(shards) >= SHARDS_MAX:
            self.dropped["scaling_shard"] += 1
            return None
        whole = shards.setdefault(batch.shard, _Shard()).take(batch)
        self._sizes[key] = sum(shard.size_bytes for shard in shards.values())
        self._bound(key)
        if not whole or not self._is_round_over(key, batch, len(shards)):
            return None
        return self._judge(batch, memory, {number: shard.windows for number, shard in shards.items()})

    def _is_round_over(self, key: tuple[str, str], batch: Batch, known: int) -> bool:
        """One record a window, once every shard has sent the same one: their steps have to meet. A shard
        that comes again before the others is not waited for any longer."""
        fresh = self._fresh.setdefault(key, set())
        is_over = batch.shard in fresh or len(fresh) + 1 >= max(min(batch.shards, SHARDS_MAX), known)
        fresh.add(batch.shard)
        if is_over:
            fresh.clear()
        return is_over

    def forget_jobs(self, jobs: Iterable[str]) -> None:
        """Jobs whose signals another instance reads now."""
        gone = set(jobs)
        for key in [key for key in self._held if key[0] in gone]:
            self._drop(key)

    def _judge(
        self, batch: Batch, memory: AttemptMemory, windows: dict[int, "deque[Tables]"]
    ) -> ScalingRecord:
        assembled = assemble_window(
            {number: _newest(held, self.policy.iterations_min) for number, held in windows.items()},
            memory.nodes.values(),
            memory.communicators.values(),
        )
        expected = memory.record.world_size if memory.record else 0
        window = assembled.window
        report = None if window is None else find_scaling_modes(window, self.policy)
        return ScalingRecord(
            id=derived_id("scal", batch.job, batch.attempt, batch.sampled_unix_ns),
            job=batch.job,
            attempt=batch.attempt,
            first_step=assembled.first_step,
            last_step=assembled.last_step,
            iterations=0 if window is None else len(window.step_s),
            ranks=0 if window is None else len(window.ranks),
            ranks_expected=expected,
            step_s=0.0 if window is None else round(float(window.step_s.mean()), 6),
            cv=() if report is None else report.cv[-CV_MAX:],
            findings=() if report is None else report.findings[:FINDINGS_MAX],
            refused=assembled.refused if report is None else report.refused,
            judged_unix_s=batch.sampled_unix_ns / 1e9,
        )

    def _bound(self, keep: tuple[str, str]) -> None:
        total = sum(self._sizes.values())
        while len(self._held) > ATTEMPTS_MAX or (total > self._bytes_max and len(self._held) > 1):
            oldest = next(iter(self._held))
            if oldest == keep:
                break
            total -= self._sizes.get(oldest, 0)
            self._drop(oldest)
            self.dropped["scaling_job"] += 1

    def _drop(self, key: tuple[str, str]) -> None:
        self._held.pop(key, None)
        self._sizes.pop(key, None)
        self._fresh.pop(key, None)


def _newest(windows: "deque[Tables]", iterations: int) -> list[Tables]:
    """The newest windows that hold enough iterations together, oldest first."""
    found: list[Tables] = []
    steps = 0
    for window in reversed(windows):
        found.append(window)
        if RowKind.ITERATION in window:
            steps += len(np.unique(window[RowKind.ITERATION]["step"]))
        if steps >= iterations:
            break
    return found[::-1]
