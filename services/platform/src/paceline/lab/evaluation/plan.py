"""The fixed corpus: which cases are run, whole and short. Seeds are the case numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.contracts.codes import Phase
from paceline.fleet import CommKind, Conditions, Fault, FaultKind, Pause, ProfileName, Program
from paceline.lab.evaluation.cases import SLOW_AT_S, TOPOLOGIES, Case, Coverage, cases_of

P, F = ProfileName, FaultKind
ALL_PROFILES = (P.KERNELS, P.GLOO, P.NCCL1, P.NCCL2, P.NVLINK_ONLY, P.NCCL0)
SEEING = (P.KERNELS, P.GLOO, P.NCCL1, P.NCCL2, P.NVLINK_ONLY)  # completions are seen
COUNTING = (P.KERNELS, P.KERNELS, P.NCCL2, P.GLOO, P.NVLINK_ONLY)  # counts of edges, and two that lack them
QUEUED = (P.KERNELS, P.NCCL1, P.NCCL2)  # calls return before they are done

GROUPS: tuple[tuple[tuple[FaultKind, ...], tuple[ProfileName, ...]], ...] = (
    ((F.MISSING_ENTER, F.DELAYED_ENTER, F.FROZEN_PROCESS, F.DEAD_PROCESS), ALL_PROFILES),
    ((F.OPERATION, F.SIZE, F.DTYPE, F.REDUCE_OP, F.ROOT), ALL_PROFILES),
    ((F.STUCK, F.LINK_DOWN, F.MISSING_EXIT, F.ALL_STUCK), COUNTING),
    ((F.LATE_RANK, F.ROTATING), SEEING),
    ((F.SLOW_LINK, F.SHARED_PATH, F.MIXED), COUNTING),
    ((F.ORDER_INVERSION, F.BOOTSTRAP, F.LAZY_CONNECT), SEEING),
    ((F.QUEUE_EXHAUSTION,), QUEUED),
)
SHORT_TOPOLOGIES = ("2x2x4", "8x4x4")
NAMED: tuple[tuple[str, FaultKind, int, ProfileName], ...] = (
    ("H1", F.MISSING_ENTER, 1, P.NCCL1),
    ("double H1", F.MISSING_ENTER, 2, P.NCCL1),
    ("H2 operation", F.OPERATION, 1, P.NCCL1),
    ("H2 size", F.SIZE, 1, P.NCCL1),
    ("order inversion", F.ORDER_INVERSION, 1, P.NCCL1),
    ("H3", F.STUCK, 1, P.KERNELS),
)
FLOOR_TOPOLOGY = "4x1x4"
HEALTHY_SEGMENT_S = 3600
PEERS = "peers"


@dataclass(frozen=True)
class Amount:
    """How much is run. `seeds` per kind and topology."""

    seeds: int
    coverage_seeds: int
    named_seeds: int
    floor_seeds: int
    healthy_s: int  # per topology
    topologies: tuple[str, ...]
    peer_seeds: int
    jitter_s: int = 600  # of a job with 10% jitter
    covered: tuple[str, ...] = ()  # topologies of the coverage part; all where empty

    @staticmethod
    def whole(seeds: int = 30, healthy_hours: float = 24.0) -> "Amount":
        topologies = tuple(name for name in TOPOLOGIES if name != FLOOR_TOPOLOGY)
        third = max(1, seeds // 3)
        return Amount(seeds, max(1, seeds // 4), third, third, int(healthy_hours * 3600), topologies, 3)

    @staticmethod
    def short() -> "Amount":
        return Amount(1, 1, 1, 1, 120, SHORT_TOPOLOGIES, 0, 300, SHORT_TOPOLOGIES[:1])


def corpus(amount: Amount) -> Iterator[Case]:
    """Faults x topologies x profiles x seeds, everything observed."""
    for kinds, profiles in GROUPS:
        yield from cases_of(kinds, amount.topologies, profiles, range(amount.seeds))


def coverage(amount: Amount) -> Iterator[Case]:
    """The same with ranks that have no probe."""
    seeds = range(100, 100 + amount.coverage_seeds)
    topologies = amount.covered or amount.topologies
    for kinds, profiles in GROUPS:
        chosen = [kind for kind in kinds if kind not in (F.ALL_STUCK, F.ROTATING)]
        yield from cases_of(chosen, topologies, profiles, seeds, part="coverage", coverage=Coverage.OTHERS)
    more = range(100, 100 + 3 * amount.coverage_seeds)
    yield from cases_of(
        [F.MISSING_ENTER], topologies, ALL_PROFILES, more, part="coverage", coverage=Coverage.GUILTY
    )


def named(amount: Amount) -> Iterator[Case]:
    """128 ranks, 8x4x4: the cases on which peers were measured."""
    for seed in range(200, 200 + amount.named_seeds):
        for label, kind, count, profile in NAMED:
            group = None if kind is F.ORDER_INVERSION else CommKind.TP
            yield Case(kind, "8x4x4", profile, seed, group=group, count=count, part=f"named {label}")


def floor(amount: Amount) -> Iterator[Case]:
    """How small and how short a slowness is found, on a job whose step takes 0.94 s."""
    program = Program()
    step_s = step_seconds(program)
    parts = program.microbatches * program.layers * 2
    for seed in range(300, 300 + amount.floor_seeds):
        rank = int(np.random.default_rng(seed).integers(TOPOLOGIES[FLOOR_TOPOLOGY].ranks))
        for part, share, steps in (("floor 5%", 0.05, 0), ("floor burst", 0.3, 8)):
            until_s = SLOW_AT_S + steps * step_s * (1 + share) if steps else float("inf")
            fault = Fault(F.LATE_RANK, rank, CommKind.TP, SLOW_AT_S, until_s, delay_s=share * step_s / parts)
            yield Case(F.LATE_RANK, FLOOR_TOPOLOGY, P.NCCL1, seed, part=part, faults=(fault,), seconds=120)
        yield Case(
            None, FLOOR_TOPOLOGY, P.NCCL1, seed, part="floor jitter", seconds=amount.jitter_s,
            conditions=Conditions(jitter=0.1),
        )  # fmt: skip


def healthy(amount: Amount) -> Iterator[Case]:
    """Long runs with everything that is normal, in segments of at most one hour.

    One segment of each topology after another, so that any beginning of the list is balanced.
    """
    for index in range(-(-amount.healthy_s // HEALTHY_SEGMENT_S)):
        seconds = min(amount.healthy_s - index * HEALTHY_SEGMENT_S, HEALTHY_SEGMENT_S)
        seed = 400 + index
        for topology in amount.topologies:
            yield Case(
                None, topology, ALL_PROFILES[seed % len(ALL_PROFILES)], seed, part="healthy", seconds=seconds,
                conditions=_normal(seconds, seed),
            )  # fmt: skip


def step_seconds(program: Program) -> float:
    """Duration of an undisturbed step of a job without pipeline, with tensor and data parallelism."""
    layer = program.compute_s * (1 + program.backward) + 2 * program.tp_s
    ends = program.dp_s * 1.5 + program.world_s + program.optimizer_s + program.tp_s / 4
    return program.microbatches * program.layers * layer + ends


def _normal(seconds: int, seed: int) -> Conditions:
    """Jitter, collections, a checkpoint each ten minutes, and short pauses that nobody declares."""
    random = np.random.default_rng([seed, 5])
    pauses = [
        Pause(float(at) + float(random.uniform(0, 60)), float(random.uniform(15, 90)), Phase.CHECKPOINT)
        for at in range(300, seconds, 600)
    ]
    pauses += [
        Pause(float(at) + float(random.uniform(0, 60)), float(random.uniform(0.5, 4.0)), declared=False)
        for at in range(120, seconds, 240)
    ]
    return Conditions(
        jitter=0.02,
        gc_per_s=0.01,
        gc_s=0.15,
        pauses=tuple(sorted(pauses, key=lambda pause: pause.at_s)),
        compile_s=float(random.uniform(0, 60)),
        drop=0.002,
        late=0.002,
    )


PARTS = {"corpus": corpus, "coverage": coverage, "named": named, "floor": floor, "healthy": healthy}


def all_cases(amount: Amount, only: Sequence[str] = ()) -> Iterator[Case]:
    """Cases of the parts that `only` names, and of those the ones whose name contains one of its other
    words; everything where it is empty."""
    parts = [word for word in only if word in PARTS]
    words = [word for word in only if word not in PARTS and word != PEERS]
    for name, part in PARTS.items():
        if (parts and name not in parts) or (only and not parts and not words):
            continue
        for case in part(amount):
            if not words or any(word in case.name for word in words):
                yield case


def peer_cases(amount: Amount, only: Sequence[str] = ()) -> list[Case]:
    """Jobs that peers get as dumps: the named ones."""
    if only and PEERS not in only:
        return []
    seeds = amount.peer_seeds or (1 if PEERS in only else 0)
    return list(named(replace(amount, named_seeds=seeds))) if seeds else []
