"""The job itself: when each rank enters, starts and completes each operation, in seconds of the job.

Max-plus arithmetic over all ranks at once: an operation completes on a member when all members it
depends on have started and the transfer is done; 'never' is infinity, so a missing rank stops its
communicator, and what waits behind it, exactly as in a real job. A rank issues its calls in order.
On a blocking backend the next call follows the completion of the last one; else calls are only
enqueued and the host runs ahead of the device up to `Program.run_ahead` calls.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline.fleet.background import Background
from paceline.fleet.counters import Totals
from paceline.fleet.faults import Conditions, Fault
from paceline.fleet.history import F64, History, Ints, Op, PairHistory, PairOp, kept_level
from paceline.fleet.inject import Injector
from paceline.fleet.layout import CommKind, Topology
from paceline.fleet.noise import Noise
from paceline.fleet.profiles import Profile
from paceline.fleet.program import Call, Program, Tick, pipeline
from paceline.fleet.truth import Fired

STEPS_KEPT_MAX = 64


@dataclass(eq=False)
class PhaseSpan:
    """All ranks were in a declared phase: each from its own time to its own time."""

    phase: int
    enter: F64
    leave: F64


class Engine:
    """Arrays are (stages, ranks of a stage); rank = stage * ranks + index."""

    def __init__(
        self,
        topology: Topology,
        profile: Profile,
        program: Program,
        conditions: Conditions,
        faults: tuple[Fault, ...],
        seed: int,
    ) -> None:
        self.topology, self.profile, self.program = topology, profile, program
        self.conditions = conditions
        self.shape = (topology.pp, topology.stage_ranks)
        self.noise = Noise(seed, topology.ranks)
        self.host: F64 = np.abs(self.noise.normal(self.shape)) * 0.05
        self.stream: F64 = self.host.copy()
        self.issued = np.zeros(topology.pp, np.int64)
        self.histories: dict[CommKind, History] = {
            kind: History(*self.shape) for kind in topology.kinds if kind is not CommKind.PP
        }
        quiet = Noise(seed + 1, topology.ranks)  # of readings: they must not change the job
        self.totals: dict[CommKind, Totals] = {
            kind: Totals(topology.groups[kind], topology, profile, quiet) for kind in self.histories
        }
        self.pairs = PairHistory()
        self.steps: deque[tuple[int, F64]] = deque(maxlen=STEPS_KEPT_MAX)  # (steps done, when)
        self.phases: list[PhaseSpan] = []
        self.injector = Injector(topology, profile, faults, self.noise)
        self._background = Background(topology, conditions, seed)
        self._outstanding = np.full((program.run_ahead, *self.shape), -np.inf)
        self._calls = np.zeros(topology.pp, np.int64)
        self._inbox: dict[tuple[int, int], deque[PairOp]] = {}
        self._sent: dict[tuple[int, int], deque[PairOp]] = {}
        self._step = 0
        self._pauses = deque(sorted(conditions.pauses, key=lambda pause: pause.at_s))
        self._all = np.arange(topology.pp, dtype=np.int64)
        self._run = self._steps()

    @property
    def fired(self) -> tuple[Fired, ...]:
        return tuple(self.injector.fired)

    def advance(self, until_s: float) -> None:
        """Make everything that any rank does up to `until_s`."""
        while self._frontier() <= until_s:
            next(self._run)

    def settle(self, before_s: float) -> None:
        """Nothing before `before_s` will be read again."""
        for kind, history in self.histories.items():
            for op in history.settle(before_s):
                self.totals[kind].settle(op)
        self.pairs.settle(before_s)

    def _frontier(self) -> float:
        """Host time of the rank that is furthest behind; infinite when nobody goes on."""
        lowest = float(self.host.min())
        return lowest

    # ------------------------------------------------------------------ program

    def _steps(self) -> Iterator[None]:
        program, conditions = self.program, self.conditions
        self.injector.begin(self)
        if conditions.compile_s:
            self._pause(conditions.compile_s, 3, declared=True)
        yield
        while True:
            extra = program.warmup_s if self._step == 0 else 0.0
            for call in program.first_calls():
                self._collective(call, self._all)
            yield
            for tick in pipeline(self.topology.pp, program.microbatches):
                self._part(tick, extra)
                extra = 0.0
                yield
            for call in program.last_calls():
                self._collective(call, self._all)
                self._compute(np.full(self.topology.pp, program.optimizer_s / 3), self._all)
                yield
            np.maximum(self.host, self.stream, out=self.host)  # the loss is read
            self._step += 1
            self.steps.append((self._step, self.host.copy()))
            while self._pauses and float(self.host.min()) >= self._pauses[0].at_s:
                pause = self._pauses.popleft()
                self._pause(pause.duration_s, int(pause.phase), declared=pause.declared)
            yield

    def _pause(self, duration_s: float, phase: int, *, declared: bool) -> None:
        enter = self.host.copy()
        spread = self.noise.normal(self.shape) * 0.02
        self.host += duration_s * np.maximum(1.0 + spread, 0.5)
        np.maximum(self.stream, self.host, out=self.stream)
        if declared:
            self.phases.append(PhaseSpan(phase, enter, self.host.copy()))

    def _part(self, tick: Tick, extra_s: float) -> None:
        """One forward or backward part on each stage of a tick."""
        program = self.program
        for index, stage in enumerate(tick.stages):
            self._receive(int(stage), bool(tick.forward[index]))
        each = np.where(tick.forward, 1.0, program.backward) * program.compute_s + extra_s / program.layers
        for _ in range(program.layers):
            self._compute(each, tick.stages)
            for call in program.layer_calls():
                self._collective(call, tick.stages)
        for index, stage in enumerate(tick.stages):
            self._send(int(stage), bool(tick.forward[index]))

    def _compute(self, seconds: F64, stages: Ints) -> None:
        shape = (len(stages), self.shape[1])
        host = self.host[stages]
        factor = 1.0 + self.conditions.jitter * self.noise.normal(shape)
        spent = seconds[:, None] * np.maximum(factor, 0.5)
        self._background.slow_down(spent, stages)
        self._collect_garbage(spent, float(seconds.max()))
        self.injector.delay(spent, host, stages)
        if self.profile.blocking:
            self.host[stages] = host + spent
            return
        self.stream[stages] = np.maximum(self.stream[stages], host) + spent
        self.host[stages] = host + self.program.launch_s

    def _collect_garbage(self, spent: F64, seconds: float) -> None:
        rate = self.conditions.gc_per_s * seconds * spent.size
        for _ in range(self.noise.poisson(rate)):
            at = self.noise.integer(spent.size)
            spent.reshape(-1)[at] += self.noise.exponential(self.conditions.gc_s)

    # ------------------------------------------------------------------ collectives

    def _collective(self, call: Call, stages: Ints) -> None:
        history = self.histories.get(call.kind)
        if history is None:
            return
        shape = (len(stages), self.shape[1])
        enter = self.host[stages]
        self.issued[stages] += 1
        history.count[stages] += 1
        numbers = history.count[stages]
        op = Op(
            call=call,
            stages=stages,
            numbers=numbers,
            issues=self.issued[stages],
            step=self._step,
            enter=enter,
            start=enter,
            complete=enter,
            gap=np.zeros(shape, np.float32),
            levels=np.array([kept_level(int(number)) for number in numbers], np.uint8),
        )
        ready = self.stream[stages]
        self.injector.enter(op, ready)
        op.start = np.maximum(op.enter, ready)
        self._transfer(op)
        self.injector.complete(op)
        previous = history.previous_s[stages]
        with np.errstate(invalid="ignore"):
            op.gap = np.where(previous > -np.inf, op.start - previous, 0.0).astype(np.float32)
        history.previous_s[stages] = op.complete
        history.add(op)
        self.stream[stages] = op.complete
        self._return(op.enter, op.complete, stages)
        self.injector.leave(op, self)

    def _transfer(self, op: Op) -> None:
        """Completion times of an undisturbed operation; slow links stretch it."""
        groups = self.topology.groups[op.call.kind]
        _, outer, size, inner = groups.shape
        start = op.start.reshape(-1, outer, size, inner)
        if op.call.synchronising:
            ready = start.max(axis=2, keepdims=True)
        else:
            ready = np.maximum(start, start[:, :, op.call.root : op.call.root + 1])
        spread = self.conditions.jitter * self.noise.normal((start.shape[0], outer, 1, inner))
        seconds = op.call.base_s * np.maximum(1.0 + spread, 0.5)
        self.injector.stretch(op, seconds)
        self._background.stretch(op, ready, seconds)
        stagger = np.abs(self.noise.normal(start.shape)) * (0.01 * op.call.base_s)
        op.complete = (ready + seconds + stagger).reshape(op.start.shape)

    def _return(self, enter: F64, complete: F64, stages: Ints) -> None:
        """When the host goes on: after completion, or as soon as the queue has room."""
        if self.profile.blocking:
            self.host[stages] = complete
            return
        queue = self.program.run_ahead
        self._outstanding[self._calls[stages] % queue, stages] = complete
        self._calls[stages] += 1
        oldest = self._outstanding[self._calls[stages] % queue, stages]
        self.host[stages] = np.maximum(enter + self.program.launch_s, oldest)

    # ------------------------------------------------------------------ point-to-point

    def _peer(self, stage: int, towards: int) -> int | None:
        peer = stage + towards
        return peer if 0 <= peer < self.topology.pp else None

    def _send(self, stage: int, forward: bool) -> None:
        """Post a send to the next (forward) or previous stage; the host only waits for old sends."""
        peer = self._peer(stage, 1 if forward else -1)
        if peer is None:
            return
        op = self._pair_op(stage, peer, True)
        sent = self._sent.setdefault((stage, peer), deque())
        self.host[stage] = op.enter + self.program.launch_s
        if len(sent) >= self.program.sends_open:
            np.maximum(self.host[stage], sent.popleft().complete, out=self.host[stage])
        sent.append(op)
        self._inbox.setdefault((stage, peer), deque()).append(op)

    def _receive(self, stage: int, forward: bool) -> None:
        """Wait for the input of a part; the transfer needs both sides."""
        peer = self._peer(stage, -1 if forward else 1)
        if peer is None:
            return
        sent = self._inbox[(peer, stage)].popleft()
        op = self._pair_op(stage, peer, False)
        spread = np.maximum(1.0 + self.conditions.jitter * self.noise.normal(op.enter.shape), 0.5)
        op.complete = np.maximum(op.start, sent.start) + self.program.pair_s * spread
        self.injector.receive(op, sent)
        self.stream[stage] = np.maximum(self.stream[stage], op.complete)
        if self.profile.blocking:
            self.host[stage] = op.complete
        else:
            self.host[stage] = op.enter + self.program.launch_s

    def _pair_op(self, stage: int, peer: int, sends: bool) -> PairOp:
        key = (stage, peer, sends)
        self.pairs.posted[key] = sequence = self.pairs.posted.get(key, 0) + 1
        self.issued[stage] += 1
        enter = self.host[stage].copy()
        never = np.full(enter.shape, np.inf)
        op = PairOp(
            stage, peer, sends, sequence, int(self.issued[stage]), self._step, 1 << 20, enter, enter, never
        )
        self.injector.post(op)
        op.start = op.enter if self.profile.blocking else np.maximum(op.enter, self.stream[stage])
        self.pairs.add(op)
        return op
