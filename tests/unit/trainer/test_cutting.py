"""Looking at sockets of the process leaves them as their owners made them."""

import os
import socket
from collections.abc import Iterator

import pytest

from paceline.trainer.groups.cutting import Listeners, cut, listening


@pytest.fixture
def default_timeout() -> Iterator[None]:
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("default_timeout")
def test_a_default_timeout_of_the_script_makes_no_socket_of_others_non_blocking() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        own = server.getsockname()
        with socket.create_connection(own) as near, server.accept()[0] as far:
            socket.setdefaulttimeout(5.0)  # from here on each new socket object is non-blocking underneath
            assert {("127.0.0.1", each.getsockname()[1]) for each in (server, other)} <= {
                address for _, address in listening()
            }
            assert cut(Listeners(("10.255.255.1", 1), frozenset())) == 0
            assert all(os.get_blocking(each.fileno()) for each in (server, other, near, far))
            assert cut(Listeners(own, frozenset())) >= 1
            assert far.recv(1) == b""  # and what is to be shut is shut
