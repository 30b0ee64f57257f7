import logging
from collections.abc import Callable
from typing import Any

import pytest

from paceline.contracts.codes import FrameFlag
from paceline.trainer.guard import Guard
from paceline.trainer.watch import FOLLOWED_MAX, UNSEEN, Followed, Watch

DESCRIPTION = (1, 8, 1, -1, 4, 16, 4)


class Future:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def value(self) -> None:
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        for callback in self.callbacks:
            callback(self)


class Work:
    def __init__(self, future: Future | None) -> None:
        self.future = future

    def get_future(self) -> Future:
        if self.future is None:
            raise RuntimeError("Work::getFuture not implemented.")
        return self.future


class Rig:
    def __init__(self, page: Any, **options: Any) -> None:
        self.page = page
        self.guard = Guard()
        self.followed = Followed()
        self.wrapped: list[Callable[[bool], None]] = []
        self.watch = Watch(self.page, 5, self.guard, self.followed, self._wrap, **options)

    def _wrap(self, work: Any, finish: Callable[[bool], None], followed: Followed) -> Any:
        self.wrapped.append(finish)
        return ("wrapped", work)

    def enter(self) -> int:
        return self.watch.enter(lambda arguments, keywords: DESCRIPTION, (), {})


def test_a_collective_completes_when_its_future_does(page: Any) -> None:
    rig, future = Rig(page), Future()
    ticket = rig.enter()
    work = Work(future)
    assert rig.watch.issued(ticket, False, work) is work
    assert rig.page.calls == [("enter", 5, *DESCRIPTION), ("returned", ticket)]
    assert len(rig.followed) == 1
    future.finish()
    assert rig.page.calls[-1] == ("complete", ticket, False)
    assert len(rig.followed) == 0


def test_a_failed_future_fails_the_operation(page: Any) -> None:
    rig, future = Rig(page), Future(RuntimeError("Connection closed by peer"))
    ticket = rig.enter()
    rig.watch.issued(ticket, False, Work(future))
    future.finish()
    assert rig.page.calls[-1] == ("complete", ticket, True)


def test_a_call_that_raised_failed(page: Any) -> None:
    rig = Rig(page)
    rig.watch.fail(rig.enter())
    assert rig.page.calls[-1][0] == "complete"
    assert rig.page.calls[-1][2] is True


def test_point_to_point_gets_its_own_work(page: Any) -> None:
    rig = Rig(page)
    ticket = rig.enter()
    work = Work(None)
    assert rig.watch.issued(ticket, True, work) == ("wrapped", work)
    rig.wrapped[0](False)
    assert rig.page.calls[-1] == ("complete", ticket, False)


def test_a_work_without_a_future_is_wrapped(page: Any) -> None:
    rig = Rig(page)
    work = Work(None)
    assert rig.watch.issued(rig.enter(), False, work) == ("wrapped", work)
    assert len(rig.followed) == 0


def test_no_work_means_done(page: Any) -> None:
    rig = Rig(page)
    ticket = rig.enter()
    assert rig.watch.issued(ticket, False, None) is None
    assert rig.page.calls[-1] == ("complete", ticket, False)


def test_where_the_work_cannot_be_replaced_the_end_is_flagged_unobservable_once(page: Any) -> None:
    rig = Rig(page)
    for _ in range(2):
        rig.watch.issued_elsewhere(rig.enter(), Work(None))
    flags = [call for call in rig.page.calls if call[0] == "add_flags"]
    assert flags == [("add_flags", 5, int(FrameFlag.COMPLETION_UNOBSERVABLE))]


def test_the_end_on_a_stream_is_never_believed(page: Any) -> None:
    rig, future = Rig(page, streams=True), Future()
    rig.watch.issued_elsewhere(rig.enter(), Work(future))
    assert future.callbacks == []
    assert ("add_flags", 5, int(FrameFlag.COMPLETION_UNOBSERVABLE)) in rig.page.calls


def test_a_gloo_watch_of_a_mixed_group_leaves_other_devices_alone(page: Any) -> None:
    class OnGpu:
        is_cpu = False

    rig = Rig(page, cpu_only=True)
    assert rig.watch.enter(lambda arguments, keywords: DESCRIPTION, ([OnGpu()],), {}) == UNSEEN
    assert rig.watch.enter(lambda arguments, keywords: DESCRIPTION, (), {}) == UNSEEN
    assert rig.page.calls == []


@pytest.mark.parametrize("broken", ["enter", "returned", "complete"])
def test_a_probe_that_raises_never_reaches_the_caller(
    page: Any, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(page)
    rig.page.broken = broken
    rig.watch = Watch(rig.page, 5, rig.guard, rig.followed, lambda work, finish, followed: work)
    with caplog.at_level(logging.WARNING, "paceline"):
        ticket = rig.enter()
        if ticket != UNSEEN:
            rig.watch.issued(ticket, False, None)
        rig.watch.fail(0)
    assert rig.guard.off
    assert rig.guard.errors >= 1
    assert "training goes on" in caplog.text
    assert len(caplog.records) == 1


def test_a_description_that_raises_disables_and_counts(page: Any) -> None:
    rig = Rig(page)

    def describe(arguments: Any, keywords: Any) -> Any:
        raise AttributeError("no such thing")

    assert rig.watch.enter(describe, (), {}) == UNSEEN
    assert rig.guard.errors == 1
    assert "no such thing" in rig.guard.reason


def test_followed_is_bounded(page: Any) -> None:
    rig, work = Rig(page), Work(Future())
    rig.followed.update(dict.fromkeys(range(FOLLOWED_MAX), True))
    assert rig.watch.issued(rig.enter(), False, work) == ("wrapped", work), "its end is seen in its own wait"
    assert len(rig.followed) == FOLLOWED_MAX
