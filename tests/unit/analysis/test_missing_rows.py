"""Whatever rows are missing, nobody innocent is named for a circle of calls."""

import numpy as np
import pytest

from paceline.analysis import JobEvidence, build_evidence
from paceline.analysis.judge import judge
from paceline.contracts.batch import Batch, BatchKind, RowKind, Rows
from paceline.contracts.verdicts import RootKind, Verdict, VerdictClass
from paceline.fleet import CommKind, FaultKind, ProfileName, Topology, draw_faults
from tests.bench.judge_jobs import Hang, fleet_rows, make_evidence
from tests.unit.analysis.test_judge_faults import make, named

SHAPES = (Topology(2, 2, 4, ranks_per_node=4), Topology(4, 2, 4), Topology(8, 1, 4), Topology(4, 4, 4))
PROFILES = (ProfileName.GLOO, ProfileName.NCCL1, ProfileName.KERNELS)
Tables = dict[RowKind, Rows]


def no_rounds(tables: Tables, random: np.random.Generator) -> Tables:
    return {kind: rows for kind, rows in tables.items() if kind is not RowKind.ROUND}


def rounds_cut_behind(tables: Tables, random: np.random.Generator) -> Tables:
    """As where a signal is full."""
    room = int(random.integers(len(tables[RowKind.ROUND])))
    return {**tables, RowKind.ROUND: tables[RowKind.ROUND][:room]}


def rounds_of_few_ranks(tables: Tables, random: np.random.Generator) -> Tables:
    rows = tables[RowKind.ROUND]
    kept = random.permutation(np.unique(rows["rank"]))[: int(random.integers(1, 6))]
    return {**tables, RowKind.ROUND: rows[np.isin(rows["rank"], kept)]}


def any_rows(tables: Tables, random: np.random.Generator) -> Tables:
    """Ranks that report nothing, and single rows of what was called."""
    share = float(random.choice([0.02, 0.1, 0.3]))
    ranks = np.unique(tables[RowKind.STATE]["rank"])
    silent = ranks[random.random(len(ranks)) < share / 3]
    left = {kind: rows[~np.isin(rows["rank"], silent)] for kind, rows in tables.items()}
    return {
        kind: rows[random.random(len(rows)) >= share] if kind in (RowKind.ROUND, RowKind.PEER) else rows
        for kind, rows in left.items()
    }


def one_kind(tables: Tables, random: np.random.Generator) -> Tables:
    kind = (RowKind.ROUND, RowKind.PEER, RowKind.PROCESS)[int(random.integers(3))]
    share = float(random.choice([0.1, 0.5, 1.0]))
    return {
        name: rows[random.random(len(rows)) >= share] if name is kind else rows
        for name, rows in tables.items()
    }


LOSSES = (no_rounds, rounds_cut_behind, rounds_of_few_ranks, any_rows, one_kind)


def is_innocent_named(verdict: Verdict, guilty: set[int]) -> bool:
    """A group that holds the guilty rank accuses nobody alone."""
    group = all(root.kind is RootKind.GROUP for root in verdict.roots)
    return bool(named(verdict) - guilty) and not (group and named(verdict) & guilty)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_inversion_with_missing_rows(shape: int, profile: ProfileName, loss: object) -> None:
    for seed in range(3):
        kind = FaultKind.ORDER_INVERSION
        group = CommKind.TP if seed % 2 and SHAPES[shape].tp > 2 else None
        faults = draw_faults(kind, SHAPES[shape], seed, 3.0, group)
        rows, records = fleet_rows(SHAPES[shape], Hang(kind, profile), faults, seed)
        guilty = {faults[0].rank}
        assert named(judge(make_evidence(rows, *records))) == guilty
        random = np.random.default_rng([seed, 3])
        for _ in range(6):
            verdict = judge(make_evidence(loss(rows, random), *records))  # type: ignore[operator]
            assert not is_innocent_named(verdict, guilty), (verdict.summary, guilty)


def without(job_batches: list[Batch], loss: object, random: np.random.Generator) -> list[Batch]:
    kinds = {kind for batch in job_batches for kind in batch.rows}
    tables = {kind: np.concatenate([batch.table(kind) for batch in job_batches]) for kind in kinds}
    lost = loss(tables, random)  # type: ignore[operator]
    first = job_batches[0]
    return [Batch(BatchKind.STALLED, first.job, first.attempt, "d", 0, 1, 1, 1, 1, lost, episode="e")]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["inversion", "p2p_send", "p2p_recv", "h2_peer_send", "h2_peer_recv"])
def test_turned_and_left_out_calls_with_missing_rows(kind: str, loss: object) -> None:
    for seed in range(8):
        injection = make(kind, seed)
        batches, records = injection.job.batches(), injection.job.registry()
        guilty, random = set(injection.ranks), np.random.default_rng([seed, 5])
        for _ in range(4):
            evidence: JobEvidence = build_evidence(without(batches, loss, random), *records)
            verdict = judge(evidence)
            assert not is_innocent_named(verdict, guilty), (seed, verdict.summary, guilty)
            assert verdict.verdict_class is not VerdictClass.NONE
