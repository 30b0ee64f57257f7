"""What a supervisor does with its child and its leases; clock, agent and child are doubles."""

import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from paceline.contracts.recovery import (
    Lease,
    Member,
    Order,
    OrderKind,
    OrderOutcome,
    OrderResult,
    format_members,
)
from paceline.trainer import protection
from paceline.trainer.protection import ring
from paceline.trainer.supervisor.child import StartError, TrainingChild
from paceline.trainer.supervisor.core import Supervisor
from paceline.trainer.supervisor.local import ChildState
from paceline.trainer.supervisor.settings import DOMAIN_VARIABLE, read_supervisor_settings
from paceline.trainer.supervisor.signals import Signals


class NoSignals:
    def fileno(self) -> int:
        return 0

    def pop(self) -> list[int]:
        return []


NO_SIGNALS = cast(Signals, NoSignals())


class Running:
    """A supervisor whose child, agent and clock belong to the test; `turn` is one of its turns."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.now = 1000.0
        self.children: list[Child] = []
        environment = {"PACELINE_AGENT_SOCKET": str(folder / "nobody.sock"), "WORLD_SIZE": "2", **environment}
        settings = read_supervisor_settings(environment)
        self.supervisor = Supervisor(
            settings, ["train"], environment, NO_SIGNALS, lambda: self.now, lambda: self.now, self._start
        )
        self.member = settings.member
        self.supervisor._start(settings.role, environment, settings.rank)
        self.supervisor._wait = lambda: None  # type: ignore[method-assign]

    def _start(self, command: Any, environment: Any, member: str, role: str) -> TrainingChild:
        self.children.append(Child(role))
        return cast(TrainingChild, self.children[-1])

    def obey(self, message: Order | Lease) -> None:
        self.supervisor._obey(message)

    def rebuild(self, generation: int, *members: str) -> None:
        text = format_members([Member(rank, one) for rank, one in enumerate(members)])
        name = f"o{generation}"
        self.obey(Order(name, OrderKind.REBUILD, generation, 0, self.now + 60, {"members": text}))

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.supervisor._turn()

    def say(self, state: ChildState) -> None:
        self.supervisor._hear(state, cast(TrainingChild, self.children[-1]))

    @property
    def status(self) -> int | None:
        return self.supervisor._status


class Child:
    """Ends when it is told to, or by a signal."""

    pid, pid_start = 77, 88

    def __init__(self, role: str) -> None:
        self.role = role
        self.code: int | None = None
        self.signals: list[int] = []
        self.channel = Silent()

    def reap(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.code = -number

    def close(self) -> None:
        pass


class Silent:
    open = True

    def receive(self) -> list[bytes]:
        return []

    def send(self, data: bytes) -> bool:
        return True


@pytest.fixture
def running(tmp_path: Path) -> Callable[..., Running]:
    def make(**environment: str) -> Running:
        return Running({"RANK": "1", **environment}, tmp_path)

    return make


def test_the_lease_of_the_old_generation_is_renewed_while_a_new_one_is_built(running: Any) -> None:
    job = running()
    job.obey(Lease(4, 1.0))
    job.rebuild(5, "other", job.member)
    for _ in range(10):  # a recovery of 5 s; the hello says 4 until the state is restored
        job.obey(Lease(4, 1.0))
        job.turn(0.5)
    assert job.children[0].signals == []
    job.turn(1.0)
    assert job.children[0].signals == [signal.SIGKILL]


def test_a_lease_of_an_older_generation_neither_shortens_nor_lifts(running: Any) -> None:
    job = running()
    job.rebuild(5, "other", job.member)
    job.obey(Lease(5, 1.0))
    job.obey(Lease(4, 0.1))
    job.turn(0.5)
    assert job.children[0].signals == []
    job.obey(Lease(4, 0.0))
    job.turn(0.6)
    assert job.children[0].signals == [signal.SIGKILL]


def test_a_lifted_lease_stays_lifted(running: Any) -> None:
    job = running()
    job.rebuild(5, "other", job.member)
    job.obey(Lease(5, 1.0))
    job.obey(Lease(5, 0.0))
    job.obey(Lease(4, 0.1))
    job.turn(100.0)
    assert job.children[0].signals == []


def test_a_respawned_standby_that_fails_is_started_a_few_times_and_never_ends_the_job(running: Any) -> None:
    job = running(PACELINE_RESPAWN_AFTER_S="5", PACELINE_REPAIR_WAIT_S="60")
    job.children[0].code = -signal.SIGKILL
    job.turn()
    job.rebuild(1, "other", "spare")  # somebody else has its rank
    assert job.status is None
    pauses = []
    began = job.now
    while job.status is None and job.now < began + 3600:
        job.turn(1.0)
        if job.supervisor._child is not None:
            pauses.append(job.now - began)
            began = job.now
            job.children[-1].code = 1
            job.turn()
    assert [child.role for child in job.children] == ["member"] + ["standby"] * 5
    assert pauses == sorted(pauses)
    assert job.status == 0


def test_a_standby_that_was_given_a_rank_and_dies_is_the_jobs_loss(running: Any) -> None:
    job = running(PACELINE_RESPAWN_AFTER_S="5", PACELINE_REPAIR_WAIT_S="60", PACELINE_ROLE="standby")
    job.rebuild(1, "other", job.member)
    job.children[0].code = 3
    job.turn()
    job.turn(30.0)
    assert len(job.children) == 1, "it waits for the order"
    job.turn(31.0)
    assert job.status == 3


def test_a_standby_that_fails_while_its_supervisor_is_one_gives_its_status_at_last(running: Any) -> None:
    job = running(PACELINE_RESPAWN_AFTER_S="-1", PACELINE_REPAIR_WAIT_S="60", PACELINE_ROLE="standby")
    job.children[0].code = 3
    job.turn()
    job.turn(61.0)
    assert job.status == 3


def domain_told_to_the_child(environment: dict[str, str]) -> str:
    """Of a supervisor that cannot start its child."""
    told: list[str] = []

    def start(command: Sequence[str], given: Mapping[str, str], member: str, role: str) -> TrainingChild:
        told.append(given[DOMAIN_VARIABLE])
        raise StartError("enough")

    settings = read_supervisor_settings(environment)
    with pytest.raises(StartError):
        Supervisor(settings, ["train"], environment, NO_SIGNALS, start=start).run()
    return told[0]


def test_copies_leave_the_node_where_nobody_declared_a_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    members = []
    for rank in range(8):
        monkeypatch.setattr(socket, "gethostname", lambda rank=rank: f"node-{rank // 4}")
        domain = domain_told_to_the_child({"RANK": str(rank), "WORLD_SIZE": "8"})
        members.append(protection.Member(rank, f"host:{rank + 1}", domain))
    assert {member.failure_domain for member in members} == {"node-0", "node-1"}
    assert ring.unprotected(members) == []


def test_a_declared_domain_is_the_childs_too() -> None:
    assert domain_told_to_the_child({"RANK": "0", DOMAIN_VARIABLE: "rack-7"}) == "rack-7"


def planned(job: Running, kind: OrderKind, *members: str) -> Order:
    """An order of a planned replacement to generation 5, handed on to the child."""
    rows = format_members([Member(rank, one) for rank, one in enumerate(members)])
    order = Order(kind.value, kind, 5, 0, job.now + 60, {"members": rows})
    job.obey(order)
    return order


def answers(job: Running, order: Order, outcome: OrderOutcome = OrderOutcome.DONE) -> OrderResult:
    """The child's answer, and what the agent is told of it."""
    child = cast(TrainingChild, job.children[-1])
    job.supervisor._hear(OrderResult(order.id, job.member, outcome, "", order.generation), child)
    return told(job, order)


def told(job: Running, order: Order) -> OrderResult:
    result = job.supervisor._book.judge(order, job.now).result
    assert result is not None
    return result


def test_what_is_prepared_is_answered_in_the_name_of_the_generation_that_it_is_for(running: Any) -> None:
    job = running()
    order = planned(job, OrderKind.PREPARE, "other", job.member)
    assert answers(job, order).generation == 5
    assert job.supervisor._book.generation == 0, "nobody is in it yet"


def test_a_leaver_that_has_left_ends_by_itself_and_another_child_stands_by(running: Any) -> None:
    job = running(PACELINE_RESPAWN_AFTER_S="1")
    answers(job, planned(job, OrderKind.SWITCH, "other", "joiner"))
    job.children[0].code = 0
    job.turn()
    assert job.status is None
    job.turn(1.1)
    assert [child.role for child in job.children] == ["member", "standby"]
    assert job.children[0].signals == []


def test_a_leaver_that_does_not_end_is_killed(running: Any) -> None:
    job = running(PACELINE_RESPAWN_AFTER_S="-1")
    answers(job, planned(job, OrderKind.SWITCH, "other", "joiner"))
    job.turn(2.9)
    assert job.children[0].signals == []
    job.turn(0.2)
    assert job.children[0].signals == [signal.SIGKILL]
    job.turn()
    assert job.status == 0, "the launcher sees a worker that has done its part"


def test_a_switch_that_was_called_off_ends_nobody(running: Any) -> None:
    job = running()
    answers(job, planned(job, OrderKind.SWITCH, "other", "joiner"), OrderOutcome.REFUSED)
    assert job.children[0].signals == []
    assert job.supervisor._book.generation == 0


def test_a_child_that_ends_leaves_no_planned_order_unanswered(running: Any) -> None:
    job = running()
    order = planned(job, OrderKind.PREPARE, "other", job.member)
    job.children[0].code = 1
    job.turn()
    assert told(job, order).outcome is OrderOutcome.REFUSED
