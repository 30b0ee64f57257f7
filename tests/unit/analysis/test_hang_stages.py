"""Late arrivals, host barriers, first connections, device queues, sends in a circle, hidden completion."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis import JobEvidence, JudgePolicy
from paceline.analysis.judge import explain, judge
from paceline.contracts.batch import EDGE_ROW, PEER_ROW, ROUND_ROW
from paceline.contracts.codes import FrameFlag, Function, HostWait, OpState
from paceline.contracts.verdicts import Role, RootKind, SubReason, VerdictClass
from tests.unit.analysis.injections import inject
from tests.unit.analysis.simulated_job import Call, Shape, SimulatedJob
from tests.unit.analysis.stalled_transfers import stall_ring

SHAPE = Shape(4, 2, 1)


def part_of(evidence: JobEvidence, name: str) -> slice:
    index = evidence.comm_names.index(name)
    return slice(int(evidence.offsets[index]), int(evidence.offsets[index + 1]))


def stuck(seed: int = 4, shape: Shape = SHAPE, group: str = "tp_0") -> tuple[JobEvidence, slice]:
    """A round that everybody entered and that does not move, and where its members stand."""
    job = SimulatedJob(shape, seed)
    job.stuck = (group, 5)
    evidence = job.run().evidence()
    return evidence, part_of(evidence, group)


def h1(seed: int = 3, shape: Shape = SHAPE) -> tuple[SimulatedJob, int]:
    injection = inject("h1", SimulatedJob(shape, seed))
    return injection.job, injection.ranks[0]


class TestLateArrival:
    def test_rank_that_has_just_entered_is_no_stuck_group(self) -> None:
        evidence, part = stuck()
        evidence.state["head_age_ms"][part.start + 1] = 300
        judgement = explain(evidence)
        assert judgement.reason == "arrived_late"
        assert judgement.verdict.sub_reason is SubReason.DELAYED_ENTER
        assert [root.rank for root in judgement.verdict.roots] == [int(evidence.member_rank[part.start + 1])]
        assert judgement.settle_s > 0  # it may go on any moment

    def test_rank_that_entered_long_ago_is(self) -> None:
        evidence, part = stuck()
        evidence.state["head_age_ms"][part.start + 1] = 3000
        assert judge(evidence).verdict_class is VerdictClass.H3


class TestHostWaits:
    def test_who_is_missing_from_a_host_barrier_is_named_not_who_waits_there(self) -> None:
        """One rank waits in a store for anybody and so misses a collective; another one is just idle."""
        job, waiter = h1()
        other = (waiter + 1) % 8
        for rank in range(8):
            if rank not in (waiter, other):
                continue
            job.process[rank] = {"host_wait": HostWait.STORE, "host_wait_age_ms": 8000}
        evidence = job.evidence()
        mine = evidence.member_rank == other
        for name in ("head_round", "head_age_ms", "open_ops"):
            evidence.state[name][mine] = 0
        evidence.state["entered"][mine] = evidence.state["completed"][mine]
        evidence.processes["host_wait"][other] = HostWait.NONE
        lone = judge(evidence)
        assert waiter not in {root.rank for root in lone.roots}
        assert {root.rank for root in lone.roots} == {other}

    def test_all_idle_ranks_wait_for_the_host(self) -> None:
        job, rank = h1()
        job.process[rank] = {"host_wait": HostWait.BARRIER, "host_wait_age_ms": 8000}
        verdict = judge(job.evidence())
        assert verdict.verdict_class is VerdictClass.H1
        assert verdict.sub_reason is SubReason.HOST_WAIT
        assert [root.rank for root in verdict.roots] == [rank]


def bootstrapping(missing: int, age_ms: int = 130_000) -> JobEvidence:
    job = SimulatedJob(SHAPE, 1, steps=0)
    for rank in range(8):
        if rank != missing:
            job.process[rank] = {"host_wait": HostWait.BOOTSTRAP, "host_wait_age_ms": age_ms}
    return job.run().evidence(hidden=[missing] if missing >= 0 else [])


class TestInit:
    def test_who_never_arrived_is_named(self) -> None:
        verdict = judge(bootstrapping(5))
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.INIT, SubReason.BOOTSTRAP)
        assert [root.rank for root in verdict.roots] == [5]
        assert verdict.victims_count == 7

    def test_ranks_without_a_report_are_not_named_beside_one_that_was_seen_elsewhere(self) -> None:
        job = SimulatedJob(SHAPE, 1, steps=0)
        for rank in range(8):
            if rank != 5:
                job.process[rank] = {"host_wait": HostWait.BOOTSTRAP, "host_wait_age_ms": 130_000}
        verdict = judge(job.run().evidence(hidden=[2, 7]))
        assert [(root.rank, root.role) for root in verdict.roots] == [(5, Role.INITIATING)]
        assert "never reached" in verdict.summary

    def test_of_several_without_a_report_none_is_known_to_be_the_cause(self) -> None:
        job = SimulatedJob(SHAPE, 1, steps=0)
        for rank in range(8):
            job.process[rank] = {"host_wait": HostWait.BOOTSTRAP, "host_wait_age_ms": 130_000}
        verdict = judge(job.run().evidence(hidden=[2, 7]))
        assert [(root.rank, root.role) for root in verdict.roots] == [(2, Role.UNKNOWN), (7, Role.UNKNOWN)]

    def test_all_there_and_nothing_happens(self) -> None:
        verdict = judge(bootstrapping(-1))
        assert (verdict.verdict_class, verdict.roots) == (VerdictClass.INIT, ())

    def test_not_before_its_time(self) -> None:
        assert judge(bootstrapping(5, 60_000)).verdict_class is VerdictClass.NONE

    def test_first_use_that_never_completes(self) -> None:
        job = SimulatedJob(SHAPE, 2)
        job.stuck = ("dp_1", 1)
        assert explain(job.run().evidence()).reason == "connecting"
        evidence = job.evidence()
        evidence.state["head_age_ms"][evidence.state["head_age_ms"] > 0] += 30_000
        verdict = judge(evidence)
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.INIT, SubReason.LAZY_CONNECT)
        assert verdict.roots[0].ranks == tuple(job.groups["dp_1"])

    @pytest.mark.parametrize("seen", ["sent", "received", "kernel"])
    def test_first_use_in_which_something_moves_is_no_connection(self, seen: str) -> None:
        """Connections are made before a slice is transferred or a kernel begins: the ordinary rules judge."""
        evidence, part = self.first_use()
        member = part.start + 1
        if seen == "kernel":
            evidence.state["flags"][member] |= FrameFlag.KERNEL_STARTED
        else:
            evidence.state["send_count" if seen == "sent" else "recv_count"][member] = 2
        judgement = explain(evidence)
        assert (judgement.stage, judgement.verdict.verdict_class) == ("no_progress", VerdictClass.H3)

    def test_slices_of_messages_say_nothing_about_the_first_collective(self) -> None:
        evidence, part = self.first_use()
        evidence.state["send_count"][part] = 9
        rows = np.zeros(1, PEER_ROW)
        rows["comm"], rows["rank"] = evidence.comm_ids[evidence.comm_of[part.start]], 1
        rows["posted"] = rows["completed"] = 3
        assert explain(replace(evidence, peers=rows)).verdict.verdict_class is VerdictClass.INIT

    def first_use(self) -> tuple[JobEvidence, slice]:
        job = SimulatedJob(SHAPE, 2)
        job.stuck = ("dp_1", 1)
        evidence = job.run().evidence()
        part = part_of(evidence, "dp_1")
        evidence.state["send_count"][part] = evidence.state["recv_count"][part] = 0
        evidence.state["head_age_ms"][evidence.state["head_age_ms"] > 0] += 30_000
        return evidence, part

    def test_second_use_is_no_connection(self) -> None:
        job = SimulatedJob(SHAPE, 2)
        job.stuck = ("dp_1", 2)
        assert judge(job.run().evidence()).verdict_class is VerdictClass.H3


class TestQueues:
    def start(self, evidence: JobEvidence, part: slice, ranks: list[int]) -> None:
        evidence.state["state"][part] = OpState.STARTED
        evidence.state["state"][part][np.isin(evidence.member_rank[part], ranks)] = OpState.ENTERED

    def test_device_that_runs_a_later_operation(self) -> None:
        job = SimulatedJob(SHAPE, 4, window=6, backend="nccl")
        job.stuck = ("dp_1", 4)
        evidence = job.run().evidence()
        guilty = job.groups["dp_1"][0]
        self.start(evidence, part_of(evidence, "dp_1"), [guilty])
        world = part_of(evidence, "world")
        assert evidence.state["head_round"][world][guilty] > 0
        evidence.state["state"][world][:] = OpState.ENTERED
        evidence.state["state"][world][guilty] = OpState.STARTED
        verdict = judge(evidence)
        assert verdict.verdict_class is VerdictClass.DEADLOCK
        assert verdict.sub_reason is SubReason.QUEUE_EXHAUSTION
        assert [root.rank for root in verdict.roots] == [guilty]

    def test_device_that_runs_nothing(self) -> None:
        evidence, part = stuck()
        guilty = int(evidence.member_rank[part.start])
        self.start(evidence, part, [guilty])
        verdict = judge(evidence)
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.H3, SubReason.DEVICE_QUEUE)
        assert [root.rank for root in verdict.roots] == [guilty]


def test_sends_that_wait_for_each_other() -> None:
    job = SimulatedJob(Shape(1, 1, 2), 1, steps=0)
    group = next(name for name, ranks in job.groups.items() if len(ranks) == 2 and name.startswith("pp"))
    for rank, peer in ((0, 1), (1, 0)):
        job.ranks[rank].program = [
            Call(group, Function.SEND, peer=peer),
            Call(group, Function.RECV, peer=peer),
        ]
    verdict = judge(job.run().evidence())
    assert verdict.verdict_class is VerdictClass.DEADLOCK
    assert verdict.roots[0].ranks == (0, 1)


class TestMessages:
    def test_two_ends_of_a_message_differ_and_nobody_votes(self) -> None:
        job = SimulatedJob(Shape(1, 1, 2), 1, steps=0)
        group = next(name for name in job.groups if name.startswith("pp"))
        job.ranks[0].program = [Call(group, Function.SEND, 64, peer=1)]
        job.ranks[1].program = [Call(group, Function.RECV, 65, peer=0)]
        job._complete_pair = lambda number, rank: False  # type: ignore[method-assign]
        verdict = judge(job.run().evidence())
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.H2, SubReason.SIZE_MISMATCH)
        assert verdict.roots[0].ranks == (0, 1)


class TestHistory:
    def test_first_divergence_is_judged_not_the_round_that_stands_still(self) -> None:
        injection = inject("h2_size", SimulatedJob(Shape(4, 4, 1), 6))
        evidence, (rank,) = injection.job.evidence(), injection.ranks
        operation = judge(injection.job.evidence()).operation
        assert operation is not None
        comm = int(operation.communicator, 16)
        rows = evidence.rounds
        before = (rows["comm"] == comm) & (rows["round"] == operation.round - 1)
        other = int(rows["rank"][before][0])
        assert other != rank or int(before.sum()) > 1
        guilty = next(int(r) for r in rows["rank"][before] if int(r) != rank)
        rows["signature"][before & (rows["rank"] == guilty)] = 12345
        verdict = judge(evidence)
        assert verdict.operation is not None
        assert verdict.operation.round == operation.round - 1
        assert [root.rank for root in verdict.roots] == [guilty]


class TestHiddenCompletion:
    """NCCL's cheapest tier: calls are all that is seen, the newest one stays the head."""

    def hide(self, evidence: JobEvidence) -> JobEvidence:
        state = evidence.state
        state["flags"] |= np.uint16(FrameFlag.COMPLETION_UNOBSERVABLE)
        state["completed"] = 0
        state["head_round"] = state["entered"]
        state["head_age_ms"] = 7000
        state["open_ops"] = state["entered"] > 0
        return evidence

    @pytest.mark.parametrize("seed", range(8))
    def test_missing_rank_is_named(self, seed: int) -> None:
        injection = inject("h1", SimulatedJob(Shape(4, 4, 1), seed, window=6, backend="nccl"))
        verdict = judge(self.hide(injection.job.evidence()))
        assert verdict.verdict_class is VerdictClass.H1
        assert [root.rank for root in verdict.roots] == list(injection.ranks)

    @pytest.mark.parametrize("seed", range(8))
    def test_stuck_round_is_never_called_h3_and_names_nobody(self, seed: int) -> None:
        injection = inject("h3", SimulatedJob(Shape(4, 4, 1), seed, backend="nccl"))
        verdict = judge(self.hide(injection.job.evidence()))
        assert verdict.verdict_class in (VerdictClass.INCONCLUSIVE, VerdictClass.NONE)
        assert not [root for root in verdict.roots if root.role is Role.INITIATING]

    @pytest.mark.parametrize("window", [1, 6])
    @pytest.mark.parametrize("seed", range(6))
    def test_unreported_rank_makes_nobody_else_guilty(self, seed: int, window: int) -> None:
        """Pairs that look open on both ends and groups that stand behind them are no cause."""
        injection = inject("h1", SimulatedJob(Shape(2, 4, 2), seed, window=window, backend="nccl"))
        verdict = judge(self.hide(injection.job.evidence(hidden=injection.ranks)))
        assert verdict.verdict_class in (VerdictClass.INCONCLUSIVE, VerdictClass.NONE, VerdictClass.H1)
        named = [root for root in verdict.roots if root.role is Role.INITIATING]
        assert {root.rank for root in named} <= set(injection.ranks)

    def test_messages_that_both_ends_have_posted_are_not_open(self) -> None:
        job = SimulatedJob(Shape(1, 1, 2), 1, steps=0)
        group = next(name for name in job.groups if name.startswith("pp"))
        for rank, first in ((0, Function.SEND), (1, Function.RECV)):
            second = Function.RECV if first is Function.SEND else Function.SEND
            job.ranks[rank].program = [Call(group, first, peer=1 - rank), Call(group, second, peer=1 - rank)]
        evidence = self.hide(job.run().evidence())
        evidence.peers["completed"] = 0
        evidence.peers["head_age_ms"] = 7000
        assert judge(evidence).verdict_class is VerdictClass.NONE


def test_message_behind_a_later_round_of_a_stuck_group_is_no_second_cause() -> None:
    """The receiver has left the stuck round and stands in the next; the message was posted after that."""
    job = SimulatedJob(Shape(2, 1, 2), 4, window=6, backend="nccl")
    job.stuck = ("tp_0", 5)
    evidence = job.run().evidence()
    left = part_of(evidence, "tp_0").start + 1
    rank, peer = 1, 3
    later = next(item for item in job.ranks[rank].open if item.number == 6 and item.call.group == "tp_0")
    message = next(item for item in job.ranks[rank].open if item.call.peer == peer)
    assert later.issue < message.issue
    state = evidence.state
    state["completed"][left], state["head_round"][left], state["head_issue"][left] = 5, 6, later.issue
    verdict = judge(evidence)
    assert verdict.verdict_class is VerdictClass.H3
    assert peer not in {each for root in verdict.roots for each in (root.ranks or (root.rank,))}


class TestPlaces:
    """Edge rows of a stalled ring, through the whole judgement."""

    def evidence(self, link: bool, seed: int = 1, hidden: int = -1) -> tuple[JobEvidence, int, slice]:
        evidence, part = stuck(seed, Shape(8, 2, 1))
        members = evidence.member_rank[part]
        network, guilty = stall_ring(len(members), seed, link, True)
        assert network.inside.all()
        transfers = network.transfers(history=640)
        rows = np.zeros(2 * len(members), EDGE_ROW)
        rows["comm"], rows["recent_us"] = evidence.comm_ids[evidence.comm_of[part.start]], 1_000_000
        for at, (tail, head) in enumerate(zip(transfers.tail, transfers.head, strict=True)):
            send, receive = rows[2 * at], rows[2 * at + 1]
            send["rank"], send["peer"], send["count"] = members[tail], head, transfers.sent[at]
            receive["rank"], receive["peer"], receive["direction"] = members[head], tail, 1
            receive["count"] = transfers.received[at]
            send["recent_wait_us"] = 900_000 * int(transfers.sender_waits[at])
            receive["recent_wait_us"] = 900_000 * int(transfers.receiver_waits[at])
        evidence.state["flags"][part] = 0
        object.__setattr__(evidence, "edges", rows)
        return evidence, guilty, part

    def test_stuck_rank(self) -> None:
        evidence, guilty, part = self.evidence(link=False)
        verdict = judge(evidence)
        assert verdict.verdict_class is VerdictClass.H3
        assert [(root.kind, root.rank) for root in verdict.roots] == [
            (RootKind.RANK, int(evidence.member_rank[part][guilty]))
        ]

    def test_broken_link_and_its_ends_are_no_victims(self) -> None:
        evidence, guilty, part = self.evidence(link=True)
        verdict = judge(evidence)
        members = evidence.member_rank[part]
        ends = (int(members[guilty]), int(members[(guilty + 1) % len(members)]))
        assert [(root.kind, root.rank, root.peer_rank) for root in verdict.roots] == [(RootKind.LINK, *ends)]
        assert not set(ends) & set(verdict.victims)
        assert f"from rank {ends[0]} to rank {ends[1]}" in verdict.summary

    @pytest.mark.parametrize("link", [False, True])
    def test_place_is_seen_although_another_rank_is_silent(self, link: bool) -> None:
        evidence, guilty, part = self.evidence(link)
        whole = judge(evidence)
        silent = int(evidence.member_rank[part][(guilty + 4) % 8])
        evidence.seen[evidence.member_rank == silent] = False
        evidence.process_seen[silent] = False
        object.__setattr__(evidence, "edges", evidence.edges[evidence.edges["rank"] != silent])
        verdict = judge(evidence)
        assert verdict.roots == whole.roots
        assert verdict.confidence < whole.confidence

    def test_silent_rank_at_which_all_waits_end_is_named(self) -> None:
        evidence, guilty, part = self.evidence(link=False)
        silent = int(evidence.member_rank[part][guilty])
        evidence.seen[evidence.member_rank == silent] = False
        evidence.process_seen[silent] = False
        object.__setattr__(evidence, "edges", evidence.edges[evidence.edges["rank"] != silent])
        verdict = judge(evidence)
        assert verdict.verdict_class is VerdictClass.H1
        assert [root.rank for root in verdict.roots] == [silent]
        assert verdict.confidence < 0.7


def test_counts_that_nobody_sees_name_the_ranks_still_inside() -> None:
    evidence, part = stuck(4, Shape(8, 4, 1))
    left = np.arange(part.start, part.stop)[2:]
    evidence.state["completed"][left] = evidence.state["head_round"][left]
    evidence.state["head_round"][left] = 0
    evidence.state["open_ops"][left] = 0
    rows = np.zeros(0, ROUND_ROW)
    object.__setattr__(evidence, "rounds", rows)
    verdict = judge(evidence, JudgePolicy())
    if verdict.verdict_class is VerdictClass.H3:
        assert set(verdict.roots[0].ranks) <= set(int(rank) for rank in evidence.member_rank[part][:2])
