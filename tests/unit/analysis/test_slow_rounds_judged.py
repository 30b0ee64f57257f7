"""S1, S2, S3 and rotating stragglers from kept rounds and a base line."""

from collections.abc import Callable

import numpy as np
import pytest

from paceline.analysis import JobEvidence, build_evidence
from paceline.analysis.judge import judge
from paceline.contracts.batch import (
    BASELINE_ROW,
    PROCESS_ROW,
    ROUND_ROW,
    STATE_ROW,
    Batch,
    BatchKind,
    RowKind,
)
from paceline.contracts.codes import DType, Function, OpKind, OpState
from paceline.contracts.ids import format_communicator, format_ranks
from paceline.contracts.registry import CommunicatorRecord, JobRecord, JobState
from paceline.contracts.verdicts import ActionKind, Owner, RootKind, SubReason, VerdictClass
from tests.unit.analysis.simulated_job import plain

BASE_NS = 1_000_000
COUNT = 4096
WORLD = 8
Times = Callable[[int, int], tuple[float, float]]  # (round, rank) -> (T / Tbase, receive wait in us)


class SlowJob:
    """Groups of eight ranks with kept rounds of chosen durations."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.rounds: list[np.void] = []
        self.baselines: list[np.void] = []
        self.groups: dict[int, tuple[str, list[int]]] = {}

    def add(
        self,
        comm: int,
        ranks: list[int],
        times: Times,
        rounds: int = 5,
        function: Function = Function.ALL_REDUCE,
        first: int = 100,
    ) -> "SlowJob":
        self.groups[comm] = (f"g_{comm}", ranks)
        for number in range(first, first + rounds):
            for place, rank in enumerate(ranks):
                row = np.zeros((), ROUND_ROW)
                factor, wait = times(number, rank)
                row["comm"], row["rank"], row["comm_rank"], row["round"] = comm, rank, place, number
                row["function"], row["dtype"], row["count"] = function, DType.FLOAT32, COUNT
                row["kind"], row["state"] = OpKind.COLLECTIVE, OpState.COMPLETED
                row["duration_ns"] = int(BASE_NS * factor * self.rng.normal(1, 0.01))
                row["recv_wait_us"] = int(wait)
                self.rounds.append(plain(row))
        base = np.zeros((), BASELINE_ROW)
        base["comm"], base["count"], base["t_base_ns"], base["samples"] = comm, COUNT, BASE_NS, 20
        base["threshold"], base["slow"], base["window"] = 3.0, 4, 5
        base["function"], base["dtype"], base["bucket"] = function, DType.FLOAT32, COUNT.bit_length()
        self.baselines.append(plain(base))
        return self

    def evidence(self) -> JobEvidence:
        state = np.zeros(sum(len(ranks) for _, ranks in self.groups.values()), STATE_ROW)
        state["comm"] = [comm for comm, (_, ranks) in self.groups.items() for _ in ranks]
        state["rank"] = [rank for _, ranks in self.groups.values() for rank in ranks]
        state["entered"] = state["completed"] = 104
        process = np.zeros(WORLD, PROCESS_ROW)
        process["rank"], process["host_wait_rank"] = np.arange(WORLD), -1
        rows = {
            RowKind.STATE: state,
            RowKind.PROCESS: process,
            RowKind.ROUND: np.array(self.rounds),
            RowKind.BASELINE: np.array(self.baselines),
        }
        batch = Batch(BatchKind.SLOW, "j", "a", "d", 0, 1, 1, 1, 1, rows)
        job = JobRecord("j", "a", "c", "t", "u", "n", WORLD, 1, JobState.RUNNING, "declared", "declared", 0.0)
        comms = [
            CommunicatorRecord("j", "a", format_communicator(comm), name, format_ranks(ranks), 0, 0, "nccl")
            for comm, (name, ranks) in self.groups.items()
        ]
        return build_evidence([batch], job, (), comms)


ALL = list(range(WORLD))


def late(rank: int, factor: float = 5.0) -> Times:
    return lambda _, other: (1.0 if other == rank else factor, 0.0)


@pytest.mark.parametrize("rank", ALL)
def test_late_rank_waits_least(rank: int) -> None:
    verdict = judge(SlowJob(rank).add(1, ALL, late(rank)).evidence())
    assert verdict.verdict_class is VerdictClass.S1
    assert verdict.sub_reason is SubReason.LATE_RANK
    assert [root.rank for root in verdict.roots] == [rank]
    assert verdict.victims == tuple(other for other in ALL if other != rank)
    assert verdict.operation is not None
    assert (verdict.operation.function, verdict.operation.communicator_name) == ("all_reduce", "g_1")


def test_two_slow_rounds_of_five_are_jitter() -> None:
    def times(number: int, rank: int) -> tuple[float, float]:
        return (5.0 if number < 102 and rank != 3 else 1.0, 0.0)

    assert judge(SlowJob().add(1, ALL, times).evidence()).verdict_class is VerdictClass.NONE


def test_below_the_threshold_is_nothing() -> None:
    assert judge(SlowJob().add(1, ALL, late(3, 2.5)).evidence()).verdict_class is VerdictClass.NONE


@pytest.mark.parametrize("receiver", [1, 4, 0])
def test_slow_link_is_where_the_receive_wait_rises_most(receiver: int) -> None:
    def times(number: int, rank: int) -> tuple[float, float]:
        return (5.0, 3900.0 if rank == receiver else 300.0)

    verdict = judge(SlowJob().add(1, ALL, times).evidence())
    assert verdict.verdict_class is VerdictClass.S2
    (root,) = verdict.roots
    assert root.kind is RootKind.LINK
    assert (root.rank, root.peer_rank) == ((receiver - 1) % WORLD, receiver)


def test_slow_path_without_waits_names_the_group_and_what_would_decide() -> None:
    verdict = judge(SlowJob().add(1, ALL, lambda _, rank: (5.0, 0.0)).evidence())
    assert verdict.verdict_class is VerdictClass.S2
    assert (verdict.owner, verdict.action.kind) == (Owner.UNKNOWN, ActionKind.COLLECT)
    assert [root.kind for root in verdict.roots] == [RootKind.GROUP]
    assert "neighbour" in verdict.would_decide


def test_both_at_once() -> None:
    def times(number: int, rank: int) -> tuple[float, float]:
        return (3.0 if rank == 2 else 5.0, 3000.0 if rank == 6 else 100.0)

    verdict = judge(SlowJob().add(1, ALL, times).evidence())
    assert verdict.verdict_class is VerdictClass.S3
    assert [(root.kind, root.rank) for root in verdict.roots] == [(RootKind.RANK, 2), (RootKind.LINK, 5)]


@pytest.mark.parametrize(("rounds", "named"), [(3, 0), (5, 2)])
def test_slow_link_and_a_rank_that_became_late_a_round_later(rounds: int, named: int) -> None:
    """Of three slow rounds two show the late rank: too few to name it, and half the cause is no answer."""

    def times(number: int, rank: int) -> tuple[float, float]:
        is_late = rank == 2 and number > 100
        fastest = rank == 4 and number == 100
        return (3.0 if is_late or fastest else 5.0, 3000.0 if rank == 6 else 100.0)

    job = SlowJob().add(1, ALL, times, rounds=rounds)
    job.baselines[0]["late_nats"] = -1.0  # a detector follows the key
    verdict = judge(job.evidence())
    assert verdict.verdict_class is (VerdictClass.S3 if named else VerdictClass.INCONCLUSIVE)
    assert len(verdict.roots) == named


@pytest.mark.parametrize(("wait", "expected"), [(1700.0, VerdictClass.S1), (0.0, VerdictClass.S3)])
def test_late_rank_on_busy_hosts_accuses_no_link_where_all_wait_alike(
    wait: float, expected: VerdictClass
) -> None:
    """Hosts short of CPU slow every rank; where no waits are seen a link may do the same."""

    def times(number: int, rank: int) -> tuple[float, float]:
        return (2.5 if rank == 5 else 6.0, wait * (1 + 0.02 * rank))

    verdict = judge(SlowJob().add(1, ALL, times).evidence())
    assert verdict.verdict_class is expected
    assert (verdict.roots[0].kind, verdict.roots[0].rank) == (RootKind.RANK, 5)
    assert (len(verdict.roots) == 1) is (expected is VerdictClass.S1)


def test_rotating_stragglers_replace_nobody() -> None:
    def times(number: int, rank: int) -> tuple[float, float]:
        return (1.0 if rank == number % WORLD else 5.0, 0.0)

    verdict = judge(SlowJob().add(1, ALL, times).evidence())
    assert verdict.sub_reason is SubReason.ROTATING_STRAGGLER
    assert [root.kind for root in verdict.roots] == [RootKind.ROTATING]
    assert verdict.roots[0].rank is None


def test_victim_that_is_late_elsewhere_is_not_the_cause() -> None:
    """Rank 1 waits for rank 0 in its pair, and is late in the other group because of that."""
    job = SlowJob().add(1, [0, 1], late(0)).add(2, [1, 5], late(1)).add(3, [0, 4], late(0))
    verdict = judge(job.evidence())
    assert verdict.verdict_class is VerdictClass.S1
    assert [root.rank for root in verdict.roots] == [0]


def test_rank_that_got_its_input_late_is_not_the_cause() -> None:
    """Rank 4 waits for rank 0 in a pipeline that no collective shows, and is late once a step."""
    job = SlowJob().add(1, [4, 6], late(4, 40.0), rounds=3)
    job.add(2, [0, 1], late(0, 5.0), first=900)
    assert [root.rank for root in judge(job.evidence()).roots] == [0]
    job.add(3, [4, 7], late(7, 6.0))
    assert [root.rank for root in judge(job.evidence()).roots] != [4]


def test_broadcast_says_nothing_about_lateness() -> None:
    job = SlowJob().add(1, ALL, late(3), function=Function.BROADCAST)
    assert judge(job.evidence()).verdict_class is VerdictClass.NONE
