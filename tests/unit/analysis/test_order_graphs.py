"""Order out of NCCL's dumps of its graphs: what fits a communicator, what does not, and what is no dump."""

import pytest

from paceline.analysis.adapters.nccl_graph import read_graphs, read_topology
from paceline.analysis.adapters.plain_xml import XmlError, read_xml
from paceline.analysis.order_graphs import Unfit, known_of_dump
from paceline.analysis.orders import (
    EVERY,
    Contradiction,
    Known,
    OrderReason,
    find_order,
    join_parts,
    part_of,
)
from tests.unit.analysis.nccl_dumps import graphs_xml, topology_xml

RING = [0, 3, 1, 2]


def known(xml: str, size: int, writer: int = 0, ranks: dict[int, int] | None = None) -> Known:
    return known_of_dump(read_graphs(xml.encode()), ranks or {}, size, writer)


def test_one_machine_has_its_whole_ring_and_tree() -> None:
    found = known(graphs_xml([RING] * 12, [[2, 0, 1, 3]] * 12), 4)
    order = find_order(found)
    assert order.rings == ((0, 3, 1, 2),)
    assert order.trees == ((2, 0, -1, 1),)
    assert part_of("00000000000000ab", found).sources == ("graph_dump",)
    assert known(graphs_xml([[0, 1]]), 2).rings == {EVERY: {0: 1, 1: 0}}


def test_before_2_30_the_dump_of_the_machine_says_who_is_who() -> None:
    """GPUs 4 to 7 of the machine, of which NCCL writes the numbers only."""
    xml, ranks = (
        graphs_xml([RING], ranked=False, first_gpu=4),
        read_topology(topology_xml([0, 1, 2, 3], first_gpu=4).encode()),
    )
    assert ranks == {4: 0, 5: 1, 6: 2, 7: 3}
    assert find_order(known(xml, 4, ranks=ranks)).rings == ((0, 3, 1, 2),)
    with pytest.raises(Unfit, match="without a rank"):
        known(xml, 4)


def test_channels_that_differ_give_no_single_ring_and_no_tree() -> None:
    found = known(graphs_xml([RING, [0, 1, 2, 3]]), 4)
    assert find_order(found).ring_reason is OrderReason.CHANNELS_DIFFER
    assert found.trees == {}


def test_the_log_of_the_same_communicator_must_agree() -> None:
    """NCCL repeats the channels of the dump: how many there are only the log says, here that of rank 0."""
    log = Known(4, sources={"nccl_log"})
    for channel in range(4):
        log.add_link(channel, 0, 3)
        log.add_parent(channel, 3, 0)
    found = known(graphs_xml([RING] * 2), 4)
    found.merge(log)
    order = find_order(found)
    assert (order.rings, order.trees) == (((0, 3, 1, 2),), ((-1, 3, 1, 0),))
    assert join_parts(4, [part_of("00000000000000ab", found)]) == order
    assert found.sources == {"graph_dump", "nccl_log"}
    log.add_link(4, 0, 2)
    log.add_parent(4, 3, 1)
    found.merge(log)
    assert find_order(found).ring_reason is find_order(found).tree_reason is OrderReason.CONTRADICTED
    differing = known(graphs_xml([RING, [0, 1, 2, 3]]), 4)
    with pytest.raises(Contradiction):
        differing.add_link(1, 0, 3)


def test_a_machine_among_several_knows_its_part_and_proxies_close_the_ring() -> None:
    found = known(graphs_xml([[1, 0, 2]] * 2, beyond=True), 6)
    assert found.rings == {EVERY: {1: 0, 0: 2}}
    assert found.trees == {EVERY: {0: 1, 2: 0}}
    assert find_order(found).ring_reason is OrderReason.INCOMPLETE
    parts = [part_of("00000000000000ab", found)]
    assert (parts[0].rings, parts[0].trees) == ({"": "1,0,2"}, {"": "0>1,2>0"})
    links = Known(6, links={2: 4, 4: 3, 3: 5, 5: 1}, sources={"proxies"})
    order = join_parts(6, [*parts, part_of("00000000000000ab", links)])
    assert (order.rings, order.tree_reason) == (((0, 2, 4, 3, 5, 1),), OrderReason.INCOMPLETE)
    for wrong in ({2: 4, 4: 3, 3: 5, 5: 0}, {2: 4, 4: 3, 3: 5}):
        part = part_of("00000000000000ab", Known(6, links=wrong))
        assert join_parts(6, [*parts, part]).ring_reason is OrderReason.INCOMPLETE
    against = Known(6, links={2: 4, 4: 3, 3: 5, 5: 1, 1: 2})
    assert join_parts(6, [*parts, part_of("00000000000000ab", against)]).ring_reason is (
        OrderReason.CONTRADICTED
    )


def test_channels_of_other_nodes_may_be_exchanged() -> None:
    """With crossnic 2 NCCL swaps them in pairs on every other node; the one of rank 0 is the first."""
    away = [[3, 4], [4, 3]]
    assert known(graphs_xml(away, beyond=True, crossnic=2), 6, writer=3).rings == {}
    assert known(graphs_xml(away, beyond=True, crossnic=1), 6, writer=3).rings == {0: {3: 4}, 1: {4: 3}}
    home = [[0, 1], [1, 0]]
    assert known(graphs_xml(home, beyond=True, crossnic=2), 6).rings == {0: {0: 1}, 1: {1: 0}}


@pytest.mark.parametrize(
    ("xml", "size", "writer"),
    [
        (graphs_xml([RING]), 8, 0),  # more ranks than are here, and no network between them
        (graphs_xml([RING], beyond=True), 4, 0),
        (graphs_xml([[4, 5, 6, 7]], beyond=True), 6, 4),  # ranks that it does not have
        (graphs_xml([[4, 5, 6, 7]], beyond=True), 8, 0),  # the writer is elsewhere
        (graphs_xml([RING, [0, 1, 2]]), 4, 0),  # channels of different ranks
        (graphs_xml([RING], [[0, 1, 2]]), 4, 0),
        (graphs_xml([]), 4, 0),
    ],
)
def test_dump_of_another_communicator_fits_nowhere(xml: str, size: int, writer: int) -> None:
    with pytest.raises(Unfit):
        known(xml, size, writer)


GOOD = graphs_xml([RING])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no xml",
        GOOD[:-20],  # half written
        GOOD.replace('version="1"', 'version="2"'),
        GOOD.replace('nchannels="1"', 'nchannels="2"', 1),
        GOOD.replace('dev="0x1"', 'dev="GPU"', 1),
        GOOD.replace('rank="3"', 'rank="-3"', 1),
        GOOD.replace('rank="3"', 'rank="0x3"', 1),
        GOOD.replace('<gpu dev="0x3" rank="3"/>', '<net dev="0"/>', 1),  # in the middle of the chain
        GOOD.replace('<gpu dev="0x3" rank="3"/>', '<gpu dev="0" rank="0"/>', 1),
        GOOD.replace('id="1"', 'id="0"', 1),
        GOOD.replace('id="0"', 'id="9"', 1),
        topology_xml([0, 1]),
        "<graphs version='1'>&#104;</graphs>",
        "<graphs version='1'><![CDATA[x]]></graphs>",
        f'<?xml version="1.0"?>{GOOD}<graphs/>',
        f"<?instruction?>{GOOD}",
        GOOD.replace('crossnic="0"', 'crossnic="' + "0" * 2000 + '"', 1),
    ],
)
def test_what_is_no_dump_is_refused(text: str) -> None:
    with pytest.raises(XmlError):
        read_graphs(text.encode())


LAUGHS = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))


@pytest.mark.parametrize(
    "head",
    [
        f'<!DOCTYPE graphs [<!ENTITY a0 "ha">{LAUGHS}]>',
        '<!DOCTYPE graphs [<!ENTITY a9 SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE graphs SYSTEM "http://127.0.0.1:9/x.dtd">',
        '<!DOCTYPE graphs [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]>',
        "",
    ],
)
def test_entities_are_neither_fetched_nor_grown(head: str) -> None:
    with pytest.raises(XmlError):
        read_xml(f'{head}<graphs version="&a9;"/>'.encode(), elements_max=100)


def test_size_and_depth_are_bounded() -> None:
    flat, deep = "<a>" + "<b/>" * 50 + "</a>", "<a>" * 40 + "</a>" * 40
    assert len(read_xml(flat.encode(), elements_max=51).children) == 50
    with pytest.raises(XmlError, match="more elements"):
        read_xml(flat.encode(), elements_max=50)
    with pytest.raises(XmlError, match="more elements"):
        read_xml(deep.encode(), elements_max=100)
    many = " ".join(f'a{n}="1"' for n in range(40))
    with pytest.raises(XmlError, match="attributes"):
        read_xml(f"<a {many}/>".encode(), elements_max=1)


def test_two_ranks_of_one_gpu_are_not_told_apart() -> None:
    twice = topology_xml([0, 1]).replace('dev="1" sm', 'dev="0" sm')
    with pytest.raises(XmlError, match="two ranks"):
        read_topology(twice.encode())
    same = topology_xml([0, 1]).replace('rank="1"', 'rank="0"')
    with pytest.raises(XmlError, match="two GPUs"):
        read_topology(same.encode())
