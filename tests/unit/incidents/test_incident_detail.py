"""When more detail is asked of the nodes of an NCCL job."""

from dataclasses import replace

import pytest

from paceline.contracts.verdicts import (
    Action,
    ActionKind,
    Coverage,
    Operation,
    Owner,
    Root,
    RootKind,
    SubReason,
    Verdict,
    VerdictClass,
)
from paceline.incidents.detail import Why, choose_detail_nodes, decide_detail

PLACES = [(5, "n1"), (0, "n0"), (1, "n0"), (2, "n2")]
SLOW = Verdict(
    verdict_class=VerdictClass.S2,
    sub_reason=SubReason.NONE,
    roots=(Root(RootKind.LINK, rank=5, node="n1", peer_rank=0),),
    victims=(1, 2),
    victims_count=2,
    operation=Operation("00000000000000aa", "dp", "all_reduce", 412, 4),
    owner=Owner.FABRIC,
    action=Action(ActionKind.COLLECT),
    confidence=0.6,
    coverage=Coverage(4, 4, 1, 1, sources=("nccl_profiler",)),
    evidence=(),
    summary="slow",
    stalled_s=0.0,
    communicators_waiting=0,
)


@pytest.mark.parametrize(
    ("verdict", "opens", "why"),
    [
        (SLOW, True, Why.SLOW),
        (replace(SLOW, verdict_class=VerdictClass.INCONCLUSIVE), True, Why.UNDECIDED),
        (replace(SLOW, verdict_class=VerdictClass.H1), True, Why.HANGS),
        (replace(SLOW, verdict_class=VerdictClass.DEAD_PROCESS), True, Why.HANGS),
        (replace(SLOW, coverage=Coverage(4, 4, 1, 1, sources=("torch_hook",))), True, Why.NO_PLUGIN),
        (SLOW, False, Why.NOT_OPENED),
    ],
)
def test_reasons(verdict: Verdict, opens: bool, why: Why) -> None:
    assert decide_detail(verdict, opens=opens) is why


def test_the_causes_come_first_then_who_waits_and_all_are_bounded() -> None:
    assert choose_detail_nodes(SLOW, PLACES, 128) == ["n1", "n0", "n2"]
    assert choose_detail_nodes(SLOW, PLACES, 1) == ["n1"]
    assert choose_detail_nodes(replace(SLOW, roots=()), (), 128) == []
