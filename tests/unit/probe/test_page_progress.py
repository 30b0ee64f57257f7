"""Counts, waits, edges and channels inside an operation, as a reader sees them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from paceline.contracts.codes import Algorithm, FrameFlag, Protocol, Source
from paceline.contracts.layout import EDGES_MAX
from paceline.probe.writer import Page

if TYPE_CHECKING:
    from tests.unit.probe.conftest import Probe

SEND, RECEIVE = 0, 1


def open_counting(probe: Probe, rank: int = 1, nranks: int = 4) -> int:
    return probe.page.open_communicator(0xABC, 0, rank, nranks, rank, Source.KERNEL)


def advance(
    page: Page,
    slot: int,
    direction: int,
    peer: int,
    *,
    group: int = 0,
    channel: int = 0,
    peer_slot: int = 0,
    posted: int = 0,
    count: int = 0,
    wait_ns: int = 0,
    early_wait_ns: int = 0,
    state: int = 1,
) -> None:
    page.progress(
        slot,
        direction,
        peer,
        group,
        channel,
        peer_slot,
        posted,
        count,
        100 * count,
        wait_ns,
        early_wait_ns,
        state,
    )


def test_counts_of_both_directions(probe: Probe) -> None:
    slot = open_counting(probe)
    before_ns = int(probe.frame()["progress_ns"])
    advance(probe.page, slot, SEND, 2, posted=3, count=2, wait_ns=50)
    advance(probe.page, slot, SEND, 2, count=1)
    advance(probe.page, slot, RECEIVE, 0, posted=5, count=4, wait_ns=70)
    frame = probe.frame()
    assert not frame["flags"] & FrameFlag.COUNTS_UNOBSERVABLE
    assert (frame["send_posted"], frame["send_count"], frame["send_bytes"]) == (3, 3, 300)
    assert (frame["recv_posted"], frame["recv_count"], frame["recv_bytes"]) == (5, 4, 400)
    assert frame["send_wait_ns"].tolist() == [50, 0, 0, 0]
    assert frame["recv_wait_ns"].tolist() == [70, 0, 0, 0]
    assert before_ns == 0 < frame["progress_ns"]


def test_posting_and_waiting_are_no_progress(probe: Probe) -> None:
    slot = open_counting(probe)
    advance(probe.page, slot, SEND, 2, posted=4, wait_ns=1_000_000, state=2)
    assert probe.frame()["progress_ns"] == 0


def test_edges_are_told_apart_by_peer_group_and_direction(probe: Probe) -> None:
    slot = open_counting(probe)
    for _ in range(2):
        advance(probe.page, slot, SEND, 2, group=1, peer_slot=0, count=1, wait_ns=5)
        advance(probe.page, slot, RECEIVE, 2, group=1, peer_slot=0, count=2)
        advance(probe.page, slot, SEND, 2, group=2, peer_slot=1, count=3)
        advance(probe.page, slot, SEND, 3, group=1, peer_slot=2, count=4)
    rows = [tuple(int(value) for value in row) for row in probe.detail().edges.tolist()]
    assert rows == [
        (2, 1, 0, 2, 200, 10),
        (2, 1, 1, 4, 400, 0),
        (2, 2, 0, 6, 600, 0),
        (3, 1, 0, 8, 800, 0),
    ]
    assert probe.frame()["send_wait_ns"].tolist() == [10, 0, 0, 0]


def test_early_waits_count_on_the_edge_alone(probe: Probe) -> None:
    slot = open_counting(probe)
    ticket = probe.enter(slot)
    advance(probe.page, slot, RECEIVE, 2, wait_ns=5, early_wait_ns=70)
    probe.page.complete(ticket)
    assert probe.frame()["recv_wait_ns"].tolist() == [5, 0, 0, 0]
    assert probe.detail().edges["wait_ns"].tolist() == [75]
    assert probe.detail().newest()[1]["recv_wait_ns"].tolist() == [5]


def test_channels_count_apart_and_show_their_state(probe: Probe) -> None:
    slot = open_counting(probe)
    advance(probe.page, slot, SEND, 2, channel=0, count=1)
    advance(probe.page, slot, SEND, 2, channel=63, count=2, state=2)
    advance(probe.page, slot, RECEIVE, 2, channel=63, count=3, state=1)
    channels = probe.frame()["channel"]
    assert (channels[0]["sends"], channels[0]["recvs"], channels[0]["send_state"]) == (1, 0, 1)
    assert (channels[63]["sends"], channels[63]["recvs"]) == (2, 3)
    assert (channels[63]["send_state"], channels[63]["recv_state"]) == (2, 1)


def test_edge_beyond_the_table_counts_in_the_frame_and_as_an_error(probe: Probe) -> None:
    slot = open_counting(probe, nranks=64)
    for peer in range(EDGES_MAX + 1):
        advance(probe.page, slot, SEND, peer, count=1)
    assert len(probe.detail().edges) == EDGES_MAX
    assert probe.frame()["send_count"] == EDGES_MAX + 1
    assert probe.read().process["errors"] == 1


def test_edges_of_a_closed_communicator_are_gone_from_the_next_one(probe: Probe) -> None:
    for _ in range(70):  # more than there are slots, so that one is used again
        slot = open_counting(probe)
        advance(probe.page, slot, SEND, 2, count=1)
        assert probe.frame(slot)["send_count"] == 1
        assert len(probe.detail(slot).edges) == 1
        probe.page.close_communicator(slot)


def test_round_has_its_own_share_of_counts_and_waits(probe: Probe) -> None:
    slot = open_counting(probe)
    for number in (1, 2):
        ticket = probe.enter(slot)
        advance(probe.page, slot, SEND, 2, count=3, wait_ns=10 * number)
        advance(probe.page, slot, RECEIVE, 0, count=2, wait_ns=100 * number)
        advance(probe.page, slot, RECEIVE, 3, peer_slot=2, wait_ns=1)
        probe.page.complete(ticket)
    _, times = probe.detail().newest()
    assert times["send_count"].tolist() == [0, 3]
    assert times["recv_count"].tolist() == [0, 2]
    assert times["send_wait_ns"].tolist() == [10, 20]
    assert times["recv_wait_ns"].tolist() == [101, 201]


def test_round_that_waited_behind_another_starts_counting_with_it_out_of_the_way(probe: Probe) -> None:
    slot = open_counting(probe)
    first = probe.enter(slot)
    second = probe.enter(slot)
    advance(probe.page, slot, SEND, 2, count=5, wait_ns=50)
    probe.page.complete(first)
    advance(probe.page, slot, SEND, 2, count=1, wait_ns=7)
    probe.page.complete(second)
    _, times = probe.detail().newest()
    assert times["send_count"].tolist() == [0, 5]
    assert times["send_wait_ns"].tolist() == [50, 7]


def test_describe_reaches_frame_ring_and_kept_rounds(probe: Probe) -> None:
    slot = open_counting(probe)
    ticket = probe.enter(slot)
    probe.page.describe(ticket, Algorithm.TREE, Protocol.SIMPLE, 2)
    frame = probe.frame()
    assert (frame["algorithm"], frame["protocol"], frame["channels"]) == (Algorithm.TREE, Protocol.SIMPLE, 2)
    probe.page.complete(ticket)
    for rounds, _ in (probe.detail().newest(), probe.detail().kept(0)):
        assert (rounds["algorithm"][0], rounds["protocol"][0]) == (Algorithm.TREE, Protocol.SIMPLE)


def test_description_of_an_operation_that_is_over_changes_nothing(probe: Probe) -> None:
    slot = open_counting(probe)
    ticket = probe.enter(slot)
    probe.page.complete(ticket)
    probe.page.describe(ticket, Algorithm.TREE, Protocol.SIMPLE, 2)
    assert probe.frame()["algorithm"] == Algorithm.UNKNOWN


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 2, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0),  # direction
        (0, 0, -1, 0, 0, 0, 1, 1, 1, 1, 0, 0),  # peer
        (0, 0, 1, 3, 0, 0, 1, 1, 1, 1, 0, 0),  # group
        (0, 0, 1, 0, 64, 0, 1, 1, 1, 1, 0, 0),  # channel
        (0, 0, 1, 0, 0, 4, 1, 1, 1, 1, 0, 0),  # peer slot
        (0, 0, 1, 0, 0, 0, 1 << 32, 1, 1, 1, 0, 0),  # posted
        (64, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0),  # slot
        (5, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0),  # slot never opened
        (0, 0, 1),
        ("a",) * 12,
    ],
)
def test_wrong_arguments_are_counted_and_change_nothing(probe: Probe, arguments: tuple[object, ...]) -> None:
    open_counting(probe)
    probe.page.progress(*arguments)  # type: ignore[arg-type]
    snapshot = probe.read()
    assert snapshot.process["errors"] == 1
    assert (snapshot.frames[0]["send_count"], snapshot.frames[0]["send_posted"]) == (0, 0)


def test_closed_communicator_counts_nothing_more(probe: Probe) -> None:
    slot = open_counting(probe)
    probe.page.close_communicator(slot)
    advance(probe.page, slot, SEND, 2, count=1)
    assert probe.frame()["send_count"] == 0
    assert probe.read().process["errors"] == 1


def test_reader_never_sees_half_of_an_advance(probe: Probe) -> None:
    """Frame, channel and edge are one write: their counts agree in every reading that is not torn."""
    slot = open_counting(probe)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            advance(probe.page, slot, SEND, 2, posted=1, count=1)
            stop.wait(0.0001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = set()
        for _ in range(200):
            snapshot = probe.read()
            frame, detail = snapshot.frames[0], snapshot.details[0]
            if frame["flags"] & FrameFlag.PARTIAL or detail.partial or not len(detail.edges):
                continue
            count = int(frame["send_count"])
            assert (frame["send_posted"], frame["channel"][0]["sends"]) == (count, count)
            assert detail.edges["count"].tolist() == [count]
            seen.add(count)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1
