"""Rounds that the GPU is through with, or has not come to, whatever the host has seen of them."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from paceline.agent.marks import apply_marks
from paceline.agent.pages import PageView, view_of
from paceline.contracts.codes import DType, Function, OpState, ReduceOp
from paceline.contracts.layout import MARK_ROUND_BITS
from paceline.probe._native import has_marks
from paceline.probe.reader import PageReader
from paceline.probe.writer import Page

TAG = 5 << MARK_ROUND_BITS


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page.create("job", "a1", 0, 4, 0, "test")
    yield page
    page.close()


def view_with(page: Page, entered: int, completed: int, returned: int | None = None) -> PageView:
    """One communicator; the host has seen `completed` of the `entered` rounds end."""
    slot = page.open_communicator(0xABC, 0, 0, 4, 0, 2)
    for number in range(1, entered + 1):
        ticket = page.enter(slot, Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 10, 40, number)
        if number <= (entered if returned is None else returned):
            page.returned(ticket)
        if number <= completed:
            page.complete(ticket)
    reader = PageReader(page.page_fd)
    try:
        return view_of(reader.read())
    finally:
        reader.close()


def marked(view: PageView, arrive: int, leave: int, tag: int = TAG) -> PageView:
    view.frames["gpu_tag"], view.frames["gpu_arrive"], view.frames["gpu_leave"] = (
        TAG,
        tag + arrive,
        tag + leave,
    )
    return replace(view, blocks=apply_marks(view.blocks))


def states(view: PageView) -> list[int]:
    ring = view.rounds[0][:128]
    return [int(state) for state in ring["state"][np.argsort(ring["round"])] if state]


def test_rounds_that_the_gpu_is_through_with_are_over(page: Page) -> None:
    view = marked(view_with(page, 6, 1), arrive=4, leave=3)
    frame = view.frames[0]
    assert (frame["completed"], frame["head_round"], frame["open_ops"]) == (3, 4, 3)
    entry = view.rounds[0][view.rounds[0]["round"] == 4][0]
    assert (frame["head_signature"], frame["head_entered_ns"]) == (entry["signature"], entry["entered_ns"])
    over, begun, waits = OpState.COMPLETED, OpState.STARTED, OpState.ENTERED
    assert states(view) == [over, over, over, begun, waits, waits]


def test_nothing_is_open_when_the_gpu_has_left_the_newest(page: Page) -> None:
    """The host stands in a synchronisation and makes no call that could notice."""
    frame = marked(view_with(page, 6, 1), arrive=6, leave=6).frames[0]
    assert (frame["completed"], frame["head_round"], frame["head_entered_ns"], frame["open_ops"]) == (
        6,
        0,
        0,
        0,
    )
    assert frame["state"] == OpState.COMPLETED


def test_call_that_has_not_returned_is_not_started_by_its_mark(page: Page) -> None:
    view = marked(view_with(page, 3, 2, returned=2), arrive=3, leave=2)
    assert states(view)[-1] == OpState.ENTERED


def test_round_that_the_stream_has_not_come_to_waits_in_the_queue(page: Page) -> None:
    view = marked(view_with(page, 3, 2), arrive=2, leave=2)
    assert states(view)[-1] == view.frames["state"][0] == OpState.ENTERED
    assert view.frames["head_round"][0] == 3


@pytest.mark.parametrize(
    ("arrive", "leave"), [(9, 2), (2, 3), ((1 << 48) - 1, 0)], ids=["beyond", "left first", "far beyond"]
)
def test_marks_that_contradict_the_rounds_change_nothing(page: Page, arrive: int, leave: int) -> None:
    before = view_with(page, 4, 1)
    frames, rounds = before.frames.copy(), before.rounds.copy()
    after = marked(before, arrive, leave)
    for name in ("completed", "head_round", "state", "open_ops"):
        assert after.frames[name].tolist() == frames[name].tolist()
    assert after.rounds["state"].tolist() == rounds["state"].tolist()


def test_marks_of_the_slot_s_former_user_do_not_count(page: Page) -> None:
    view = marked(view_with(page, 4, 1), arrive=4, leave=4, tag=4 << MARK_ROUND_BITS)
    assert (view.frames["completed"][0], view.frames["head_round"][0]) == (1, 2)
    assert states(view)[1:] == [OpState.ENTERED] * 3


def test_head_stays_where_its_successor_is_not_in_the_ring(page: Page) -> None:
    view = view_with(page, 6, 1)
    view.rounds["round"][view.rounds["round"] == 4] = 99
    frame = marked(view, arrive=4, leave=3).frames[0]
    assert (frame["completed"], frame["head_round"]) == (1, 2)


def test_frame_without_a_tag_is_left_alone(page: Page) -> None:
    view = view_with(page, 4, 1)
    assert not has_marks(view.blocks)
    assert apply_marks(view.blocks) == view.blocks
