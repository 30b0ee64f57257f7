"""Which nodes are asked for evidence: causes first, a few witnesses, never more than the bounds."""

from dataclasses import replace

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
from paceline.incidents.witnesses import NodeWanted, ShippingPolicy, Wanted, choose_nodes, ranks_wanted

POLICY = ShippingPolicy()
PLACES = [(rank, f"n{rank // 4}") for rank in range(256)]


def verdict(*roots: Root, victims: tuple[int, ...] = tuple(range(8, 256))) -> Verdict:
    return Verdict(
        VerdictClass.H1, SubReason.MISSING_ENTER, roots, victims, len(victims), None, Owner.UNKNOWN,
        Action(ActionKind.COLLECT), 0.9, Coverage(256, 256, 1, 1), (), "",
    )  # fmt: skip


def rank(number: int, node: str | None = None) -> Root:
    return Root(RootKind.RANK, rank=number, node=node)


def names(wanted: list[NodeWanted], reason: Wanted) -> list[str]:
    return [each.node for each in wanted if each.reason is reason]


def test_the_cause_and_spread_witnesses() -> None:
    wanted = choose_nodes(verdict(rank(5)), PLACES, [], 0, POLICY)
    assert names(wanted, Wanted.ROOT) == ["n1"]
    witnesses = names(wanted, Wanted.WITNESS)
    assert len(wanted) == POLICY.nodes_max
    assert len(set(witnesses)) == 7
    assert "n1" not in witnesses
    assert max(int(node[1:]) for node in witnesses) > 40  # not only the neighbours


def test_many_causes_leave_room_for_witnesses() -> None:
    causes = [rank(number) for number in range(0, 128, 4)]
    wanted = choose_nodes(verdict(*causes, victims=(200, 201, 210)), PLACES, [], 0, POLICY)
    assert len(names(wanted, Wanted.ROOT)) == 6
    assert names(wanted, Wanted.WITNESS) == ["n50", "n52"]


def test_a_node_that_only_the_verdict_names() -> None:
    wanted = choose_nodes(verdict(Root(RootKind.NODE, node="gone-1"), victims=()), [], [], 0, POLICY)
    assert wanted == [NodeWanted("gone-1", Wanted.ROOT)]


def test_links_and_groups_name_all_their_ranks() -> None:
    link = Root(RootKind.LINK, rank=4, peer_rank=12)
    group = Root(RootKind.GROUP, ranks=(20, 21, 24))
    assert ranks_wanted(verdict(link, group, victims=(4, 9)))[0] == [4, 12, 20, 21, 24]
    assert ranks_wanted(verdict(link, group, victims=(4, 9)))[1] == [9]
    wanted = choose_nodes(verdict(link, group, victims=()), PLACES, [], 0, POLICY)
    assert names(wanted, Wanted.ROOT) == ["n1", "n3", "n5", "n6"]


def test_a_better_verdict_asks_only_for_new_causes() -> None:
    first = [each.node for each in choose_nodes(verdict(rank(5)), PLACES, [], 0, POLICY)]
    assert choose_nodes(verdict(rank(5)), PLACES, first, 8, POLICY) == []
    new = choose_nodes(verdict(rank(45)), PLACES, first, 8, POLICY)
    assert new == [NodeWanted("n11", Wanted.ROOT)]


def test_no_incident_asks_without_end() -> None:
    assert choose_nodes(verdict(rank(5)), PLACES, [], POLICY.requests_max, POLICY) == []
    last = choose_nodes(verdict(rank(5)), PLACES, [], POLICY.requests_max - 1, POLICY)
    assert last == [NodeWanted("n1", Wanted.ROOT)]  # where there is room for one it is the cause


def test_nobody_is_asked_where_nobody_is_known() -> None:
    assert choose_nodes(verdict(rank(5)), [], [], 0, POLICY) == []
    alone = replace(POLICY, nodes_max=1)
    assert choose_nodes(verdict(rank(5)), PLACES, [], 0, alone) == [NodeWanted("n1", Wanted.ROOT)]
