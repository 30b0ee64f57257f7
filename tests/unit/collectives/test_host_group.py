"""All-reduce over real sockets, and what it leaves in the probe pages."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.collectives.host import links
from paceline.collectives.host.errors import (
    HostCollectiveError,
    MismatchError,
    PeerLostError,
    RendezvousError,
    TimedOutError,
)
from paceline.collectives.host.group import HostGroup, HostOptions
from paceline.collectives.host.meter import ChannelState, Membership
from paceline.collectives.host.schedule import Cut, Topology, make_schedule
from paceline.contracts.codes import Algorithm, FrameFlag, OpState, Protocol, Source
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.collectives.conftest import MakeTeam, Rank

RING = Topology(Algorithm.RING, (0, 2, 1, 3))
TREES = Topology(Algorithm.TREE, (0, 2, 1, 3), trees=2)
QUICK = {"connect_timeout_s": 10.0, "operation_timeout_s": 20.0}
SMALL = HostOptions(Cut(64), window=4, **QUICK)
COUNT = 4 * 64 * 4  # four loops of a ring of four


def reduce_rounds(rounds: int, count: int = COUNT) -> Callable[[Rank], None]:
    def work(member: Rank) -> None:
        assert member.group is not None
        for number in range(rounds):
            array = np.full(count, member.rank + number, np.float32)
            member.group.all_reduce(array)
            np.testing.assert_array_equal(array, np.full(count, 6 + 4 * number, np.float32))

    return work


@pytest.mark.parametrize("topology", [RING, TREES], ids=["ring", "trees"])
@pytest.mark.parametrize("count", [1, 5, COUNT, 10_007])
def test_sum_is_right_for_every_size(make_team: MakeTeam, topology: Topology, count: int) -> None:
    make_team(topology, SMALL).run(reduce_rounds(3, count))


def test_ring_counts_are_exact(make_team: MakeTeam) -> None:
    team = make_team(RING, SMALL)
    team.run(reduce_rounds(5))
    slices = 5 * 4 * 2 * 3
    for member in team.ranks:
        frame, detail = member.frame(), member.detail()
        assert (frame["started"], frame["enqueued"], frame["completed"]) == (5, 5, 5)
        assert (frame["send_count"], frame["recv_count"]) == (slices, slices)
        assert (frame["send_posted"], frame["recv_posted"]) == (slices, slices)
        assert (frame["send_bytes"], frame["recv_bytes"]) == (slices * 256, slices * 256)
        assert (frame["channel"]["sends"][0], frame["channel"]["recvs"][0]) == (slices, slices)
        assert (frame["algorithm"], frame["protocol"]) == (Algorithm.RING, Protocol.SIMPLE)
        assert frame["sources"] == Source.KERNEL
        assert not frame["flags"] & FrameFlag.COUNTS_UNOBSERVABLE
        assert sorted((e["peer"], e["group"], e["direction"]) for e in detail.edges) == sorted(
            (edge.peer, 0, int(edge.direction)) for edge in RING.edges(member.rank)
        )
        assert detail.edges["count"].tolist() == [slices, slices]
        rounds, times = detail.newest()
        assert rounds["algorithm"].tolist() == [Algorithm.RING] * 5
        assert times["send_count"].tolist() == [n * slices // 5 for n in range(5)]


def test_tree_counts_are_those_of_its_schedule(make_team: MakeTeam) -> None:
    team = make_team(TREES, SMALL)
    team.run(reduce_rounds(2))
    for member in team.ranks:
        expected = {
            (edge.peer, edge.group, int(edge.direction)): 2 * count
            for edge, count in make_schedule(TREES, member.rank, COUNT, SMALL.cut).counts.items()
        }
        edges = member.detail().edges
        found = {(int(e["peer"]), int(e["group"]), int(e["direction"])): int(e["count"]) for e in edges}
        assert found == expected
        assert member.frame()["channels"] == 2


def test_counts_advance_while_the_operation_stands_still(make_team: MakeTeam) -> None:
    """Rank 1 never comes: its predecessor delivers a window, its successor gets nothing of it."""
    team = make_team(RING, SMALL)
    team.run(reduce_rounds(1))
    before = {member.rank: member.frame() for member in team.ranks}
    team.start(reduce_rounds(1), only={0, 2, 3})

    def sent(rank: int) -> int:
        return int(team.ranks[rank].frame()["send_count"] - before[rank]["send_count"])

    # order of the ring: 0, 2, 1, 3. Rank 3 has its own slice only, rank 0 that and rank 3's.
    until(lambda: (sent(3), sent(0), sent(2)) == (1, 2, 3))
    frame = team.ranks[2].frame()
    assert (frame["state"], frame["head_round"], frame["completed"]) == (OpState.STARTED, 2, 1)
    assert sent(1) == 0
    team.start(reduce_rounds(1), only={1})
    team.join()
    assert {int(member.frame()["completed"]) for member in team.ranks} == {2}


def test_standing_still_before_the_pipeline_is_full_shows_on_the_edge(
    make_team: MakeTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 3 gets no slice at all, which is what a link that was cut early looks like."""
    monkeypatch.setattr(links, "STILL_NS", 50_000_000)
    team = make_team(RING, SMALL)
    team.run(lambda member: None)
    team.start(reduce_rounds(1), only={0, 2, 3})

    def received_wait_ns() -> int:
        edges = team.ranks[3].detail().edges
        return int(edges["wait_ns"][edges["direction"] == 1].sum())

    until(lambda: received_wait_ns() > 100_000_000)
    frame = team.ranks[3].frame()
    assert int(frame["recv_wait_ns"].sum()) == 0
    assert frame["channel"][0]["recv_state"] == ChannelState.WAITING
    team.start(reduce_rounds(1), only={1})
    team.join()
    assert team.ranks[3].frame()["channel"][0]["recv_state"] == ChannelState.IDLE


@pytest.mark.parametrize("others", [{0, 1, 2, 3}, {0, 1, 2}], ids=["result is here", "result is not"])
def test_slices_that_are_not_acknowledged_at_the_end_are_a_wait_for_their_link(
    make_team: MakeTeam, monkeypatch: pytest.MonkeyPatch, others: set[int]
) -> None:
    """A link that is cut behind the last slice: its sender has nothing left to do for what goes up."""
    held = threading.Event()
    collect = links.SendLink.collect

    def withhold(link: links.SendLink) -> None:
        if held.is_set() or link.edge.peer != 0:
            collect(link)

    monkeypatch.setattr(links.SendLink, "collect", withhold)
    team = make_team(TREES, SMALL)
    team.run(lambda member: None)  # all connect
    work = reduce_rounds(1, 2 * 4 * 64)  # a window full in each tree
    team.start(work, only=others)

    def state() -> tuple[int, int]:
        rows = team.ranks[1].detail().edges
        row = rows[(rows["peer"] == 0) & (rows["direction"] == 0) & (rows["group"] == 1)]
        return int(row["wait_ns"].sum()), int(team.ranks[1].frame()["channel"][0]["send_state"])

    # Rank 1 is below 0 in the first tree; what it sends up never counts as delivered.
    until(lambda: state()[0] > 50_000_000)
    assert state()[1] == ChannelState.WAITING
    held.set()
    team.start(work, only={0, 1, 2, 3} - others)
    team.join()
    assert state()[1] == ChannelState.IDLE


def test_a_late_rank_waits_least(make_team: MakeTeam) -> None:
    team = make_team(RING, SMALL)
    team.run(lambda member: None)  # all connect
    release = threading.Event()

    def work(member: Rank) -> None:
        if member.rank == 2:
            release.wait(20.0)
        reduce_rounds(1)(member)

    team.start(work)
    until(lambda: all(member.frame()["open_ops"] for member in team.ranks if member.rank != 2))
    time.sleep(0.2)  # this is what the others wait, and what is measured
    release.set()
    team.join()
    durations = {}
    for member in team.ranks:
        rounds, times = member.detail().newest()
        durations[member.rank] = int(rounds["completed_ns"][0] - times["started_ns"][0])
    assert min(durations, key=durations.__getitem__) == 2
    assert min(value for rank, value in durations.items() if rank != 2) >= 150_000_000


def test_waits_count_once_the_pipeline_is_full(make_team: MakeTeam) -> None:
    """A rank that comes late is waited for before the pipeline fills: no link is to blame."""
    team = make_team(RING, SMALL)
    team.run(lambda member: None)

    def work(member: Rank) -> None:
        if member.rank == 0:
            until(lambda: team.ranks[2].frame()["open_ops"])
            time.sleep(0.3)
        reduce_rounds(1)(member)

    team.run(work)
    for member in team.ranks:
        assert int(member.frame()["recv_wait_ns"].sum()) < 150_000_000


def test_different_sizes_are_named(make_team: MakeTeam) -> None:
    team = make_team(RING, SMALL)

    def work(member: Rank) -> None:
        assert member.group is not None
        member.group.all_reduce(np.zeros(COUNT // 2 if member.rank == 1 else COUNT, np.float32))

    with pytest.raises((MismatchError, PeerLostError)):
        team.run(closing(work))
    named = [m.error for m in team.ranks if isinstance(m.error, MismatchError)]
    assert named
    assert "expected slice" in str(named[0])


def closing(work: Callable[[Rank], None]) -> Callable[[Rank], None]:
    """A rank that fails hangs up, as a process that ends does."""

    def run(member: Rank) -> None:
        try:
            work(member)
        finally:
            assert member.group is not None
            member.group.close()

    return run


def test_peer_that_hangs_up_is_named_and_the_round_has_failed(make_team: MakeTeam) -> None:
    team = make_team(RING, SMALL)
    team.run(reduce_rounds(1))
    leaver = team.ranks[1]
    team.start(closing(reduce_rounds(1)), only={0, 2, 3})
    assert leaver.group is not None
    leaver.group.close()
    with pytest.raises(PeerLostError):
        team.join()
    after = team.ranks[3]  # next in the ring: it waits for rank 1
    assert isinstance(after.error, PeerLostError)
    assert after.error.peer == 1
    rounds, _ = after.detail().newest()
    assert rounds["state"].tolist() == [OpState.COMPLETED, OpState.FAILED]
    assert after.group is not None
    with pytest.raises(HostCollectiveError, match="make a new group"):
        after.group.all_reduce(np.zeros(4, np.float32))


def test_operation_has_a_limit(make_team: MakeTeam) -> None:
    options = HostOptions(Cut(64), window=4, connect_timeout_s=10.0, operation_timeout_s=0.3)
    team = make_team(RING, options)
    team.run(lambda member: None)  # all connect
    team.start(reduce_rounds(1), only={0, 2, 3})
    with pytest.raises(TimedOutError, match="round 1"):
        team.join()


def test_rendezvous_names_who_did_not_come() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("127.0.0.1", 0)) as theirs:
        addresses = [mine.getsockname(), theirs.getsockname()]
        topology = Topology(Algorithm.RING, (0, 1))
        options = HostOptions(connect_timeout_s=0.3)
        with pytest.raises(RendezvousError, match="rank 1 did not come"):
            HostGroup.connect(mine, addresses, Membership(1, 0, 0, 0), topology, None, options)


def test_stranger_is_hung_up_on_and_the_members_still_meet(make_team: MakeTeam) -> None:
    team = make_team(Topology(Algorithm.RING, (0, 1)), SMALL)
    with socket.create_connection(team.ranks[0].listener.getsockname()) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: somebody else entirely\r\n\r\n")

        def work(member: Rank) -> None:
            assert member.group is not None
            array = np.ones(8, np.float32)
            member.group.all_reduce(array)
            assert array.tolist() == [2.0] * 8

        team.run(work)


@pytest.mark.parametrize(
    "array", [np.zeros(4, np.float64), np.zeros((4, 4), np.float32)[:, ::2]], ids=["dtype", "layout"]
)
def test_wrong_array_is_refused(make_team: MakeTeam, array: np.ndarray) -> None:
    team = make_team(Topology(Algorithm.RING, (0,)), SMALL)
    team.run(lambda member: None)
    group = team.ranks[0].group
    assert group is not None
    with pytest.raises(ValueError, match="expected writeable C-contiguous float32"):
        group.all_reduce(array)


def test_window_must_exceed_a_chunk() -> None:
    options = HostOptions(Cut(64, chunk_slices=4), window=4)
    topology = Topology(Algorithm.RING, (0,))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = [listener.getsockname()]
        with pytest.raises(ValueError, match="window 4"):
            HostGroup.connect(listener, address, Membership(1, 0, 0, 0), topology, None, options)


def test_runs_without_a_page() -> None:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [listener.getsockname() for listener in listeners]
    topology = Topology(Algorithm.RING, (0, 1))
    results: list[float] = []

    def work(rank: int) -> None:
        group = HostGroup.connect(listeners[rank], addresses, Membership(7, 0, rank, rank), topology)
        array = np.ones(3, np.float32)
        group.all_reduce(array)
        results.append(float(array.sum()))
        group.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    for listener in listeners:
        listener.close()
    assert results == [6.0, 6.0]
