"""Ring and tree order out of NCCL's lines, and out of what several nodes know of it."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis.adapters.nccl_order import TreeLine, WholeRing, read_order_line
from paceline.analysis.adapters.prefixes import read_line
from paceline.analysis.builder import build_evidence
from paceline.analysis.facts import Line, Origin, Speaker
from paceline.analysis.locate import ring_by_counts
from paceline.analysis.order_log import OrderLog
from paceline.analysis.order_memory import JoinedOrders
from paceline.analysis.orders import (
    Known,
    Order,
    OrderReason,
    find_order,
    join_parts,
    part_of,
    read_chains,
    write_chains,
)
from paceline.analysis.transfers import UNSEEN, Transfers, ring_order, tree_parents
from paceline.contracts.registry import (
    CommunicatorRecord,
    JobRecord,
    JobState,
    NodeRecord,
    OrderPart,
    RankRecord,
)


def line(text: str, thread: int = 9, host: str = "n1", launcher: str = "") -> Line:
    return read_line(f"{launcher}{host}:77:{thread} [0] NCCL INFO {text}", Origin("log"), Speaker(), 1970)


def init(rank: int, size: int, stage: str, hash_: int = 0xAB, comm: int = 0x5) -> str:
    return (
        f"ncclCommInitRank comm 0x{comm:x} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId 1b000 "
        f"commId 0x{hash_:x} - Init {stage}"
    )


def fed(*lines: Line) -> OrderLog:
    log = OrderLog()
    for one in lines:
        log.feed(one)
    return log


def parts_of(ring: list[int], parents: list[int], nodes: list[list[int]]) -> list[OrderPart]:
    """What each node knows: the lines of its own ranks."""
    following = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    parts = []
    for ranks in nodes:
        known = Known(len(ring))
        for channel in (0, 1):
            for sender, receiver in following.items():
                if sender in ranks or receiver in ranks:
                    known.add_link(channel, sender, receiver)
            for rank in ranks:
                known.add_parent(channel, rank, parents[rank])
        parts.append(part_of("00000000000000ab", known))
    return parts


def test_threads_that_make_communicators_side_by_side_are_told_apart() -> None:
    log = fed(
        line(init(1, 4, "START"), 9),
        line(init(0, 2, "START", 0xCD, 0x6), 10, launcher="[rank3]: "),
        line("Ring 00 : 0 -> 1 -> 2", 9),
        line("Ring 00 : 1 -> 0 -> 1", 10, launcher="[rank3]: "),
        line("Channel 00/02 :    0   1", 10),
        line("Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM", 9),
        line("Trees [0] 2/3/-1->1->0 [1] -1/-1/-1->1->3", 9),
        line(init(0, 2, "COMPLETE", 0xCD, 0x6), 10),
        line(init(1, 4, "COMPLETE"), 9),
    )
    two, four = log.made
    assert (two.hash, two.size, two.rank, two.instance) == (0xCD, 2, 0, 0)
    assert two.known.rings == {0: {0: 1, 1: 0}}
    assert four.known.rings == {0: {0: 1, 1: 2}}
    assert four.known.trees == {0: {1: 0, 2: 1, 3: 1}, 1: {1: 3}}
    assert not log.dropped


@pytest.mark.parametrize(
    "wrong",
    [
        "Ring 00 : 0 -> 2 -> 3",  # of another rank
        "Ring 00 : 0 -> 1 -> 2 comm 0x99 nRanks 04 busId c1000",  # RCCL: of another communicator
        "Ring 00 : 3 -> 1 -> 2",  # against the line before
        "Ring 00 : 0 -> 1 -> 9",  # of a larger one
        "Trees [0] 2/-1/-1->2->0",
        "Channel 00/02 : 0 1 2 3",  # is printed by rank 0 alone
    ],
)
def test_a_line_that_cannot_be_of_this_communicator_leaves_no_order(wrong: str) -> None:
    log = fed(
        line(init(1, 4, "START")), line("Ring 00 : 0 -> 1 -> 2"), line(wrong), line(init(1, 4, "COMPLETE"))
    )
    (made,) = log.made
    assert (made.refused, made.known.rings, made.known.trees) == ("order_contradicted", {}, {})
    assert log.dropped == {"order_contradicted": 1}


def test_init_that_fails_leaves_its_lines_to_nobody() -> None:
    log = fed(
        line(init(1, 4, "START")), line("Ring 00 : 0 -> 1 -> 2"), line(init(1, 4, "START")),
        line(init(1, 4, "COMPLETE")), line(init(1, 4, "COMPLETE")),
    )  # fmt: skip
    assert [(made.known.rings, made.instance) for made in log.made] == [({}, 0), ({}, 1)]


def test_file_of_two_hosts_says_nothing() -> None:
    log = fed(line(init(0, 2, "COMPLETE")), line(init(0, 2, "COMPLETE"), host="n2"))
    assert log.made == []
    assert log.dropped == {"order_hosts": 1}


def test_lines_that_are_cut_or_of_old_releases_are_not_believed() -> None:
    entries = "".join(f" [{channel}] 12/-1/-1->11->10" for channel in range(60))
    cut = read_order_line(line("Trees" + entries[:1022]))
    assert isinstance(cut, TreeLine)
    assert cut.cut
    assert read_order_line(line("Trees [0] 1->0->-1/-1/-1")) is None
    assert read_order_line(line("Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1")) is None
    assert read_order_line(line("Channel 00/08 :    0   1   2   3")) == WholeRing(0, (0, 1, 2, 3))
    # 20 of 24 ranks: NCCL prints no more.
    whole = "Channel 00/08 :" + "".join(f" {rank:3d}" for rank in range(20))
    log = fed(line(init(0, 24, "START")), line(whole), line(init(0, 24, "COMPLETE")))
    assert log.made[0].known.rings == {}


def test_nodes_know_the_order_together() -> None:
    ring, parents = [0, 1, 3, 2, 5, 4], [-1, 0, 1, 0, 3, 3]
    parts = parts_of(ring, parents, [[0, 1], [2, 3], [4, 5]])
    assert parts[0].rings == {"0-1": "4,0,1,3"}
    assert join_parts(6, parts) == Order((tuple(ring),), (tuple(parents),))
    assert join_parts(6, parts[:1]) == Order((), (), OrderReason.INCOMPLETE, OrderReason.INCOMPLETE)
    # The neighbours of one node say all of a ring, and parents only of themselves.
    assert join_parts(6, parts[:2]).rings == ()
    assert join_parts(6, [parts[0], parts[2], replace(parts[1], trees={})]).ring_reason is OrderReason.NONE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rings": {"0-1": "5,4,0,3"}}, OrderReason.CONTRADICTED),
        ({"refused": "order_contradicted"}, OrderReason.CONTRADICTED),
        ({"size": 5}, OrderReason.CONTRADICTED),
        ({"rings": {"0-99999": "1"}}, OrderReason.CONTRADICTED),
        ({"rings": {"0": "a"}}, OrderReason.CONTRADICTED),
        ({"links": "4,2"}, OrderReason.CONTRADICTED),  # proxies send where no ring does
        ({"links": "4,0"}, OrderReason.NONE),
    ],
)
def test_what_does_not_fit_leaves_no_ring(changes: dict[str, object], reason: OrderReason) -> None:
    parts = parts_of([0, 1, 3, 2, 5, 4], [-1, 0, 1, 0, 3, 3], [[0, 1], [2, 3], [4, 5]])
    order = join_parts(6, [replace(parts[0], **changes), *parts[1:]])  # type: ignore[arg-type]
    assert order.ring_reason is reason
    assert bool(order.rings) == (reason is OrderReason.NONE)


def test_shapes_that_are_no_order() -> None:
    two_circles = Known(4, rings={0: {0: 1, 1: 0, 2: 3, 3: 2}})
    assert find_order(two_circles).ring_reason is OrderReason.NOT_CLOSED
    differ = Known(4, rings={0: {0: 1, 1: 2, 2: 3, 3: 0}, 1: {0: 2, 2: 1, 1: 3, 3: 0}})
    order = find_order(differ)
    assert (order.ring_text([4, 5, 6, 7]), order.reasons) == ("4-7;4,6,5,7", ["order_channels_differ"])
    loop = Known(4, trees={0: {0: -1, 1: 2, 2: 3, 3: 1}})
    assert find_order(loop).tree_reason is OrderReason.NOT_CLOSED
    chain, back = {0: -1, 1: 0, 2: 1}, {0: 1, 1: 2, 2: -1}
    assert find_order(Known(3, trees={0: chain, 1: back})).tree_text() == "-1,0,1;1,2,-1"
    assert find_order(Known(3, trees={0: chain, 1: back, 2: chain, 3: back})).tree_reason is (
        OrderReason.CHANNELS_DIFFER
    )
    assert find_order(Known(3)).reasons == []


def test_chains_survive_their_text() -> None:
    links = {7: 8, 3: 0, 0: 1, 5: 6, 6: 5}
    assert dict(read_chains(write_chains(links))) == links
    assert write_chains({0: 1, 1: 2, 2: 0}) == "0,1,2,0"


def records(parts: list[OrderPart]) -> tuple[JobRecord, list[NodeRecord], CommunicatorRecord]:
    job = JobRecord("j", "a", "c", "t", "u", "n", 12, 1, JobState.RUNNING, "declared", "declared", 0.0)
    nodes = [
        NodeRecord("j", "a", f"n{at}", "g", (RankRecord(at, 0, 1, 1),), orders=(part,))
        for at, part in enumerate(parts)
    ]
    return job, nodes, CommunicatorRecord("j", "a", "00000000000000ab", "dp", "0-10/2", 0, 0, "nccl")


def test_evidence_has_the_order_of_all_nodes() -> None:
    parts = parts_of([0, 1, 3, 2, 5, 4], [-1, 0, 1, 0, 3, 3], [[0, 1], [2, 3], [4, 5]])
    job, nodes, comm = records(parts)
    evidence = build_evidence([], job, nodes, [comm])
    assert evidence.ring_of(0) == "0,2,6,4,10,8"
    order = ring_order(evidence, 0)
    assert order is not None
    assert order.tolist() == [0, 1, 3, 2, 5, 4]
    assert [tree.tolist() for tree in tree_parents(evidence, 0)] == [[-1, 0, 1, 0, 3, 3]]
    alone = build_evidence([], job, nodes[:2], [comm])
    assert (alone.ring_of(0), alone.orders_refused) == ("", {"order_incomplete": 2})
    own = build_evidence([], job, nodes, [replace(comm, ring="0-10/2")])
    assert own.ring_of(0) == "0-10/2"


def test_parts_are_read_once_as_long_as_they_say_the_same() -> None:
    """A judgement every few seconds must not parse the orders of the whole job each time."""
    parts = parts_of([0, 1, 3, 2, 5, 4], [-1, 0, 1, 0, 3, 3], [[0, 1], [2, 3], [4, 5]])
    job, nodes, comm = records(parts)
    orders = JoinedOrders()
    first = build_evidence([], job, nodes, [comm], orders=orders)
    assert orders.parsed == 3
    again = [replace(node, orders=tuple(replace(part) for part in node.orders)) for node in nodes]
    for said in (nodes, again):  # agents repeat their records
        evidence = build_evidence([], job, said, [comm], orders=orders)
        assert (evidence.comm_rings, evidence.comm_trees) == (first.comm_rings, first.comm_trees)
    assert orders.parsed == 3
    assert build_evidence([], job, nodes[:2], [comm], orders=orders).orders_refused == {"order_incomplete": 2}
    moved = replace(comm, ranks="1-11/2")
    assert build_evidence([], job, nodes, [moved], orders=orders).ring_of(0) == "1,3,7,5,11,9"
    assert (orders.parsed, len(orders)) == (8, 1)


def test_what_is_kept_of_orders_is_bounded() -> None:
    orders = JoinedOrders(kept_max=2)
    parts = parts_of([0, 1], [-1, 0], [[0, 1]])
    for name in ("a", "b", "a", "c", "a"):
        assert orders.find(name, [4, 7], parts).ring == "4,7"
    assert (len(orders), orders.parsed) == (2, 3)
    assert orders.find("b", [4, 7], parts).tree == "-1,0"
    assert orders.parsed == 4


def test_texts_of_the_registry_are_read_once() -> None:
    job, _, comm = records([])
    evidence = build_evidence([], job, [], [replace(comm, ring="0-10/2", tree="-1,0,1,0,3,3")])
    first, second = tree_parents(evidence, 0), tree_parents(evidence, 0)
    assert first[0] is second[0]
    assert first[0].tolist() == [-1, 0, 1, 0, 3, 3]
    with pytest.raises(ValueError, match="read-only"):
        first[0][0] = 1


def ring_of(sent: list[int], received: list[int]) -> Transfers:
    size = len(sent)
    tail, nobody = np.arange(size), np.full(size, UNSEEN)
    return Transfers(tail, np.roll(tail, -1), np.array(sent), np.array(received), nobody, nobody)


def test_a_link_behind_unseen_ones_is_not_blamed_alone() -> None:
    """Rank 2 or the NVLink before it may hold back what the link from 3 on would carry."""
    seen = ring_by_counts(ring_of([6, 5, 4, 2, 3], [6, 5, 4, 2, 3]))
    assert seen is not None
    assert (seen.links, seen.among) == (((3, 4),), False)
    dark = ring_by_counts(ring_of([6, 5, -1, 2, 3], [6, 5, -1, 2, 3]))
    assert dark is not None
    assert (dark.ranks, dark.links, dark.among) == ((2, 3, 4), (), True)
