"""Faults at work: each changes what one rank calls, when it starts, or when an operation completes."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from paceline.contracts.codes import DType, Function, ReduceOp
from paceline.fleet.faults import (
    MISMATCHES,
    NEVER_S,
    PROCESS_KINDS,
    STUCK_KINDS,
    Fault,
    FaultKind,
)
from paceline.fleet.history import F64, Ints, Op, PairOp, Stuck
from paceline.fleet.layout import CommKind, Topology
from paceline.fleet.noise import Noise
from paceline.fleet.profiles import Profile
from paceline.fleet.program import Call
from paceline.fleet.truth import Fired, slow_links

if TYPE_CHECKING:
    from paceline.fleet.engine import Engine

_ORDER = frozenset({FaultKind.ORDER_INVERSION, FaultKind.QUEUE_EXHAUSTION})
_ENTER = frozenset({FaultKind.MISSING_ENTER, FaultKind.DELAYED_ENTER})


@dataclass(eq=False)
class _Armed:
    """A fault and what it has done so far."""

    fault: Fault
    stage: int
    index: int
    links: tuple[tuple[int, int], ...] = ()
    done: bool = False  # has taken effect
    first: Op | None = None  # order faults: the operation that was put off
    host_s: float = 0.0
    stream_s: float = 0.0
    extra: list[int] = field(default_factory=list)


class Injector:
    """The hooks that the engine calls at fixed points of every operation."""

    def __init__(self, topology: Topology, profile: Profile, faults: tuple[Fault, ...], noise: Noise) -> None:
        self.fired: list[Fired] = []
        self.faults = faults
        self._topology, self._profile, self._noise = topology, profile, noise
        self._armed = [self._arm(fault) for fault in faults]

    def _arm(self, fault: Fault) -> _Armed:
        if not 0 <= fault.rank < self._topology.ranks:
            raise ValueError(f"fault rank is {fault.rank}, expected 0 to {self._topology.ranks - 1}")
        if fault.group not in self._topology.groups:
            raise ValueError(f"fault group is {fault.group.value}, the job has no such communicator")
        if fault.kind is FaultKind.QUEUE_EXHAUSTION and self._profile.blocking:
            raise ValueError(
                f"{fault.kind.value} needs a profile that runs ahead, not {self._profile.name.value}"
            )
        stage, index = divmod(fault.rank, self._topology.stage_ranks)
        return _Armed(fault, stage, index, slow_links(fault, self._topology))

    # ------------------------------------------------------------------ hooks

    def begin(self, engine: "Engine") -> None:
        """Before the first call: a rank that never arrives keeps everybody in bootstrap."""
        for armed in self._armed:
            if armed.fault.kind is FaultKind.BOOTSTRAP:
                engine.host[:] = NEVER_S
                self.fired.append(Fired(armed.fault, 0.0, 0, 0, 0, False))

    def delay(self, spent: F64, host: F64, stages: Ints) -> None:
        """Compute of `stages` is about to take `spent`; `host` is when it begins."""
        for armed in self._armed:
            fault = armed.fault
            if fault.kind is FaultKind.LATE_RANK:
                row = self._row(stages, armed.stage)
                if row >= 0 and fault.at_s <= host[row, armed.index] < fault.until_s:
                    spent[row, armed.index] += fault.delay_s
                    self._note(armed, float(host[row, armed.index]))
            elif fault.kind is FaultKind.ROTATING:
                at = self._noise.integer(spent.size)
                if fault.at_s <= host.reshape(-1)[at] < fault.until_s:
                    spent.reshape(-1)[at] += fault.delay_s
                    self._note(armed, float(host.reshape(-1)[at]))

    def enter(self, op: Op, ready: F64) -> None:
        """`op.enter` are the times of the call, `ready` when the device could begin."""
        for armed in self._armed:
            row = op.row(armed.stage)
            if row < 0:
                continue
            now = float(op.enter[row, armed.index])
            fault = armed.fault
            if fault.kind in PROCESS_KINDS and now > fault.at_s:
                op.enter[row, armed.index] = NEVER_S
                self._note(armed, fault.at_s, op, row, inside=False)
            elif fault.kind in _ORDER:
                self._turn(armed, op, row, now, ready)
            elif fault.kind is FaultKind.MIXED and self._hits(armed, op, now):
                self._come_late(armed, op, ready)
            elif not armed.done and self._hits(armed, op, now):
                self._call(armed, op, row, now)

    def stretch(self, op: Op, seconds: F64) -> None:
        """`seconds`: transfer time of each communicator, (stages, outer, 1, inner)."""
        for armed in self._armed:
            fault = armed.fault
            if not armed.links or fault.group is not op.call.kind:
                continue
            groups = self._topology.groups[fault.group]
            for sender, receiver in armed.links:
                stage, index = divmod(sender, self._topology.stage_ranks)
                row = op.row(stage)
                if row < 0 or not fault.at_s <= float(op.enter[row, index]) < fault.until_s:
                    continue
                at = self._cell(op.call.kind, sender, row)
                excess = float(seconds[at[0], at[1], 0, at[2]]) * (fault.factor - 1.0)
                seconds[at[0], at[1], 0, at[2]] += excess
                comm, place = int(groups.comm_of[sender]), int(groups.place_of[receiver])
                op.slow.append((comm, place, excess))
                self._note(armed, float(op.enter[row, index]), op, row, inside=True)

    def complete(self, op: Op) -> None:
        """After the transfer: what never ends."""
        for armed in self._armed:
            fault, row = armed.fault, op.row(armed.stage)
            if row < 0:
                continue
            enter, complete = op.enter[row, armed.index], op.complete[row, armed.index]
            if fault.kind in PROCESS_KINDS and enter <= fault.at_s < complete:
                self._stop(op, armed, row, after_s=fault.at_s)
                self._note(armed, fault.at_s, op, row, inside=True)
            elif armed.first is op:
                self._settle_stuck(armed, op, row)

    def leave(self, op: Op, engine: "Engine") -> None:
        """After the host has gone on: a rank that put an operation off goes on without it."""
        for armed in self._armed:
            if armed.fault.kind is not FaultKind.ORDER_INVERSION or armed.first is None:
                continue
            row, at = op.row(armed.stage), (armed.stage, armed.index)
            if row < 0:
                continue
            if armed.first is op:
                engine.host[at], engine.stream[at] = armed.host_s, armed.stream_s
            elif armed.extra and armed.extra[0] == id(op) and not self._profile.blocking:
                first_row = armed.first.row(armed.stage)
                armed.first.enter[first_row, armed.index] = engine.host[at]
                armed.first.bound()

    def post(self, op: PairOp) -> None:
        """A send or receive is about to be posted."""
        for armed in self._armed:
            if armed.stage != op.stage:
                continue
            now, fault = float(op.enter[armed.index]), armed.fault
            missing = fault.kind in _ENTER and fault.group is CommKind.PP and not armed.done
            if fault.kind in PROCESS_KINDS and now > fault.at_s:
                op.enter[armed.index] = NEVER_S
                self._note(armed, fault.at_s)
            elif missing and fault.at_s <= now < NEVER_S:
                op.enter[armed.index] += NEVER_S if fault.kind is FaultKind.MISSING_ENTER else fault.delay_s
                armed.done = True
                self.fired.append(Fired(fault, now, 0, 0, int(Function.SEND), False))

    def receive(self, op: PairOp, sent: PairOp) -> None:
        """A transfer is about to complete at `op.complete` on both sides; dead ends do not."""
        for armed in self._armed:
            if armed.fault.kind in PROCESS_KINDS and armed.stage in (op.stage, sent.stage):
                mine = op if armed.stage == op.stage else sent
                if mine.enter[armed.index] <= armed.fault.at_s < op.complete[armed.index]:
                    op.complete[armed.index] = NEVER_S
                    if not armed.done:
                        armed.done = True
                        self.fired.append(
                            Fired(armed.fault, armed.fault.at_s, 0, 0, int(Function.RECV), False, mine is op)
                        )
        sent.complete = op.complete

    # ------------------------------------------------------------------ effects

    def _hits(self, armed: _Armed, op: Op, now_s: float) -> bool:
        fault, call = armed.fault, op.call
        if fault.group is not call.kind or not fault.at_s <= now_s < fault.until_s or now_s == NEVER_S:
            return False
        if fault.kind is FaultKind.ROOT:
            return call.root >= 0
        if fault.kind is FaultKind.REDUCE_OP:
            return call.reduce_op is not ReduceOp.UNKNOWN
        return call.synchronising

    def _call(self, armed: _Armed, op: Op, row: int, now: float) -> None:
        """Faults of one call, at the call."""
        fault = armed.fault
        if fault.kind in _ENTER:
            op.enter[row, armed.index] = (
                NEVER_S if fault.kind is FaultKind.MISSING_ENTER else now + fault.delay_s
            )
        elif fault.kind in MISMATCHES:
            op.exceptions[fault.rank] = mismatch(op.call, fault.kind)
            armed.first = op
        elif fault.kind in STUCK_KINDS or fault.kind is FaultKind.MISSING_EXIT:
            armed.first = op
        else:
            return
        self._note(armed, now, op, row, inside=fault.kind not in _ENTER)

    def _settle_stuck(self, armed: _Armed, op: Op, row: int) -> None:
        fault = armed.fault
        if armed.first is not op or fault.kind is FaultKind.ORDER_INVERSION:
            return
        if fault.kind is FaultKind.MISSING_EXIT:
            op.complete[row, armed.index] = NEVER_S
            return
        self._stop(op, armed, row)
        if fault.kind is FaultKind.QUEUE_EXHAUSTION:
            op.start[row, armed.index] = NEVER_S

    def _stop(self, op: Op, armed: _Armed, row: int, after_s: float = -NEVER_S) -> None:
        """Nobody of the communicator completes who had not at `after_s`."""
        fault, kind = armed.fault, op.call.kind
        groups = self._topology.groups[kind]
        _, outer, size, inner = groups.shape
        at = self._cell(kind, fault.rank, row)
        members = op.complete.reshape(-1, outer, size, inner)[at[0], at[1], :, at[2]]
        members[members > after_s] = NEVER_S
        members[int(groups.place_of[fault.rank])] = NEVER_S
        nobody = fault.kind in MISMATCHES or fault.kind in (
            FaultKind.ALL_STUCK,
            FaultKind.LAZY_CONNECT,
            FaultKind.QUEUE_EXHAUSTION,
        )
        op.stuck.append(
            Stuck(
                comm=int(groups.comm_of[fault.rank]),
                place=-1 if nobody else int(groups.place_of[fault.rank]),
                done=fault.place if fault.kind in (FaultKind.STUCK, FaultKind.LINK_DOWN) else 0.0,
                link=fault.kind is FaultKind.LINK_DOWN,
                far=int(groups.place_of[fault.peer]) if fault.kind is FaultKind.LINK_DOWN else -1,
            )
        )

    def _turn(self, armed: _Armed, op: Op, row: int, now: float, ready: F64) -> None:
        """Order faults: put the first of two operations off, then run the second before it."""
        fault, call = armed.fault, op.call
        is_first, is_second = _order_pair(fault, call)
        if armed.first is None:
            if is_first and fault.at_s <= now < NEVER_S:
                armed.first = op
                armed.host_s, armed.stream_s = now, float(ready[row, armed.index])
                if fault.kind is FaultKind.ORDER_INVERSION:
                    op.enter[row, armed.index] = NEVER_S
                else:
                    op.inverted.add(fault.rank)
                self._note(armed, now, op, row, inside=True)
        elif is_second and not armed.extra:
            armed.extra.append(id(op))
            first_row = armed.first.row(armed.stage)
            if fault.kind is FaultKind.ORDER_INVERSION:
                op.reissued[fault.rank] = int(armed.first.issues[first_row])
                armed.first.reissued[fault.rank] = int(op.issues[row])
            else:
                op.inverted.add(fault.rank)
                ready[row, armed.index] = armed.stream_s

    def _come_late(self, armed: _Armed, op: Op, ready: F64) -> None:
        """Mixed faults: the late rank starts later by a multiple of what the slow link costs."""
        fault = armed.fault
        stage, index = divmod(fault.late, self._topology.stage_ranks)
        row = op.row(stage)
        if row < 0:
            return
        extra = op.call.base_s * (fault.factor - 1.0) * fault.mix
        target = op.enter if self._profile.blocking else ready
        target[row, index] = max(float(op.enter[row, index]), float(ready[row, index])) + extra

    # ------------------------------------------------------------------ places

    def _cell(self, kind: CommKind, rank: int, row: int) -> tuple[int, int, int]:
        """(row, outer, inner) of the communicator of `rank` in arrays of one operation."""
        groups = self._topology.groups[kind]
        if kind is CommKind.WORLD:
            return 0, 0, 0
        _, outer, _, inner = groups.shape
        within = int(groups.comm_of[rank]) % (outer * inner)
        return row, within // inner, within % inner

    @staticmethod
    def _row(stages: Ints, stage: int) -> int:
        found = np.flatnonzero(stages == stage)
        return int(found[0]) if len(found) else -1

    def _note(
        self, armed: _Armed, at_s: float, op: Op | None = None, row: int = 0, *, inside: bool = False
    ) -> None:
        if armed.done and not (inside and armed.fault.kind in PROCESS_KINDS):
            return
        if armed.done:  # the strongest word on where the process was
            self.fired = [each for each in self.fired if each.fault is not armed.fault]
        armed.done = True
        comm = number = function = 0
        if op is not None:
            groups = self._topology.groups[op.call.kind]
            comm = int(groups.ids[groups.comm_of[armed.fault.rank]])
            number, function = int(op.numbers[row]), int(op.call.function)
        self.fired.append(Fired(armed.fault, at_s, comm, number, function, inside))


def _order_pair(fault: Fault, call: Call) -> tuple[bool, bool]:
    """Whether `call` is the first, and the second, of the two neighbours that an order fault turns round."""
    if fault.group is CommKind.DP:
        first = call.kind is CommKind.DP and call.function is Function.ALL_GATHER
        return first, call.kind is CommKind.WORLD
    return call.kind is CommKind.WORLD, call.kind is CommKind.TP and call.root >= 0


def mismatch(call: Call, kind: FaultKind) -> Call:
    """What the guilty rank calls instead of `call`."""
    if kind is FaultKind.SIZE:
        return replace(call, count=call.count + 8)
    if kind is FaultKind.DTYPE:
        other = DType.FLOAT16 if call.dtype is DType.BFLOAT16 else DType.FLOAT64
        return replace(call, dtype=other)
    if kind is FaultKind.REDUCE_OP:
        return replace(call, reduce_op=ReduceOp.MAX)
    if kind is FaultKind.ROOT:
        return replace(call, root=1)
    function = Function.ALL_GATHER if call.function is Function.ALL_REDUCE else Function.ALL_REDUCE
    reduce_op = ReduceOp.SUM if function is Function.ALL_REDUCE else ReduceOp.UNKNOWN
    return replace(call, function=function, reduce_op=reduce_op)
