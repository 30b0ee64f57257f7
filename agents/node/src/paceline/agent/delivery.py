"""What waits for Kafka: registry and health events, and frames in memory and on disk.

Order is kept inside each lane. Events go first: they are few and each counts. Of frames the
newest win: the oldest leave memory for the disk ring, and the ring drops its oldest segment.
A record may be delivered twice after an error; ids and sequence numbers make that harmless.
"""

import asyncio
import struct
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.agent.disk_ring import Position, Ring
from paceline.contracts.commands import CommandResult
from paceline.contracts.events import EventType
from paceline.contracts.evidence import EvidencePart
from paceline.contracts.registry import CommunicatorRecord, HealthEvent, JobRecord, NodeRecord
from paceline.contracts.repair import MemberRecord, RecoveryReport
from paceline.contracts.topics import JOBS, Topic

EVENTS_MAX = 10_000
FRAME_ENTRIES_MAX = 20_000  # about 90 bytes each once their bytes are only on disk
EVENTS_AT_ONCE_MAX = 64
FRAMES_AT_ONCE_MAX = 32
FRAME_BYTES_AT_ONCE_MAX = 4 << 20
RETRY_S_MIN = 0.25
RETRY_S_MAX = 4.0
# What a batch that follows says with BatchFlag.DROPPED.
FRAME_DROPS = ("memory_full", "frames_full", "ring_overwritten", "backlog_too_old", "rejected")
_KEY_LENGTH = struct.Struct("<H")

EventValue = (
    JobRecord
    | NodeRecord
    | CommunicatorRecord
    | MemberRecord
    | HealthEvent
    | CommandResult
    | RecoveryReport
    | EvidencePart
)


class PublishError(Exception):
    """Kafka did not acknowledge; the same records may be sent again."""


class PublishRejected(Exception):
    """This record can never be accepted (too large, not allowed); it is dropped and counted."""


@dataclass(frozen=True)
class Event:
    """One CloudEvent; without a value a tombstone of its key."""

    topic: Topic
    key: str
    type: EventType
    id: str
    value: EventValue | None


@dataclass(frozen=True)
class Frame:
    """One encoded batch."""

    key: str
    value: bytes


class Publisher(Protocol):
    """Where records go. `publish` returns once all are acknowledged, in the order given.

    Raises PublishError where at least one may be missing, PublishRejected where one never can be
    accepted. May block for as long as it likes; the caller bounds it.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def publish(self, records: Sequence[Event | Frame]) -> None: ...


class EventQueue:
    """Events in order; of several registry records of one key and attempt the newest stays."""

    def __init__(self, drops: Counter[str], events_max: int = EVENTS_MAX) -> None:
        self.changes = 0  # grows whenever the content does or may have changed
        self._events: dict[str, Event] = {}
        self._drops = drops
        self._events_max = events_max

    def __len__(self) -> int:
        return len(self._events)

    def push(self, event: Event) -> None:
        part = event.value.attempt if event.topic is JOBS and event.value is not None else event.id
        name = f"{event.topic.name}/{event.key}/{part}"
        if name not in self._events and len(self._events) >= self._events_max:
            self._events.pop(next(iter(self._events)))
            self._drops["events_full"] += 1
        self._events[name] = event
        self.changes += 1

    def head(self, count_max: int) -> list[Event]:
        return [event for _, event in zip(range(count_max), self._events.values(), strict=False)]

    def remove(self, events: Sequence[Event]) -> None:
        self.changes += 1
        done = {id(event) for event in events}
        for name in [name for name, event in self._events.items() if id(event) in done]:
            del self._events[name]


@dataclass(eq=False)
class Entry:
    """A frame that waits; `frame` is None while it is only on disk."""

    size: int
    position: Position | None
    frame: Frame | None


class FrameQueue:
    """Frames in order: the newest in memory, older ones on disk, the oldest dropped and counted."""

    def __init__(self, ring: Ring, drops: Counter[str], memory_bytes_max: int) -> None:
        self._ring = ring
        self._drops = drops
        self._memory_bytes_max = memory_bytes_max
        self._memory_bytes = 0
        self._entries: deque[Entry] = deque()
        self._in_memory: deque[Entry] = deque()
        self._delivered: Position | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def restore(self, backlog_bytes_max: int) -> int:
        """Queue what an earlier agent left on disk, newest `backlog_bytes_max` bytes; returns the count."""
        found = list(self._ring.positions(self._ring.load_cursor()))
        kept: list[Entry] = []
        total = 0
        for position, size in reversed(found):
            total += size
            if total > backlog_bytes_max or len(kept) >= FRAME_ENTRIES_MAX // 2:
                break
            kept.append(Entry(size, position, None))
        self._entries.extend(reversed(kept))
        if len(found) > len(kept):
            self._drops["backlog_too_old"] += len(found) - len(kept)
        return len(kept)

    def push(self, frame: Frame) -> None:
        body = _pack(frame)
        entry = Entry(len(body), self._ring.append(body), frame)
        self._entries.append(entry)
        self._in_memory.append(entry)
        self._memory_bytes += entry.size
        self._bound()

    def take(self, count_max: int, bytes_max: int) -> list[Entry]:
        """The oldest frames that are still there, removed: `done` or `put_back` comes next.

        They are taken off at once, for while they are sent a full memory drops from the same end.
        """
        taken: list[Entry] = []
        total = 0
        while self._entries and len(taken) < count_max:
            entry = self._entries[0]
            if taken and total + entry.size > bytes_max:
                break
            self._entries.popleft()
            if entry.frame is not None:
                self._in_memory.remove(entry)  # always near its left end
                self._memory_bytes -= entry.size
            else:
                entry.frame = self._load(entry)
            if entry.frame is None:
                self._drops["ring_overwritten"] += 1
                continue
            taken.append(entry)
            total += entry.size
        return taken

    def done(self, taken: Sequence[Entry]) -> None:
        """`taken` was delivered."""
        for entry in taken:
            if entry.position is not None:
                self._delivered = entry.position

    def put_back(self, taken: Sequence[Entry]) -> None:
        """`taken` was not delivered; what is on disk leaves memory."""
        for entry in reversed(taken):
            self._entries.appendleft(entry)
            if entry.position is not None:
                entry.frame = None
            else:
                self._in_memory.appendleft(entry)
                self._memory_bytes += entry.size
        self._bound()

    def save(self) -> None:
        """Leave word on disk of what was delivered."""
        if self._delivered is not None:
            self._ring.save_cursor(self._delivered)

    def _load(self, entry: Entry) -> Frame | None:
        body = None if entry.position is None else self._ring.read(entry.position)
        return None if body is None else _unpack(body)

    def _bound(self) -> None:
        while self._memory_bytes > self._memory_bytes_max and len(self._in_memory) > 1:
            entry = self._in_memory.popleft()
            self._memory_bytes -= entry.size
            entry.frame = None
            if entry.position is None:
                self._drops["memory_full"] += 1
                self._entries.remove(entry)
        while len(self._entries) > FRAME_ENTRIES_MAX:
            entry = self._entries.popleft()
            self._drops["frames_full"] += 1
            if entry.frame is not None:
                self._memory_bytes -= entry.size
                self._in_memory.remove(entry)


def _pack(frame: Frame) -> bytes:
    key = frame.key.encode()
    return _KEY_LENGTH.pack(len(key)) + key + frame.value


def _unpack(body: bytes) -> Frame | None:
    try:
        (length,) = _KEY_LENGTH.unpack_from(body)
        key = body[_KEY_LENGTH.size : _KEY_LENGTH.size + length].decode()
    except (struct.error, UnicodeDecodeError):
        return None
    return Frame(key, body[_KEY_LENGTH.size + length :])


class Deliverer:
    """One task that empties both queues into the publisher and outlives every outage of it."""

    def __init__(
        self,
        publisher: Publisher,
        events: EventQueue,
        frames: FrameQueue,
        drops: Counter[str],
        attempt_s_max: float = 10.0,
    ) -> None:
        self.failures = 0
        self.delivered: Counter[str] = Counter()
        self.connected: bool | None = None
        self._publisher = publisher
        self._events = events
        self._frames = frames
        self._drops = drops
        self._attempt_s_max = attempt_s_max
        self._wake = asyncio.Event()
        self._retry_s = RETRY_S_MIN

    def wake(self) -> None:
        """There is something new to deliver."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while len(self._events) or len(self._frames):
                if not await self.deliver_some():
                    await asyncio.sleep(self._retry_s)
                    self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)
            self._frames.save()

    async def drain(self, within_s: float) -> bool:
        """Deliver what waits before the agent ends; whether all of it went out in time."""
        try:
            async with asyncio.timeout(within_s):
                while len(self._events) or len(self._frames):
                    if not await self.deliver_some():
                        return False
        except TimeoutError:
            return False
        finally:
            self._frames.save()
        return True

    async def deliver_some(self) -> bool:
        """One attempt with the events, else with the frames; whether it succeeded."""
        events = self._events.head(EVENTS_AT_ONCE_MAX)
        if events:
            if not await self._attempt(events):
                return False
            self._events.remove(events)
            return True
        taken = self._frames.take(FRAMES_AT_ONCE_MAX, FRAME_BYTES_AT_ONCE_MAX)
        if not taken:
            return True
        delivered = False
        try:
            delivered = await self._attempt([entry.frame for entry in taken if entry.frame is not None])
        finally:
            (self._frames.done if delivered else self._frames.put_back)(taken)
        return delivered

    async def _attempt(self, records: Sequence[Event | Frame]) -> bool:
        try:
            async with asyncio.timeout(self._attempt_s_max):
                await self._publisher.publish(records)
        except PublishRejected:
            return await self._attempt_singly(records)
        except (PublishError, TimeoutError):
            self.failures += 1
            self.connected = False
            return False
        self._succeeded(records)
        return True

    async def _attempt_singly(self, records: Sequence[Event | Frame]) -> bool:
        for record in records:
            try:
                async with asyncio.timeout(self._attempt_s_max):
                    await self._publisher.publish([record])
            except PublishRejected:
                self._drops["rejected"] += 1
            except (PublishError, TimeoutError):
                self.failures += 1
                self.connected = False
                return False
            else:
                self._succeeded([record])
        return True

    def _succeeded(self, records: Sequence[Event | Frame]) -> None:
        self.connected = True
        self._retry_s = RETRY_S_MIN
        for record in records:
            self.delivered["frames" if isinstance(record, Frame) else record.topic.name] += 1
