"""Where faults strike, and what counts as a right verdict."""

import random
from dataclasses import replace

import pytest

from paceline.collectives.host.schedule import Topology
from paceline.contracts.codes import Algorithm
from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)
from paceline.lab.sockets.__main__ import parse
from paceline.lab.sockets.faults import H3_KINDS, Fault, Injection, Score, plan_injection, score
from paceline.lab.sockets.run import link_bytes

RING = Topology(Algorithm.RING, (0, 2, 1, 3))
NOTHING = Score(False, False, False)
ACCUSED = Score(True, False, False, innocent=True)


def verdict(kind: VerdictClass, *roots: Root) -> Verdict:
    return Verdict(
        verdict_class=kind,
        sub_reason=SubReason.NONE,
        roots=roots,
        victims=(),
        victims_count=0,
        operation=None,
        owner=Owner.UNKNOWN,
        action=Action(ActionKind.NONE),
        confidence=1.0,
        coverage=Coverage(4, 4, 1, 1),
        evidence=(),
        summary="",
    )


def rank(number: int) -> Root:
    return Root(RootKind.RANK, rank=number)


def link(source: int, target: int) -> Root:
    return Root(RootKind.LINK, rank=source, peer_rank=target)


@pytest.mark.parametrize("fault", list(Fault))
def test_places_are_drawn_from_all_ranks_and_links(fault: Fault) -> None:
    chance = random.Random(1)
    drawn = [plan_injection(fault, RING, chance) for _ in range(200)]
    ranks = {injection.rank for injection in drawn} - {None}
    links = {injection.link for injection in drawn} - {None}
    if fault in (Fault.S1, Fault.S3, Fault.FROZEN, Fault.STUCK, Fault.NIC):
        assert ranks == {0, 1, 2, 3}
    if fault in (Fault.S2, Fault.S3, Fault.LINK):
        assert links == {(0, 2), (2, 1), (1, 3), (3, 0)}
    if fault is Fault.H3:
        assert {injection.fault for injection in drawn} == set(H3_KINDS)
    if fault is Fault.NONE:
        assert not ranks
        assert not links


def test_slow_faults_are_beyond_the_threshold_and_not_far_beyond() -> None:
    chance = random.Random(2)
    for _ in range(100):
        both = plan_injection(Fault.S3, RING, chance)
        assert 3.0 <= both.late_factor <= 6.0
        assert 4.0 <= both.slow_factor <= 8.0
    assert plan_injection(Fault.S1, RING, chance).slow_factor == 0.0
    assert plan_injection(Fault.S2, RING, chance).late_factor == 0.0


@pytest.mark.parametrize(
    ("injection", "said", "expected"),
    [
        (Injection(Fault.FROZEN, rank=1), verdict(VerdictClass.H3, rank(1)), Score(True, True, True)),
        (Injection(Fault.FROZEN, rank=1), verdict(VerdictClass.H1, rank(1)), Score(False, True, True)),
        (Injection(Fault.FROZEN, rank=1), verdict(VerdictClass.H3, rank(2)), ACCUSED),
        (
            Injection(Fault.FROZEN, rank=1),
            verdict(VerdictClass.H3, rank(1), rank(2)),
            Score(True, False, True, innocent=True),
        ),
        (Injection(Fault.S2, link=(1, 3)), verdict(VerdictClass.S2, link(1, 3)), Score(True, True, True)),
        (Injection(Fault.S2, link=(1, 3)), verdict(VerdictClass.S2, link(3, 1)), Score(True, False, True)),
        (
            Injection(Fault.S3, rank=0, link=(1, 3)),
            verdict(VerdictClass.S3, link(1, 3), rank(0)),
            Score(True, True, True),
        ),
        (
            Injection(Fault.S3, rank=0, link=(1, 3)),
            verdict(VerdictClass.S2, link(1, 3)),
            Score(False, False, False),
        ),
        (Injection(Fault.NIC, rank=1), verdict(VerdictClass.H3, link(2, 1)), Score(True, True, True)),
        (Injection(Fault.NIC, rank=1), verdict(VerdictClass.H3, link(3, 0)), ACCUSED),
        (
            Injection(Fault.LINK, link=(1, 3)),
            verdict(VerdictClass.H3, Root(RootKind.GROUP, ranks=(1, 3))),
            Score(True, True, True),
        ),
        (Injection(Fault.LINK, link=(1, 3)), verdict(VerdictClass.H3, link(3, 1)), Score(True, True, True)),
        (Injection(Fault.LINK, link=(1, 3)), verdict(VerdictClass.H3, link(3, 0)), Score(True, False, False)),
        (Injection(Fault.LINK, link=(1, 3)), None, NOTHING),
        (Injection(Fault.NONE), None, Score(True, True, True)),
        (Injection(Fault.NONE), verdict(VerdictClass.S1, rank(1)), Score(False, False, True, innocent=True)),
        (Injection(Fault.NONE), verdict(VerdictClass.INCONCLUSIVE), Score(False, False, True)),
    ],
)
def test_score(injection: Injection, said: Verdict | None, expected: Score) -> None:
    assert score(injection, said) == expected


def test_bytes_of_a_link_are_those_of_one_operation() -> None:
    ring = Topology(Algorithm.RING, (0, 2, 1, 3))
    assert link_bytes(ring, (0, 2), 1024, 64) == 4 * 1024 * 2 * 3 // 4
    assert link_bytes(ring, (2, 0), 1024, 64) == 0
    tree = Topology(Algorithm.TREE, (0, 1, 2, 3))
    assert {link_bytes(tree, link, 1024, 64) for link in ((0, 1), (1, 0), (3, 1))} == {4 * 1024}
    trees = Topology(Algorithm.TREE, (0, 1, 2, 3), trees=2)
    # The second tree is the first one backwards: 0 and 2 are neighbours in both, 0 and 1 in the first.
    assert (link_bytes(trees, (0, 2), 1024, 64), link_bytes(trees, (0, 1), 1024, 64)) == (4096, 2048)


def test_injection_says_what_it_is() -> None:
    both = replace(Injection(Fault.S3, rank=2, link=(0, 1)), late_factor=3.25, slow_factor=4.0)
    assert both.describe() == "s3 rank 2 link 0>1 late 3.2 rounds takes 4.0 rounds"


def test_command_line_takes_what_the_guide_says() -> None:
    arguments = parse(["--fault", "s2", "--runs", "30", "--json"])
    assert (arguments.fault, arguments.runs, arguments.json, arguments.ranks) == ("s2", 30, True, 8)
