"""Hostile and broken peers of the agent's socket."""

import array
import asyncio
import fcntl
import json
import os
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.socket_server import SocketError
from paceline.contracts.agent_socket import MESSAGE_BYTES_MAX, CommunicatorOpened, Hello, encode_message
from paceline.contracts.batch import RowKind
from paceline.contracts.layout import PAGE_BYTES
from paceline.contracts.registry import CommunicatorRecord
from paceline.probe.control import F_SEAL_SHRINK
from paceline.probe.writer import Page

Eventually = Callable[..., Awaitable[Any]]
F_ADD_SEALS = 1033
HELLO = Hello("job", "declared", "a1", "declared", 0, 2, 0, os.getpid(), 0)


class Peer:
    """A blocking client in a thread's clothing: each call awaits the loop between."""

    def __init__(self, folder: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5)
        self.sock.connect(str(folder / "agent.sock"))

    async def say(self, data: bytes, fds: list[int] | None = None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        await asyncio.to_thread(self.sock.sendmsg, [data], rights)

    async def hear(self) -> dict[str, Any] | None:
        """The next answer, None at the end of the connection."""
        head = await asyncio.to_thread(self.sock.recv, 4, socket.MSG_WAITALL)
        if not head:
            return None
        (length,) = struct.unpack("<I", head)
        body: dict[str, Any] = json.loads(await asyncio.to_thread(self.sock.recv, length, socket.MSG_WAITALL))
        return body


@pytest.fixture
def page() -> Iterator[Any]:
    page = Page.create("job", "a1", 0, 2, 0, "test")
    yield page
    page.close()


@pytest.fixture
def connect(agent_folder: Path) -> Iterator[Any]:
    """Peers that are closed at the end."""
    peers: list[Peer] = []

    def new() -> Peer:
        peers.append(Peer(agent_folder))
        return peers[-1]

    yield new
    for peer in peers:
        peer.sock.close()


@pytest.fixture
async def peer(start_agent: Any, connect: Callable[[], Peer]) -> Peer:
    await start_agent()
    return connect()


def _with_length(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def _raw(**changes: object) -> bytes:
    return _with_length(json.dumps({**asdict(HELLO), **changes}).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "message length"),
        (struct.pack("<I", MESSAGE_BYTES_MAX + 1), "expected 2 to 1048576 bytes"),
        (_with_length(b"\xff\xfe{}"), "not JSON"),
        (_with_length(b"[" * 100_000), "not JSON"),
        (_with_length(b'{"type":"welcome"}'), "type is 'welcome', expected one of"),
        (_with_length(b"[]"), "type is 'None'"),
        (_raw(rank=2), "hello.rank is 2, expected 0 to 1"),
        (_raw(world_size=2_000_000), "hello.world_size is 2000000, expected 1 to 1000000"),
        (_raw(job="a" * 128), "hello.job has 128 bytes, expected 1 to 127"),
        (_raw(job=""), "hello.job has 0 bytes"),
        (_raw(job="a:b"), "expected no colon"),
        (_raw(job="a\nb"), "expected printable text"),
        (_raw(protocol=9), "hello.protocol is 9, expected 1"),
        (_raw(pid="x"), "hello.pid is 'x'"),
        (_raw(versions={str(i): "1" for i in range(99)}), "hello.versions has 99 entries"),
        (_raw(gpu=1 << 63), "hello.gpu is 9223372036854775808, expected 0 to 1023"),
        (_raw(gpu=-1), "hello.gpu is -1"),
        (_raw(nccl_graph="a" * 4097), "hello.nccl_graph has 4097 bytes"),
        (_raw(nccl_dump_rank=-1), "hello.nccl_dump_rank is -1, expected a rank"),
        (_raw(coordinates={"tp": 1 << 63}), "hello.coordinates.tp is 9223372036854775808"),
        (_raw(coordinates={"tp": -2}), "hello.coordinates.tp is -2"),
        (_with_length(b'{"type":"goodbye","reason":"finished"}'), "goodbye came before hello"),
    ],
)
async def test_bad_first_message_is_refused_by_name(peer: Peer, data: bytes, said: str) -> None:
    await peer.say(data)
    answer = await peer.hear()
    assert answer is not None
    assert answer["type"] == "refused"
    assert said in answer["reason"]
    assert await peer.hear() is None


async def test_hello_without_descriptors(peer: Peer) -> None:
    await peer.say(encode_message(HELLO))
    answer = await peer.hear()
    assert answer == {"type": "refused", "reason": "hello came with 0 file descriptors, expected 2"}


async def test_descriptors_that_are_no_pages(peer: Peer) -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE_BYTES)
        await peer.say(encode_message(HELLO), [file.fileno(), file.fileno()])
    answer = await peer.hear()
    assert answer is not None
    assert "page" in answer["reason"]


async def test_page_that_is_not_sealed_is_refused(peer: Peer) -> None:
    fd = os.memfd_create("mad")
    os.ftruncate(fd, PAGE_BYTES)
    await peer.say(encode_message(HELLO), [fd, fd])
    os.close(fd)
    answer = await peer.hear()
    assert answer is not None
    assert "seals" in answer["reason"]


@pytest.mark.parametrize("size", [0, 4096, PAGE_BYTES - 1])
async def test_truncated_page_is_refused_as_such(peer: Peer, size: int) -> None:
    """Not as one without a seal: who reads it has to know what happened, and what to do."""
    fd = os.memfd_create("mad")
    os.ftruncate(fd, PAGE_BYTES)
    os.ftruncate(fd, size)
    await peer.say(encode_message(HELLO), [fd, fd])
    os.close(fd)
    answer = await peer.hear()
    assert answer is not None
    assert f"page size is {size} bytes, expected {PAGE_BYTES} bytes" in answer["reason"]
    assert "its owner has truncated it" in answer["reason"]
    assert "restart it" in answer["reason"]


async def test_page_of_another_size_that_is_sealed_is_of_another_version(peer: Peer) -> None:
    fd = os.memfd_create("old", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE_BYTES // 2)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    await peer.say(encode_message(HELLO), [fd, fd])
    os.close(fd)
    answer = await peer.hear()
    assert answer is not None
    assert f"page size is {PAGE_BYTES // 2} bytes, expected {PAGE_BYTES} bytes" in answer["reason"]
    assert "another version of the probe" in answer["reason"]


async def test_other_pid_is_refused(peer: Peer, page: Page) -> None:
    await peer.say(encode_message(replace(HELLO, pid=1)), [page.page_fd, page.control_fd])
    answer = await peer.hear()
    assert answer is not None
    assert answer["reason"] == f"hello names pid 1, the socket belongs to pid {os.getpid()}"


async def test_other_start_is_refused(peer: Peer, page: Page) -> None:
    await peer.say(encode_message(replace(HELLO, pid_start=1)), [page.page_fd, page.control_fd])
    answer = await peer.hear()
    assert answer is not None
    assert "hello names start 1" in answer["reason"]


async def test_too_many_descriptors_are_closed_and_refused(
    peer: Peer, page: Page, eventually: Eventually
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    await peer.say(b"\x40", [page.page_fd] * 8)
    answer = await peer.hear()
    assert answer is not None
    assert "file descriptors" in answer["reason"]
    assert await peer.hear() is None
    peer.sock.close()
    await eventually(lambda: len(os.listdir("/proc/self/fd")) < before)  # also the agent's end is gone


async def test_message_in_single_bytes(peer: Peer, page: Page) -> None:
    data = encode_message(HELLO)
    await peer.say(data[:1], [page.page_fd, page.control_fd])
    for index in range(1, len(data)):
        await peer.say(data[index : index + 1])
    answer = await peer.hear()
    assert answer is not None
    assert answer["type"] == "welcome"


async def test_rank_that_is_not_known_yet(
    start_agent: Any, connect: Any, page: Page, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent()
    peer = connect()
    await peer.say(encode_message(replace(HELLO, rank=-1, world_size=0)), [page.page_fd, page.control_fd])
    assert (await peer.hear() or {})["type"] == "welcome"
    assert app.roster.processes == {}
    await peer.say(encode_message(HELLO))  # now it knows, over the same connection and page
    assert (await peer.hear() or {})["type"] == "welcome"
    await eventually(lambda: publisher.newest(RowKind.PROCESS)["rank"].tolist() == [0])


async def test_attempt_that_gets_its_true_name(
    start_agent: Any, connect: Any, page: Page, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent()
    peer = connect()
    first = replace(HELLO, attempt="r0", attempt_source="provisional")
    await peer.say(encode_message(first), [page.page_fd, page.control_fd])
    await peer.say(encode_message(CommunicatorOpened("0" * 15 + "1", "world", "0-1", 0, "gloo", 0)))
    await eventually(lambda: any(job.communicators for job in app.roster.jobs.values()))
    await peer.say(encode_message(replace(HELLO, attempt="r0-8f", attempt_source="store")))
    await eventually(lambda: publisher.batches())
    assert {batch.attempt for batch in publisher.batches()} == {"r0-8f"}
    assert publisher.job().attempt == "r0-8f"  # the provisional one was never published
    (communicator,) = publisher.values(CommunicatorRecord)
    assert communicator.attempt == "r0-8f"  # what was open stays open


async def test_provisional_attempt_that_is_confirmed(
    start_agent: Any, connect: Any, page: Page, publisher: Any, eventually: Eventually
) -> None:
    app = await start_agent()
    peer = connect()
    first = replace(HELLO, attempt="r0", attempt_source="provisional")
    await peer.say(encode_message(first), [page.page_fd, page.control_fd])
    await eventually(lambda: app.roster.processes and app.sampler.samples > 2)
    assert publisher.records == []
    await peer.say(encode_message(replace(first, attempt_source="restart_count")))
    await eventually(lambda: publisher.batches())
    assert publisher.job().attempt_source == "restart_count"


async def test_provisional_attempt_is_published_after_a_while(
    start_agent: Any, connect: Any, page: Page, publisher: Any, eventually: Eventually
) -> None:
    await start_agent(provisional_s=0.3)
    first = replace(HELLO, attempt="r0", attempt_source="provisional")
    await connect().say(encode_message(first), [page.page_fd, page.control_fd])
    await eventually(lambda: publisher.batches())
    assert publisher.job().attempt == "r0"


async def test_bad_communicators_are_counted_and_the_connection_stays(
    start_agent: Any, connect: Any, page: Page, eventually: Eventually
) -> None:
    app = await start_agent()
    peer = connect()
    await peer.say(encode_message(HELLO), [page.page_fd, page.control_fd])
    assert (await peer.hear() or {})["type"] == "welcome"
    good = {"type": "communicator_opened", "communicator": "0" * 15 + "1", "name": "w", "ranks": "0-1",
            "instance": 0, "backend": "gloo", "slot": 0}  # fmt: skip
    for bad in (
        {"ranks": "0-999999999999"}, {"ranks": "1-0"}, {"ranks": "0,0"}, {"communicator": "0" * 16},
        {"communicator": "XYZ"}, {"slot": 64}, {"instance": -1}, {"name": "n" * 256},
    ):  # fmt: skip
        await peer.say(_with_length(json.dumps({**good, **bad}).encode()))
    await eventually(lambda: app.drops["bad_message"] == 8)
    for stranger in ({"ranks": "1"}, {"ranks": "0-2"}):  # not a member, beyond the world
        await peer.say(_with_length(json.dumps({**good, **stranger}).encode()))
    await eventually(lambda: app.drops["bad_communicator"] == 2)
    await peer.say(_with_length(json.dumps(good).encode()))
    (job,) = app.roster.jobs.values()
    await eventually(lambda: job.communicators)


async def test_bound_of_processes(start_agent: Any, connect: Any, page: Page, publisher: Any) -> None:
    await start_agent(processes_max=1)
    first, second = connect(), connect()
    await first.say(encode_message(HELLO), [page.page_fd, page.control_fd])
    assert (await first.hear() or {})["type"] == "welcome"
    await second.say(encode_message(replace(HELLO, rank=1)), [page.page_fd, page.control_fd])
    assert "PACELINE_AGENT_PROCESSES_MAX" in (await second.hear() or {})["reason"]


async def test_bound_of_connections(start_agent: Any, connect: Any, eventually: Eventually) -> None:
    app = await start_agent(connections_max=1)
    connect()
    second = connect()
    await eventually(lambda: app.drops["connections_full"] == 1)
    assert await second.hear() is None


async def test_second_agent_does_not_take_the_socket(start_agent: Any) -> None:
    await start_agent()
    with pytest.raises(SocketError, match="another agent listens at"):
        await start_agent()


async def test_stale_socket_is_replaced_and_removed_at_the_end(start_agent: Any, agent_folder: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(agent_folder / "agent.sock"))
    stale.close()
    app = await start_agent()
    await app.stop()
    assert not (agent_folder / "agent.sock").exists()


async def test_folder_that_others_may_write_is_not_used(start_agent: Any, agent_folder: Path) -> None:
    agent_folder.chmod(0o777)  # noqa: ASYNC240
    with pytest.raises(SocketError, match="no write access for others"):
        await start_agent()


async def test_path_that_is_too_long(start_agent: Any, agent_folder: Path) -> None:
    with pytest.raises(SocketError, match="expected at most 107"):
        await start_agent(socket=agent_folder / ("x" * 120))
