import gc
import sys
from typing import Any

import pytest

from paceline.contracts.codes import DType, Function, OpState, ReduceOp, Source
from paceline.probe.reader import PageReader
from paceline.probe.writer import Page


class Future:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def value(self) -> list[int]:
        if self.error is not None:
            raise self.error
        return [1]


@pytest.fixture
def page() -> Page:
    return Page.create("job", "attempt", 0, 1, 0, "test")


def begin(page: Page) -> int:
    slot = page.open_communicator(7, 1, 0, 1, 0, int(Source.TORCH_HOOK))
    return page.enter(slot, Function.ALL_REDUCE, DType.FLOAT32, ReduceOp.SUM, -1, 4, 16, 4)


def read(page: Page) -> Any:
    return PageReader(page.page_fd, page.control_fd).read()


def test_the_end_that_torch_reports_completes_the_operation(page: Page) -> None:
    followed: dict[int, bool] = {}
    ticket = begin(page)
    settle = page.settler(ticket, followed)
    assert followed == {ticket: True}
    assert int(read(page).frames[0]["completed"]) == 0
    settle(Future())
    assert followed == {}
    frame = read(page).frames[0]
    assert (int(frame["completed"]), int(frame["open_ops"])) == (1, 0)
    assert int(frame["state"]) == OpState.COMPLETED


def test_an_operation_that_raised_is_told_as_failed(page: Page) -> None:
    settle = page.settler(begin(page), {})
    settle(Future(RuntimeError("Connection closed by peer")))
    assert int(read(page).frames[0]["state"]) == OpState.FAILED


@pytest.mark.parametrize("arguments", [(), (1, 2)])
def test_a_call_with_other_arguments_is_counted_and_raises_nothing(page: Page, arguments: Any) -> None:
    settle: Any = page.settler(begin(page), {})
    settle(*arguments)
    assert int(read(page).process["errors"]) == 1


def test_an_object_that_is_no_future_counts_as_failed(page: Page) -> None:
    settle = page.settler(begin(page), {})
    settle(object())
    assert int(read(page).frames[0]["state"]) == OpState.FAILED


def test_a_second_report_changes_nothing_and_counts_as_an_error(page: Page) -> None:
    followed: dict[int, bool] = {}
    settle = page.settler(begin(page), followed)
    settle(Future())
    settle(Future())
    snapshot = read(page)
    assert (int(snapshot.frames[0]["completed"]), int(snapshot.process["errors"])) == (1, 1)


def test_it_keeps_the_page_and_leaks_nothing(page: Page) -> None:
    followed: dict[int, bool] = {}
    ticket = begin(page)
    page_references, dict_references = sys.getrefcount(page), sys.getrefcount(followed)
    settle = page.settler(ticket, followed)
    assert sys.getrefcount(page) == page_references + 1
    del settle
    gc.collect()
    assert (sys.getrefcount(page), sys.getrefcount(followed)) == (page_references, dict_references)


@pytest.mark.parametrize("arguments", [("ticket", {}), (1, []), (1,)])
def test_wrong_arguments_are_refused_before_torch_could_call(page: Page, arguments: Any) -> None:
    with pytest.raises(TypeError, match="a ticket and a dict"):
        page.settler(*arguments)
