"""Operations of one kind of communicator as they were carried out, and what of them is over at a time.

Arrays are (stages of the operation, ranks of a stage); times are seconds of the job, infinite for
what never happens. Operations that are over everywhere only count in the bases; a few of them are
kept because agents report recent rounds.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline.contracts.layout import KEPT_LEVELS
from paceline.fleet.program import Call

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

RECENT_MAX = 24  # operations kept after they are over; agents report at most 16 rounds
_MASK = (1 << 64) - 1


def mix64(x: int) -> int:
    """splitmix64's finalizer: which rounds are kept depends on it (kernels/include/paceline/page_v1.h)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@lru_cache(maxsize=1 << 12)
def kept_level(number: int) -> int:
    """Coarsest kept level that holds round `number`."""
    mixed = mix64(number)
    return max(level for level in KEPT_LEVELS if mixed % (1 << level) == 0)


@dataclass(eq=False)
class Stuck:
    """Why and where an operation stands still: counts follow from it."""

    comm: int
    place: int  # that does not move; with `link` the sender, -1 = nobody moves
    done: float  # share of the operation, 0 to 1
    link: bool
    far: int = -1  # place of the receiver, with `link`


@dataclass(eq=False)
class Op:
    """One operation of all communicators of a kind on some stages."""

    call: Call
    stages: Ints
    numbers: Ints  # round of each stage, from 1
    issues: Ints  # process-wide issue index of each stage
    step: int
    enter: F64
    start: F64
    complete: F64
    gap: F32
    levels: U8
    first_s: float = -np.inf  # nobody enters before
    latest: float = 0.0  # last completion of all
    over: bool = False
    exceptions: dict[int, Call] = field(default_factory=dict)  # rank -> what it called instead
    reissued: dict[int, int] = field(default_factory=dict)  # rank -> its issue index
    inverted: set[int] = field(default_factory=set)  # ranks whose device runs it out of order
    stuck: list[Stuck] = field(default_factory=list)
    slow: list[tuple[int, int, float]] = field(default_factory=list)  # comm, receiver's place, excess s

    def row(self, stage: int) -> int:
        """Index of `stage` in the arrays, -1 where it takes no part."""
        found = np.flatnonzero(self.stages == stage)
        return int(found[0]) if len(found) else -1

    def bound(self) -> None:
        """Note the first entry and the last completion; again after either has been changed."""
        self.first_s, self.latest = float(self.enter.min()), float(self.complete.max())


@dataclass(eq=False)
class KindView:
    """State of every (stage, rank) in one kind of communicator at its own sample time."""

    entered: Ints
    completed: Ints
    head: Ints  # index in `ops` of the oldest open operation, -1 = none
    newest: Ints  # index in `ops` of the newest entered operation, -1 = none
    last_s: F64  # last completion, -inf = none
    waited_s: F64  # in completed operations so far, from start to completion
    ops: list[Op]

    def table(self, name: str) -> Ints:
        """(operation, stage) -> `numbers` or `issues`; 0 where a stage takes no part."""
        stages = self.entered.shape[0]
        found = np.zeros((len(self.ops) + 1, stages), np.int64)
        if self.ops:
            index = np.repeat(np.arange(len(self.ops)), [len(op.stages) for op in self.ops])
            values = np.concatenate([getattr(op, name) for op in self.ops])
            found[index, np.concatenate([op.stages for op in self.ops])] = values
        return found


class History:
    """All operations of one kind of communicator."""

    def __init__(self, stages: int, ranks: int) -> None:
        self.ops: list[Op] = []
        self.base = np.zeros(stages, np.int64)  # rounds that are over on all ranks of a stage
        self.count = np.zeros(stages, np.int64)  # rounds made so far
        self.last_s: F64 = np.full((stages, ranks), -np.inf)  # completion of rounds that are over
        self.waited_s: F64 = np.zeros((stages, ranks))  # in rounds that are over
        self.previous_s: F64 = np.full((stages, ranks), -np.inf)  # completion of the newest round made
        self.made: list[Op] | None = None  # all operations, where somebody wants them; never dropped

    def add(self, op: Op) -> None:
        op.bound()
        self.ops.append(op)
        if self.made is not None:
            self.made.append(op)

    def settle(self, before_s: float) -> list[Op]:
        """Close operations that were over everywhere at `before_s`; the ones closed now.

        In the order of their rounds on every stage: `base` counts all rounds up to its own.
        """
        closed = []
        waiting: set[int] = set()  # stages with an open operation
        for op in self.ops:
            if op.over:
                continue
            if op.latest > before_s or not waiting.isdisjoint(op.stages.tolist()):
                waiting.update(op.stages.tolist())
                continue
            op.over = True
            self.base[op.stages] = np.maximum(self.base[op.stages], op.numbers)
            self.last_s[op.stages] = np.maximum(self.last_s[op.stages], op.complete)
            self.waited_s[op.stages] += op.complete - op.start
            closed.append(op)
        over = sum(op.over for op in self.ops)
        if over > RECENT_MAX:
            excess = over - RECENT_MAX
            kept = []
            for op in self.ops:
                if op.over and excess > 0:
                    excess -= 1
                else:
                    kept.append(op)
            self.ops = kept
        return closed

    def view(self, at: F64) -> KindView:
        """State at the sample times `at` (stages, ranks), none of them before the last `settle`."""
        shape = self.last_s.shape
        entered = np.broadcast_to(self.base[:, None], shape).copy()
        completed = entered.copy()
        head, newest = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        last, waited = self.last_s.copy(), self.waited_s.copy()
        from_s, until_s = float(at.min()), float(at.max())
        over: dict[int, int] = {}  # stage -> newest operation that all its ranks have entered
        for index, op in enumerate(self.ops):
            stages = op.stages
            if op.over:
                over.update(dict.fromkeys(stages.tolist(), index))
                continue
            if op.first_s > until_s:
                continue
            rows = slice(None) if len(stages) == shape[0] else stages
            if op.latest <= from_s:
                over.update(dict.fromkeys(stages.tolist(), index))
                entered[rows] += 1
                completed[rows] += 1
                last[rows] = np.maximum(last[rows], op.complete)
                waited[rows] += op.complete - op.start
                continue
            if over:
                newest[list(over)] = np.array(list(over.values()))[:, None]
                over = {}
            now = at[rows]
            is_in = op.enter <= now
            is_out = op.complete <= now
            entered[rows] += is_in
            completed[rows] += is_out
            newest[rows] = np.where(is_in, index, newest[rows])
            is_open = is_in & ~is_out & (head[rows] < 0)
            if is_open.any():
                head[rows] = np.where(is_open, index, head[rows])
            if not is_out.any():
                continue
            last[rows] = np.where(is_out, np.maximum(last[rows], op.complete), last[rows])
            waited[rows] += np.where(is_out, op.complete - np.where(is_out, op.start, 0.0), 0.0)
        if over:
            newest[list(over)] = np.array(list(over.values()))[:, None]
        return KindView(entered, completed, head, newest, last, waited, self.ops)


@dataclass(eq=False)
class PairOp:
    """One send or receive of all ranks of a stage. `complete` of a send is set by its receive."""

    stage: int
    peer: int  # stage of the other side
    sends: bool
    sequence: int
    issue: int
    step: int
    count: int
    enter: F64  # (ranks,)
    start: F64
    complete: F64


class PairHistory:
    """Sends and receives between stages, newest last; those over on all ranks are dropped but a few."""

    def __init__(self) -> None:
        self.ops: list[PairOp] = []
        self.posted: dict[tuple[int, int, bool], int] = {}  # (stage, peer, sends)
        self.base: dict[tuple[int, int, bool], int] = {}  # over on all ranks
        self.last_s: dict[int, F64] = {}
        self.over: dict[int, int] = {}  # operations of a stage that were dropped
        self.waited_s: dict[int, F64] = {}  # of each stage, in receives that were dropped
        self.made: list[PairOp] | None = None  # as in `History`

    def add(self, op: PairOp) -> None:
        self.ops.append(op)
        if self.made is not None:
            self.made.append(op)

    def settle(self, before_s: float) -> None:
        kept = []
        for op in self.ops:
            if float(op.complete.max()) > before_s:
                kept.append(op)
                continue
            key = (op.stage, op.peer, op.sends)
            self.base[key] = max(self.base.get(key, 0), op.sequence)
            last = self.last_s.get(op.stage)
            self.last_s[op.stage] = op.complete if last is None else np.maximum(last, op.complete)
            self.over[op.stage] = self.over.get(op.stage, 0) + 1
            if not op.sends:
                self.waited_s[op.stage] = self.waited_s.get(op.stage, 0.0) + (op.complete - op.start)
        self.ops = kept
