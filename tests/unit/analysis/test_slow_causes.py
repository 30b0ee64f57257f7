"""First cause of slowness: own time, slow links of rings and trees, shared paths, the warning band."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis import JobEvidence
from paceline.analysis.judge import judge
from paceline.analysis.slow_links import Waits, find_links
from paceline.contracts.batch import EDGE_ROW, STEP_ROW, Rows, StepFlag
from paceline.contracts.codes import Algorithm
from paceline.contracts.verdicts import RootKind, SubReason, Verdict, VerdictClass
from tests.unit.analysis.test_slow_rounds_judged import ALL, WORLD, SlowJob, late

NO_EDGES = np.zeros(0, EDGE_ROW)
STEP_US, LOST_US = 100_000, 40_000


def own_times(evidence: JobEvidence, rises_us: dict[int, int], lost_us: int = LOST_US) -> JobEvidence:
    """STEP rows: everybody spends 60 ms on its own, those of `rises_us` more."""
    rows = np.zeros(WORLD, STEP_ROW)
    rows["rank"] = ALL
    rows["steps"] = rows["base_steps"] = 20
    rows["step_us"], rows["base_step_us"] = STEP_US + lost_us, STEP_US
    rows["own_us"] = rows["base_own_us"] = 60_000
    for rank, rise_us in rises_us.items():
        rows["own_us"][rank] += rise_us
    return replace(evidence, steps=rows)


def both_ends(waits: dict[tuple[int, int, int], tuple[int, int]], comm: int = 0) -> Rows:
    """EDGE rows of (tree, receiver, sender) -> how long the receiver starves and its sender is blocked."""
    edges = np.zeros(2 * len(waits), EDGE_ROW)
    for at, ((group, receiver, sender), (starves, blocked)) in enumerate(waits.items()):
        for row, me, peer, direction, value in (
            (edges[2 * at], receiver, sender, 1, starves),
            (edges[2 * at + 1], sender, receiver, 0, blocked),
        ):
            row["comm_rank"], row["peer"], row["direction"], row["group"] = me, peer, direction, group
            row["comm"], row["rank"], row["count"], row["wait_ns"] = comm, me, 10, value * 10
    return edges


def roots(verdict: Verdict) -> list[tuple[RootKind, int | None, int | None]]:
    return [(root.kind, root.rank, root.peer_rank) for root in verdict.roots]


class TestOwnTime:
    def test_late_through_a_pipeline_is_a_victim(self) -> None:
        """Ranks 1 to 3 are late in their groups because they got their input late from rank 0."""
        job = SlowJob().add(1, [1, 5], late(1, 40.0)).add(2, [2, 6], late(2, 40.0)).add(3, [3, 7], late(3))
        evidence = own_times(job.evidence(), {0: LOST_US})
        verdict = judge(evidence)
        assert (verdict.verdict_class, roots(verdict)) == (VerdictClass.S1, [(RootKind.RANK, 0, None)])
        assert "on its own" in verdict.summary

    def test_without_own_times_nobody_beyond_the_groups_is_named(self) -> None:
        job = SlowJob().add(1, [1, 5], late(1, 40.0))
        assert roots(judge(job.evidence()))[0][1] == 1

    def test_late_rank_that_only_waited_is_not_named(self) -> None:
        verdict = judge(own_times(SlowJob().add(1, ALL, late(3, 40.0)).evidence(), {}))
        assert (verdict.verdict_class, verdict.roots) == (VerdictClass.INCONCLUSIVE, ())
        assert "own times" in verdict.would_decide

    def test_figures_from_before_the_trouble_say_nothing(self) -> None:
        verdict = judge(own_times(SlowJob().add(1, ALL, late(3, 40.0)).evidence(), {}, lost_us=0))
        assert roots(verdict) == [(RootKind.RANK, 3, None)]

    def test_confirmation_raises_confidence(self) -> None:
        evidence = SlowJob().add(1, ALL, late(3, 40.0)).evidence()
        confirmed, plain = judge(own_times(evidence, {3: LOST_US})), judge(evidence)
        assert roots(confirmed) == roots(plain)
        assert confirmed.confidence > plain.confidence

    def test_longer_steps_without_any_slow_collective(self) -> None:
        verdict = judge(own_times(SlowJob().evidence(), {6: LOST_US}))
        assert (verdict.verdict_class, roots(verdict)) == (VerdictClass.S1, [(RootKind.RANK, 6, None)])

    def test_everybody_alike_has_no_culprit(self) -> None:
        verdict = judge(own_times(SlowJob().evidence(), dict.fromkeys(ALL, LOST_US)))
        assert verdict.verdict_class is VerdictClass.NONE

    def test_a_single_pause_is_not_enough(self) -> None:
        evidence = own_times(SlowJob().evidence(), {6: LOST_US})
        evidence.steps["flags"][6] = StepFlag.ONCE
        assert judge(evidence).verdict_class is VerdictClass.NONE

    def test_unobserved_own_time_is_not_used(self) -> None:
        evidence = own_times(SlowJob().add(1, ALL, late(3, 40.0)).evidence(), {6: LOST_US})
        evidence.steps["flags"][6] = StepFlag.OWN_UNOBSERVED
        assert all(root.rank != 6 for root in judge(evidence).roots)


class TestLateTogether:
    """Tensor groups (0, 1) .. (6, 7), data-parallel groups of every second rank."""

    def job(self) -> SlowJob:
        return SlowJob().add(1, [0, 2, 4, 6], late(4, 40.0)).add(2, [1, 3, 5, 7], late(5, 40.0))

    def tensor(self, *late_rank: int) -> JobEvidence:
        """Rounds of the tensor group (4, 5), slow where `late_rank` is late there."""
        times = late(*late_rank) if late_rank else lambda *_: (1.0, 0.0)
        return self.job().add(3, [4, 5], times).evidence()

    def test_members_of_one_group_late_in_groups_of_their_own_are_not_named(self) -> None:
        verdict = judge(self.tensor())
        assert (verdict.verdict_class, verdict.roots) == (VerdictClass.INCONCLUSIVE, ())
        assert "g_3" in verdict.would_decide

    def test_the_late_rank_of_their_group_explains_it(self) -> None:
        assert roots(judge(self.tensor(5))) == [(RootKind.RANK, 5, None)]

    def test_own_time_says_who_it_is(self) -> None:
        assert roots(judge(own_times(self.tensor(), {4: LOST_US}))) == [(RootKind.RANK, 4, None)]

    def test_chance_has_as_many_tries_as_there_are_communicators(self) -> None:
        """Four of five rounds agree in one of many groups of four: it happens in every job."""
        times = [late(6, 40.0), *[late(4, 40.0)] * 4]
        job = SlowJob().add(1, [0, 2, 4, 6], lambda number, rank: times[number - 100](number, rank))
        job.baselines[0]["late_rank"], job.baselines[0]["late_nats"] = -1, 4.6
        alone = judge(job.evidence())
        for comm in range(2, 20):
            job.groups[comm] = (f"g_{comm}", [1, 3])
        assert (alone.verdict_class, roots(alone)) == (VerdictClass.S1, [(RootKind.RANK, 4, None)])
        assert judge(job.evidence()).verdict_class is VerdictClass.INCONCLUSIVE


class TestWarningBand:
    def weak(self, lateness: float, usual: float = 0.0, late_rank: int = 4) -> JobEvidence:
        job = SlowJob().add(1, ALL, late(late_rank, 1 + lateness), rounds=12)
        base = job.baselines[0]
        base["threshold"], base["late_rank"], base["late_nats"] = 1.1, late_rank, 20.0
        base["usual_late_ns"] = int(usual * 1e6)
        return job.evidence()

    def test_below_the_papers_threshold_with_less_confidence(self) -> None:
        verdict, strong = judge(self.weak(0.5)), judge(SlowJob().add(1, ALL, late(4)).evidence())
        assert (verdict.verdict_class, roots(verdict)) == (VerdictClass.S1, [(RootKind.RANK, 4, None)])
        assert verdict.confidence < strong.confidence

    def test_usual_lateness_does_not_make_a_slow_transfer_a_late_rank(self) -> None:
        def times(number: int, rank: int) -> tuple[float, float]:
            return (1.6 if rank == number % WORLD else 1.9, 2000.0 if rank == 3 else 50.0)

        job = SlowJob().add(1, ALL, times, rounds=12)
        base = job.baselines[0]
        base["threshold"], base["late_rank"], base["late_nats"] = 1.1, -1, 20.0
        base["usual_late_ns"] = int(0.29e6)
        verdict = judge(job.evidence())
        assert (verdict.verdict_class, roots(verdict)) == (VerdictClass.S2, [(RootKind.LINK, 2, 3)])

    @pytest.mark.parametrize(("kind", "reported"), [("dp", True), ("pp", False), ("", False)])
    def test_lateness_from_the_start_needs_ranks_that_do_the_same(self, kind: str, reported: bool) -> None:
        evidence = replace(self.weak(0.5, usual=0.5), comm_kinds=(kind,))
        assert (judge(evidence).verdict_class is VerdictClass.S1) is reported


class TestLinks:
    def waits(self, receiver: int) -> Waits:
        place = np.arange(WORLD)
        starves = np.tile(4000.0 * (1 - ((place - receiver) % WORLD) / (WORLD - 1)), (5, 1))
        blocked = 4000.0 - starves
        nothing = np.zeros(WORLD, np.bool_)
        return Waits(starves, blocked, nothing, nothing)

    def test_blocked_sender_decides_where_its_receive_wait_is_unseen(self) -> None:
        waits = self.waits(4)
        unseen = np.isin(np.arange(WORLD), (1, 2, 3))
        waits = replace(waits, receive=np.where(unseen, 0.0, waits.receive), receive_unseen=unseen)
        assert find_links(waits, np.arange(WORLD), NO_EDGES, Algorithm.RING, 4000.0).links[0] == (3, 4)

    def test_stretch_where_neither_is_seen(self) -> None:
        waits = self.waits(4)
        unseen = np.isin(np.arange(WORLD), (2, 3))
        waits = replace(
            waits,
            receive=np.where(unseen, 0.0, waits.receive),
            receive_unseen=unseen,
            send_unseen=unseen,
        )
        found = find_links(waits, np.arange(WORLD), NO_EDGES, Algorithm.RING, 4000.0)
        assert (found.links, found.stretch) == ((), (1, 2, 3, 4))

    def test_edges_tell_a_ring_in_another_order(self) -> None:
        edges = np.zeros(WORLD, EDGE_ROW)
        edges["comm_rank"], edges["direction"] = np.arange(WORLD), 1
        edges["peer"] = (np.arange(WORLD) + 1) % WORLD  # the ring runs backwards
        waits = self.waits(4)
        reverse = (8 - np.arange(WORLD)) % WORLD  # place of each rank on that ring
        waits = replace(waits, receive=waits.receive[:, reverse], send=waits.send[:, reverse])
        found = find_links(waits, np.arange(WORLD), edges, Algorithm.RING, 4000.0)
        assert found.links == ((5, 4),)

    def test_the_registry_tells_the_order_of_a_ring_before_edges_do(self) -> None:
        edges = np.zeros(WORLD, EDGE_ROW)
        edges["comm_rank"], edges["direction"] = np.arange(WORLD), 1
        edges["peer"] = (np.arange(WORLD) + 1) % WORLD
        order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
        place = np.argsort(order)  # of each rank on that ring
        waits = self.waits(3)
        waits = replace(waits, receive=waits.receive[:, place], send=waits.send[:, place])
        found = find_links(waits, np.arange(WORLD), edges, Algorithm.RING, 4000.0, order)
        assert found.links == ((4, 6),)

    def test_a_verdict_follows_the_order_of_the_registry(self) -> None:
        order = [0, 2, 4, 6, 1, 3, 5, 7]

        def times(_: int, rank: int) -> tuple[float, float]:
            return (5.0, 3900.0 * (1 - ((order.index(rank) - 4) % WORLD) / WORLD))  # into rank 1

        evidence = replace(SlowJob().add(1, ALL, times).evidence(), comm_rings=("0,2,4,6,1,3,5,7",))
        assert roots(judge(evidence)) == [(RootKind.LINK, 6, 1)]

    def test_a_slow_link_inside_a_node_that_is_not_seen_is_a_stretch(self) -> None:
        """Two nodes of four; only what arrives from the other node and what leaves for it is seen.

        The link 1 -> 2 is slow: 4 starves, yet 3 has little to send and is blocked for a third of it.
        """
        waits = self.waits(2)
        send = np.zeros_like(waits.send)
        receive = np.zeros_like(waits.receive)
        receive[:, 4], receive[:, 0] = 3000.0, 900.0
        send[:, 3], send[:, 7] = 1000.0, 200.0
        place = np.arange(WORLD)
        waits = Waits(receive, send, ~np.isin(place, (0, 4)), ~np.isin(place, (3, 7)))
        found = find_links(waits, place, NO_EDGES, Algorithm.RING, 4000.0)
        assert (found.links, found.stretch) == ((), (0, 1, 2, 3, 4))

    def test_a_slow_link_of_a_tree_is_waited_for_at_both_ends(self) -> None:
        """0 - (1, 2): 2 -> 0 is slow; 0 also waits for 1, which is not blocked: it waits for the result."""
        waits = {(0, 2): (90, 95), (0, 1): (95, 3), (1, 0): (100, 3), (2, 0): (40, 1)}
        edges = both_ends({(1, *edge): value for edge, value in waits.items()})
        found = find_links(self.waits(4), np.arange(3), edges, Algorithm.TREE, 100.0)
        assert found.links == ((2, 0),)

    def test_trees_that_share_a_pair_of_ranks_are_judged_apart(self) -> None:
        """0 and 1 are neighbours in both trees; 1 -> 2 is slow. Beside it 1 is late for 0 in the first
        tree and 0 is blocked by 1 in the second, which are waits of two other operations."""
        waits = {
            (1, 1, 0): (80, 1), (1, 0, 1): (1, 2), (2, 1, 0): (1, 90), (2, 0, 1): (3, 1),
            (1, 2, 1): (60, 55), (1, 1, 2): (2, 1),
        }  # fmt: skip
        found = find_links(self.waits(4), np.arange(3), both_ends(waits), Algorithm.TREE, 100.0)
        assert (found.links, found.distinct) == (((1, 2),), True)

    def test_no_link_is_accused_where_senders_are_blocked_and_no_receiver_of_theirs_starves(self) -> None:
        """Behind a late rank on busy hosts: 2 is blocked long, all else waits a little at both ends."""
        waits = {(1, 0, 1): (17, 14), (1, 1, 0): (14, 8), (1, 0, 2): (3, 110), (1, 2, 0): (6, 2)}
        found = find_links(self.waits(4), np.arange(3), both_ends(waits), Algorithm.TREE, 100.0)
        assert (found.links, found.even) == ((), True)

    def test_what_a_slow_link_feeds_is_not_slow_where_its_sender_was_blocked_before(self) -> None:
        """3 -> 1 -> 0: 3 -> 1 is slow. 1 was blocked by 0 while that waited for a late rank."""
        waits = {
            (1, 1, 3): (82, 160), (1, 0, 1): (70, 80), (1, 3, 1): (82, 1), (1, 1, 0): (73, 2),
            (1, 0, 2): (3, 60), (1, 2, 0): (80, 3),
        }  # fmt: skip
        rounds = Waits(np.full((5, 4), 200.0), np.zeros((5, 4)), np.zeros(4, bool), np.zeros(4, bool))
        found = find_links(rounds, np.arange(4), both_ends(waits), Algorithm.TREE, 300.0)
        assert (found.links, found.distinct) == (((3, 1),), True)

    def test_no_link_of_a_tree_is_accused_where_most_wait_alike(self) -> None:
        waits = {(1, 0, 1): (60, 55), (1, 1, 0): (70, 52), (1, 0, 2): (50, 60), (1, 2, 0): (20, 15)}
        found = find_links(self.waits(4), np.arange(3), both_ends(waits), Algorithm.TREE, 100.0)
        assert (found.links, found.even) == ((), True)

    @pytest.mark.parametrize(
        ("receive_us", "blocked_elsewhere", "expected"),
        [(20_000.0, 2, True), (20_000.0, 900, False), (500.0, 2, False)],
    )
    def test_what_both_ends_wait_for_must_be_much(
        self, receive_us: float, blocked_elsewhere: int, expected: bool
    ) -> None:
        """Ends of a link wait a little in any round; beside a late rank nobody else may wait for both."""
        waits = {(1, 0, 1): (60, 55), (1, 1, 0): (2, 1), (1, 0, 2): (1, blocked_elsewhere), (1, 2, 0): (3, 1)}
        rounds = Waits(np.full((5, 3), receive_us), np.zeros((5, 3)), np.zeros(3, bool), np.zeros(3, bool))
        found = find_links(rounds, np.arange(3), both_ends(waits), Algorithm.TREE, 40_000.0)
        assert found.distinct is expected

    @pytest.mark.parametrize(("blocked", "expected"), [(0, VerdictClass.S1), (60, VerdictClass.S3)])
    def test_a_slow_link_whose_delay_hides_behind_a_late_rank(
        self, blocked: int, expected: VerdictClass
    ) -> None:
        """Rank 4 is so late that the slow link 0 -> 1 costs nothing beside it, yet both ends wait for it."""

        def times(_: int, rank: int) -> tuple[float, float]:
            return (1.0 if rank == 4 else 40.0, 20_000.0)

        waits = {(1, peer, at): (70, 2) for at in (1, 2) for peer in (2 * at + 1, 2 * at + 2)}
        waits |= {(1, 1, 0): (70, blocked), (1, 2, 0): (70, 3)}
        evidence = SlowJob().add(1, ALL, times).evidence()
        verdict = judge(replace(evidence, edges=both_ends(waits, comm=1)))
        assert verdict.verdict_class is expected
        late_rank = (RootKind.RANK, 4, None)
        assert roots(verdict) == ([late_rank, (RootKind.LINK, 0, 1)] if blocked else [late_rank])

    @pytest.mark.parametrize(("receiver", "sender"), [(1, 3), (0, 2), (3, 1), (2, 0)])
    def test_tree_in_both_directions(self, receiver: int, sender: int) -> None:
        """0 - (1 - (3, 4), 2 - (5, 6)): what a slow edge feeds starves, results come down late too."""
        parent = {1: 0, 2: 0, 3: 1, 4: 1, 5: 2, 6: 2}
        upward = parent[sender] == receiver if sender in parent else False
        wait: dict[tuple[int, int], int] = {}
        for child, above in parent.items():
            wait[above, child] = wait[child, above] = 0
        if upward:
            at = receiver
            wait[at, sender] = 100
            while at in parent:
                wait[parent[at], at] = 90
                at = parent[at]
            for child, above in parent.items():
                wait[child, above] = 90
        else:
            below = [receiver]
            wait[receiver, sender] = 100
            while below:
                above = below.pop()
                for child in [c for c, p in parent.items() if p == above]:
                    wait[child, above] = 90
                    below.append(child)
        edges = np.zeros(len(wait), EDGE_ROW)
        for row, ((to, source), value) in zip(edges, sorted(wait.items()), strict=True):
            row["comm_rank"], row["peer"], row["direction"], row["group"] = to, source, 1, 1
            row["count"], row["wait_ns"] = 10, value * 10
        found = find_links(self.waits(4), np.arange(7), edges, Algorithm.TREE, 100.0)
        assert found.links[0] == (sender, receiver)

    def test_links_of_several_groups_that_leave_one_node(self) -> None:
        job = SlowJob().add(1, [0, 2, 4, 6], self.into(4)).add(2, [1, 3, 5, 7], self.into(5))
        evidence = replace(job.evidence(), nodes=("a", "b", "c", "d"), node_of=np.arange(WORLD) // 2)
        verdict = judge(evidence)
        assert (verdict.verdict_class, verdict.sub_reason) == (VerdictClass.S2, SubReason.SHARED_PATH)
        assert (verdict.roots[0].kind, verdict.roots[0].node) == (RootKind.NODE, "b")
        assert set(roots(verdict)[1:]) == {(RootKind.LINK, 2, 4), (RootKind.LINK, 3, 5)}

    def test_links_between_different_nodes_share_what_lies_between(self) -> None:
        job = SlowJob().add(1, [0, 2, 4, 6], self.into(2)).add(2, [1, 3, 5, 7], self.into(7))
        evidence = replace(job.evidence(), nodes=("a", "b", "c", "d"), node_of=np.arange(WORLD) // 2)
        verdict = judge(evidence)
        assert verdict.roots[0].kind is RootKind.DOMAIN
        assert verdict.roots[0].ranks == (0, 2, 5, 7)

    @staticmethod
    def into(receiver: int) -> Callable[[int, int], tuple[float, float]]:
        return lambda number, rank: (5.0, 3900.0 if rank == receiver else 200.0)
