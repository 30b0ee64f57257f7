"""The training process's end of the agent socket, against a small agent."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.contracts.agent_socket import (
    LENGTH,
    MESSAGE_BYTES_MAX,
    CommunicatorClosed,
    CommunicatorOpened,
    Goodbye,
    Hello,
    Message,
    Refused,
    Welcome,
    encode_message,
    is_trusted_listener,
)
from paceline.probe import connection
from paceline.probe.connection import OPENED_MAX, PENDING_MAX, AgentConnection, RetryPolicy
from paceline.probe.errors import MessageError
from paceline.probe.messages import MessageDecoder, receive_with_fds, send_with_fds
from paceline.probe.reader import PageReader

if TYPE_CHECKING:
    from tests.unit.probe.conftest import Probe

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
WaitUntil = Callable[[Callable[[], object]], None]
QUICK = RetryPolicy(first_s=0.01, max_s=0.05, refused_first_s=0.01, refused_max_s=0.05)
HELLO = Hello("job", "declared", "1", "declared", 0, 2, 0, os.getpid(), 1)


def opened(number: int) -> CommunicatorOpened:
    return CommunicatorOpened(f"{number:016x}", f"group_{number}", "0-1", 0, "gloo", number)


class FakeAgent:
    """Accepts one connection at a time, records what it hears, answers each hello."""

    def __init__(self, path: str, answer: Message) -> None:
        self.answer = answer
        self.sessions: list[list[Message]] = []
        self.fds: list[int] = []
        self._sock: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener.bind(path)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def heard(self, session: int = -1) -> list[str]:
        return [message.type for message in self.sessions[session]] if self.sessions else []

    def hang_up(self) -> None:
        if self._sock is not None:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        self._thread.join()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def _run(self) -> None:
        with self._listener:
            while True:
                try:
                    self._sock, _ = self._listener.accept()
                except OSError:
                    return
                session: list[Message] = []
                self.sessions.append(session)
                with self._sock, suppress(OSError):
                    self._attend(self._sock, session)

    def _attend(self, sock: socket.socket, session: list[Message]) -> None:
        decoder = MessageDecoder()
        while True:
            data, fds = receive_with_fds(sock)
            self.fds += fds
            if not data:
                return
            for message in decoder.feed(data):
                session.append(message)
                if isinstance(message, Hello):
                    sock.sendall(encode_message(self.answer))


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pl-") as folder:
        yield f"{folder}/agent.sock"


@pytest.fixture
def agent(path: str) -> Iterator[FakeAgent]:
    agent = FakeAgent(path, Welcome("node-1", "0.1"))
    yield agent
    agent.stop()


@pytest.fixture
def link(path: str, probe: Probe) -> Iterator[AgentConnection]:
    link = AgentConnection(
        path, probe.page.page_fd, probe.page.control_fd, HELLO, policy=QUICK, chance=lambda: 0.5
    )
    yield link
    link.close()


def test_hello_hands_over_a_page_that_reads(
    agent: FakeAgent, link: AgentConnection, probe: Probe, wait_until: WaitUntil
) -> None:
    probe.run(probe.open(), 3)
    link.start()
    wait_until(lambda: link.connected)
    assert agent.sessions[0] == [HELLO]
    reader = PageReader(*agent.fds)
    assert reader.read().frames["completed"].tolist() == [3]
    assert reader.control is not None
    reader.control.write(pace_ns=5)
    assert probe.page.read_control()[1] == 5
    reader.close()


def test_messages_arrive_in_order_and_goodbye_is_last(
    agent: FakeAgent, link: AgentConnection, wait_until: WaitUntil
) -> None:
    link.start()
    wait_until(lambda: link.connected)
    link.send(opened(1))
    link.send(opened(2))
    link.send(CommunicatorClosed(opened(1).communicator))
    link.hello(replace(HELLO, name="llama"))
    link.close(Goodbye("finished"))
    wait_until(lambda: "goodbye" in agent.heard())
    assert agent.sessions[0] == [
        HELLO,
        opened(1),
        opened(2),
        CommunicatorClosed(opened(1).communicator),
        replace(HELLO, name="llama"),
        Goodbye("finished"),
    ]
    assert len(agent.fds) == 2  # the second hello carries none
    assert not link.connected


def test_communicators_opened_before_the_agent_came_are_sent(
    path: str, link: AgentConnection, wait_until: WaitUntil
) -> None:
    link.start()
    wait_until(lambda: "No such file" in link.last_error)
    for number in range(1, 4):
        link.send(opened(number))
    link.send(CommunicatorClosed(opened(2).communicator))
    agent = FakeAgent(path, Welcome("node-1", "0.1"))
    try:
        wait_until(lambda: len(agent.heard()) == 3)
        assert agent.sessions[0] == [HELLO, opened(1), opened(3)]
    finally:
        agent.stop()


def test_restarted_agent_gets_everything_again(
    path: str, link: AgentConnection, wait_until: WaitUntil
) -> None:
    agent = FakeAgent(path, Welcome("node-1", "0.1"))
    link.start()
    wait_until(lambda: link.connected)
    link.send(opened(1))
    link.hello(replace(HELLO, gpu=3))
    wait_until(lambda: len(agent.heard()) == 3)
    agent.stop()
    wait_until(lambda: not link.connected)
    link.send(opened(2))
    again = FakeAgent(path, Welcome("node-1", "0.1"))
    try:
        wait_until(lambda: len(again.heard()) == 3)
        assert again.sessions[0] == [replace(HELLO, gpu=3), opened(1), opened(2)]
        assert len(again.fds) == 2
        wait_until(lambda: link.connects == 2)
        assert link.dropped == 0
    finally:
        again.stop()


def test_agent_that_hangs_up_many_times_is_found_again(
    agent: FakeAgent, link: AgentConnection, wait_until: WaitUntil
) -> None:
    link.start()
    for count in range(1, 6):
        wait_until(lambda count=count: link.connects >= count and link.connected)  # type: ignore[misc]
        agent.hang_up()
    wait_until(lambda: link.connects >= 6)


def test_process_out_of_descriptors_connects_once_it_has_some(
    agent: FakeAgent, link: AgentConnection, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        link.start()
        wait_until(lambda: "Too many open files" in link.last_error)
    wait_until(lambda: link.connected)


def test_refusal_is_kept_as_the_reason_and_tried_again(
    agent: FakeAgent, link: AgentConnection, wait_until: WaitUntil
) -> None:
    agent.answer = Refused("rank 0 is held by pid 5")
    link.start()
    wait_until(lambda: len(agent.sessions) >= 2)
    assert "refused: rank 0 is held by pid 5" in link.last_error
    assert (link.connected, link.connects) == (False, 0)
    agent.answer = Welcome("node-1", "0.1")
    wait_until(lambda: link.connected)


@pytest.mark.parametrize("garbage", [b"\xff" * 64, LENGTH.pack(5) + b"hello", LENGTH.pack(2) + b"{}"])
def test_garbage_from_an_agent_ends_the_connection_only(
    path: str, link: AgentConnection, wait_until: WaitUntil, garbage: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(4)
        link.start()
        for _ in range(2):
            sock, _ = listener.accept()
            with sock:
                sock.sendall(garbage)
                wait_until(lambda: "expected" in link.last_error)
    assert link.dropped == 0


def test_caller_never_waits_for_an_agent_that_reads_nothing(path: str, link: AgentConnection) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        link.start()
        sock, _ = listener.accept()
        with sock:
            sock.recv(1)  # Once it greets, what waits is sent, or dropped and counted.
            message = Goodbye("error", "x" * 10_000)
            before = time.monotonic()
            for _ in range(PENDING_MAX + 500):
                link.send(message)
            assert time.monotonic() - before < 5.0
            assert link.dropped >= 100
            before = time.monotonic()
            link.close(Goodbye("finished"), timeout_s=0.2)
            assert time.monotonic() - before < 2.0


def test_without_an_agent_memory_is_bounded_and_drops_are_counted(link: AgentConnection) -> None:
    for number in range(OPENED_MAX + 7):
        link.send(opened(number))
    assert link.dropped == 7
    for _ in range(PENDING_MAX):
        link.send(CommunicatorClosed("0" * 16))
    assert link.dropped == 7 + OPENED_MAX
    link.send(Goodbye("error", "x" * MESSAGE_BYTES_MAX))
    assert link.dropped == 8 + OPENED_MAX
    assert "expected at most" in link.last_error


def test_close_without_start_and_twice(link: AgentConnection) -> None:
    link.close()
    link.close(Goodbye("finished"))
    link.start()
    link.send(opened(1))
    assert not link.connected


def test_forked_child_lets_go_of_the_connection(
    agent: FakeAgent, link: AgentConnection, wait_until: WaitUntil
) -> None:
    link.start()
    wait_until(lambda: link.connected)
    assert link._sock is not None
    held = f"socket:[{os.fstat(link._sock.fileno()).st_ino}]"
    assert held in _sockets()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            link.send(opened(1))
            link.close(Goodbye("finished"))
            os.write(write_end, f"{link.connected} {held in _sockets()}".encode())
            os.close(write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    assert answer == "False False"
    assert held in _sockets()
    link.send(opened(2))
    wait_until(lambda: agent.sessions[0] == [HELLO, opened(2)])


@pytest.mark.parametrize(
    ("path", "listener_uid", "trusted"),
    [
        ("/tmp/paceline-1000/agent.sock", 1000, True),
        ("/tmp/paceline-1000/agent.sock", 0, True),
        ("/tmp/paceline-1000/agent.sock", 1001, False),
        ("/run/paceline/agent.sock", 1001, True),
    ],
)
def test_stranger_below_tmp_is_not_trusted(path: str, listener_uid: int, trusted: bool) -> None:
    assert is_trusted_listener(path, listener_uid, 1000) is trusted


def test_strangers_socket_gets_no_descriptors(
    agent: FakeAgent, link: AgentConnection, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "is_trusted_listener", lambda path, listener, own: listener != own)
    link.start()
    wait_until(lambda: f"its listener belongs to uid {os.getuid()}" in link.last_error)
    wait_until(lambda: len(agent.sessions) >= 2)
    assert (agent.fds, link.connects) == ([], 0)


@pytest.mark.parametrize(
    ("tries", "refused", "delay_s"),
    [(0, False, 0.1), (1, False, 0.2), (5, False, 3.2), (6, False, 5.0), (10**9, False, 5.0), (0, True, 1.0)],
)
def test_delays_grow_to_a_bound(tries: int, refused: bool, delay_s: float) -> None:
    policy = RetryPolicy()
    assert policy.delay_s(tries, refused, 0.5) == pytest.approx(delay_s)
    assert policy.delay_s(tries, refused, 0.0) == pytest.approx(delay_s / 2)


def test_messages_survive_any_cutting() -> None:
    messages: list[Message] = [HELLO, opened(1), Goodbye("finished"), Welcome("n", "a")]
    stream = b"".join(map(encode_message, messages))
    for size in (1, 3, 7, 1000):
        decoder = MessageDecoder()
        found = [m for i in range(0, len(stream), size) for m in decoder.feed(stream[i : i + size])]
        assert found == messages


def frame(value: object) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return LENGTH.pack(len(body)) + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (LENGTH.pack(MESSAGE_BYTES_MAX + 1), "message length is 1048577, expected 2 to 1048576 bytes"),
        (LENGTH.pack(0), "message length is 0"),
        (frame(b"\xff\xff"), "expected a JSON object"),
        (frame(b"[" * 100_000), "expected a JSON object"),
        (frame([1, 2]), "type is None, expected one of hello"),
        (frame({"type": "no"}), "type is 'no', expected one of hello"),
        (frame({"type": ["hello"]}), "type is"),
        (frame({"type": "welcome", "node": "n"}), "welcome is"),
        (frame({"type": "welcome", "node": 5, "agent": "a"}), "welcome.node is 5, expected str"),
        (frame({"type": "welcome", "node": "n", "agent": "a", "protocol": "x"}), "welcome.protocol is 'x'"),
    ],
)
def test_bad_message_is_named(data: bytes, message: str) -> None:
    with pytest.raises(MessageError) as caught:
        MessageDecoder().feed(data)
    assert message in str(caught.value)


def test_unknown_fields_of_a_newer_release_are_ignored() -> None:
    data = frame({"type": "refused", "reason": "no", "retry_after_s": 5})
    assert MessageDecoder().feed(data) == [Refused("no")]


def test_long_message_with_descriptors_goes_through(probe: Probe) -> None:
    ours, theirs = socket.socketpair()
    data = encode_message(Goodbye("error", "x" * 900_000))
    with ours, theirs:
        sender = threading.Thread(target=send_with_fds, args=(ours, data, (probe.page.page_fd,)))
        sender.start()
        decoder, fds = MessageDecoder(), list[int]()
        found: list[Message] = []
        while not found:
            chunk, more = receive_with_fds(theirs)
            found += decoder.feed(chunk)
            fds += more
        sender.join()
    assert len(fds) == 1
    assert os.fstat(fds[0]).st_ino == os.fstat(probe.page.page_fd).st_ino
    os.close(fds[0])


def _sockets() -> set[str]:
    links = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.add(os.readlink(entry))
    return {link for link in links if link.startswith("socket:")}
