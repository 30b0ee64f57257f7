"""What counts as right, wrong and too wide."""

from dataclasses import replace

import pytest

from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Owner,
    Role,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)
from paceline.fleet import Fault, FaultKind, Profile, Topology, Truth
from paceline.fleet.truth import Fired, judge_truth
from paceline.lab.evaluation.pipeline import Told
from paceline.lab.evaluation.score import Match, compare, score, wrongly_named

SMALL = Topology(2, 2, 4, ranks_per_node=4)


def truth_of(kind: FaultKind, profile: str = "kernels", **options: int) -> Truth:
    fault = Fault(kind, 5, at_s=10.0, **options)  # type: ignore[arg-type]
    return judge_truth((Fired(fault, 10.0, 1, 7, 1, True),), SMALL, Profile.named(profile))


def rank(number: int, role: Role = Role.INITIATING) -> Root:
    return Root(RootKind.RANK, rank=number, role=role)


def verdict_of(verdict_class: VerdictClass, *roots: Root) -> Verdict:
    return Verdict(
        verdict_class, SubReason.NONE, roots, (), 0, None, Owner.UNKNOWN, Action(ActionKind.NONE), 0.9,
        Coverage(16, 16, 1, 1), (), "",
    )  # fmt: skip


def told(at_s: float, verdict_class: VerdictClass, *roots: Root) -> Told:
    return Told(at_s, verdict_of(verdict_class, *roots), False, "epi")


@pytest.mark.parametrize(
    ("roots", "match", "victims"),
    [
        ((rank(5),), Match.EXACT, set()),
        ((rank(5), rank(6)), Match.WRONG, {6}),
        ((rank(6),), Match.WRONG, {6}),
        ((Root(RootKind.GROUP, ranks=(4, 5)),), Match.WIDER, set()),
        ((Root(RootKind.GROUP, ranks=(6, 7)),), Match.WRONG, {6, 7}),
        ((Root(RootKind.LINK, rank=5, peer_rank=6),), Match.WRONG, {5, 6}),
        ((), Match.NONE, set()),
    ],
)
def test_only_the_injected_rank_is_exact(roots: tuple[Root, ...], match: Match, victims: set[int]) -> None:
    truth = truth_of(FaultKind.MISSING_ENTER)
    assert compare(truth, roots) is match
    assert wrongly_named(truth, roots) == victims


def test_the_minimal_group_is_exact_only_where_nothing_better_can_be_seen() -> None:
    blind, seeing = truth_of(FaultKind.STUCK, "gloo"), truth_of(FaultKind.STUCK, "kernels")
    group = Root(RootKind.GROUP, ranks=blind.group)
    assert compare(blind, [group]) is Match.EXACT
    assert compare(seeing, [group]) is Match.WIDER
    assert compare(blind, [replace(group, ranks=(*blind.group, 99))]) is Match.WIDER


def test_a_link_is_right_in_its_direction_and_harmless_the_other_way_round() -> None:
    truth = truth_of(FaultKind.SLOW_LINK, peer=6)
    assert compare(truth, [Root(RootKind.LINK, rank=5, peer_rank=6)]) is Match.EXACT
    backwards = [Root(RootKind.LINK, rank=6, peer_rank=5)]
    assert compare(truth, backwards) is not Match.EXACT
    assert wrongly_named(truth, backwards) == set()
    assert wrongly_named(truth, [Root(RootKind.LINK, rank=6, peer_rank=7)]) == {6, 7}


def test_the_last_verdict_counts_and_a_victim_of_an_earlier_one_stays_named() -> None:
    truth = truth_of(FaultKind.MISSING_ENTER)
    found = score(truth, [told(15.0, VerdictClass.H1, rank(6)), told(17.0, VerdictClass.H1, rank(5))])
    assert found.all_right
    assert found.wrong_before
    assert found.victims_named == (6,)
    assert found.seconds == 5.0


def test_a_verdict_before_the_fault_is_a_false_alarm_and_no_verdict_is_no_class() -> None:
    truth = truth_of(FaultKind.MISSING_ENTER)
    found = score(truth, [told(9.0, VerdictClass.H3, rank(5))])
    assert found.false_alarms == 1
    assert found.got is VerdictClass.NONE
    assert not found.class_right
    assert found.seconds is None


def test_a_silent_rank_of_unknown_role_is_no_accusation_and_yet_not_right() -> None:
    truth = truth_of(FaultKind.MISSING_ENTER)
    wrong = score(truth, [told(15.0, VerdictClass.INCONCLUSIVE, rank(6, Role.UNKNOWN))])
    assert (wrong.match, wrong.victims_named) == (Match.SUSPECT, ())
    accused = score(truth, [told(15.0, VerdictClass.INCONCLUSIVE, rank(6))])
    assert (accused.match, accused.victims_named) == (Match.WRONG, (6,))
    right = score(truth, [told(15.0, VerdictClass.INCONCLUSIVE, rank(5, Role.UNKNOWN))])
    assert right.match is Match.EXACT
