"""What every rank runs: training steps of a 1F1B pipeline with collectives in each part."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import DType, Function, ReduceOp
from paceline.contracts.ids import derived_id
from paceline.fleet.layout import CommKind

Ints = npt.NDArray[np.int64]

# Nobody leaves such an operation before everybody has entered it.
SYNCHRONISING = frozenset(
    {
        Function.ALL_REDUCE,
        Function.ALL_GATHER,
        Function.REDUCE_SCATTER,
        Function.ALL_TO_ALL,
        Function.BARRIER,
    }
)


@dataclass(frozen=True)
class Call:
    """One operation as called: what all members must agree on, and how long it takes undisturbed."""

    kind: CommKind
    function: Function
    count: int
    base_s: float
    dtype: DType = DType.BFLOAT16
    reduce_op: ReduceOp = ReduceOp.UNKNOWN
    root: int = -1  # place in the communicator

    @cached_property
    def signature(self) -> int:
        return _signature(self.function, self.dtype, self.reduce_op, self.root, self.count)

    @cached_property
    def synchronising(self) -> bool:
        return self.function in SYNCHRONISING

    @cached_property
    def codes(self) -> tuple[int, int, int, int]:
        """(function, dtype, reduce_op, root) as numbers."""
        return int(self.function), int(self.dtype), int(self.reduce_op), self.root


@cache
def _signature(function: int, dtype: int, reduce_op: int, root: int, count: int) -> int:
    text = derived_id("s", int(function), int(dtype), int(reduce_op), root, count)
    return int(text[2:18], 16) | 1


@dataclass(frozen=True)
class Program:
    """Sizes and durations of one training step. Durations are seconds on an undisturbed machine."""

    microbatches: int = 4
    layers: int = 2  # compute and tensor-parallel collectives of one forward or backward part
    compute_s: float = 0.04  # forward, one layer; backward takes `backward` times as long
    backward: float = 1.5
    tp_s: float = 0.004
    cp_s: float = 0.003
    ep_s: float = 0.005
    dp_s: float = 0.03
    world_s: float = 0.002
    pair_s: float = 0.002
    optimizer_s: float = 0.02
    launch_s: float = 20e-6  # host time of a call that only enqueues
    run_ahead: int = 8  # calls that may be outstanding on one rank (not blocking backends)
    sends_open: int = 2  # sends to one peer that may be outstanding
    warmup_s: float = 2.0  # extra time of the first step: lazy connections, caches

    def layer_calls(self) -> tuple[Call, ...]:
        """Collectives after the compute of each layer; kinds that a topology lacks are left out."""
        return self._layer_calls

    @cached_property
    def _layer_calls(self) -> tuple[Call, ...]:
        return (
            Call(CommKind.TP, Function.ALL_REDUCE, 1 << 22, self.tp_s, reduce_op=ReduceOp.SUM),
            Call(CommKind.CP, Function.ALL_GATHER, 1 << 20, self.cp_s),
            Call(CommKind.EP, Function.ALL_TO_ALL, 1 << 21, self.ep_s),
        )

    def first_calls(self) -> tuple[Call, ...]:
        """At the start of a step: the batch is broadcast inside the tensor-parallel group."""
        return (Call(CommKind.TP, Function.BROADCAST, 1 << 14, self.tp_s / 4, DType.INT64, root=0),)

    def last_calls(self) -> tuple[Call, ...]:
        """After the last backward: gradients, parameters, and the norm over all ranks."""
        return (
            Call(CommKind.DP, Function.REDUCE_SCATTER, 1 << 25, self.dp_s, reduce_op=ReduceOp.SUM),
            Call(CommKind.DP, Function.ALL_GATHER, 1 << 23, self.dp_s / 2),
            Call(CommKind.WORLD, Function.ALL_REDUCE, 4, self.world_s, DType.FLOAT32, ReduceOp.SUM),
        )


@dataclass(frozen=True, eq=False)
class Tick:
    """Parts of several stages that depend on earlier ticks only."""

    stages: Ints
    forward: npt.NDArray[np.bool_]  # per entry of `stages`
    micro: Ints


@cache
def pipeline(stages: int, microbatches: int) -> tuple[Tick, ...]:
    """1F1B: each stage fills the pipeline, then alternates forward and backward, then drains."""
    orders = [_order(stage, stages, microbatches) for stage in range(stages)]
    done: set[tuple[int, bool, int]] = set()
    position = [0] * stages
    ticks: list[Tick] = []
    while any(at < len(order) for at, order in zip(position, orders, strict=True)):
        ready = [
            (stage, *orders[stage][position[stage]])
            for stage in range(stages)
            if position[stage] < len(orders[stage])
            and _needs(stage, stages, *orders[stage][position[stage]]) <= done
        ]
        for stage, forward, micro in ready:
            position[stage] += 1
            done.add((stage, forward, micro))
        ticks.append(
            Tick(
                np.array([entry[0] for entry in ready], np.int64),
                np.array([entry[1] for entry in ready], np.bool_),
                np.array([entry[2] for entry in ready], np.int64),
            )
        )
    return tuple(ticks)


def _order(stage: int, stages: int, microbatches: int) -> Sequence[tuple[bool, int]]:
    ahead = min(stages - stage - 1, microbatches)
    order = [(True, micro) for micro in range(ahead)]
    for micro in range(microbatches - ahead):
        order += [(True, ahead + micro), (False, micro)]
    return order + [(False, micro) for micro in range(microbatches - ahead, microbatches)]


def _needs(stage: int, stages: int, forward: bool, micro: int) -> set[tuple[int, bool, int]]:
    if forward:
        return {(stage - 1, True, micro)} if stage > 0 else set()
    return {(stage + 1, False, micro)} if stage < stages - 1 else {(stage, True, micro)}
