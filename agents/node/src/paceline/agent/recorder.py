"""The publisher of `--record`: records go into files of this agent's own instead of Kafka.

One file for each segment, named after node, start and process, so that any number of agents may write into
one shared folder without a lock. Each segment begins with everything that is registered, so that the oldest
can go without costing the identity of the ranks in the others.
"""

import asyncio
import json
import os
import re
import secrets
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from paceline.agent.delivery import Event, Frame, PublishError, PublishRejected
from paceline.contracts.recording import RECORDING_BYTES_MIN, SUFFIX, VERSION, RecordKind, encode_record
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import HEALTH
from paceline.runtime.clock import Clock

SEGMENTS = 8  # dropping the oldest drops an eighth
REGISTERED_MAX = 16_384  # records of the registry that each segment begins with
HEALTH_MAX = 256
SYNC_S = 5.0  # for machines that read the same folder over the network, and for a node that loses power
CLOSE_S_MAX = 5.0  # for the write before and the last record
IN_USE_S = 60.0  # a file of another agent of this node that was written so recently is not removed
_NAME = re.compile(r"paceline-(.+)-\d{8}T\d{6}-[0-9a-f]+-[0-9a-f]{4}\.\d{6}" + re.escape(SUFFIX))
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


class RecordingError(RuntimeError):
    """The folder cannot be recorded into; the message says what to do."""


@dataclass
class _Segment:
    """The file that is being written."""

    path: Path
    fd: int
    number: int
    size: int = 0


@dataclass
class _Known:
    """What each segment begins with, newest state, encoded."""

    registered: "OrderedDict[tuple[str, str], bytes]" = field(default_factory=OrderedDict)
    health: "deque[bytes]" = field(default_factory=lambda: deque(maxlen=HEALTH_MAX))

    def note(self, event: Event, record: bytes) -> None:
        if event.topic is HEALTH:
            self.health.append(record)
            return
        attempt = getattr(event.value, "attempt", "")
        self.registered[(event.key, attempt)] = record
        while len(self.registered) > REGISTERED_MAX:
            self.registered.popitem(last=False)

    def records(self) -> list[bytes]:
        return [*self.registered.values(), *self.health]


class Recorder:
    """See `delivery.Publisher`. At most `bytes_max` bytes for all recordings of `node` in `folder`."""

    def __init__(
        self, folder: Path, node: str, bytes_max: int, clock: Clock, interval_s: float = 1.0
    ) -> None:
        self.drops: Counter[str] = Counter()
        self.told: Mapping[str, int] = {}  # drops of the agent, for the file
        self.folder = folder
        self._node = node
        self._safe_node = _UNSAFE.sub("_", node)[:100] or "node"
        self._bytes_max = max(bytes_max, RECORDING_BYTES_MIN)
        self._clock = clock
        self._interval_s = interval_s
        started = datetime.fromtimestamp(clock.unix_s(), UTC).strftime("%Y%m%dT%H%M%S")
        self.name = f"paceline-{self._safe_node}-{started}-{os.getpid():x}-{secrets.token_hex(2)}"
        self._known = _Known()
        self._segment: _Segment | None = None
        self._number = 0
        self._synced_ns = clock.monotonic_ns()
        self._counted: dict[str, int] = {}
        self._thread = ThreadPoolExecutor(1, "record")
        self._running: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Make the folder and the first file; RecordingError where that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._begin()
        except OSError as error:
            raise RecordingError(
                f"cannot record into {self.folder}: {error.strerror or error}; "
                "give a folder that this user may write into"
            ) from error

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def close(self, reason: str) -> None:
        """Say that the recording ends here, and why, behind a write that is under way. Never raises."""
        try:
            self._thread.submit(self._end, reason).result(CLOSE_S_MAX)
        except (OSError, RuntimeError):  # the folder hangs or refuses; closed before
            self.drops["record_end"] += 1
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _end(self, reason: str) -> None:
        try:
            self._write([self._json(RecordKind.END, {"reason": reason})])
        finally:
            self._finish()

    async def publish(self, records: Sequence[Event | Frame]) -> None:
        """Append `records`; they are in the system's hands when this returns.

        The folder may be on a network that hangs: writing has a thread, and one that is stuck is not
        joined by a second.
        """
        if self._running is not None and not self._running.done():
            raise PublishError("the write before has not ended")
        loop = asyncio.get_running_loop()
        counts = dict(+(Counter(self.told) + self.drops))
        self._running = loop.run_in_executor(self._thread, self._append, list(records), counts)
        try:
            await asyncio.shield(self._running)
        except OSError as error:
            raise PublishError(f"cannot write into {self.folder}: {error}") from error
        except ValueError as error:
            raise PublishRejected(str(error)) from error

    def _append(self, records: Sequence[Event | Frame], counts: dict[str, int]) -> None:
        encoded = [self._encode(record) for record in records]
        if counts != self._counted:
            encoded.append(self._json(RecordKind.COUNTS, counts))
        self._write(encoded)
        self._counted = counts
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._synced_ns >= SYNC_S * 1e9 and self._segment is not None:
            self._synced_ns = now_ns
            os.fdatasync(self._segment.fd)

    def _encode(self, record: Event | Frame) -> bytes:
        now_ns = int(self._clock.unix_s() * 1e9)
        if isinstance(record, Frame):
            return encode_record(RecordKind.BATCH, now_ns, zlib.compress(record.value, 1))
        value = b"null" if record.value is None else dump_json(record.value)
        head = json.dumps({"type": record.type.value, "key": record.key}).encode()
        encoded = encode_record(RecordKind.EVENT, now_ns, head[:-1] + b', "value": ' + value + b"}")
        self._known.note(record, encoded)
        return encoded

    def _json(self, kind: RecordKind, content: Mapping[str, object]) -> bytes:
        return encode_record(kind, int(self._clock.unix_s() * 1e9), json.dumps(content).encode())

    def _write(self, encoded: Sequence[bytes]) -> None:
        """One append; OSError where it failed, and then nothing of it stays in the file."""
        data = b"".join(encoded)
        segment = self._segment
        if segment is None or (segment.size and segment.size + len(data) > self._bytes_max // SEGMENTS):
            segment = self._begin()
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(segment.fd, data[written:], segment.size + written)
        except OSError:
            self.drops["record_disk"] += 1
            os.ftruncate(segment.fd, segment.size)
            raise
        segment.size += written

    def _begin(self) -> _Segment:
        """The next segment, with all that is known at its head; the oldest ones make room."""
        self._finish()
        self._make_room()
        path = self.folder / f"{self.name}.{self._number:06d}{SUFFIX}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        segment = _Segment(path, fd, self._number)
        self._number += 1
        head = {
            "version": VERSION,
            "recorder": self.name,
            "node": self._node,
            "segment": segment.number,
            "interval_s": self._interval_s,
        }
        self._segment = segment
        try:
            self._write([self._json(RecordKind.HEAD, head), *self._known.records()])
        except OSError:
            self._finish()
            os.unlink(path)  # a file without a head would not be recognised
            raise
        return segment

    def _finish(self) -> None:
        segment, self._segment = self._segment, None  # whatever close says, the number is another's now
        if segment is not None:
            try:
                os.close(segment.fd)
            except OSError:  # a network file system tells here what it could not write
                self.drops["record_disk"] += 1

    def _make_room(self) -> None:
        """Remove the oldest recordings of this node until a whole segment fits below the bound."""
        now_s, mine = self._clock.unix_s(), []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None and match[1] == self._safe_node:
                    try:
                        info = entry.stat()
                    except OSError:  # another agent has just made room
                        continue
                    mine.append((info.st_mtime, entry.name, info.st_size))
        total = sum(size for _, _, size in mine) + self._bytes_max // SEGMENTS
        for changed_s, name, size in sorted(mine):
            if total <= self._bytes_max:
                return
            if not name.startswith(self.name) and abs(now_s - changed_s) < IN_USE_S:
                continue
            try:
                os.unlink(self.folder / name)
            except OSError:
                self.drops["record_unlink"] += 1
                continue
            total -= size
            self.drops["record_segments_overwritten"] += 1
