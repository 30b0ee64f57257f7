"""What shipped files say beside a verdict."""

from dataclasses import replace
from typing import Any

import pytest

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
from paceline.incidents.shipped_answer import SUMMARY_CHARS_MAX, Agreement, compare

VERDICT = Verdict(
    verdict_class=VerdictClass.H1,
    sub_reason=SubReason.MISSING_ENTER,
    roots=(Root(RootKind.RANK, rank=5, node="n1"),),
    victims=(0, 1),
    victims_count=2,
    operation=None,
    owner=Owner.USER_CODE,
    action=Action(ActionKind.FIX_CODE, "rank 5", "it never entered"),
    confidence=0.9,
    coverage=Coverage(8, 8, 4, 4),
    evidence=(),
    summary="rank 5 never entered",
)
UNDECIDED = replace(VERDICT, verdict_class=VerdictClass.INCONCLUSIVE, roots=())
LINK = replace(VERDICT, roots=(Root(RootKind.LINK, rank=2, peer_rank=3),))


def said(name: str = "DEAD_PROCESS", *roots: dict[str, Any]) -> dict[str, Any]:
    return {
        "class": name,
        "roots": list(roots),
        "owner": "user_code",
        "confidence": 0.8,
        "summary": "out of memory",
    }


@pytest.mark.parametrize(
    ("verdict", "answer", "expected"),
    [
        (VERDICT, said("DEAD_PROCESS", {"kind": "rank", "rank": 5}), Agreement.AGREES),
        (VERDICT, said("H3", {"kind": "node", "node": "n1"}), Agreement.AGREES),
        (VERDICT, said("H2", {"kind": "group", "ranks": [4, 5]}), Agreement.AGREES),
        (LINK, said("S2", {"kind": "rank", "rank": 3}), Agreement.AGREES),
        (VERDICT, said("DEAD_PROCESS", {"kind": "rank", "rank": 6}), Agreement.DIFFERS),
        (VERDICT, said("H3", {"kind": "node", "node": "n2"}), Agreement.DIFFERS),
        (VERDICT, said("INIT", {"kind": "configuration", "name": "NCCL_SOCKET_IFNAME"}), Agreement.ADDS),
        (UNDECIDED, said("DEAD_PROCESS", {"kind": "rank", "rank": 6}), Agreement.ADDS),
        (VERDICT, said("INCONCLUSIVE", {"kind": "rank", "rank": 5}), Agreement.SILENT),
        (VERDICT, said("NONE"), Agreement.SILENT),
    ],
)
def test_agreement(verdict: Verdict, answer: dict[str, Any], expected: Agreement) -> None:
    found = compare(verdict, answer)
    assert found.agreement is expected
    assert "out of memory" in found.words


@pytest.mark.parametrize("answer", [{}, {"class": 3, "roots": []}, {"class": "H1", "roots": None}])
def test_what_is_no_answer_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no class or no roots"):
        compare(VERDICT, answer)


def test_fields_of_any_type_become_bounded_words() -> None:
    odd = {"kind": "rank", "rank": "5", "ranks": 7, "node": ["n1"], "peer_rank": None}
    answer = {
        "class": "H1",
        "roots": ["rank 5", odd],
        "confidence": "sure",
        "summary": "x" * 9999,
        "owner": None,
    }
    found = compare(VERDICT, answer)
    assert found.agreement is Agreement.ADDS
    assert (len(found.summary), found.confidence) == (SUMMARY_CHARS_MAX, 0.0)
