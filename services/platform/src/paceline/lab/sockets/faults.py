"""Which faults there are, where they strike, and which verdict is right: pure."""

import random
from dataclasses import dataclass
from enum import Enum

from paceline.collectives.host.schedule import Direction, Topology
from paceline.contracts.verdicts import Root, RootKind, Verdict, VerdictClass

LATE_FACTORS = (3.0, 6.0)  # delay of a late rank in usual rounds: R = 4 to 7, the threshold is 3
SLOW_FACTORS = (4.0, 8.0)  # usual rounds that a slow link takes for what it carries in one: R = 4 to 8


class Fault(str, Enum):
    """`H3` draws one of its three kinds for each run."""

    NONE = "none"
    H3 = "h3"
    FROZEN = "frozen"  # SIGSTOP inside the operation
    STUCK = "stuck"  # its thread stands still inside the operation, the process lives
    LINK = "link"  # one direction of one link passes nothing
    NIC = "nic"  # `ip link set down`: all links of one rank
    S1 = "s1"
    S2 = "s2"
    S3 = "s3"


H3_KINDS = (Fault.FROZEN, Fault.STUCK, Fault.LINK)
_CLASSES = {
    Fault.NONE: VerdictClass.NONE,
    Fault.S1: VerdictClass.S1,
    Fault.S2: VerdictClass.S2,
    Fault.S3: VerdictClass.S3,
}


@dataclass(frozen=True)
class Injection:
    """One fault at one place. `link` is (sender, receiver)."""

    fault: Fault
    rank: int | None = None
    link: tuple[int, int] | None = None
    late_factor: float = 0.0
    slow_factor: float = 0.0
    after_rounds: int = 0  # more rounds than the warm-up needs, so that the moment is random too

    @property
    def verdict_class(self) -> VerdictClass:
        return _CLASSES.get(self.fault, VerdictClass.H3)

    def describe(self) -> str:
        parts = [self.fault.value]
        if self.rank is not None:
            parts.append(f"rank {self.rank}")
        if self.link is not None:
            parts.append(f"link {self.link[0]}>{self.link[1]}")
        if self.late_factor:
            parts.append(f"late {self.late_factor:.1f} rounds")
        if self.slow_factor:
            parts.append(f"takes {self.slow_factor:.1f} rounds")
        return " ".join(parts)


@dataclass(frozen=True)
class Score:
    """`root_right`: exactly the injected roots. `contained`: they are among the ranks that were named.

    `innocent`: a rank or a link is named that has no part in the fault.
    """

    class_right: bool
    root_right: bool
    contained: bool
    innocent: bool = False


def plan_injection(fault: Fault, topology: Topology, chance: random.Random) -> Injection:
    """A place for `fault`, drawn from all ranks and all directed links of `topology`."""
    kind = chance.choice(H3_KINDS) if fault is Fault.H3 else fault
    links = [
        (rank, edge.peer)
        for rank in range(topology.size)
        for edge in topology.edges(rank)
        if edge.direction is Direction.SEND
    ]
    rank = chance.randrange(topology.size)
    has_link = kind in (Fault.LINK, Fault.S2, Fault.S3)
    is_late = kind in (Fault.S1, Fault.S3)
    return Injection(
        fault=kind,
        rank=None if kind in (Fault.NONE, Fault.LINK, Fault.S2) else rank,
        link=chance.choice(links) if has_link else None,
        late_factor=chance.uniform(*LATE_FACTORS) if is_late else 0.0,
        slow_factor=chance.uniform(*SLOW_FACTORS) if kind in (Fault.S2, Fault.S3) else 0.0,
        after_rounds=chance.randrange(10),
    )


def score(injection: Injection, verdict: Verdict | None) -> Score:
    """Compare a verdict with what was injected; None is 'nothing was said'."""
    if verdict is None:
        healthy = injection.fault is Fault.NONE
        return Score(healthy, healthy, healthy)
    named = {_place(root) for root in verdict.roots}
    wanted: set[tuple[int, ...]] = set()
    if injection.rank is not None:
        wanted.add((injection.rank,))
    if injection.link is not None:
        wanted.add(injection.link)
    touched = {rank for place in named for rank in place}
    if injection.fault is Fault.NIC:
        root_right = named == wanted or (bool(named) and all(injection.rank in place for place in named))
    elif injection.fault is Fault.LINK:
        # Nothing is acknowledged across a cut link, so a tree's traffic stops in both directions.
        root_right = {frozenset(place) for place in named} == {frozenset(place) for place in wanted}
    else:
        root_right = named == wanted and injection.fault is not Fault.NONE
    injected = {rank for place in wanted for rank in place}
    return Score(
        class_right=verdict.verdict_class is injection.verdict_class,
        root_right=root_right,
        contained=touched.issuperset(injected),
        innocent=any(
            root.kind in (RootKind.RANK, RootKind.LINK) and injected.isdisjoint(_place(root))
            for root in verdict.roots
        ),
    )


def _place(root: Root) -> tuple[int, ...]:
    """A rank as (rank,), a link as (sender, receiver), a group as its ranks."""
    if root.kind is RootKind.LINK and root.rank is not None and root.peer_rank is not None:
        return (root.rank, root.peer_rank)
    if root.rank is not None:
        return (root.rank,)
    return root.ranks
