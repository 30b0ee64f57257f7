"""Both trees of an all-reduce carry what their neighbours allow; every stall is located from their rows."""

import numpy as np
import pytest

from paceline.analysis.locate import by_waits
from paceline.analysis.transfers import UNSEEN, Transfers
from paceline.contracts.batch import RowKind, Rows
from paceline.contracts.codes import TransferState
from paceline.fleet import CommKind, Fault, FaultKind, FleetJob, Profile, Topology, trees
from paceline.fleet.trees import Flow

SIZES = (2, 3, 4, 7, 12, 128)
_SENDS = (TransferState.SEND_WAIT, TransferState.SEND_PEER_WAIT)


def links_of(flows: list[tuple[Flow, Flow]], size: int) -> Transfers:
    """All links of both trees as their ends would report them."""
    parts = []
    for tree, (up, down) in enumerate(flows):
        parents = trees.parents_of(size, tree)
        child = np.flatnonzero(parents >= 0)
        for flow, tail, head in ((up, child, parents[child]), (down, parents[child], child)):
            sends = np.isin(flow.sends[0, child], _SENDS).astype(np.int64)
            receives = (flow.receives[0, child] == TransferState.RECV_WAIT).astype(np.int64)
            if not sends.any() and not receives.any():
                sends[:] = receives[:] = UNSEEN  # nobody waits for anything here: the tree is done
            parts.append(Transfers(tail, head, flow.sent[0, child], flow.taken[0, child], sends, receives))
    return Transfers.join(parts)


def all_inside(size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.ones(size, np.bool_)


@pytest.mark.parametrize("size", SIZES)
def test_who_has_children_in_one_tree_is_a_leaf_of_the_other(size: int) -> None:
    first, second = (np.bincount(trees.parents_of(size, tree) + 1, minlength=size + 1)[1:] for tree in (0, 1))
    both = (first > 0) & (second > 0)
    assert int(both.sum()) <= size % 2  # the middle of an odd number
    assert int(trees.links_of(size).sum()) == 4 * (size - 1)


@pytest.mark.parametrize("done", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("size", SIZES)
def test_the_member_that_does_not_move_is_located(size: int, done: float) -> None:
    for place in range(size) if size < 20 else (0, 1, 5, 63, 64, 127):
        links = links_of([trees.stuck(size, place, done, tree) for tree in (0, 1)], size)
        assert (links.in_flight >= 0).all()
        assert links.sent.max() < trees.SLICES
        found = by_waits(links, all_inside(size), all_inside(size))
        assert found is not None
        assert (found.how, found.ranks) == ("waits_for_nobody", (place,))


@pytest.mark.parametrize("size", SIZES)
def test_the_cut_link_is_located_in_both_directions(size: int) -> None:
    for sender in range(size) if size < 20 else (0, 1, 5, 63, 64, 127):
        for receiver in trees.neighbours(size, sender):
            links = links_of([trees.cut(size, sender, receiver, 0.5, tree) for tree in (0, 1)], size)
            found = by_waits(links, all_inside(size), all_inside(size))
            assert found is not None
            assert found.links == ((sender, receiver),)


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_group_that_does_not_begin_names_nobody_of_it(size: int) -> None:
    flows = [trees.nobody_moves(size) for _ in range(2)]
    assert by_waits(links_of(flows, size), all_inside(size), all_inside(size)) is None


@pytest.mark.parametrize("size", SIZES)
def test_a_missing_member_holds_all_others(size: int) -> None:
    for place in range(min(size, 12)):
        idle = np.zeros((1, size), np.bool_)
        idle[0, place] = True
        links = links_of([trees.missing(idle, tree) for tree in (0, 1)], size)
        waits = set(links.tail[links.sender_waits == 1]) | set(links.head[links.receiver_waits == 1])
        assert waits == set(range(size)) - {place}


def edges_of(job: FleetJob, seconds: int, comm: int) -> Rows:
    tables: dict[RowKind, Rows] = {}
    for second in range(seconds):
        tables = job.tables(second)
    edges = tables[RowKind.EDGE]
    found: Rows = edges[edges["comm"] == comm]
    return found


def test_rows_keep_the_ring_and_the_trees_of_one_communicator_apart() -> None:
    topology = Topology(tp=8, pp=1, dp=2, ranks_per_node=1, tree=(CommKind.TP,))
    fault = Fault(FaultKind.STUCK, rank=1, group=CommKind.TP, at_s=3.0)
    job = FleetJob(topology, Profile.named("kernels"), faults=[fault], seed=9)
    rows = edges_of(job, 12, int(topology.groups[CommKind.TP].ids[0]))
    ring, tree = rows[rows["group"] == 0], rows[rows["group"] > 0]
    assert len(ring) == 16  # the broadcast of the batch
    assert (ring["state"] == TransferState.IDLE).all()
    assert len(tree) == 4 * 7 * 2
    whole = int(tree["count"].max()) // trees.SLICES * trees.SLICES
    assert int(tree["count"].min()) >= whole  # all links have carried the same rounds


def test_plugin_counts_show_the_links_between_nodes_only() -> None:
    topology = Topology(tp=4, pp=1, dp=4, ranks_per_node=4, tree=(CommKind.WORLD,))
    fault = Fault(FaultKind.STUCK, rank=9, group=CommKind.WORLD, at_s=3.0)
    job = FleetJob(topology, Profile.named("nccl2"), faults=[fault], seed=9)
    rows = edges_of(job, 12, int(topology.groups[CommKind.WORLD].ids[0]))
    trees_seen = rows[rows["group"] > 0]
    assert len(trees_seen)
    assert (trees_seen["rank"] // 4 != trees_seen["peer"] // 4).all()
