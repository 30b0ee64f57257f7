"""What is evaluated: topologies, faults, profiles, seeds and coverage, all fixed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b

import numpy as np

from paceline.fleet import (
    CommKind,
    Conditions,
    Fault,
    FaultKind,
    FleetJob,
    Profile,
    ProfileName,
    Program,
    Topology,
    draw_faults,
)
from paceline.fleet.faults import SLOW_KINDS

TREES = (CommKind.WORLD, CommKind.DP)
TOPOLOGIES: dict[str, Topology] = {
    "2x2x4": Topology(2, 2, 4, ranks_per_node=4),
    "8x1x4": Topology(8, 1, 4),
    "8x2x4": Topology(8, 2, 4),
    "8x4x4": Topology(8, 4, 4),
    "8x4x4-tree": Topology(8, 4, 4, tree=TREES),
    "4x2x8-ep4-cp2": Topology(4, 2, 8, ep=4, cp=2),
    "8x4x8": Topology(8, 4, 8),
    "8x8x8": Topology(8, 8, 8),
    "4x1x4": Topology(4, 1, 4, ranks_per_node=4),
}
"""TP x PP x DP; 16 to 512 ranks."""

HANG_AT_S = 12.0
SLOW_AT_S = 40.0  # the detector learns a baseline first; a job is slow after it was not
INIT_KINDS = frozenset({FaultKind.BOOTSTRAP, FaultKind.LAZY_CONNECT})
_INIT_S = 180  # bootstrap is waited for two minutes
_HANG_S = 60
_SLOW_S = 110
_DELAYED_S = 80


class Coverage(str, Enum):
    """Which ranks have no probe."""

    WHOLE = "whole"
    OTHERS = "10% unobserved"  # the guilty rank is observed
    GUILTY = "guilty unobserved"


@dataclass(frozen=True)
class Case:
    """One job with one injection (or `count` of one kind), or none where `kind` is None."""

    kind: FaultKind | None
    topology: str
    profile: ProfileName
    seed: int
    coverage: Coverage = Coverage.WHOLE
    group: CommKind | None = None
    count: int = 1
    part: str = "corpus"  # which bars it counts for
    seconds: int = 0  # 0: as long as the kind needs
    faults: tuple[Fault, ...] = ()  # given instead of drawn
    program: Program = field(default_factory=Program)
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def name(self) -> str:
        kind = self.kind.value if self.kind else "healthy"
        more = f"x{self.count}" if self.count > 1 else ""
        cover = {Coverage.WHOLE: "", Coverage.OTHERS: "/part", Coverage.GUILTY: "/blind"}[self.coverage]
        return f"{self.part}/{kind}{more}/{self.topology}/{self.profile.value}/s{self.seed}{cover}"

    @property
    def limit_s(self) -> int:
        """Seconds of the job after which a verdict that has not come does not count."""
        if self.seconds or self.kind is None:
            return self.seconds
        if self.kind in INIT_KINDS:
            return _INIT_S
        if self.kind is FaultKind.DELAYED_ENTER:
            return _DELAYED_S
        return _SLOW_S if self.kind in SLOW_KINDS else _HANG_S

    def draw(self) -> tuple[Fault, ...]:
        """The injection; ValueError where the topology has no place for it."""
        if self.faults or self.kind is None:
            return self.faults
        at_s = SLOW_AT_S if self.kind in SLOW_KINDS else HANG_AT_S
        topology = TOPOLOGIES[self.topology]
        return draw_faults(self.kind, topology, self._seed, at_s, self.group, self.count)

    @property
    def _seed(self) -> int:
        """Cases with one seed and different kinds are not hit at the same place."""
        digest = blake2b(f"{self.name}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big")

    def make_job(self) -> FleetJob:
        faults = self.draw()
        topology = TOPOLOGIES[self.topology]
        hidden = self._hidden(faults, topology)
        conditions = replace(self.conditions, unobserved=hidden) if hidden else self.conditions
        return FleetJob(
            topology,
            Profile.named(self.profile),
            self.program,
            conditions,
            faults,
            self._seed,
            job=f"eval-{self._seed:08x}",
        )

    def _hidden(self, faults: Sequence[Fault], topology: Topology) -> tuple[int, ...]:
        guilty = [fault.rank for fault in faults]
        if self.coverage is Coverage.GUILTY:
            return tuple(sorted(guilty))
        if self.coverage is Coverage.WHOLE:
            return ()
        ends = {rank for fault in faults for rank in (fault.rank, fault.peer, fault.late)}
        others = [rank for rank in range(topology.ranks) if rank not in ends]
        random = np.random.default_rng([self._seed, 71])
        count = max(1, round(topology.ranks / 10))
        return tuple(sorted(int(rank) for rank in random.choice(others, count, replace=False)))


def cases_of(
    kinds: Sequence[FaultKind],
    topologies: Sequence[str],
    profiles: Sequence[ProfileName],
    seeds: range,
    **options: object,
) -> Iterator[Case]:
    """All combinations, one seed after another, so that any beginning of the list is balanced."""
    for seed in seeds:
        for topology in topologies:
            for kind in kinds:
                profile = profiles[seed % len(profiles)]
                yield Case(kind, topology, profile, seed, **options)  # type: ignore[arg-type]
