"""A stuck rank and a broken link are told apart and named, in rings and trees, by waits and by counts."""

import numpy as np
import pytest

from paceline.analysis.locate import Place, by_waits, ring_by_counts, slices_by_role, tree_by_counts
from paceline.analysis.transfers import UNSEEN, Transfers
from tests.unit.analysis.stalled_transfers import Network, stall_ring, stall_tree

SEEDS = range(12)


def located(network: Network) -> Place | None:
    return by_waits(network.transfers(history=1000), network.inside, network.inside)


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_ring_names_the_stuck_rank_by_waits(seed: int, delivered: bool) -> None:
    size = 3 + seed % 9
    network, guilty = stall_ring(size, seed, False, delivered)
    assert located(network) == Place("waits_for_nobody", (guilty,))


@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_ring_names_the_broken_link_by_waits(seed: int, delivered: bool) -> None:
    size = 3 + seed % 9
    network, guilty = stall_ring(size, seed, True, delivered)
    place = located(network)
    assert place is not None
    assert place.links == ((guilty, (guilty + 1) % size),)


@pytest.mark.parametrize("seed", SEEDS)
def test_tree_names_the_stuck_rank_by_waits(seed: int) -> None:
    size = 7 + 2 * seed
    network, _, guilty = stall_tree(size, seed, "", False)
    assert located(network) == Place("waits_for_nobody", (guilty,))


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("delivered", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_tree_names_the_broken_link_by_waits(seed: int, delivered: bool, direction: str) -> None:
    size = 7 + 2 * seed
    network, parents, guilty = stall_tree(size, seed, direction, delivered)
    pair = (guilty, int(parents[guilty]))
    place = located(network)
    assert place is not None
    assert place.links == (pair if direction == "up" else (pair[1], pair[0]),)


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_alone_tell_a_stuck_rank_from_a_broken_link(seed: int) -> None:
    size = 6 + seed % 9
    network, guilty = stall_ring(size, seed, False, True)
    place = ring_by_counts(network.transfers(waits=False, history=1000))
    assert place is not None
    assert (place.ranks, place.links) == ((guilty,), ())
    network, guilty = stall_ring(size, seed, True, True)
    place = ring_by_counts(network.transfers(waits=False, history=1000))
    assert place is not None
    assert place.links == ((guilty, (guilty + 1) % size),)


def test_tree_counts_name_the_stuck_rank_where_raw_counts_do_not() -> None:
    raw = by_role = cases = 0
    for seed in range(24):
        size = 7 + seed
        network, _, guilty = stall_tree(size, seed, "", False)
        slices, degree = slices_by_role(network.transfers(waits=False), size)
        place = tree_by_counts(slices, degree, np.ones(size, np.bool_))
        cases += place is not None
        by_role += place is not None and place.ranks == (guilty,)
        raw += int(np.argmin(slices)) == guilty
    assert by_role == cases >= 20
    assert raw < 20


def test_a_lasting_step_in_the_counts_is_no_stall() -> None:
    """A broadcast at the start left one link of the ring behind for ever; nothing else differs."""
    network, _ = stall_ring(8, 1, False, False)
    links = network.transfers(waits=False)
    links.sent[:], links.received[:] = 500, 500
    links.sent[3] = links.received[3] = 100
    assert ring_by_counts(links) is None


def test_everybody_idle_names_nobody() -> None:
    network, _ = stall_ring(8, 1, False, False)
    network.waiting.clear()
    assert located(network) is None


def test_waits_that_end_at_a_silent_rank_name_it_as_unseen() -> None:
    network, guilty = stall_ring(8, 5, False, False)
    links = network.transfers()
    mine = links.tail == guilty
    links.sent[mine], links.sender_waits[mine] = -1, -1
    mine = links.head == guilty
    links.received[mine], links.receiver_waits[mine] = -1, -1
    needed = network.inside.copy()
    network.inside[guilty] = False
    place = by_waits(links, network.inside, needed)
    assert place == Place("waits_end_at_unseen", (guilty,), unseen=True)


def test_who_has_left_the_operation_is_no_suspect() -> None:
    network, guilty = stall_ring(8, 5, False, False)
    network.inside[guilty] = False
    assert located(network) is None


@pytest.mark.parametrize("size", [8, 16])
def test_source_that_takes_blocked_receivers_for_waiting_ones_misleads_nobody(size: int) -> None:
    """Ranks before a silent one are blocked in sending; some sources say that they wait for data, too."""
    network, guilty = stall_ring(size, 5, False, False)
    links = network.transfers()
    links.receiver_waits[:] = 1
    for ahead in (1, 2, 3)[: 2 if size == 8 else 3]:
        links.sender_waits[links.tail == (guilty - ahead) % size] = 1
    links.sent[links.tail == guilty] = links.received[links.head == guilty] = -1
    links.sender_waits[links.tail == guilty] = links.receiver_waits[links.head == guilty] = -1
    needed, inside = np.ones(size, np.bool_), np.ones(size, np.bool_)
    inside[guilty] = False
    place = by_waits(links, inside, needed)
    assert place is None or place.ranks == (guilty,)
    assert place is None or place.unseen


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cable_cut_in_both_directions_is_one_place(seed: int) -> None:
    """Nothing is acknowledged across it, so both of its ends wait in both directions."""
    size = 7 + 2 * seed
    network, parents, guilty = stall_tree(size, seed, "up", True)
    parent = int(parents[guilty])
    network.waiting |= {(parent, (parent, guilty)), (guilty, (parent, guilty))}
    place = located(network)
    assert place is not None
    assert set(place.links) == {(guilty, parent), (parent, guilty)}


def test_a_silent_member_is_not_named_where_nobody_has_moved() -> None:
    size = 4
    order, nobody = np.arange(size), np.zeros(size, np.int64)
    links = Transfers(order, (order + 1) % size, nobody + 64, nobody + 64, nobody.copy(), nobody + 1)
    links.sent[2] = links.sender_waits[2] = links.received[1] = links.receiver_waits[1] = UNSEEN
    inside, needed = np.ones(size, np.bool_), np.ones(size, np.bool_)
    inside[2] = False
    assert by_waits(links, inside, needed) is None
    links.sent[3], links.received[3] = 68, 68
    assert by_waits(links, inside, needed) == Place("waits_end_at_unseen", (2,), unseen=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_silent_rank_far_from_a_link_whose_ends_both_wait_is_not_blamed(seed: int) -> None:
    """The rank before the broken link is blocked in sending and says that it waits for data as well."""
    size = 8
    network, tail = stall_ring(size, seed, True, True)
    links = network.transfers(history=1000)
    for sender in (tail - 1, tail):
        at = links.tail == sender % size
        links.sender_waits[at] = links.receiver_waits[at] = 1
    silent = (tail + 4) % size
    links.sent[links.tail == silent] = links.received[links.head == silent] = -1
    links.sender_waits[links.tail == silent] = links.receiver_waits[links.head == silent] = UNSEEN
    inside = network.inside.copy()
    inside[silent] = False
    place = by_waits(links, inside, network.inside)
    assert place is None or place.links == ((tail, (tail + 1) % size),)
