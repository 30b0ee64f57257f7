"""Ranks that nobody reports: the others' rows decide, or nobody is named. Never a wrong root."""

import random
from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis import JobEvidence, unseen_ends
from paceline.analysis.judge import explain, judge
from paceline.contracts.batch import EDGE_ROW
from paceline.contracts.codes import ExitKind, FrameFlag, OpState, ProcessState
from paceline.contracts.verdicts import Role, RootKind, SubReason, Verdict, VerdictClass
from tests.unit.analysis.injections import Injection, inject
from tests.unit.analysis.simulated_job import Shape, SimulatedJob

SHAPES = (Shape(2, 4, 2), Shape(4, 4, 1), Shape(2, 2, 4), Shape(4, 2, 1))
KINDS = (
    *("h1", "h1x2", "gil", "h2_op", "h2_size", "h2_dtype", "h2_reduce_op", "h2_root", "inversion", "h3"),
    *("frozen_inside", "frozen_outside", "dead", "p2p_send", "p2p_recv"),
)


def wrongly_named(injection: Injection, kind: str, verdict: Verdict) -> list[object]:
    """Roots that are called the cause and are not: a rank that was not injected, or a group without one."""
    guilty = set(injection.ranks)
    wrong: list[object] = []
    for root in verdict.roots:
        if root.role is not Role.INITIATING:
            continue
        ranks = {root.rank} if root.kind is RootKind.RANK else set(root.ranks)
        if not ranks & guilty or (kind == "h3" and root.kind is RootKind.RANK):
            wrong.append(root)
    return wrong


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_any_subset_of_missing_ranks_names_nobody_wrongly(kind: str, seed: int) -> None:
    shape = SHAPES[2 * (seed % 2)] if kind.startswith("p2p") else SHAPES[seed % len(SHAPES)]
    window, backend = ((1, "gloo"), (6, "nccl"))[seed // len(SHAPES) % 2]
    injection = inject(kind, SimulatedJob(shape, seed, window=window, backend=backend))
    choose = random.Random(seed)
    for share in (0.1, 0.3, 0.6):
        hidden = [rank for rank in range(shape.world) if choose.random() < share]
        verdict = judge(injection.job.evidence(hidden=hidden))
        assert not wrongly_named(injection, kind, verdict), (hidden, verdict.summary)


def hide(evidence: JobEvidence, ranks: list[int]) -> None:
    """Take the reports of `ranks` away."""
    evidence.seen[np.isin(evidence.member_rank, ranks)] = False
    evidence.process_seen[ranks] = False
    evidence.state[np.isin(evidence.member_rank, ranks)] = 0
    object.__setattr__(evidence, "rounds", evidence.rounds[~np.isin(evidence.rounds["rank"], ranks)])


def part_of(evidence: JobEvidence, name: str) -> slice:
    index = evidence.comm_names.index(name)
    return slice(int(evidence.offsets[index]), int(evidence.offsets[index + 1]))


def everybody_waits(evidence: JobEvidence, part: slice) -> None:
    """Edge rows of a ring in which every member waits for its neighbours, some further than others."""
    members = evidence.member_rank[part][evidence.seen[part]]
    places = np.flatnonzero(evidence.seen[part])
    rows = np.zeros(2 * len(members), EDGE_ROW)
    rows["comm"], rows["recent_us"] = evidence.comm_ids[evidence.comm_of[part.start]], 1_000_000
    size = part.stop - part.start
    for at, (rank, place) in enumerate(zip(members, places, strict=True)):
        send, receive = rows[2 * at], rows[2 * at + 1]
        send["rank"], send["peer"] = rank, (place + 1) % size
        receive["rank"], receive["peer"], receive["direction"] = rank, (place - 1) % size, 1
        receive["recent_wait_us"] = 900_000
        send["count"], receive["count"] = 100 + 4 * place, 100 + 4 * ((place - 1) % size)
    evidence.state["flags"][part] &= np.uint16(0xFFFF ^ FrameFlag.COUNTS_UNOBSERVABLE)
    object.__setattr__(evidence, "edges", rows)


class TestSilentBesideOthers:
    """All waits of one group end at a silent rank, which may itself wait for somebody else."""

    def evidence(self, round_of_dp: int, silent: int) -> JobEvidence:
        job = SimulatedJob(Shape(4, 4, 1), 3)
        job.stuck = ("dp_1", round_of_dp)
        evidence = job.run().evidence()
        hide(evidence, [silent])
        return evidence

    def test_rank_that_is_seen_stuck_comes_before_the_silent_one(self) -> None:
        evidence = self.evidence(4, silent=5)
        dp = part_of(evidence, "dp_1")
        everybody_waits(evidence, dp)
        stuck = 9
        evidence.edges["recent_wait_us"][evidence.edges["rank"] == stuck] = 0
        verdict = judge(evidence)
        assert verdict.verdict_class is VerdictClass.H3
        assert [root.rank for root in verdict.roots] == [stuck]

    def test_the_one_place_where_all_waits_end_is_named(self) -> None:
        evidence = self.evidence(4, silent=5)
        everybody_waits(evidence, part_of(evidence, "dp_1"))
        judgement = explain(evidence)
        assert judgement.reason == "silent_by_neighbours"
        assert [root.rank for root in judgement.verdict.roots] == [5]

    def test_not_where_the_members_call_what_was_never_called_here(self) -> None:
        """The silent rank may have called the usual operation: that would be a mismatch of the others."""
        evidence = self.evidence(4, silent=5)
        dp = part_of(evidence, "dp_1")
        everybody_waits(evidence, dp)
        inside = np.flatnonzero(evidence.state["head_round"][dp] == 4) + dp.start
        evidence.state["head_signature"][inside] = 77
        at = (evidence.rounds["comm"] == evidence.comm_ids[evidence.comm_of[dp.start]]) & (
            evidence.rounds["round"] == 4
        )
        evidence.rounds["signature"][at] = 77
        verdict = judge(evidence)
        assert verdict.verdict_class is VerdictClass.INCONCLUSIVE
        assert [root.role for root in verdict.roots] == [Role.UNKNOWN]

    def test_not_where_another_group_of_that_rank_stands_still_as_well(self) -> None:
        job = SimulatedJob(Shape(4, 4, 1), 3)
        job.stuck = ("tp_1", 9)
        evidence = job.run().evidence()
        hide(evidence, [5])
        everybody_waits(evidence, part_of(evidence, "dp_1"))
        verdict = judge(evidence)
        assert not [root for root in verdict.roots if root.role is Role.INITIATING]


class TestFirstUse:
    def evidence(self, age_ms: int) -> JobEvidence:
        job = SimulatedJob(Shape(4, 4, 1), 2)
        job.stuck = ("dp_1", 1)
        evidence = job.run().evidence()
        hide(evidence, [9])
        evidence.state["head_age_ms"][evidence.state["head_age_ms"] > 0] += age_ms
        return evidence

    def test_group_is_named_although_a_member_is_silent(self) -> None:
        verdict = judge(self.evidence(30_000))
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.INIT, SubReason.LAZY_CONNECT)
        assert verdict.roots[0].ranks == (1, 5, 9, 13)
        assert "nothing is known of rank 9" in verdict.summary

    def test_silent_rank_is_not_accused_of_it(self) -> None:
        evidence = self.evidence(30_000)
        everybody_waits(evidence, part_of(evidence, "dp_1"))
        assert [root.kind for root in judge(evidence).roots] == [RootKind.GROUP]

    def test_not_before_its_time(self) -> None:
        assert explain(self.evidence(0)).reason == "connecting"


class TestVotes:
    @pytest.mark.parametrize("seed", range(6))
    def test_what_was_called_before_decides_where_a_member_is_silent(self, seed: int) -> None:
        """Three of four are seen: two agree, and the group always called what they call."""
        injection = inject("h2_size", SimulatedJob(Shape(4, 4, 1), seed))
        (guilty,) = injection.ranks
        operation = judge(injection.job.evidence()).operation
        assert operation is not None
        others = [rank for rank in injection.job.groups[operation.communicator_name] if rank != guilty]
        evidence = injection.job.evidence(hidden=others[:1])
        object.__setattr__(evidence, "comm_kinds", [""] * evidence.communicators)  # no siblings
        verdict = judge(evidence)
        assert verdict.verdict_class is VerdictClass.H2
        assert [root.rank for root in verdict.roots] == [guilty]
        assert "usual" in {item.rule for item in verdict.evidence}

    def test_two_of_four_do_not_vote(self) -> None:
        injection = inject("h2_size", SimulatedJob(Shape(4, 4, 1), 1))
        (guilty,) = injection.ranks
        operation = judge(injection.job.evidence()).operation
        assert operation is not None
        others = [rank for rank in injection.job.groups[operation.communicator_name] if rank != guilty]
        verdict = judge(injection.job.evidence(hidden=others[:2]))
        assert (
            verdict.sub_reason is SubReason.NO_MAJORITY
            or not verdict.roots
            or guilty in {root.rank for root in verdict.roots}
        )


def test_device_that_runs_a_later_operation_is_seen_beside_a_silent_member() -> None:
    job = SimulatedJob(Shape(4, 4, 1), 4, window=6, backend="nccl")
    job.stuck = ("dp_1", 4)
    evidence = job.run().evidence()
    guilty, silent = job.groups["dp_1"][0], job.groups["dp_1"][2]
    dp, world = part_of(evidence, "dp_1"), part_of(evidence, "world")
    assert evidence.state["head_round"][world][guilty] > 0
    evidence.state["state"][dp] = OpState.STARTED
    evidence.state["state"][dp.start] = OpState.ENTERED
    evidence.state["state"][world] = OpState.ENTERED
    evidence.state["state"][world.start + guilty] = OpState.STARTED
    hide(evidence, [silent])
    verdict = judge(evidence)
    assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.DEADLOCK, SubReason.QUEUE_EXHAUSTION)
    assert [root.rank for root in verdict.roots] == [guilty]


class TestUnseenCompletion:
    """NCCL's cheapest tier: calls are all that is seen."""

    def blur(self, evidence: JobEvidence, age_ms: int = 7000) -> JobEvidence:
        state = evidence.state
        state["flags"] |= np.uint16(FrameFlag.COMPLETION_UNOBSERVABLE)
        state["completed"] = 0
        state["head_round"] = state["entered"]
        state["head_age_ms"] = age_ms
        state["open_ops"] = state["entered"] > 0
        evidence.peers["completed"] = 0
        return evidence

    @pytest.mark.parametrize("seed", range(4))
    def test_rank_behind_an_operation_that_has_not_begun_is_no_second_cause(self, seed: int) -> None:
        """Calls run ahead: both ends have posted a message, and one of them stands in an earlier call."""
        injection = inject("h1x2", SimulatedJob(SHAPES[2 * (seed % 2)], seed, window=6, backend="nccl"))
        verdict = judge(self.blur(injection.job.evidence()))
        assert not wrongly_named(injection, "h1x2", verdict), verdict.summary

    def test_message_that_its_ends_called_before_and_after_a_barrier_is_open(self) -> None:
        """A rank has left out a receive: its next one takes the message, after the barrier that the sender
        has called behind it."""
        injection = inject("p2p_recv", SimulatedJob(Shape(2, 4, 2), 2, window=6, backend="nccl"))
        verdict = judge(self.blur(injection.job.evidence()))
        assert not wrongly_named(injection, "p2p_recv", verdict), verdict.summary
        assert "nothing is known of" not in verdict.summary

    def test_messages_too_many_to_compare_accuse_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unseen_ends, "CROSSED_MAX", 0)
        injection = inject("p2p_recv", SimulatedJob(Shape(2, 4, 2), 2, window=6, backend="nccl"))
        verdict = judge(self.blur(injection.job.evidence()))
        assert not wrongly_named(injection, "p2p_recv", verdict), verdict.summary

    def level(self, age_ms: int, hidden: list[int]) -> JobEvidence:
        """Everybody has entered the same rounds and calls nothing more."""
        job = SimulatedJob(Shape(4, 4, 1), 3).run()
        return self.blur(job.evidence(hidden=hidden), age_ms)

    def test_of_whom_nothing_is_known_is_said_where_all_others_have_stopped(self) -> None:
        verdict = judge(self.level(301_000, [5]))
        assert verdict.verdict_class is VerdictClass.INCONCLUSIVE
        assert [(root.rank, root.role) for root in verdict.roots] == [(5, Role.UNKNOWN)]

    @pytest.mark.parametrize(("age_ms", "hidden"), [(299_000, [5]), (299_000, [])])
    def test_a_pause_is_not_told_from_it(self, age_ms: int, hidden: list[int]) -> None:
        assert judge(self.level(age_ms, hidden)).verdict_class is VerdictClass.NONE

    def test_process_that_died_is_named_where_its_groups_have_stopped(self) -> None:
        job = SimulatedJob(Shape(4, 4, 1), 3).run()
        job.process[6] = {"exit_kind": ExitKind.SIGNAL, "exit_code": -9, "process_state": ProcessState.GONE}
        verdict = judge(self.blur(job.evidence(hidden=[5])))
        assert verdict.verdict_class is VerdictClass.DEAD_PROCESS
        assert [root.rank for root in verdict.roots] == [6]

    def test_frozen_process_is_not_named_while_its_groups_go_on(self) -> None:
        job = SimulatedJob(Shape(4, 4, 1), 3).run()
        job.process[6] = {"native_age_ms": 7000, "process_state": ProcessState.STOPPED}
        evidence = self.blur(job.evidence(hidden=[5]))
        assert [root.rank for root in judge(evidence).roots] == [6]
        evidence = replace(evidence)  # what has been read of it once is kept with it
        evidence.state["head_age_ms"][evidence.member_rank == 7] = 100
        assert judge(evidence).verdict_class is VerdictClass.NONE
