"""Which communicators an incident page shows."""

import random

import pytest

from paceline.api.incidents.involved import INVOLVED_MAX, count_members, select_involved
from paceline.contracts.ids import format_ranks
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
from paceline.store.repositories.jobs import CommunicatorRow


def row(communicator: str, ranks: list[int], *, closed: bool = False) -> CommunicatorRow:
    return CommunicatorRow(communicator, communicator, "tp", "nccl", len(ranks), format_ranks(ranks), closed)


def verdict(victims: tuple[int, ...], *roots: int) -> Verdict:
    return Verdict(
        verdict_class=VerdictClass.H1,
        sub_reason=SubReason.MISSING_ENTER,
        roots=tuple(Root(RootKind.RANK, rank=rank) for rank in roots),
        victims=victims,
        victims_count=len(victims),
        operation=Operation("root", "root", "all_reduce", 1, 8),
        owner=Owner.USER_CODE,
        action=Action(ActionKind.FIX_CODE, "x", "y"),
        confidence=0.9,
        coverage=Coverage(8, 8, 1, 1),
        evidence=(),
        summary="s",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("0-7", 3),
        ("0-6/2", 2),
        ("1,5", 1),
        ("9-12", 1),
        ("2-3,5,6-14/4", 3),
        ("13", 0),
        ("0-99999", 4),
    ],
)
def test_members_are_counted_in_the_text(text: str, expected: int) -> None:
    assert count_members(text, [2, 5, 6, 12]) == expected


def test_any_text_counts_as_its_ranks_do() -> None:
    draw = random.Random(7)
    for _ in range(300):
        members = draw.sample(range(64), draw.randint(1, 40))
        wanted = sorted(draw.sample(range(64), draw.randint(0, 20)))
        assert count_members(format_ranks(members), wanted) == len(set(members) & set(wanted))


def test_the_root_comes_first_and_strangers_do_not_come() -> None:
    rows = [
        row("strangers", [20, 21]),
        row("one_victim", [1, 20]),
        row("victim_and_root", [1, 5]),
        row("two_victims", [1, 2, 3]),
        row("ended", [1, 2, 3, 4], closed=True),
        row("root", [4, 5]),
    ]
    found = select_involved(verdict((1, 2, 3, 4), 5), rows)
    assert [(item.name, item.victims_count) for item in found] == [
        ("root", 1),
        ("two_victims", 3),
        ("victim_and_root", 1),
    ]


def test_the_root_is_kept_whatever_part_it_comes_in() -> None:
    first = select_involved(verdict((1, 2), 5), [row(f"g{n:03}", [1, 2]) for n in range(100)])
    found = select_involved(verdict((1, 2), 5), [row("root", [5])], first)
    assert (len(found), found[0].name, found[1].name) == (INVOLVED_MAX, "root", "g000")
