"""Every fault of the simulated job is named exactly, and no victim ever is."""

import pytest

from paceline.analysis import dump_bundle, load_bundle
from paceline.analysis.judge import judge
from paceline.contracts.verdicts import Role, RootKind, SubReason, Verdict, VerdictClass
from tests.unit.analysis.injections import Injection, inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob

SHAPES = (Shape(4, 2, 1), Shape(2, 2, 2), Shape(4, 4, 1), Shape(4, 4, 2), Shape(8, 4, 1), Shape(4, 4, 4))
PIPELINES = (Shape(2, 2, 2), Shape(2, 4, 2), Shape(4, 4, 2), Shape(4, 4, 4), Shape(2, 4, 4))
LONG_PIPELINES = (Shape(2, 4, 4), Shape(4, 4, 4), Shape(4, 2, 4), Shape(2, 2, 3))
BIG = Shape(8, 4, 4)
MODES = ((1, "gloo"), (6, "nccl"))
SEEDS = 30

EXPECTED = {
    "h1": (VerdictClass.H1, None),
    "h1x2": (VerdictClass.H1, None),
    "gil": (VerdictClass.H1, SubReason.GIL_HELD),
    "h2_op": (VerdictClass.H2, SubReason.OPERATION_MISMATCH),
    "h2_size": (VerdictClass.H2, SubReason.SIZE_MISMATCH),
    "h2_dtype": (VerdictClass.H2, SubReason.DTYPE_MISMATCH),
    "h2_reduce_op": (VerdictClass.H2, SubReason.REDUCE_OP_MISMATCH),
    "h2_root": (VerdictClass.H2, SubReason.ROOT_MISMATCH),
    "inversion": (VerdictClass.DEADLOCK, SubReason.ORDER_INVERSION),
    "frozen_inside": (VerdictClass.H3, SubReason.FROZEN_PROCESS),
    "frozen_outside": (VerdictClass.H1, SubReason.FROZEN_PROCESS),
    "dead": (VerdictClass.DEAD_PROCESS, SubReason.PROCESS_KILLED),
}


def make(kind: str, seed: int) -> Injection:
    shape = BIG if seed % 12 == 11 else SHAPES[seed % len(SHAPES)]
    if kind.startswith("p2p"):
        shape = PIPELINES[seed % len(PIPELINES)]
    if kind.startswith("h2_peer"):  # a message to somebody else needs a third stage
        shape = LONG_PIPELINES[seed % len(LONG_PIPELINES)]
    window, backend = MODES[seed // len(SHAPES) % 2]
    return inject(kind, SimulatedJob(shape, seed, window=window, backend=backend))


def named(verdict: Verdict) -> set[int]:
    """Ranks that the verdict accuses."""
    ranks: set[int] = set()
    for root in verdict.roots:
        if root.role is Role.INITIATING:
            ranks |= set(root.ranks) | ({root.rank} if root.rank is not None else set())
    return ranks


@pytest.mark.parametrize("kind", sorted(EXPECTED))
@pytest.mark.parametrize("seed", range(SEEDS))
def test_names_exactly_the_injected_ranks(kind: str, seed: int) -> None:
    injection = make(kind, seed)
    verdict = judge(injection.job.evidence())
    wanted, sub = EXPECTED[kind]
    assert verdict.verdict_class is wanted, verdict.summary
    assert named(verdict) == set(injection.ranks), verdict.summary
    assert all(root.kind is RootKind.RANK for root in verdict.roots)
    assert not set(verdict.victims) & set(injection.ranks)
    assert sub is None or verdict.sub_reason is sub, verdict.summary
    assert verdict.confidence >= 0.8
    assert verdict.victims_count >= 1


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_progress_names_the_smallest_group_with_the_cause(seed: int) -> None:
    injection = make("h3", seed)
    verdict = judge(injection.job.evidence())
    assert verdict.verdict_class is VerdictClass.H3
    assert named(verdict) == set(injection.ranks)
    assert [root.kind for root in verdict.roots] == [RootKind.GROUP]
    assert "counts" in verdict.would_decide


@pytest.mark.parametrize("function", ["p2p_send", "p2p_recv"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_missing_counterpart_names_the_rank(function: str, seed: int) -> None:
    injection = make(function, seed)
    verdict = judge(injection.job.evidence())
    assert named(verdict) == set(injection.ranks), verdict.summary
    assert verdict.sub_reason is SubReason.P2P_MISSING_COUNTERPART


@pytest.mark.parametrize("kind", ["h2_peer_send", "h2_peer_recv"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_other_peer_names_the_rank(kind: str, seed: int) -> None:
    injection = make(kind, seed)
    verdict = judge(injection.job.evidence())
    assert named(verdict) == set(injection.ranks), verdict.summary
    assert verdict.sub_reason is SubReason.PEER_MISMATCH, verdict.summary
    assert verdict.verdict_class is VerdictClass.H2


@pytest.mark.parametrize("seed", range(12))
def test_healthy_job_is_no_incident(seed: int) -> None:
    verdict = judge(make("none", seed).job.evidence())
    assert verdict.verdict_class is VerdictClass.NONE
    assert verdict.roots == ()
    assert verdict.victims_count == 0


@pytest.mark.parametrize("kind", ["h1", "h2_op", "h3", "inversion", "frozen_inside", "p2p_send"])
@pytest.mark.parametrize("seed", range(12))
def test_replayed_bundle_gives_the_same_verdict(kind: str, seed: int) -> None:
    shape = Shape(4, 4, 2)
    evidence = inject(kind, SimulatedJob(shape, seed)).job.evidence()
    packed = dump_bundle(evidence)
    assert dump_bundle(load_bundle(packed)) == packed
    assert judge(load_bundle(packed)) == judge(evidence)


@pytest.mark.parametrize("kind", [*sorted(EXPECTED), "h3", "p2p_send", "p2p_recv"])
@pytest.mark.parametrize("seed", range(12))
def test_missing_evidence_never_names_a_wrong_rank(kind: str, seed: int) -> None:
    injection = make(kind, seed)
    job = injection.job
    world = job.shape.world
    hidden = job.random.sample(range(world), max(1, world // 10))
    for verdict in (judge(job.evidence(hidden)), judge(job.evidence((), 0.1))):
        wrong = named(verdict) - set(injection.ranks)
        exact = not wrong
        group = verdict.roots and verdict.roots[0].kind is RootKind.GROUP
        assert exact or (group and set(injection.ranks) & named(verdict)), (verdict.summary, injection.ranks)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_hidden_guilty_rank_is_called_silent_not_guilty(seed: int) -> None:
    injection = make("h1", seed)
    (rank,) = injection.ranks
    verdict = judge(injection.job.evidence([rank]))
    assert verdict.verdict_class is VerdictClass.INCONCLUSIVE
    assert named(verdict) == set()
    assert [root.rank for root in verdict.roots] == [rank]
    assert f"rank {rank}" in verdict.would_decide
    assert verdict.confidence < 0.5


@pytest.mark.parametrize("seed", range(SEEDS))
def test_other_hidden_ranks_do_not_hide_the_guilty_one(seed: int) -> None:
    injection = make("h1", seed)
    world = injection.job.shape.world
    others = [rank for rank in range(world) if rank not in injection.ranks]
    hidden = injection.job.random.sample(others, max(1, world // 10))
    verdict = judge(injection.job.evidence(hidden))
    assert verdict.verdict_class is VerdictClass.H1
    assert named(verdict) == set(injection.ranks)
    assert verdict.confidence < 0.97
