"""Frames of the replica servers: who gets in, what is refused."""

import select
import socket
import threading
from typing import Any, cast

import pytest

from paceline.trainer.protection.errors import WireError
from paceline.trainer.protection.identity import Member, Place
from paceline.trainer.protection.replica import Generation
from paceline.trainer.protection.server import Server
from paceline.trainer.protection.slots import NEVER, Slots
from paceline.trainer.protection.wire import HEAD, HEADER_BYTES_MAX, MAGIC, NONCE_BYTES, Channel, number, text

KEY = b"k" * 32


@pytest.fixture
def channels() -> Any:
    made: list[Channel] = []

    def make(*keys: bytes) -> tuple[Channel, Channel]:
        listener = socket.create_server(("127.0.0.1", 0))
        left = socket.create_connection(listener.getsockname())
        right, _ = listener.accept()
        listener.close()
        found: list[Channel] = []
        thread = threading.Thread(
            target=lambda: found.append(Channel(right, keys[-1] if keys else KEY, is_client=False))
        )
        thread.start()
        client = Channel(left, keys[0] if keys else KEY, is_client=True)
        thread.join(10)
        made.extend((client, found[0]))
        return client, found[0]

    yield make
    for channel in made:
        channel.close()


def test_headers_and_bodies_arrive(channels: Any) -> None:
    client, server = channels()
    client.send({"kind": "data", "step": 3}, memoryview(b"tensor bytes"))
    assert server.receive() == {"kind": "data", "step": 3}
    body = bytearray(12)
    server.receive_into(memoryview(body))
    assert bytes(body) == b"tensor bytes"
    server.send({"kind": "kept"})
    assert client.receive() == {"kind": "kept"}


def test_another_key_is_refused(channels: Any) -> None:
    client, server = channels(KEY, b"x" * 32)
    client.send({"kind": "data"})
    with pytest.raises(WireError, match="not authentic"):
        server.receive()


def test_a_frame_is_good_once(channels: Any) -> None:
    client, server = channels()
    client.send({"kind": "step", "step": 1})
    assert server.receive()["step"] == 1
    client._sent = 0  # the same frame again
    client.send({"kind": "step", "step": 1})
    with pytest.raises(WireError, match="not authentic"):
        server.receive()


def test_an_answer_cannot_be_reflected(channels: Any) -> None:
    client, server = channels()
    client._directions = client._directions[::-1]
    client.send({"kind": "step", "step": 1})
    with pytest.raises(WireError, match="not authentic"):
        server.receive()


@pytest.mark.parametrize("head", [HEAD.pack(b"HTTP", 10), HEAD.pack(MAGIC, HEADER_BYTES_MAX + 1)])
def test_strangers_and_giants_are_refused(channels: Any, head: bytes) -> None:
    client, server = channels()
    client._sock.sendall(head)
    with pytest.raises(WireError, match="not a frame"):
        server.receive()


@pytest.mark.parametrize("value", [None, "3", True, -2, 1 << 63, 1.5])
def test_numbers_of_headers_are_bounded(value: object) -> None:
    with pytest.raises(WireError, match="step is"):
        number({"step": value}, "step")


def test_texts_of_headers_are_bounded() -> None:
    assert text({"shard": "rank/1"}, "shard") == "rank/1"
    with pytest.raises(WireError, match="shard is"):
        text({"shard": "x" * 600}, "shard")


class Node:
    """A server in a generation, without tensors."""

    def __init__(self, generation: int) -> None:
        self.server = Server()
        members = [Member(0, self.server.endpoint, "a"), Member(1, "127.0.0.1:9", "b")]
        self.kept = Slots(Place.REPLICA, pinned=False)
        self.generation = Generation(
            0,
            members,
            KEY,
            generation,
            self.kept,
            lambda step: None,
            shard_bytes_max=1024,
        )
        self.generation.enter()
        self.server.generation = self.generation

    def call(self, hello: dict[str, Any]) -> tuple[Channel, dict[str, Any]]:
        host, _, port = self.server.endpoint.rpartition(":")
        channel = Channel(socket.create_connection((host, int(port)), 10), KEY, is_client=True)
        channel.send(hello)
        return channel, channel.receive()


@pytest.fixture
def node() -> Any:
    made = Node(generation=5)
    yield made
    made.generation.close()
    made.server.close()


@pytest.mark.parametrize(("generation", "older"), [(4, True), (6, False)])
def test_other_generations_are_refused(node: Node, generation: int, older: bool) -> None:
    channel, answer = node.call({"role": "replica", "rank": 1, "generation": generation})
    channel.close()
    assert (answer["kind"], answer["older"]) == ("refused", older)
    assert node.generation.refused_frames == 1


@pytest.mark.parametrize(
    "change",
    [{"generation": 4}, {"bytes": 2048}, {"bytes": -1}, {"step": "7"}, {"shard": None}, {"committed": -5}],
)
def test_a_bad_header_ends_the_link_and_keeps_nothing(node: Node, change: dict[str, Any]) -> None:
    channel, answer = node.call({"role": "replica", "rank": 1, "generation": 5})
    assert answer == {"kind": "welcome"}
    header = {"kind": "data", "generation": 5, "origin": 5, "step": 7, "committed": NEVER}
    header |= {"shard": "rank/1", "checksum": "0", "bytes": 8}
    channel.send(header | change)
    with pytest.raises(ConnectionError):
        channel.receive()
    channel.close()
    assert node.kept.holdings() == []


def test_a_rank_that_this_one_does_not_keep_is_refused(node: Node) -> None:
    host, _, port = node.server.endpoint.rpartition(":")
    channel = Channel(socket.create_connection((host, int(port)), 10), KEY, is_client=True)
    channel.send({"role": "replica", "rank": 7, "generation": 5})
    with pytest.raises(ConnectionError):
        channel.receive()
    channel.close()


class Drip:
    """A peer that sends a byte a second."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._bytes = iter(b"n" * NONCE_BYTES + HEAD.pack(MAGIC, 100) + bytes(200))

    def setsockopt(self, *_: int) -> None: ...

    def settimeout(self, _seconds: float) -> None: ...

    def sendall(self, _data: bytes) -> None: ...

    def recv_into(self, target: memoryview) -> int:
        target[0] = next(self._bytes)
        self.now_s += 1.0
        return 1


def test_who_greets_slowly_is_let_go_in_the_time_of_one_greeting() -> None:
    drip = Drip()
    channel = Channel(cast(Any, drip), KEY, is_client=False, handshake_s=50.0, clock=lambda: drip.now_s)
    with pytest.raises(TimeoutError, match="greeting"):
        channel.receive()
    assert drip.now_s == 50.0


def test_a_generation_ends_while_one_of_its_links_stands_still(node: Node) -> None:
    """A sender that waits for a frozen peer holds the lock; the end must not wait for it."""
    channel, _ = node.call({"role": "commit", "rank": 1, "generation": 5})
    (link,) = node.generation._open
    full, ended = threading.Event(), threading.Event()

    def stuck() -> None:
        with node.generation._lock:
            try:
                while select.select((), (link._sock,), (), 0.05)[1]:
                    link._sock.send(bytes(1 << 16), socket.MSG_DONTWAIT)
                full.set()
                while True:
                    link.send({"kind": "step"}, memoryview(bytes(1 << 20)))
            except OSError:
                ended.set()

    threading.Thread(target=stuck, daemon=True).start()
    assert full.wait(30)
    closer = threading.Thread(target=node.generation.close, daemon=True)
    closer.start()
    closer.join(30)
    assert not closer.is_alive()
    assert ended.wait(30)
    channel.close()


def test_an_address_of_somewhere_else_is_given_to_others_and_not_listened_on() -> None:
    server = Server("192.0.2.1")  # of the block for documentation: no machine has it
    assert server.endpoint.startswith("192.0.2.1:")
    port = int(server.endpoint.rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), 10).close()
    server.close()


@pytest.mark.needs_torch
def test_a_torn_body_is_answered_bad_and_the_slot_is_free(node: Node) -> None:
    pytest.importorskip("torch")
    channel, _ = node.call({"role": "replica", "rank": 1, "generation": 5})
    header = {"kind": "data", "generation": 5, "origin": 5, "step": 7, "committed": NEVER}
    channel.send({**header, "shard": "rank/1", "checksum": "0", "bytes": 8}, memoryview(b"12345678"))
    assert channel.receive()["kind"] == "bad"
    channel.close()
    assert node.kept.holdings() == []
    assert node.kept.choose("rank/1", NEVER) is not None
