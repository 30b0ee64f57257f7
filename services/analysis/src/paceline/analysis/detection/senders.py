"""What is known of each sender (node): position in its sequence, silence, newest evidence rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.analysis.detection.arrays import SECOND_NS, U32, Bools, Ints, Rows, join_rows
from paceline.analysis.detection.edge_waits import with_recent_waits
from paceline.analysis.detection.reasons import Refusal
from paceline.contracts.batch import ROUND_ROW, Batch, BatchFlag, RowKind
from paceline.contracts.codes import OpState

EXTRA_KINDS = (RowKind.PEER, RowKind.ROUND, RowKind.EDGE, RowKind.FRAME)
_IS_OPEN = np.isin(np.arange(256), (OpState.ENTERED, OpState.STARTED, OpState.FAILED))
_NEWEST_ONLY = 255
PERIOD_NS_MAX = 30 * SECOND_NS  # agents sample at 0.1 to 10 Hz; more is a gap, not a period
MISSED_MAX = 3  # samples that may be late or lost before a sender counts as silent


def is_evidence(rounds: Rows) -> Bools:
    """ROUND rows that tell something of the present, not only of what was normal."""
    found: Bools = _IS_OPEN[rounds["state"]] | (rounds["level"] == _NEWEST_ONLY)
    return found


def join_rounds(batches: Sequence[Batch]) -> Rows:
    """The ROUND rows of all batches, in order."""
    tables = [rows for batch in batches if (rows := batch.rows.get(RowKind.ROUND)) is not None]
    return join_rows(tables) if tables else np.zeros(0, ROUND_ROW)


def without_evidence(rounds: Rows, counts: Ints) -> Bools:
    """Whether none of the next `counts` rows of `rounds` is evidence, for each of `counts`."""
    evidence = is_evidence(rounds)
    if not evidence.any():
        return np.ones(len(counts), np.bool_)
    ends = np.cumsum(counts)
    found = np.append(0, np.cumsum(evidence))
    none: Bools = found[ends] == found[ends - counts]
    return none


def only_kept(batches: Sequence[Batch], rounds: Rows) -> list[bool]:
    """Whether the ROUND rows of each batch are completed kept rounds; `rounds` has those of all batches."""
    counts = np.array([len(batch.rows.get(RowKind.ROUND, ())) for batch in batches], np.int64)
    none = without_evidence(rounds, counts)
    suspect = BatchFlag.SUSPECT.value
    return [
        kept and not int(batch.flags) & suspect for kept, batch in zip(none.tolist(), batches, strict=True)
    ]


@dataclass(slots=True)
class Sender:
    """One node as seen by one job shard."""

    node: str
    seq: int = -1
    sampled_ns: int = 0
    sampled_unix_ns: int = 0
    chunk: int = 0
    seen_ns: int = 0  # block time of the newest record
    passed_ns: int = 0  # between its last two samples
    period_ns: int = 0  # between its last two samples
    silent: bool = False
    followed: bool = False  # its rounds are collected for windows of iterations; decided anew after a restart
    extras: dict[RowKind, Rows] = field(default_factory=dict)
    edges_before: Rows | None = None  # of the sample before, for the waits of the interval
    ranks: U32 = field(default_factory=lambda: np.zeros(0, np.uint32))  # that it reports
    # caches, not state: positions of the rows this sender sends every time
    member_generation: int = -1
    member_positions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    process_generation: int = -1
    process_positions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def judge(self, batch: Batch) -> tuple[bool, Refusal | None]:
        """Whether `batch` is news, and what to count.

        A sender that restarts counts from the start again on the same monotonic clock; a node that
        reboots also has a smaller clock, and only its wall clock (here as an order, never as a
        duration) tells that from a late record.
        """
        if self.seq < 0:
            return True, None
        later = batch.sampled_ns > self.sampled_ns
        if batch.seq > self.seq:
            if batch.sampled_ns < self.sampled_ns and batch.sampled_unix_ns <= self.sampled_unix_ns:
                return False, Refusal.DUPLICATE
            return True, Refusal.SEQUENCE_GAP if batch.seq > self.seq + 1 else None
        if later:
            return True, Refusal.SENDER_RESTARTED
        same = batch.sampled_ns == self.sampled_ns and batch.seq == self.seq
        if same and batch.chunk > self.chunk:
            return True, None
        if batch.sampled_unix_ns > self.sampled_unix_ns + SECOND_NS and not same:
            return True, Refusal.SENDER_RESTARTED
        return False, Refusal.DUPLICATE

    def advance(self, seq: int, sampled_ns: int, unix_ns: int, now_ns: int) -> int | None:
        """`judge` and `take` of the usual record: later, whole, nothing in it to keep.

        Returns how many records before it are missing; None, and nothing changed, where it is not later.
        """
        steps, passed_ns = seq - self.seq, sampled_ns - self.sampled_ns
        if steps <= 0 or passed_ns <= 0 or self.seq < 0:
            return None
        self.passed_ns = passed_ns
        period_ns = passed_ns // steps
        self.period_ns = period_ns if period_ns < PERIOD_NS_MAX else PERIOD_NS_MAX
        self.seq, self.sampled_ns, self.sampled_unix_ns = seq, sampled_ns, unix_ns
        self.chunk, self.seen_ns = 0, now_ns
        self.edges_before = None
        if self.extras:
            self.edges_before = self.extras.get(RowKind.EDGE)
            self.extras = {}
        return steps - 1

    def take(self, batch: Batch, now_ns: int, extra_rows_max: int, *, kept_only: bool = False) -> int:
        """Advance to `batch`, keep its evidence rows; returns how many rows exceeded the bound.

        `kept_only`: the caller has seen that no ROUND row of `batch` is evidence.
        """
        same_sample = batch.sampled_ns == self.sampled_ns and self.seq >= 0 and batch.chunk > 0
        steps, passed_ns = batch.seq - self.seq, batch.sampled_ns - self.sampled_ns
        if same_sample:
            passed_ns = self.passed_ns
        self.passed_ns = passed_ns
        if self.seq >= 0 and steps > 0 and passed_ns > 0:
            self.period_ns = min(passed_ns // steps, PERIOD_NS_MAX)
        edges_before = self.extras.get(RowKind.EDGE) if not same_sample else self.edges_before
        self.edges_before = edges_before
        self.seq, self.sampled_ns, self.chunk = batch.seq, batch.sampled_ns, batch.chunk
        self.sampled_unix_ns, self.seen_ns = batch.sampled_unix_ns, now_ns
        if not same_sample:
            self.extras = {}
        dropped = 0
        for kind in EXTRA_KINDS:
            rows = batch.rows.get(kind)
            if rows is None or len(rows) == 0 or (kept_only and kind is RowKind.ROUND):
                continue
            # Recent completed rounds come only while suspect: the judge compares what ranks had called.
            if kind is RowKind.ROUND and not batch.flags & BatchFlag.SUSPECT:
                rows = rows[is_evidence(rows)]
                if len(rows) == 0:
                    continue
            if kind is RowKind.EDGE and edges_before is not None and passed_ns > 0:
                rows = with_recent_waits(rows, edges_before, passed_ns)
            held = self.extras.get(kind)
            rows = rows if held is None else join_rows([held, rows])
            dropped += max(len(rows) - extra_rows_max, 0)
            if len(rows):
                self.extras[kind] = rows[:extra_rows_max]
        return dropped
