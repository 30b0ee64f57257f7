"""What a training process says to its supervisor."""

import fcntl
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.contracts.recovery import ChildError
from paceline.trainer.repair.control import Control
from paceline.trainer.supervisor.channel import Channel

MESSAGES = 400


@pytest.fixture
def link() -> Iterator[tuple[Control, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    nothing: Any = lambda order: None  # noqa: E731
    control = Control(Channel(ours), "m", nothing, nothing)  # never started: its thread would send
    yield control, theirs
    for each in (ours, theirs, control._reader, control._writer):
        each.close()


def say_much(control: Control) -> None:
    for number in range(MESSAGES):
        control.tell(ChildError("m", 1, number, "x" * 500))
    assert control._channel.waiting, "the supervisor reads nothing yet"


def test_what_waits_is_handed_over_before_a_process_ends(link: tuple[Control, socket.socket]) -> None:
    control, supervisor = link
    say_much(control)
    heard = bytearray()

    def read() -> None:
        while data := supervisor.recv(1 << 16):
            heard.extend(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert control.flush(10.0)
    control._channel.close()
    reader.join(10)
    assert heard.count(b"child_error") == MESSAGES


def test_a_supervisor_that_reads_nothing_is_not_waited_for_without_end(
    link: tuple[Control, socket.socket],
) -> None:
    control, _ = link
    say_much(control)
    assert not control.flush(0.05)


def test_a_process_with_many_files_open_hands_over_as_well(link: tuple[Control, socket.socket]) -> None:
    """`select` would raise for such a descriptor, in a process that has left in order."""
    control, _ = link
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    try:
        say_much(control)
        with socket.socket(fileno=fcntl.fcntl(control._channel.fileno(), fcntl.F_DUPFD, 1500)) as high:
            high.setblocking(False)
            control._channel._sock = high
            assert not control.flush(0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_supervisor_that_is_gone_is_not_waited_for(link: tuple[Control, socket.socket]) -> None:
    control, supervisor = link
    say_much(control)
    supervisor.close()
    control.flush(10.0)
    assert not control._channel.open
