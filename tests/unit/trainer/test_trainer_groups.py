"""Generations and operations in flight, with a double of the backend's Work; no torch."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.trainer.groups.backends import RebuildBackend
from paceline.trainer.groups.errors import GenerationEnded, OtherGroups, PeerLost
from paceline.trainer.groups.generation import Generation
from paceline.trainer.groups.pending import Pending, WaitThreads
from paceline.trainer.groups.plan import GroupSpec, same_place
from paceline.trainer.groups.registry import Groups, Prepared

GUARD_S = 20.0


class Future:
    """Enough of torch's Future."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.done = False
        self.error: Exception | None = None

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def set_result(self, _: Any) -> None:
        self.done = True

    def value(self) -> None:
        if self.error is not None:
            raise self.error

    def end(self, error: Exception | None = None) -> None:
        self.error = error
        for callback in self.callbacks:
            callback(self)


class Work:
    """The backend's Work; without a future it blocks in `wait` until `release`."""

    def __init__(self, future: Future | None) -> None:
        self.future = future
        self.released = threading.Event()
        self.error: Exception | None = None

    def get_future(self) -> Future:
        if self.future is None:
            raise RuntimeError("no future")
        return self.future

    def is_completed(self) -> bool:
        return self.released.is_set()

    def wait(self) -> None:
        self.released.wait(GUARD_S)
        if self.error is not None:
            raise self.error


class Copies:
    def __init__(self) -> None:
        self.pairs: list[Any] = []

    def __call__(self, pairs: Any) -> None:
        self.pairs += pairs


def in_flight(generation: Generation, work: Work, copies: Copies) -> Pending:
    pending = Pending(generation, [("live", "scratch")], copies, WaitThreads())
    assert generation.admit(pending)
    pending.start(work)
    return pending


def test_a_result_is_copied_before_a_waiter_goes_on() -> None:
    generation, future, copies = Generation(3), Future(), Copies()
    pending = in_flight(generation, Work(future), copies)
    assert not pending.poll()
    assert generation.pending == 1
    future.end()
    pending.wait(GUARD_S)
    assert copies.pairs == [("live", "scratch")]
    assert pending.value() == ["live"]
    assert generation.pending == 0


def test_the_end_of_a_generation_frees_a_waiter_and_nothing_is_copied_later() -> None:
    generation, future, copies = Generation(3), Future(), Copies()
    pending = in_flight(generation, Work(future), copies)
    signal = Future()
    pending.attach(signal)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            pending.wait(None)
        except GenerationEnded as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert generation.end("rank 2 is gone")
    waiting.join(GUARD_S)
    assert [str(error) for error in raised] == [
        "generation 3 of the process groups has ended: rank 2 is gone"
    ]
    assert signal.done, "DDP waits for the future and not for the work"
    assert generation.stuck == 1
    future.end()
    assert copies.pairs == [], "the backend was done after the end"
    assert generation.stuck == 0


def test_an_error_of_the_backend_ends_the_generation_once_and_is_told() -> None:
    told: list[Any] = []
    generation = Generation(3, lambda number, error: told.append((number, str(error))))
    futures = [Future(), Future(), Future()]
    pendings = [in_flight(generation, Work(future), Copies()) for future in futures]
    futures[1].end(RuntimeError("Connection closed by peer"))
    futures[2].end(RuntimeError("Connection reset"))
    for pending in pendings:
        with pytest.raises(PeerLost, match="Connection closed by peer"):
            pending.wait(GUARD_S)
    assert told == [(3, "Connection closed by peer")]
    assert not generation.end("later")


def test_nothing_is_admitted_to_a_generation_that_has_ended() -> None:
    generation = Generation(3)
    generation.end("over")
    pending = Pending(generation, [("live", "scratch")], Copies(), WaitThreads())
    assert not generation.admit(pending)
    with pytest.raises(GenerationEnded):
        generation.check()


def test_a_work_without_a_future_is_waited_for_by_another_thread() -> None:
    generation, copies = Generation(3), Copies()
    done, stuck = Work(None), Work(None)
    first, second = in_flight(generation, done, copies), in_flight(generation, stuck, copies)
    done.released.set()
    first.wait(GUARD_S)
    assert not second.poll()
    generation.end("over")
    with pytest.raises(GenerationEnded):
        second.wait(GUARD_S)
    assert len(copies.pairs) == 1
    stuck.released.set()


def test_more_receives_than_threads_wait_their_turn() -> None:
    generation, waiters = Generation(3), WaitThreads(threads_max=2)
    works = [Work(None) for _ in range(5)]
    pendings = [Pending(generation, [], Copies(), waiters) for _ in works]
    for pending, work in zip(pendings, works, strict=True):
        generation.admit(pending)
        pending.start(work)
        pending.poll()
    assert waiters.busy == 5
    for work in works:
        work.released.set()
    for pending in pendings:
        pending.wait(GUARD_S)
    waiters.close()


def test_a_wait_with_a_limit_raises_and_the_operation_goes_on() -> None:
    generation, future = Generation(3), Future()
    pending = in_flight(generation, Work(future), Copies())
    with pytest.raises(RuntimeError, match="not over within"):
        pending.wait(0.01)
    future.end()
    pending.wait(GUARD_S)


def pipeline() -> list[GroupSpec]:
    """Three stages of two replicas: the world, then per stage its replicas, then per replica its stages."""
    world = [GroupSpec("0", "default_pg", tuple(range(6)), 0, world=True)]
    dp = [GroupSpec(f"dp{stage}", "dp", (2 * stage, 2 * stage + 1), 0) for stage in range(3)]
    pp = [GroupSpec(f"pp{replica}", "pp", (replica, replica + 2, replica + 4), 0) for replica in range(2)]
    return [*world, *dp, *pp]


@pytest.mark.parametrize("rank", range(6))
def test_a_standby_that_was_warmed_up_as_one_rank_takes_any_place(rank: int) -> None:
    specs = pipeline()
    places = same_place(specs, 3, rank)
    assert sorted(places) == [0, 2, 5], "the groups of rank 3"
    for mine, theirs in places.items():
        assert specs[mine].description == specs[theirs].description
        assert rank in specs[theirs].ranks


def test_a_place_with_other_kinds_of_groups_is_refused() -> None:
    specs = [*pipeline(), GroupSpec("embedding", "embedding", (0, 4), 0)]
    with pytest.raises(OtherGroups, match="warm it up as a rank with the same kinds of groups"):
        same_place(specs, 3, 0)


def test_keys_of_equal_rank_lists_differ() -> None:
    first, second = GroupSpec("1", "", (0, 1), 0), GroupSpec("2", "", (0, 1), 1)
    assert first.key != second.key
    assert GroupSpec("3", "", (0, 1), 0).key == first.key


def test_a_group_that_was_made_since_is_not_covered_by_what_was_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = Groups(SimpleNamespace(), cast(RebuildBackend, SimpleNamespace()))
    prepared = Prepared(1, 0, 2, None, {0: object(), 1: object()}, {0: 0, 1: 1}, 0.0)
    for indexes, covered in (((0, 1), True), ((0,), True), ((0, 1, 2), False)):
        monkeypatch.setattr(groups, "living", lambda held=indexes: dict.fromkeys(held))
        assert groups.is_covered(prepared) is covered
