"""Rounds, the ring, kept levels and the head of line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.contracts.codes import DetailLevel, DType, FrameFlag, Function, OpKind, OpState, ReduceOp
from paceline.contracts.layout import ROUNDS_NEWEST_MAX
from paceline.probe import _native
from paceline.probe.writer import OPEN_OPS_MAX

if TYPE_CHECKING:
    from tests.unit.probe.conftest import Probe

MASK = (1 << 64) - 1


def mix64(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def kept_rounds(level: int, rounds: int) -> list[int]:
    return [n for n in range(1, rounds + 1) if mix64(n) % (1 << level) == 0][-32:]


def test_mix64_is_the_published_function() -> None:
    assert [_native.mix64(n) for n in (0, 1, 12345, MASK)] == [mix64(n) for n in (0, 1, 12345, MASK)]


def test_entered_round_is_the_open_head(probe: Probe) -> None:
    slot = probe.open()
    probe.enter(slot, count=10)
    frame = probe.frame()
    assert (frame["comm"], frame["comm_rank"], frame["nranks"], frame["slot"]) == (0xABC, 1, 4, slot)
    assert (frame["round"], frame["started"], frame["completed"], frame["open_ops"]) == (1, 1, 0, 1)
    assert (frame["head_round"], frame["head_signature"]) == (1, frame["signature"])
    assert (frame["function"], frame["dtype"], frame["reduce_op"]) == (
        Function.ALL_REDUCE,
        DType.FLOAT32,
        ReduceOp.SUM,
    )
    assert (frame["count"], frame["bytes"], frame["state"]) == (10, 40, OpState.ENTERED)
    assert frame["flags"] & FrameFlag.COUNTS_UNOBSERVABLE
    rounds, _ = probe.detail().open()
    assert rounds["round"].tolist() == [1]
    assert rounds["entered_ns"][0] == frame["head_entered_ns"]


def test_returned_then_completed(probe: Probe) -> None:
    slot = probe.open()
    ticket = probe.enter(slot)
    probe.page.returned(ticket)
    frame = probe.frame()
    assert (frame["state"], frame["enqueued"]) == (OpState.STARTED, 1)
    assert frame["returned_ns"] >= frame["entered_ns"]
    probe.page.complete(ticket)
    frame = probe.frame()
    assert (frame["state"], frame["completed"], frame["open_ops"]) == (OpState.COMPLETED, 1, 0)
    assert (frame["head_round"], frame["head_signature"], frame["head_entered_ns"]) == (0, 0, 0)
    assert frame["progress_ns"] >= frame["returned_ns"]


def test_returned_after_completion_changes_nothing(probe: Probe) -> None:
    slot = probe.open()
    ticket = probe.enter(slot)
    probe.page.complete(ticket)
    probe.page.returned(ticket)
    frame = probe.frame()
    assert (frame["state"], frame["enqueued"], frame["completed"]) == (OpState.COMPLETED, 1, 1)
    assert probe.read().process["errors"] == 0


def test_head_is_exact_whatever_order_completes(probe: Probe) -> None:
    slot = probe.open()
    tickets = {n: probe.enter(slot) for n in range(1, 9)}
    open_rounds = set(tickets)
    for done in (3, 1, 2, 8, 5, 4, 7, 6):
        probe.page.complete(tickets[done])
        open_rounds.discard(done)
        assert probe.frame()["head_round"] == min(open_rounds, default=0)
        assert probe.detail().open()[0]["round"].tolist() == sorted(open_rounds)


def test_duration_starts_at_the_previous_completion(probe: Probe) -> None:
    slot = probe.open()
    first, second = probe.enter(slot), probe.enter(slot)
    probe.page.complete(first)
    probe.page.complete(second)
    rounds, times = probe.detail().newest()
    assert times["started_ns"][0] == rounds["entered_ns"][0]
    assert times["started_ns"][1] == rounds["completed_ns"][0]
    durations = rounds["completed_ns"] - times["started_ns"]
    assert times["total_ns"].tolist() == np.cumsum(durations).tolist()


def test_failed_round_is_over_and_no_progress(probe: Probe) -> None:
    slot = probe.open()
    probe.page.complete(probe.enter(slot), True)
    frame = probe.frame()
    assert (frame["completed"], frame["head_round"], frame["progress_ns"]) == (1, 0, 0)
    rounds, times = probe.detail().newest()
    assert rounds["state"].tolist() == [OpState.FAILED]
    assert times["total_ns"].tolist() == [0]


def test_ring_keeps_the_newest_128(probe: Probe) -> None:
    slot = probe.open()
    probe.run(slot, 300)
    rounds, _ = probe.detail().newest()
    assert rounds["round"].tolist() == list(range(173, 301))
    assert (rounds["kind"] == OpKind.COLLECTIVE).all()


@pytest.mark.parametrize("level", [0, 4, 8, 12])
def test_kept_levels_hold_the_last_rounds_of_their_rule(probe: Probe, level: int) -> None:
    slot = probe.open()
    probe.run(slot, 20_000)
    rounds, times = probe.detail().kept(level)
    assert rounds["round"].tolist() == kept_rounds(level, 20_000)
    assert (rounds["state"] == OpState.COMPLETED).all()
    assert (times["started_ns"] > 0).all()


def test_open_round_is_never_overwritten(probe: Probe) -> None:
    slot = probe.open()
    stuck = probe.enter(slot)
    probe.run(slot, 1000)
    rounds, _ = probe.detail().newest()
    assert rounds["round"].tolist() == [1, *range(875, 1002)]
    assert probe.frame()["head_round"] == 1
    probe.page.complete(stuck)
    assert probe.frame()["head_round"] == 0
    assert probe.frame()["dropped"] == 0
    assert probe.detail().kept(0)[0]["round"].tolist() == list(range(970, 1002))


def test_full_ring_counts_drops_and_keeps_counts_and_head_right(probe: Probe) -> None:
    slot = probe.open()
    tickets = [probe.enter(slot) for _ in range(ROUNDS_NEWEST_MAX + 10)]
    frame = probe.frame()
    assert (frame["dropped"], frame["open_ops"], frame["round"]) == (10, 138, 138)
    assert frame["flags"] & FrameFlag.DROPPED
    assert probe.read().process["operations_dropped"] == 10
    assert probe.detail().open()[0]["round"].tolist() == list(range(1, 129))
    for ticket in tickets[:ROUNDS_NEWEST_MAX]:
        probe.page.complete(ticket)
    assert probe.frame()["head_round"] == 129
    for ticket in tickets[ROUNDS_NEWEST_MAX:]:
        probe.page.complete(ticket)
    frame = probe.frame()
    assert (frame["completed"], frame["open_ops"], frame["head_round"]) == (138, 0, 0)
    assert probe.detail().kept(0)[0]["round"].tolist() == list(range(107, 139))


def test_more_operations_in_flight_than_are_tracked_still_count(probe: Probe) -> None:
    slot = probe.open()
    tickets = [probe.enter(slot) for _ in range(OPEN_OPS_MAX + 5)]
    assert len(set(tickets)) == OPEN_OPS_MAX + 1  # the last five share the ticket that only counts
    assert min(tickets) >= 0
    for ticket in tickets:
        probe.page.complete(ticket)
    frame = probe.frame()
    assert (frame["started"], frame["completed"], frame["open_ops"]) == (517, 517, 0)
    assert probe.read().process["errors"] == 0
    probe.page.complete(tickets[-1])
    assert probe.read().process["errors"] == 1
    assert probe.frame()["completed"] == 517


@pytest.mark.parametrize("times", [1, 2, 100])
def test_stale_ticket_changes_nothing_and_is_counted(probe: Probe, times: int) -> None:
    slot = probe.open()
    ticket = probe.enter(slot)
    probe.page.complete(ticket)
    probe.enter(slot)  # takes the same place in the table
    for _ in range(times):
        probe.page.complete(ticket)
        probe.page.returned(ticket)
    frame = probe.frame()
    assert (frame["completed"], frame["open_ops"], frame["head_round"]) == (1, 1, 2)
    assert probe.read().process["errors"] == times


@pytest.mark.parametrize("ticket", [0, 63, 1 << 20, (1 << 62) - 1, (1 << 63) - 1, -1, -(1 << 63), 1 << 80])
def test_made_up_ticket_does_no_harm(probe: Probe, ticket: int) -> None:
    slot = probe.open()
    probe.page.complete(ticket)
    probe.page.returned(ticket)
    assert (probe.frame()["completed"], probe.frame()["open_ops"]) == (0, 0)
    probe.run(slot, 1)
    assert probe.frame()["completed"] == 1


@pytest.mark.parametrize(
    "arguments",
    [(), (1,), ("a",) * 8, (None,) * 8, (0, 1, 8, 1, -1, 1.5, 4, 1), (64, 1, 8, 1, -1, 1, 4, 1), (-1,) * 8],
)
def test_wrong_arguments_never_raise_and_are_counted(probe: Probe, arguments: tuple[object, ...]) -> None:
    probe.open()
    assert probe.page.enter(*arguments) == -1  # type: ignore[arg-type]
    assert probe.read().process["errors"] == 1
    assert probe.frame()["started"] == 0


def test_huge_count_is_kept_as_64_bits(probe: Probe) -> None:
    slot = probe.open()
    big = (1 << 64) - 1
    probe.page.enter(slot, Function.BROADCAST, DType.UINT8, 0, 3, big, big, big)
    frame = probe.frame()
    assert (int(frame["count"]), int(frame["bytes"]), frame["peer"]) == (big, big, 3)


def test_signature_is_what_all_members_must_agree_on() -> None:
    sign = _native.signature
    base = sign(Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 100)
    others = [
        sign(Function.REDUCE_SCATTER, DType.FLOAT32, ReduceOp.SUM, -1, 100),
        sign(Function.ALL_REDUCE, DType.FLOAT64, ReduceOp.SUM, -1, 100),
        sign(Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.MAX, -1, 100),
        sign(Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, 0, 100),
        sign(Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 101),
    ]
    assert len({base, *others}) == 6
    assert base == sign(Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 100)
    sender, receiver = (sign(f, DType.FLOAT32, 0, p, 7) for f, p in ((Function.SEND, 3), (Function.RECV, 1)))
    assert sender == receiver == sign(Function.RECV_ANY, DType.FLOAT32, 0, -2, 7)


def test_detail_off_records_no_rounds_and_still_counts(probe: Probe) -> None:
    slot = probe.open()
    assert probe.reader.control is not None
    probe.reader.control.write(DetailLevel.OFF)
    probe.run(slot, 50)
    probe.enter(slot)
    assert len(probe.detail().newest()[0]) == 0
    frame = probe.frame()
    assert (frame["completed"], frame["head_round"], frame["dropped"]) == (50, 51, 0)
    probe.reader.control.write(DetailLevel.ROUNDS)
    probe.run(slot, 2)
    assert probe.detail().newest()[0]["round"].tolist() == [52, 53]


def test_issue_orders_operations_of_all_communicators(probe: Probe) -> None:
    first, second = probe.open(1), probe.open(2)
    for slot in (first, second, first, second, second):
        probe.enter(slot)
    snapshot = probe.read()
    issues = [detail.open()[0]["issue"].tolist() for detail in snapshot.details]
    assert issues == [[1, 3], [2, 4, 5]]
    assert snapshot.process["issued"] == 5


def test_step_is_recorded_with_the_round(probe: Probe) -> None:
    slot = probe.open()
    probe.page.set_step(7)
    probe.run(slot, 1)
    probe.page.set_step((1 << 32) + 8)
    probe.run(slot, 1)
    assert probe.detail().newest()[1]["step"].tolist() == [7, 8]


def test_page_does_not_grow_in_a_million_rounds(probe: Probe) -> None:
    slot = probe.open()
    before = os.fstat(probe.page.page_fd)
    resident = _resident_kib()
    enter, complete = probe.page.enter, probe.page.complete
    for _ in range(1_000_000):
        complete(enter(slot, 1, 8, 1, -1, 10, 40, 10))
    after = os.fstat(probe.page.page_fd)
    assert (after.st_size, after.st_blocks) == (before.st_size, before.st_blocks)
    assert _resident_kib() - resident < 4096
    assert probe.frame()["completed"] == 1_000_000
    for level in (0, 4, 8, 12):
        assert probe.detail().kept(level)[0]["round"].tolist() == kept_rounds(level, 1_000_000)


def _resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
