"""Point-to-point: pair sequences, heads per peer and direction, bounded rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.contracts.codes import Function, OpKind, OpState
from paceline.contracts.layout import PEERS_MAX

if TYPE_CHECKING:
    from tests.unit.probe.conftest import Probe


def row(probe: Probe, peer: int) -> np.void:
    peers = probe.detail().peers
    found = peers[peers["peer"] == peer]
    assert len(found) == 1
    row: np.void = found[0]
    return row


def test_pairs_are_numbered_per_peer_and_direction(probe: Probe) -> None:
    slot = probe.open()
    for function, peer in (
        (Function.SEND, 2),
        (Function.SEND, 2),
        (Function.RECV, 2),
        (Function.SEND, 3),
        (Function.SEND, 2),
    ):
        probe.enter(slot, function, peer)
    rounds, _ = probe.detail().open()
    assert rounds["pair_seq"].tolist() == [1, 2, 1, 1, 3]
    assert rounds["round"].tolist() == [0] * 5
    assert (rounds["kind"] == OpKind.POINT_TO_POINT).all()
    assert row(probe, 2)["posted"].tolist() == [3, 1]
    assert row(probe, 3)["posted"].tolist() == [1, 0]


def test_point_to_point_never_advances_the_round(probe: Probe) -> None:
    slot = probe.open()
    probe.run(slot, 3)
    probe.enter(slot, Function.SEND, 2)
    probe.enter(slot, Function.RECV, 2)
    frame = probe.frame()
    assert (frame["round"], frame["started"], frame["head_round"]) == (3, 3, 0)
    assert (frame["p2p_started"], frame["send_posted"], frame["recv_posted"], frame["open_ops"]) == (
        2,
        1,
        1,
        2,
    )
    assert (frame["kind"], frame["function"], frame["peer"]) == (OpKind.POINT_TO_POINT, Function.RECV, 2)


def test_pair_head_is_the_oldest_open_message(probe: Probe) -> None:
    slot = probe.open()
    sends = [probe.enter(slot, Function.SEND, 2, count=n) for n in (10, 20, 30)]
    rounds, _ = probe.detail().open()
    peer = row(probe, 2)
    assert (peer["head_seq"][0], peer["head_issue"][0]) == (1, 1)
    assert peer["head_signature"][0] == rounds["signature"][0]
    probe.page.complete(sends[1])
    assert row(probe, 2)["head_seq"][0] == 1
    probe.page.complete(sends[0])
    peer = row(probe, 2)
    assert (peer["head_seq"][0], peer["head_issue"][0]) == (3, 3)
    assert peer["head_signature"][0] == rounds["signature"][2]
    assert peer["head_entered_ns"][0] == rounds["entered_ns"][2]
    probe.page.complete(sends[2])
    peer = row(probe, 2)
    assert [peer[name][0] for name in ("head_seq", "head_entered_ns", "head_signature", "head_issue")] == [
        0
    ] * 4
    assert peer["completed"].tolist() == [3, 0]
    assert peer["progress_ns"] == probe.frame()["progress_ns"]


def test_total_of_a_pair_is_the_sum_of_its_durations(probe: Probe) -> None:
    slot = probe.open()
    for _ in range(5):
        ticket = probe.enter(slot, Function.RECV, 0)
        probe.run(slot, 1)
        probe.page.complete(ticket)
    rounds, times = probe.detail().newest()
    pairs = rounds["kind"] == OpKind.POINT_TO_POINT
    durations = rounds["completed_ns"][pairs] - times["started_ns"][pairs]
    assert times["total_ns"][pairs].tolist() == np.cumsum(durations).tolist()
    assert row(probe, 0)["total_ns"].tolist() == [0, durations.sum()]


def test_any_source_has_a_row_of_its_own(probe: Probe) -> None:
    slot = probe.open()
    ticket = probe.enter(slot, Function.RECV_ANY, -2)
    assert row(probe, -2)["posted"].tolist() == [0, 1]
    probe.page.complete(ticket)
    assert row(probe, -2)["completed"].tolist() == [0, 1]


def test_peers_beyond_the_table_are_counted_without_a_row(probe: Probe) -> None:
    slot = probe.open(nranks=200)
    tickets = [probe.enter(slot, Function.SEND, peer) for peer in range(PEERS_MAX + 6)]
    assert len(probe.detail().peers) == PEERS_MAX
    assert sorted(probe.detail().peers["peer"].tolist()) == list(range(PEERS_MAX))
    assert probe.frame()["dropped"] == 6
    assert probe.read().process["operations_dropped"] == 6
    for ticket in tickets:
        probe.page.complete(ticket)
    frame = probe.frame()
    assert (frame["open_ops"], frame["send_posted"]) == (0, 70)
    assert probe.detail().peers["completed"][:, 0].tolist() == [1] * PEERS_MAX


def test_messages_do_not_push_out_kept_rounds(probe: Probe) -> None:
    slot = probe.open()
    probe.run(slot, 40)
    for _ in range(500):
        probe.page.complete(probe.enter(slot, Function.SEND, 2))
    assert probe.detail().kept(0)[0]["round"].tolist() == list(range(9, 41))
    rounds, _ = probe.detail().newest()
    assert (rounds["state"] == OpState.COMPLETED).all()
    assert rounds["pair_seq"].tolist() == list(range(373, 501))


def test_failed_message_is_over_and_no_progress(probe: Probe) -> None:
    slot = probe.open()
    probe.page.complete(probe.enter(slot, Function.SEND, 2), True)
    peer = row(probe, 2)
    assert (peer["completed"][0], peer["head_seq"][0], peer["progress_ns"], peer["total_ns"][0]) == (
        1,
        0,
        0,
        0,
    )
