"""The recorder: files of its own, bounded, each with what is registered at its head."""

import asyncio
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.agent.delivery import Event, Frame, PublishError, PublishRejected
from paceline.agent.recorder import Recorder, RecordingError
from paceline.contracts.events import EventType
from paceline.contracts.recording import (
    PAYLOAD_BYTES_MAX,
    RECORDING_BYTES_MIN,
    Damage,
    RecordKind,
    scan_records,
)
from paceline.contracts.registry import HealthEvent, HealthKind, NodeRecord
from paceline.contracts.topics import HEALTH, JOBS
from paceline.runtime.clock import ManualClock

NODE = Event(JOBS, "job:n1", EventType.NODE_RECORD, "x", NodeRecord("job", "a1", "n1", "n1/agent", ()))
MakeRecorder = Callable[..., Recorder]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock) -> Iterator[MakeRecorder]:
    made: list[Recorder] = []

    def recorder(node: str = "n1", bytes_max: int = RECORDING_BYTES_MIN) -> Recorder:
        made.append(Recorder(tmp_path, node, bytes_max, clock))
        made[-1].open()
        return made[-1]

    yield recorder
    for each in made:
        each.close("test")


def frame(size: int = 200_000) -> Frame:
    return Frame("job:0", os.urandom(size))  # not to be packed smaller


def read(path: Path) -> list[tuple[int, bytes]]:
    content, damage = path.read_bytes(), Damage()
    found = [(r.kind, content[r.offset : r.offset + r.size]) for r in scan_records(content, damage)]
    assert damage.bytes_skipped == 0
    return found


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.plrec"))


async def test_what_is_published_can_be_read_at_once(make: MakeRecorder, tmp_path: Path) -> None:
    one = frame()
    await make().publish([NODE, one])
    (head, event, batch) = read(files(tmp_path)[0])
    assert json.loads(head[1])["node"] == "n1"
    assert json.loads(event[1])["value"]["agent"] == "n1/agent"
    assert (batch[0], zlib.decompress(batch[1])) == (RecordKind.BATCH, one.value)


async def test_the_oldest_go_and_each_file_begins_with_who_is_who(
    make: MakeRecorder, tmp_path: Path, clock: ManualClock
) -> None:
    recorder = make()
    event = HealthEvent("h1", HealthKind.PROCESS_FROZEN, "n1", "job", "a1", 3, 1, 0.0)
    await recorder.publish([NODE, Event(HEALTH, "job", EventType.HEALTH, "h1", event)])
    for _ in range(100):
        await recorder.publish([frame()])
    found = files(tmp_path)
    assert sum(path.stat().st_size for path in found) <= RECORDING_BYTES_MIN
    assert len(found) >= 6
    assert not found[0].name.endswith(".000000.plrec")
    for path in found:
        assert [kind for kind, _ in read(path)[:3]] == [RecordKind.HEAD, RecordKind.EVENT, RecordKind.EVENT]
    counts = [
        json.loads(payload) for path in found for kind, payload in read(path) if kind == RecordKind.COUNTS
    ]
    assert counts[-1]["record_segments_overwritten"] > 0


async def test_recordings_of_other_nodes_and_of_now_are_left_alone(
    make: MakeRecorder, tmp_path: Path, clock: ManualClock
) -> None:
    other, beside = make("n1-b"), make()
    await other.publish([frame()])
    await beside.publish([frame()])
    for path in files(tmp_path):
        os.utime(path, (clock.unix_s(), clock.unix_s()))
    kept = set(files(tmp_path))
    mine = make()
    for _ in range(100):
        await mine.publish([frame()])
    assert kept <= set(files(tmp_path))
    clock.advance(3600)
    for _ in range(100):
        await mine.publish([frame()])
    assert [path for path in kept if path.exists()] == [path for path in kept if "-n1-b-" in path.name]


async def test_a_full_disk_leaves_no_torn_record_and_is_told(
    make: MakeRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make()
    await recorder.publish([NODE])
    real, calls = os.pwrite, []

    def short(fd: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(fd, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", short)
    with pytest.raises(PublishError, match="No space left"):
        await recorder.publish([frame()])
    monkeypatch.setattr(os, "pwrite", real)
    await recorder.publish([frame()])
    found = read(files(tmp_path)[0])
    assert [kind for kind, _ in found].count(RecordKind.BATCH) == 1
    assert json.loads(found[-1][1]) == {"record_disk": 1}


async def test_a_write_that_hangs_is_not_joined_by_another(
    make: MakeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make()
    loop, hangs = asyncio.get_running_loop(), asyncio.Event()
    release = asyncio.Event()
    real = os.pwrite

    def slow(fd: int, data: bytes, offset: int) -> int:
        loop.call_soon_threadsafe(hangs.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    first = asyncio.create_task(recorder.publish([NODE]))
    await hangs.wait()
    with pytest.raises(PublishError, match="has not ended"):
        await recorder.publish([NODE])
    release.set()
    await first


def test_a_folder_that_cannot_be_is_named(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="give a folder that this user may write into"):
        Recorder(tmp_path / "file", "n1", RECORDING_BYTES_MIN, clock).open()


async def test_the_end_comes_behind_a_write_that_is_slow(
    make: MakeRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make()
    going, real = threading.Event(), os.pwrite

    def slow(fd: int, data: bytes, offset: int) -> int:
        going.wait(5)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await recorder.publish([frame(1000)])
    threading.Timer(0.05, going.set).start()
    recorder.close("test")
    kinds = [kind for kind, _ in read(files(tmp_path)[0])]
    assert kinds == [RecordKind.HEAD, RecordKind.BATCH, RecordKind.END]


async def test_a_file_that_cannot_be_closed_is_left(
    make: MakeRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system refuses at the end; the number of the file is another's from then on."""
    recorder, real = make(), os.close

    def refuse(fd: int) -> None:
        real(fd)
        raise OSError(122, "Disk quota exceeded")

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", refuse)
        for _ in range(6):
            await recorder.publish([frame()])
        recorder.close("test")
    assert len(files(tmp_path)) == 2
    assert recorder.drops["record_disk"] == 2


def test_a_file_that_somebody_has_just_removed_is_no_failure(make: MakeRecorder, tmp_path: Path) -> None:
    (tmp_path / "paceline-n1-20260101T000000-1-abcd.000000.plrec").symlink_to("gone")
    make()


async def test_a_record_too_large_to_be_read_back_is_refused(make: MakeRecorder) -> None:
    with pytest.raises(PublishRejected, match="expected at most"):
        await make().publish([frame(PAYLOAD_BYTES_MAX + 1)])
