"""Every fault that can be injected, as a closed set, and everything else that disturbs a job."""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from paceline.contracts.codes import Algorithm, Phase
from paceline.fleet import trees
from paceline.fleet.layout import CommKind, Ints, Topology


class FaultKind(str, Enum):
    """Names are those of `paceline sim --fault`."""

    MISSING_ENTER = "h1"
    DELAYED_ENTER = "h1-delayed"
    OPERATION = "h2-operation"
    SIZE = "h2-size"
    DTYPE = "h2-dtype"
    REDUCE_OP = "h2-reduce-op"
    ROOT = "h2-root"
    STUCK = "h3"  # one rank stops inside the operation, its process lives
    MISSING_EXIT = "h3-exit"  # all others leave the round, one rank does not
    LINK_DOWN = "h3-link"
    ALL_STUCK = "h3-all"
    LATE_RANK = "s1"
    ROTATING = "s1-rotating"
    SLOW_LINK = "s2"
    SHARED_PATH = "s2-shared"  # all links that leave one node
    MIXED = "s3"
    ORDER_INVERSION = "deadlock"
    QUEUE_EXHAUSTION = "deadlock-queue"
    BOOTSTRAP = "init"
    LAZY_CONNECT = "init-lazy"
    DEAD_PROCESS = "dead"
    FROZEN_PROCESS = "frozen"


MISMATCHES = frozenset(
    {FaultKind.OPERATION, FaultKind.SIZE, FaultKind.DTYPE, FaultKind.REDUCE_OP, FaultKind.ROOT}
)
STUCK_KINDS = frozenset({FaultKind.STUCK, FaultKind.LINK_DOWN, FaultKind.ALL_STUCK, FaultKind.LAZY_CONNECT})
LINK_KINDS = frozenset({FaultKind.SLOW_LINK, FaultKind.LINK_DOWN, FaultKind.MIXED})
SLOW_KINDS = frozenset(
    {
        FaultKind.LATE_RANK,
        FaultKind.ROTATING,
        FaultKind.SLOW_LINK,
        FaultKind.SHARED_PATH,
        FaultKind.MIXED,
    }
)
PROCESS_KINDS = frozenset({FaultKind.DEAD_PROCESS, FaultKind.FROZEN_PROCESS})
NEVER_S = float("inf")


@dataclass(frozen=True)
class Fault:
    """One injection. `group` is the kind of communicator it shows in; times are seconds of the job.

    Faults of one call hit the first call of `rank` in `group` at or after `at_s`; slow faults last
    from `at_s` to `until_s`.
    """

    kind: FaultKind
    rank: int
    group: CommKind = CommKind.WORLD
    at_s: float = 20.0
    until_s: float = NEVER_S
    peer: int = -1  # far end of a link of `group`: ring successor of `rank`, or its neighbour in a tree
    delay_s: float = 0.15  # late ranks: per layer; DELAYED_ENTER: once
    factor: float = 8.0  # slow links: transfer time
    place: float = 0.4  # how much of a stuck operation was done, 0 to 1
    late: int = -1  # MIXED: the late rank, of the same communicator
    mix: float = 1.0  # MIXED: its lateness as a multiple of what the slow link costs
    exit_code: int = -9  # DEAD_PROCESS: status, or minus the signal
    nodes: tuple[int, ...] = ()  # SHARED_PATH: whose outgoing links are slow


@dataclass(frozen=True)
class Pause:
    """All ranks stop after a step for a while; a declared one shows its phase."""

    at_s: float
    duration_s: float
    phase: Phase = Phase.CHECKPOINT
    declared: bool = True


@dataclass(frozen=True)
class Conditions:
    """What is normal: noise of the job, and losses on the way of the samples."""

    jitter: float = 0.02  # relative, of compute and transfers
    gc_per_s: float = 0.0  # pauses of single ranks, per rank and second of compute
    gc_s: float = 0.1  # mean of their length
    slow_nodes: tuple[int, ...] = ()  # whose ranks compute `slow_share` longer, from the first step on
    slow_locals: tuple[int, ...] = ()  # the same for local ranks, on every node
    slow_share: float = 0.08
    traffic_nodes: tuple[int, ...] = ()  # whose links others use now and then ...
    traffic_share: float = 0.25  # ... in so much of the time ...
    traffic_s: float = 4.0  # ... for so long on average ...
    traffic_factor: float = 6.0  # ... while transfers through them take so many times as long
    pauses: tuple[Pause, ...] = ()
    compile_s: float = 0.0  # declared compilation before the first step
    drop: float = 0.0  # share of samples that never arrive
    late: float = 0.0  # share of samples that arrive `late_s` later
    late_s: float = 3.0
    dead_agents: tuple[tuple[int, float], ...] = ()  # (node, from second)
    unobserved: tuple[int, ...] = ()  # ranks without a probe


def draw_faults(
    kind: FaultKind | str,
    topology: Topology,
    seed: int,
    at_s: float = 20.0,
    group: CommKind | None = None,
    count: int = 1,
) -> tuple[Fault, ...]:
    """`count` faults of one kind at places drawn from `seed`; ValueError where the topology has none.

    Several faults hit different ranks of one stage, so that none of them is a victim of the other.
    """
    kind = FaultKind(kind)
    random = np.random.default_rng([seed, 17])
    where = group or _group_for(kind, topology, random)
    if where not in topology.groups:
        raise ValueError(f"fault {kind.value} needs a communicator of kind {where.value}, the job has none")
    at_s += float(random.uniform(0.0, 1.0))
    stage = int(random.integers(topology.pp))
    ranks = stage * topology.stage_ranks + random.permutation(topology.stage_ranks)
    if kind is FaultKind.ROOT and topology.tp < 2:
        raise ValueError("fault h2-root needs tp of 2 or more: its broadcast runs there")
    groups = topology.groups[where]
    if count > 1 and topology.tp > 1 and where is CommKind.TP:
        _, first = np.unique(groups.comm_of[ranks], return_index=True)
        ranks = ranks[np.sort(first)]  # one rank of each tensor group
    if kind is FaultKind.SHARED_PATH:
        ranks = ranks[_leaves_node(topology, where, ranks)]
    if len(ranks) < count:
        raise ValueError(f"the topology has no {count} independent places for fault {kind.value}")
    return tuple(_fault(kind, topology, where, int(rank), at_s, random) for rank in ranks[:count])


def _leaves_node(topology: Topology, where: CommKind, ranks: Ints) -> npt.NDArray[np.bool_]:
    groups = topology.groups[where]
    successor = groups.members[groups.comm_of[ranks], (groups.place_of[ranks] + 1) % groups.size]
    leaves: npt.NDArray[np.bool_] = topology.node_of[ranks] != topology.node_of[successor]
    return leaves


def _group_for(kind: FaultKind, topology: Topology, random: np.random.Generator) -> CommKind:
    collective = [each for each in topology.kinds if each is not CommKind.PP]
    if kind is FaultKind.REDUCE_OP:
        collective = [each for each in collective if each not in (CommKind.CP, CommKind.EP)]
    if kind is FaultKind.ROOT:
        return CommKind.TP
    if kind is FaultKind.LINK_DOWN and CommKind.WORLD in topology.tree and random.random() < 0.5:
        return CommKind.WORLD
    if kind in LINK_KINDS or kind is FaultKind.SHARED_PATH:
        return CommKind.DP if topology.dp > 1 else CommKind.TP if topology.tp > 1 else CommKind.WORLD
    if kind in (FaultKind.ORDER_INVERSION, FaultKind.QUEUE_EXHAUSTION):
        return CommKind.DP if topology.dp > 1 else CommKind.TP
    if kind is FaultKind.LAZY_CONNECT:
        return CommKind.DP if topology.dp > 1 else CommKind.WORLD
    return collective[int(random.integers(len(collective)))]


def _fault(
    kind: FaultKind,
    topology: Topology,
    where: CommKind,
    rank: int,
    at_s: float,
    random: np.random.Generator,
) -> Fault:
    groups = topology.groups[where]
    members = groups.members[groups.comm_of[rank]]
    if kind is FaultKind.ORDER_INVERSION and where is CommKind.TP and groups.place_of[rank] == 0:
        rank = int(members[1])  # a root of the broadcast need not wait for anybody
    peer = int(members[(groups.place_of[rank] + 1) % groups.size])
    if kind is FaultKind.LINK_DOWN and groups.algorithm is Algorithm.TREE and where is CommKind.WORLD:
        near = trees.neighbours(groups.size, int(groups.place_of[rank]))
        peer = int(members[near[int(random.integers(len(near)))]])
    delay_s = 40.0 if kind is FaultKind.DELAYED_ENTER else float(random.uniform(0.12, 0.25))
    return Fault(
        kind,
        rank,
        where,
        0.0 if kind in (FaultKind.BOOTSTRAP, FaultKind.LAZY_CONNECT) else at_s,
        peer=peer if kind in LINK_KINDS else -1,
        delay_s=delay_s,
        factor=float(random.uniform(6.0, 10.0)),
        place=float(random.uniform(0.1, 0.9)),
        late=int(members[(groups.place_of[rank] + 1 + groups.size // 2) % groups.size]),
        mix=float(random.uniform(0.7, 1.4)),
        exit_code=int(random.choice([-9, -11, -6, 1])),
        nodes=(int(topology.node_of[rank]),) if kind is FaultKind.SHARED_PATH else (),
    )
