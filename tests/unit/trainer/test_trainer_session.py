from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paceline.contracts.agent_socket import CommunicatorClosed, CommunicatorOpened, Goodbye, Hello, Message
from paceline.contracts.codes import FrameFlag, Phase
from paceline.contracts.ids import communicator_id, format_communicator
from paceline.trainer.identity import Surroundings
from paceline.trainer.session import Group, Session
from paceline.trainer.settings import read_settings

ENVIRONMENT = {"PACELINE_JOB_ID": "job", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "USER": "ada"}
WORLD = Group("0", "default_pg", (0, 1, 2, 3), 1, "gloo")
TENSOR = Group("7", "tp_0", (1, 3), 0, "gloo")


class LinkDouble:
    def __init__(self) -> None:
        self.said: list[Message] = []

    def hello(self, hello: Hello) -> None:
        self.said.append(hello)

    def send(self, message: Message) -> None:
        self.said.append(message)

    def close(self, goodbye: Goodbye, timeout_s: float) -> None:
        self.said.append(goodbye)


class Factory:
    def __init__(self, page: Any, link_error: Exception | None = None) -> None:
        self._page = page
        self._link_error = link_error
        self.link_made = LinkDouble()

    def page(self, *arguments: Any) -> Any:
        self._page.calls.append(("page", *arguments))
        return self._page

    def link(self, socket_path: str, page: Any, hello: Hello) -> LinkDouble:
        if self._link_error is not None:
            raise self._link_error
        self.link_made.hello(hello)
        return self.link_made


Make = Callable[..., tuple[Session, LinkDouble]]


@pytest.fixture
def make(page: Any) -> Iterator[Make]:
    sessions: list[Session] = []

    def make_session(
        environment: dict[str, str] = ENVIRONMENT, link_error: Exception | None = None
    ) -> tuple[Session, LinkDouble]:
        factory = Factory(page, link_error)
        session = Session(read_settings(environment), environment, factory, Surroundings(), "2.13.0")
        sessions.append(session)
        return session, factory.link_made

    yield make_session
    for session in sessions:
        session.finish("terminated")


def test_the_page_and_the_hello_carry_the_identity(make: Make, page: Any) -> None:
    _, link = make()
    assert page.calls[0] == ("page", "job", "r0", 1, 4, 1, "torch 2.13.0")
    assert ("set_phase", int(Phase.INIT), "init") in page.calls
    (hello,) = link.said
    assert isinstance(hello, Hello)
    assert (hello.job, hello.job_source, hello.attempt_source) == ("job", "declared", "provisional")
    assert (hello.rank, hello.world_size, hello.local_rank, hello.user) == (1, 4, 1, "ada")
    assert hello.versions["torch"] == "2.13.0"
    assert hello.pid_start > 0


def test_a_group_is_registered_and_gives_coordinates(make: Make, page: Any) -> None:
    session, link = make()
    opened = session.open_group(TENSOR)
    number = communicator_id("7", (1, 3))
    assert ("open_communicator", number, 0, 0, 2, 1, 1) in page.calls
    message = next(said for said in link.said if isinstance(said, CommunicatorOpened))
    assert (message.communicator, message.name, message.ranks) == (format_communicator(number), "tp_0", "1,3")
    assert (message.kind, message.slot, message.backend) == ("tp", opened.slot, "gloo")
    hello = link.said[-1]
    assert isinstance(hello, Hello)
    assert (hello.coordinates, hello.coordinate_source) == ({"tp": 0}, "group_name")


def test_the_world_has_a_name_for_people(make: Make) -> None:
    session, link = make()
    session.open_group(WORLD)
    message = next(said for said in link.said if isinstance(said, CommunicatorOpened))
    assert (message.name, message.kind) == ("world", "world")


def test_the_same_group_again_is_another_instance(make: Make) -> None:
    session, link = make()
    first = session.open_group(TENSOR)
    session.close_group(first)
    second = session.open_group(TENSOR)
    assert (first.instance, second.instance) == (0, 1)
    assert first.communicator != second.communicator
    assert CommunicatorClosed(format_communicator(first.communicator)) in link.said


def test_the_store_settles_the_attempt_and_the_page_follows(make: Make, page: Any) -> None:
    class Store:
        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            return b"cafe"

    session, link = make()
    session.join_world(1, 4, Store())
    assert session.await_attempt(5)
    assert page.calls[-1] == ("set_identity", "job", "r0-cafe", 1, 4, 1)
    assert isinstance(link.said[-1], Hello)
    assert (link.said[-1].attempt, link.said[-1].attempt_source) == ("r0-cafe", "store")


def test_a_declared_attempt_asks_no_store(make: Make) -> None:
    session, _ = make({**ENVIRONMENT, "PACELINE_ATTEMPT": "mine"})
    session.join_world(1, 4, object())
    assert session.await_attempt(0)
    assert (session.hello.attempt, session.hello.attempt_source) == ("mine", "declared")


def test_what_the_script_declares_wins(make: Make) -> None:
    session, link = make()
    session.open_group(TENSOR)
    session.declare("llama", {"tp": 9})
    assert isinstance(link.said[-1], Hello)
    assert (link.said[-1].name, link.said[-1].coordinates, link.said[-1].coordinate_source) == (
        "llama",
        {"tp": 9},
        "declared",
    )
    session.open_group(Group("8", "dp_0", (0, 1), 1, "gloo"))
    assert session.hello.coordinates == {"tp": 9}


@pytest.mark.parametrize("error", [OSError("no socket"), ImportError("no probe"), RuntimeError("no threads")])
def test_without_an_agent_the_session_goes_on(make: Make, error: Exception) -> None:
    session, _ = make(link_error=error)
    assert session.open_group(TENSOR).slot == 0
    session.join_world(1, 4, None)


def test_the_end(make: Make, page: Any) -> None:
    session, link = make()
    session.finish("finished")
    assert ("finish",) in page.calls
    assert link.said[-1] == Goodbye("finished", "")


def test_an_error_is_no_orderly_end(make: Make, page: Any) -> None:
    session, link = make()
    session.finish("error", "ValueError: x")
    assert ("finish",) not in page.calls
    assert link.said[-1] == Goodbye("error", "ValueError: x")


def test_the_end_waits_for_operations_in_flight(make: Make) -> None:
    session, _ = make()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            del session.followed[11]

    session.followed[11] = True
    assert session.await_followed(10.0, pause)
    assert len(pauses) == 4, "the last report gets one more pause"


def test_that_wait_is_bounded(make: Make) -> None:
    session, _ = make()
    session.followed[11] = True
    pauses: list[float] = []
    assert not session.await_followed(0.1, pauses.append)
    assert 0.1 <= sum(pauses) < 0.2


def test_no_wait_without_operations(make: Make) -> None:
    session, _ = make()
    assert session.await_followed(10.0, lambda seconds: pytest.fail("paused"))


def test_a_hook_that_goes_off_says_so_in_every_open_frame(make: Make, page: Any) -> None:
    session, _ = make()
    closed = session.open_group(WORLD)
    open_group = session.open_group(TENSOR)
    session.close_group(closed)
    session.guard.trip("enter", ValueError("an unknown tensor"))
    assert ("count_error",) in page.calls
    flags = [call for call in page.calls if call[0] == "add_flags"]
    assert flags == [("add_flags", open_group.slot, int(FrameFlag.DROPPED))]
