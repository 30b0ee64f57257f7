"""What makes a job scale badly with nothing broken: slow places, and others' traffic on its links."""

import numpy as np
import numpy.typing as npt

from paceline.fleet.faults import Conditions
from paceline.fleet.history import F64, Ints, Op
from paceline.fleet.layout import CommKind, Topology

HORIZON_S = 86_400.0  # others are quiet after that


class Background:
    """Draws from a seed of its own, so that a job without it stays the same."""

    def __init__(self, topology: Topology, conditions: Conditions, seed: int) -> None:
        self._topology = topology
        local = np.arange(topology.ranks, dtype=np.int64) % topology.ranks_per_node
        slow = np.isin(local, conditions.slow_locals) | np.isin(topology.node_of, conditions.slow_nodes)
        shape = (topology.pp, topology.stage_ranks)
        self._factor: F64 = np.where(slow, 1.0 + conditions.slow_share, 1.0).reshape(shape)
        self._has_slow = bool(slow.any())
        self._stretch = conditions.traffic_factor - 1.0
        self._edges = _bursts(conditions, np.random.default_rng([seed, 83]))
        self._touched = _touched(topology, conditions.traffic_nodes)

    def slow_down(self, spent: F64, stages: Ints) -> None:
        """Compute in a slow place takes longer from the first step on."""
        if self._has_slow:
            spent *= self._factor[stages]

    def stretch(self, op: Op, ready: F64, seconds: F64) -> None:
        """`ready` is when members could begin, (stages, outer, members or 1, inner), `seconds` the transfer
        of each communicator, (stages, outer, 1, inner)."""
        touched = self._touched.get(op.call.kind)
        if touched is None:
            return
        part = touched if op.call.kind is CommKind.WORLD else touched[op.stages]
        busy = (np.searchsorted(self._edges, ready.max(axis=2, keepdims=True)) % 2 == 1) & part[:, :, None, :]
        seconds += np.where(busy, seconds * self._stretch, 0.0)


def _bursts(conditions: Conditions, random: np.random.Generator) -> F64:
    """Begin, end, begin, end ... of the others' traffic."""
    if not conditions.traffic_nodes:
        return np.zeros(0)
    quiet_s = conditions.traffic_s * (1.0 / conditions.traffic_share - 1.0)
    pairs = int(HORIZON_S / (quiet_s + conditions.traffic_s))
    lengths = random.exponential((quiet_s, conditions.traffic_s), (pairs, 2))
    edges: F64 = np.cumsum(lengths.reshape(-1))
    return edges


def _touched(topology: Topology, nodes: tuple[int, ...]) -> dict[CommKind, npt.NDArray[np.bool_]]:
    """Communicators of each kind with members inside and outside of `nodes`, (stages, outer, inner)."""
    found: dict[CommKind, npt.NDArray[np.bool_]] = {}
    for kind, groups in topology.groups.items():
        inside = np.isin(topology.node_of[groups.members], nodes)
        crosses = inside.any(axis=1) & ~inside.all(axis=1)
        if kind is not CommKind.PP and crosses.any():
            stages, outer, _, inner = groups.shape
            found[kind] = crosses.reshape(stages, outer, inner)
    return found
