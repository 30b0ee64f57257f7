"""Ranks as threads of one process: real tensors, real sockets on loopback, no process group."""

import errno
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from paceline.trainer.protection import (
    FallbackRequired,
    Hub,
    Member,
    NotSettled,
    Part,
    Protected,
    Protector,
    RestoreReport,
    ShardIdentity,
    copier,
    restore,
)
from paceline.trainer.protection.checksum import checksum
from paceline.trainer.protection.identity import Place
from paceline.trainer.protection.overruns import WINDOW_STEPS
from paceline.trainer.protection.replica import Generation
from paceline.trainer.protection.server import Server
from paceline.trainer.protection.slots import Slots
from paceline.trainer.protection.wire import Channel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs_torch
KEY = b"k" * 32
DOMAINS = ("node-a", "node-b", "node-a", "node-b")


def who(rank: int) -> ShardIdentity:
    return ShardIdentity("job", rank)


class Rank:
    """A toy trainer: equal gradients on all ranks, so equal parameters; an RNG and a position of its own."""

    def __init__(self, rank: int, replicas: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.rank = rank
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.noise = torch.Generator().manual_seed(100 + rank)
        objects = {"optimizer": self.optimizer, "model": self.model, "noise": self.noise}
        self.protected = Protected(objects, replicas=replicas, random_numbers=False)
        self.protector = Protector(self.protected, stall_max_s=20.0)

    def step(self, step: int) -> None:
        self.protector.begin_step()
        own = torch.randn(4, 8, generator=self.noise)
        with torch.no_grad():
            self.model(own)  # moves this rank's batch norm
        for index, parameter in enumerate(self.model.parameters()):
            parameter.grad = torch.full_like(parameter, float(step + index))
        self.optimizer.step()
        self.protector.end_step(step)

    def fingerprint(self) -> list[Any]:
        values = [value.clone() for value in self.model.state_dict().values()]
        state = self.optimizer.state_dict()["state"]
        values += [value.clone() for index in sorted(state) for value in state[index].values()]
        return [*values, self.noise.get_state()]


class Job:
    def __init__(self, size: int, replicas: int | None = None) -> None:
        self.replicas = size if replicas is None else replicas
        self.ranks = [Rank(rank, self.replicas) for rank in range(size)]
        self.generation = 0
        self.everyone(lambda each: each.protector.join(who(each.rank), self.members(), KEY, 1))
        self.generation = 1

    def members(self) -> list[Member]:
        return [Member(each.rank, each.protector.endpoint, DOMAINS[each.rank]) for each in self.ranks]

    def everyone(self, action: Callable[[Rank], Any]) -> list[Any]:
        """`action` of each rank on a thread of its own; its value, or what it raised."""
        results: list[Any] = [None] * len(self.ranks)

        def run(index: int, each: Rank) -> None:
            try:
                results[index] = action(each)
            except Exception as error:
                results[index] = error

        threads = [threading.Thread(target=run, args=pair) for pair in enumerate(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            assert self.everyone(partial(Rank.step, step=step)) == [None] * len(self.ranks)

    def replace(self, rank: int, seed: int = 99) -> None:
        """As if the rank was killed: nothing of it is left, and a standby has its place."""
        self.ranks[rank].protector.close()
        self.ranks[rank] = Rank(rank, self.replicas, seed)

    def restore(self) -> list[Any]:
        self.generation += 1
        hub, members = Hub(len(self.ranks)), self.members()
        return self.everyone(
            lambda each: restore(
                each.protector, who(each.rank), members, KEY, self.generation, hub.exchange(each.rank)
            )
        )

    def settle(self) -> None:
        self.everyone(lambda each: each.protector.before_write())


@pytest.fixture
def job() -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(size: int, replicas: int | None = None) -> Job:
        made.append(Job(size, replicas))
        return made[-1]

    yield make
    for each in made:
        for rank in each.ranks:
            rank.protector.close()


def equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def test_every_step_is_committed_before_the_optimizer_writes_again(job: Any) -> None:
    running = job(3)
    running.train(0, 4)
    running.settle()
    for each in running.ranks:
        assert each.protector.committed() == 4
        assert each.protector.counters.protected == 5
        assert each.protector.counters.skipped == 0
        assert {holding.step for holding in each.protector.own.holdings()} == {3, 4}


@pytest.mark.parametrize("replicas", [4, 1], ids=["data parallel", "fully sharded"])
def test_a_standby_continues_bitwise_where_the_dead_rank_was(job: Any, replicas: int) -> None:
    undisturbed = job(4, replicas)
    undisturbed.train(0, 6)
    running = job(4, replicas)
    running.train(0, 4)
    running.settle()
    running.replace(2)
    reports = running.restore()
    assert [type(report) for report in reports] == [RestoreReport] * 4, reports
    assert {(report.step, report.replayed) for report in reports} == {(4, 0)}
    running.train(5, 6)
    running.settle()
    for left, right in zip(running.ranks, undisturbed.ranks, strict=True):
        assert equal(left.fingerprint(), right.fingerprint())
        assert left.protector.status() == ("protected", "")
        assert left.protector.committed() == 6


def test_survivors_that_applied_a_step_go_back_with_the_others(job: Any) -> None:
    undisturbed = job(3)
    undisturbed.train(0, 5)
    running = job(3)
    running.train(0, 3)
    running.settle()
    running.ranks[0].step(4)  # the fault came while 1 and 2 were in step 4
    running.replace(1)
    reports = running.restore()
    assert {report.step for report in reports} == {3}
    assert {report.replayed for report in reports} == {1}
    running.train(4, 5)
    for left, right in zip(running.ranks, undisturbed.ranks, strict=True):
        assert equal(left.fingerprint(), right.fingerprint())


def test_a_rank_and_its_keeper_lost_is_an_explicit_fallback(job: Any) -> None:
    running = job(4)
    running.train(0, 2)
    running.settle()
    running.replace(0)
    running.replace(1)
    running.replace(3)  # both possible keepers in the other domain
    results = running.restore()
    assert {type(result) for result in results} == {FallbackRequired}
    assert {result.reason for result in results} == {"shard_lost"}


def test_a_corrupt_newest_copy_costs_a_step_and_nothing_else(job: Any) -> None:
    running = job(2)
    running.train(0, 3)
    running.settle()
    (slot,) = [slot for slot in running.ranks[1].protector.kept.all if slot.record.step == 3]
    slot.buffer(Part.OWN).content()[100] ^= 1
    running.replace(0)
    reports = running.restore()
    assert {(report.step, report.reason, report.refused) for report in reports} == {(2, "step_back", 1)}
    running.train(3, 4)
    running.settle()
    assert running.ranks[0].protector.committed() == 4


def test_two_losses_one_after_the_other(job: Any) -> None:
    undisturbed = job(4)
    undisturbed.train(0, 7)
    running = job(4)
    running.train(0, 2)
    for rank, last in ((1, 4), (0, 6), (1, 7)):
        running.settle()
        running.replace(rank)
        reports = running.restore()
        assert {type(report) for report in reports} == {RestoreReport}, reports
        running.train(reports[0].step + 1, last)
    running.settle()
    assert {each.protector.status() for each in running.ranks} == {("protected", "")}
    for left, right in zip(running.ranks, undisturbed.ranks, strict=True):
        assert equal(left.fingerprint(), right.fingerprint())


def test_a_gate_ends_when_its_generation_does(job: Any) -> None:
    class Ended(Exception):
        pass

    running = job(2)
    running.train(0, 0)
    running.settle()
    first = running.ranks[0]
    first.protector.close()
    alone = running.ranks[1]
    alone.step(1)

    def ended() -> None:
        raise Ended

    alone.protector._check = ended
    with pytest.raises(Ended):
        alone.protector.before_write()


def test_a_stall_is_bounded_and_the_committed_copy_stays(job: Any) -> None:
    running = job(2)
    running.train(0, 1)
    running.settle()
    running.ranks[0].protector.close()
    alone = running.ranks[1]
    alone.protector._stall_max_s = 0.05
    for step in range(2, 6):
        alone.step(step)
    assert alone.protector.status()[0] == "degraded"
    assert alone.protector.counters.timeouts == 1
    assert alone.protector.counters.skipped == 3
    assert {holding.step for holding in alone.protector.own.holdings()} == {1, 2}


def test_replicas_that_are_not_equal_are_told_before_they_are_needed(job: Any) -> None:
    running = job(2)
    with torch.no_grad():
        next(running.ranks[1].model.parameters()).add_(1)
    running.train(0, 1)
    running.settle()
    told = [each.protector.status() for each in running.ranks]
    assert all(state == "degraded" and "not equal on two replicas" in why for state, why in told), told
    running.replace(0)
    results = running.restore()
    assert {type(result) for result in results} == {RestoreReport}, (
        "only one copy is left, nothing to compare"
    )


def test_a_step_that_the_optimizer_skips_is_protected_too(job: Any) -> None:
    running = job(2)
    running.train(0, 1)

    def skip(each: Rank) -> None:
        for step in (2, 3, 4):
            each.noise.manual_seed(step)
            each.protector.end_step(step)

    assert running.everyone(skip) == [None, None]
    running.settle()
    assert [each.protector.counters.skipped for each in running.ranks] == [0, 0]
    assert {each.protector.committed() for each in running.ranks} == {4}


def test_a_copy_that_cannot_begin_does_not_keep_a_restore_from_settling(job: Any) -> None:
    running = job(1)
    running.train(0, 1)
    running.settle()
    protector = running.ranks[0].protector

    def refuse(_job: object) -> None:
        raise queue.Full

    protector._copier.submit = refuse
    protector.end_step(2)
    assert protector.status() == ("off", "end_step: Full: ")
    assert protector.settle(0.0)


def test_a_rehearsal_or_an_advice_that_fails_ends_no_protection(
    job: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = job(2)

    def refuse(*_: object) -> None:
        raise MemoryError("no memory now")

    with monkeypatch.context() as patched:
        patched.setattr(copier, "reserve", refuse)
        running.ranks[0].protector.rehearse()
    assert "copies could not be rehearsed" in caplog.text
    monkeypatch.setattr(Protector, "budget", refuse)
    running.train(0, WINDOW_STEPS + 1)
    assert "no advice" in caplog.text
    assert not any(each.protector.guard.off for each in running.ranks)


def test_what_protection_takes_above_its_limit_is_told(job: Any, caplog: pytest.LogCaptureFixture) -> None:
    running = job(2)
    with caplog.at_level("WARNING", "paceline.protection"):
        running.train(
            0, WINDOW_STEPS + 1
        )  # steps of a toy: the copies take far more than a hundredth of them
    told = [one.getMessage() for one in caplog.records if one.getMessage().startswith("protection took")]
    assert len(told) == 2, "each rank once"
    assert running.ranks[0].protector.overruns.newest.exceeds


def test_nothing_is_restored_while_the_copier_reads_the_live_tensors(job: Any) -> None:
    running = job(1)
    running.train(0, 2)
    running.settle()
    (only,) = running.ranks
    protector, copying, go_on = only.protector, threading.Event(), threading.Event()
    copy = protector._stream.copy

    def slowly(*arguments: Any) -> None:
        copying.set()
        assert go_on.wait(30)
        copy(*arguments)

    protector._stream.copy = slowly
    only.step(3)
    assert copying.wait(30)
    live = only.fingerprint()
    wait = protector.settle
    protector.settle = partial(wait, 0.05)
    (refused,) = running.restore()
    assert type(refused) is NotSettled, refused
    assert equal(only.fingerprint(), live), "nothing was loaded"
    go_on.set()
    protector.settle = wait
    (report,) = running.restore()
    assert (report.step, report.replayed) == (3, 0)
    assert equal(only.fingerprint(), live)


def test_a_receiver_of_a_dead_generation_neither_seals_nor_clears_what_its_successor_opened() -> None:
    members = [Member(rank, f"127.0.0.1:{rank + 1}", f"d{rank}") for rank in range(2)]
    kept = Slots(Place.REPLICA, pinned=False)
    old, new = (Generation(0, members, KEY, number, kept, lambda step: None) for number in (1, 2))
    shard = who(1).shard(Part.OWN)

    class Link(Channel):
        """The bytes of a copy without a socket."""

        def __init__(self, meanwhile: Callable[[], None]) -> None:
            self._meanwhile = meanwhile

        def set_timeout(self, seconds: float | None) -> None:
            pass

        def receive_into(self, memory: memoryview) -> None:
            memory[:] = bytes(len(memory))
            self._meanwhile()

    content = torch.zeros(64, dtype=torch.uint8)
    header = {
        "step": 5,
        "shard": shard,
        "bytes": 64,
        "committed": 4,
        "origin": 1,
        "checksum": checksum(content),
    }
    answers = []

    def succeed() -> None:
        old.closed.set()
        answers.append(new._receive(Link(lambda: None), header, 1))

    answers.append(old._receive(Link(succeed), header, 1))
    assert answers == [True, False]
    assert kept.at(5, shard) is not None, "the copy that was acknowledged is there"
    assert old._kept.lock is new._kept.lock


def test_the_replica_server_outlives_an_error_of_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    accept = socket.socket.accept

    def once(self: socket.socket) -> Any:
        if not failed.is_set():
            failed.set()
            raise OSError(errno.EMFILE, "too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", once)
    server = Server()
    try:
        assert failed.wait(20)
        host, port = server.endpoint.split(":")
        with socket.create_connection((host, int(port)), 20) as peer:
            assert peer.recv(1) == b"", "taken, and sent away: there is no generation yet"
    finally:
        server.close()


def test_the_ring_of_a_prepared_generation_is_connected_while_the_present_one_trains(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = job(3)
    running.train(1, 3)
    members = running.members()
    assert (
        running.everyone(lambda each: each.protector.prepare(each.rank, members, KEY, 2, 20.0)) == [True] * 3
    )
    running.train(4, 6)

    def refuse(*_: object) -> socket.socket:
        raise AssertionError("a connection is made in the switch")

    monkeypatch.setattr(socket, "create_connection", refuse)
    running.settle()
    held = {each.protector.own.newest() for each in running.ranks}
    assert held == {6}
    assert (
        running.everyone(lambda each: each.protector.join(who(each.rank), members, KEY, 2, held=6))
        == [None] * 3
    )
    running.train(7, 9)
    running.settle()
    assert [each.protector.committed() for each in running.ranks] == [9] * 3


def test_what_was_prepared_and_does_not_come_is_forgotten(job: Callable[..., Job]) -> None:
    running = job(3)
    members = running.members()
    running.everyone(lambda each: each.protector.prepare(each.rank, members, KEY, 2, 20.0))
    coming = [each.protector._coming for each in running.ranks]
    running.everyone(lambda each: each.protector.drop(1))
    assert [each.protector._coming for each in running.ranks] == coming, "it is of another generation"
    running.everyone(lambda each: each.protector.drop(2))
    assert all(one is not None and one.closed.is_set() for one in coming)
    running.train(1, 3)
    running.settle()
    assert [each.protector.committed() for each in running.ranks] == [3] * 3


def test_who_was_called_off_late_does_not_end_what_is_prepared_now(job: Callable[..., Job]) -> None:
    running = job(3)
    members = running.members()
    running.everyone(lambda each: each.protector.prepare(each.rank, members, KEY, 3, 20.0))
    coming = running.ranks[1].protector._coming
    assert not running.ranks[1].protector.prepare(1, members, KEY, 2, 0.05)
    assert running.ranks[1].protector._coming is coming
    assert coming is not None
    assert not coming.closed.is_set()


def test_a_ring_that_is_not_reached_is_not_prepared(job: Callable[..., Job]) -> None:
    running = job(3)
    alone = running.ranks[1].protector
    assert not alone.prepare(1, running.members(), KEY, 2, 0.05), "the others do not prepare"
    assert not alone.prepare(1, running.members(), b"other" * 8, 2, 0.05), "their key is another one"
    running.train(1, 2)


def test_a_rehearsal_changes_nothing_and_leaves_room_for_a_copy() -> None:
    standby = Rank(0, replicas=2)
    standby.step(1)
    live = standby.fingerprint()
    standby.protector.rehearse()
    assert equal(standby.fingerprint(), live)
    (first, _) = standby.protector.own.all
    assert first.record is None, "nobody may take it for a copy of a step"
    assert first.buffer(Part.SHARED).capacity > 0
    standby.protector.close()
