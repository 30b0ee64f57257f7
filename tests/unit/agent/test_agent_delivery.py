"""The disk ring, the two queues and the task that empties them."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.agent.delivery import (
    Deliverer,
    Event,
    EventQueue,
    Frame,
    FrameQueue,
    PublishError,
    PublishRejected,
)
from paceline.agent.disk_ring import DiskRing, Position
from paceline.contracts.events import EventType
from paceline.contracts.registry import HealthEvent, HealthKind, NodeRecord
from paceline.contracts.topics import HEALTH, JOBS

Eventually = Callable[..., Awaitable[Any]]


@pytest.fixture
def drops() -> Counter[str]:
    return Counter()


def open_ring(folder: Path, drops: Counter[str], bytes_max: int = 1 << 20) -> DiskRing:
    ring = DiskRing(folder, bytes_max, drops)
    ring.open()
    return ring


def frame(number: int, size: int = 100) -> Frame:
    return Frame("job:0", number.to_bytes(4, "little") + bytes(size - 4))


def number_of(frame_or_entry: object) -> int:
    value = getattr(frame_or_entry, "frame", frame_or_entry)
    assert isinstance(value, Frame)
    return int.from_bytes(value.value[:4], "little")


def health(number: int) -> Event:
    event = HealthEvent(f"h{number}", HealthKind.PROCESS_EXIT, "n1", "job", "a1", number, 1, 0.0)
    return Event(HEALTH, "job", EventType.HEALTH, event.id, event)


def node_event(attempt: str, agent: str) -> Event:
    return Event(JOBS, "job:n1", EventType.NODE_RECORD, "x", NodeRecord("job", attempt, "n1", agent, ()))


def test_ring_gives_back_what_it_took(tmp_path: Path, drops: Counter[str]) -> None:
    ring = open_ring(tmp_path, drops)
    positions = [ring.append(bytes([i]) * i) for i in range(1, 50)]
    for i, position in enumerate(positions, 1):
        assert position is not None
        assert ring.read(position) == bytes([i]) * i
    assert [position for position, _ in ring.positions(None)] == positions
    ring.close()


def test_ring_drops_its_oldest_segment_and_stays_bounded(tmp_path: Path, drops: Counter[str]) -> None:
    ring = open_ring(tmp_path, drops, bytes_max=40_000)
    positions = [ring.append(os.urandom(1000)) for _ in range(200)]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 40_000
    assert positions[0] is not None
    assert positions[-1] is not None
    assert ring.read(positions[0]) is None
    assert ring.read(positions[-1]) is not None
    assert len(list(ring.positions(None))) >= 25
    ring.close()


def test_record_that_is_too_large_is_counted(tmp_path: Path, drops: Counter[str]) -> None:
    ring = open_ring(tmp_path, drops, bytes_max=4000)
    assert ring.append(bytes(5000)) is None
    assert drops["ring_record_too_large"] == 1
    ring.close()


def test_full_disk_is_counted_and_survived(
    tmp_path: Path, drops: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = open_ring(tmp_path, drops)
    before = ring.append(b"before")
    write = os.pwrite

    def no_space(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    def half(fd: int, data: bytes, offset: int) -> int:
        return write(fd, data[: len(data) // 2], offset)

    for broken in (no_space, half):
        monkeypatch.setattr(os, "pwrite", broken)
        assert ring.append(b"lost") is None
    monkeypatch.setattr(os, "pwrite", write)
    after = ring.append(b"after")
    assert drops["ring_disk_full"] == 2
    assert before is not None
    assert after is not None
    assert [ring.read(before), ring.read(after)] == [b"before", b"after"]
    ring.close()


def test_folder_that_cannot_be_used(tmp_path: Path, drops: Counter[str]) -> None:
    (tmp_path / "file").write_text("")
    ring = open_ring(tmp_path / "file" / "ring", drops)
    assert ring.append(b"x") is None
    assert drops["ring_unavailable"] == 2
    ring.close()


def test_torn_and_damaged_records_end_a_segment(tmp_path: Path, drops: Counter[str]) -> None:
    ring = open_ring(tmp_path, drops)
    first, second, _ = (ring.append(bytes([i]) * 10) for i in range(3))
    ring.close()
    (segment,) = tmp_path.glob("*.ring")
    data = bytearray(segment.read_bytes())
    assert second is not None
    data[second.offset + 8] ^= 1
    segment.write_bytes(data)
    assert [position for position, _ in ring.positions(None)] == [first]
    assert ring.read(second) is None
    assert ring.read(Position(999, 0)) is None


def test_memory_spills_to_disk_and_keeps_order(tmp_path: Path, drops: Counter[str]) -> None:
    queue = FrameQueue(open_ring(tmp_path, drops), drops, memory_bytes_max=500)
    for number in range(50):
        queue.push(frame(number))
    assert queue.memory_bytes <= 500
    seen: list[int] = []
    while taken := queue.take(7, 1 << 20):
        seen += [number_of(entry) for entry in taken]
        queue.done(taken)
    assert seen == list(range(50))
    assert not drops
    assert queue.memory_bytes == 0


def test_without_a_disk_the_newest_win(tmp_path: Path, drops: Counter[str]) -> None:
    (tmp_path / "file").write_text("")
    queue = FrameQueue(open_ring(tmp_path / "file" / "x", drops), drops, memory_bytes_max=1000)
    for number in range(50):
        queue.push(frame(number))
    taken = queue.take(100, 1 << 20)
    assert [number_of(entry) for entry in taken] == list(range(50 - len(taken), 50))
    assert drops["memory_full"] == 50 - len(taken) > 0
    queue.put_back(taken)
    assert [number_of(entry) for entry in queue.take(100, 1 << 20)][-1] == 49


def test_put_back_keeps_order(tmp_path: Path, drops: Counter[str]) -> None:
    queue = FrameQueue(open_ring(tmp_path, drops), drops, memory_bytes_max=500)
    for number in range(10):
        queue.push(frame(number))
    taken = queue.take(4, 1 << 20)
    queue.push(frame(10))
    queue.put_back(taken)
    assert [number_of(entry) for entry in queue.take(100, 1 << 20)] == list(range(11))


def test_frames_overwritten_on_disk_are_counted(tmp_path: Path, drops: Counter[str]) -> None:
    queue = FrameQueue(open_ring(tmp_path, drops, bytes_max=8_000), drops, memory_bytes_max=500)
    for number in range(200):
        queue.push(frame(number))
    taken = queue.take(1000, 1 << 20)
    assert number_of(taken[-1]) == 199
    assert drops["ring_overwritten"] == 200 - len(taken) > 100


def test_next_agent_sends_what_was_not_delivered(tmp_path: Path, drops: Counter[str]) -> None:
    ring = open_ring(tmp_path, drops)
    queue = FrameQueue(ring, drops, 1 << 20)
    for number in range(10):
        queue.push(frame(number))
    queue.done(queue.take(6, 1 << 20))
    queue.save()
    ring.close()
    again = FrameQueue(open_ring(tmp_path, drops), drops, 1 << 20)
    assert again.restore(backlog_bytes_max=1 << 20) == 4
    again.push(frame(10))
    assert [number_of(entry) for entry in again.take(100, 1 << 20)] == [6, 7, 8, 9, 10]


def test_backlog_is_bounded_and_the_newest_win(tmp_path: Path, drops: Counter[str]) -> None:
    queue = FrameQueue(open_ring(tmp_path, drops), drops, 1 << 20)
    for number in range(10):
        queue.push(frame(number))
    again = FrameQueue(open_ring(tmp_path, drops), drops, 1 << 20)
    assert again.restore(backlog_bytes_max=350) == 3
    assert [number_of(entry) for entry in again.take(100, 1 << 20)] == [7, 8, 9]
    assert drops["backlog_too_old"] == 7


def test_newest_record_of_a_key_and_attempt_stays(drops: Counter[str]) -> None:
    queue = EventQueue(drops)
    for event in (node_event("a1", "1"), health(1), node_event("a1", "2"), node_event("a2", "3")):
        queue.push(event)
    names = [getattr(event.value, "agent", event.id) for event in queue.head(10)]
    assert names == ["2", "h1", "3"]


def test_events_are_bounded(drops: Counter[str]) -> None:
    queue = EventQueue(drops, events_max=3)
    for number in range(5):
        queue.push(health(number))
    assert [event.id for event in queue.head(10)] == ["h2", "h3", "h4"]
    assert drops["events_full"] == 2


class FlakyPublisher:
    """Fails as told: `failures` times, or for records that `rejects`."""

    def __init__(self) -> None:
        self.records: list[Event | Frame] = []
        self.failures = 0
        self.rejects: set[str] = set()
        self.hangs = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def publish(self, records: Sequence[Event | Frame]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise PublishError("away")
        for record in records:
            if isinstance(record, Event) and record.id in self.rejects:
                raise PublishRejected("too large")
        self.records += records


@pytest.fixture
def parts(tmp_path: Path, drops: Counter[str]) -> Any:
    publisher = FlakyPublisher()
    events = EventQueue(drops)
    frames = FrameQueue(open_ring(tmp_path, drops), drops, 1 << 20)
    return publisher, events, frames, Deliverer(publisher, events, frames, drops, attempt_s_max=0.1)


async def test_events_go_first(parts: Any) -> None:
    publisher, events, frames, deliverer = parts
    frames.push(frame(1))
    events.push(health(1))
    assert await deliverer.drain(1)
    assert [type(record) for record in publisher.records] == [Event, Frame]
    assert deliverer.delivered == {"paceline.health.v1": 1, "frames": 1}


async def test_outage_loses_nothing_and_keeps_order(parts: Any, eventually: Eventually) -> None:
    publisher, events, frames, deliverer = parts
    publisher.failures = 3
    for number in range(5):
        frames.push(frame(number))
        events.push(health(number))
    task = asyncio.create_task(deliverer.run())
    deliverer.wake()
    await eventually(lambda: len(publisher.records) == 10)
    task.cancel()
    assert [r.id for r in publisher.records if isinstance(r, Event)] == [f"h{i}" for i in range(5)]
    assert [number_of(r) for r in publisher.records if isinstance(r, Frame)] == list(range(5))
    assert deliverer.failures == 3


async def test_publisher_that_hangs_is_bounded(parts: Any) -> None:
    publisher, events, _, deliverer = parts
    publisher.hangs = True
    events.push(health(1))
    assert not await deliverer.deliver_some()
    assert deliverer.connected is False
    publisher.hangs = False
    assert await deliverer.deliver_some()
    assert [record.id for record in publisher.records] == ["h1"]


async def test_record_that_is_rejected_does_not_stop_the_others(parts: Any, drops: Counter[str]) -> None:
    publisher, events, _, deliverer = parts
    publisher.rejects = {"h1"}
    for number in range(3):
        events.push(health(number))
    assert await deliverer.drain(1)
    assert [record.id for record in publisher.records] == ["h0", "h2"]
    assert drops["rejected"] == 1


async def test_drain_is_bounded(parts: Any) -> None:
    publisher, events, _, deliverer = parts
    publisher.hangs = True
    events.push(health(1))
    assert not await deliverer.drain(0.05)
    assert len(events) == 1
