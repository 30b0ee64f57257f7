"""The reader treats a page as hostile: it refuses by name, flags, or reads as unknown."""

from __future__ import annotations

import fcntl
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.contracts import codes
from paceline.contracts.codes import FrameFlag, Function, OpState
from paceline.contracts.dtypes import FRAME_DTYPE, PROCESS_DTYPE
from paceline.contracts.layout import (
    CONTROL_BYTES,
    DETAIL_OFFSET,
    DETAIL_STRIDE,
    FRAME,
    FRAME_STRIDE,
    FRAMES_OFFSET,
    PAGE_BYTES,
    PROCESS,
    ROUND,
    Layout,
)
from paceline.probe import _native
from paceline.probe.control import ControlPage
from paceline.probe.errors import PageError
from paceline.probe.reader import PageReader
from tests.unit.probe.plain_reading import plain_blocks

if TYPE_CHECKING:
    from tests.unit.probe.conftest import Probe

F_ADD_SEALS = 1033
SHRINK = 0x0002
FUZZ_ROUNDS = 60


@pytest.fixture
def memory() -> Iterator[Callable[..., int]]:
    """Makes memfds of given content, closed at the end."""
    fds: list[int] = []

    def make(content: bytes, seals: int = SHRINK) -> int:
        fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fds.append(fd)
        assert os.pwrite(fd, content, 0) == len(content)
        if seals:
            fcntl.fcntl(fd, F_ADD_SEALS, seals)
        return fd

    yield make
    for fd in fds:
        os.close(fd)


@pytest.fixture
def image(probe: Probe) -> bytearray:
    """Bytes of a good page: slot 0 with 300 rounds, one open, and a message; slot 1 fresh."""
    slot = probe.open(comm=1)
    probe.open(comm=2)
    probe.run(slot, 300)
    probe.enter(slot)
    probe.enter(slot, Function.SEND, 2)
    data = bytearray(os.pread(probe.page.page_fd, PAGE_BYTES, 0))
    assert len(data) == PAGE_BYTES
    return data


def poke(image: bytearray, base: int, layout: Layout, name: str, value: int) -> None:
    field = layout.field(name)
    offset = base + field.offset
    image[offset : offset + field.bytes] = value.to_bytes(field.bytes, "little", signed=value < 0)


def test_copy_of_a_page_reads_the_same(image: bytearray, memory: Callable[..., int]) -> None:
    snapshot = PageReader(memory(bytes(image))).read()
    assert snapshot.frames["comm"].tolist() == [1, 2]
    assert (snapshot.frames["head_round"][0], snapshot.frames["flags"][0] & FrameFlag.PARTIAL) == (301, 0)
    assert len(snapshot.details[0].newest()[0]) == 128
    assert snapshot.details[0].peers["peer"].tolist() == [2]
    assert (snapshot.faults, snapshot.process_partial) == ((), False)


def test_snapshot_is_a_copy(probe: Probe) -> None:
    slot = probe.open()
    snapshot = probe.read()
    probe.run(slot, 5)
    assert (snapshot.frames["completed"][0], len(snapshot.details[0].newest()[0])) == (0, 0)
    assert probe.read().frames["completed"][0] == 5


def test_frames_alone_are_read_without_detail(probe: Probe) -> None:
    probe.run(probe.open(), 5)
    snapshot = probe.reader.read(detail=False)
    assert snapshot.frames["completed"].tolist() == [5]
    assert [len(table) for table in snapshot.details[0].newest()] == [0, 0]
    assert (len(snapshot.details[0].peers), snapshot.details[0].partial) == (0, False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("magic", 1, "page magic is 1, expected 827346000"),
        ("version", 2, "page version is 2, expected 1"),
        ("header_bytes", 0, "page header_bytes is 0, expected 4096"),
        ("page_bytes", 1 << 63, f"page page_bytes is {1 << 63}, expected {PAGE_BYTES}"),
    ],
)
def test_wrong_header_is_refused_by_name(
    image: bytearray, memory: Callable[..., int], name: str, value: int, message: str
) -> None:
    poke(image, 0, PROCESS, name, value)
    with pytest.raises(PageError) as caught:
        PageReader(memory(bytes(image)))
    assert str(caught.value) == message


@pytest.mark.parametrize("size", [0, 1, 4096, PAGE_BYTES - 1, PAGE_BYTES + 1])
def test_page_of_another_size_is_refused(memory: Callable[..., int], size: int) -> None:
    with pytest.raises(PageError, match=f"page size is {size} bytes, expected {PAGE_BYTES} bytes"):
        PageReader(memory(bytes(size)))


def test_page_that_can_shrink_is_refused(image: bytearray, memory: Callable[..., int]) -> None:
    with pytest.raises(PageError, match=r"page seals is 0x0, expected F_SEAL_SHRINK \(0x2\) set"):
        PageReader(memory(bytes(image), 0))


def test_descriptor_that_is_no_memfd_is_refused(image: bytearray) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(image)
        file.flush()
        with pytest.raises(PageError, match="page "):
            PageReader(file.fileno())
    read, write = os.pipe()
    with pytest.raises(PageError, match="page descriptor is not a memfd"):
        PageReader(read)
    os.close(read)
    os.close(write)
    with pytest.raises(PageError, match="page descriptor is not a memfd"):
        PageReader(read)


def test_control_page_is_checked_too(probe: Probe, memory: Callable[..., int]) -> None:
    with pytest.raises(PageError, match=f"control page size is 16 bytes, expected {CONTROL_BYTES} bytes"):
        ControlPage(memory(bytes(16)))
    with pytest.raises(PageError, match="control page seals is 0x0"):
        ControlPage(memory(bytes(CONTROL_BYTES), 0))
    with pytest.raises(PageError, match="control page magic is 0x0, expected 0x31434c50"):
        ControlPage(memory(bytes(CONTROL_BYTES)))
    with pytest.raises(PageError, match="control page"):
        PageReader(probe.page.page_fd, probe.page.page_fd)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("magic", 5, "frame 0 magic is 5, expected 826690640"),
        ("version", 9, "frame 0 version is 9, expected 1"),
        ("frame_bytes", 1, "frame 0 frame_bytes is 1, expected 1184"),
        ("slot", 1, "frame 0 slot is 1, expected 0"),
        ("nranks", 0, "frame 0 nranks is 0, expected 1 to 16777216"),
        ("nranks", (1 << 32) - 1, "frame 0 nranks is 4294967295, expected 1 to 16777216"),
        ("comm_rank", 4, "frame 0 comm_rank is 4, expected below 4"),
        ("comm", 0, "frame 0 comm is 0, expected a communicator id"),
    ],
)
def test_wrong_frame_is_refused_alone(
    image: bytearray, memory: Callable[..., int], name: str, value: int, message: str
) -> None:
    poke(image, FRAMES_OFFSET, FRAME, name, value)
    snapshot = PageReader(memory(bytes(image))).read()
    assert [str(fault) for fault in snapshot.faults] == [message]
    assert snapshot.frames["comm"].tolist() == [2]


def test_odd_lock_is_flagged_and_still_read(image: bytearray, memory: Callable[..., int]) -> None:
    poke(image, FRAMES_OFFSET, FRAME, "lock", 7)
    poke(image, 0, PROCESS, "lock", 1)
    before = time.monotonic()
    snapshot = PageReader(memory(bytes(image))).read()
    assert time.monotonic() - before < 2.0
    assert snapshot.process_partial
    assert [bool(flags & FrameFlag.PARTIAL) for flags in snapshot.frames["flags"]] == [True, False]
    assert [detail.partial for detail in snapshot.details] == [True, False]
    assert snapshot.frames["round"][0] == 301
    assert len(snapshot.details[0].newest()[0]) == 128


def test_page_of_torn_blocks_is_read_in_bounded_time(image: bytearray, memory: Callable[..., int]) -> None:
    frame = bytes(image[FRAMES_OFFSET : FRAMES_OFFSET + FRAME.size])
    for slot in range(64):
        base = FRAMES_OFFSET + slot * FRAME_STRIDE
        image[base : base + FRAME.size] = frame
        poke(image, base, FRAME, "lock", 1)
        poke(image, base, FRAME, "slot", slot)
    reader = PageReader(memory(bytes(image)))
    before = time.monotonic()
    snapshot = reader.read()
    assert time.monotonic() - before < 1.0
    assert len(snapshot.frames) == 64
    assert (snapshot.frames["flags"] & FrameFlag.PARTIAL).all()


@pytest.mark.parametrize(
    ("name", "value"), [("completed", 302), ("enqueued", 299), ("head_round", 302), ("started", 5)]
)
def test_counters_that_contradict_each_other_are_flagged(
    image: bytearray, memory: Callable[..., int], name: str, value: int
) -> None:
    poke(image, FRAMES_OFFSET, FRAME, name, value)
    snapshot = PageReader(memory(bytes(image))).read()
    assert snapshot.frames["flags"][0] & FrameFlag.PARTIAL


def test_unknown_codes_read_as_zero(image: bytearray, memory: Callable[..., int]) -> None:
    for name in ("function", "dtype", "reduce_op", "algorithm", "protocol", "state", "kind"):
        poke(image, FRAMES_OFFSET, FRAME, name, 250)
        poke(image, DETAIL_OFFSET, ROUND, name, 250)
    poke(image, FRAMES_OFFSET, FRAME, "peer", 1 << 30)
    poke(image, DETAIL_OFFSET, ROUND, "peer", -3)
    poke(image, 0, PROCESS, "phase", 1 << 31)
    poke(image, 0, PROCESS, "host_wait", 6)
    snapshot = PageReader(memory(bytes(image))).read()
    for row in (snapshot.frames[0], snapshot.details[0].rounds[0]):
        assert [
            row[n] for n in ("function", "dtype", "reduce_op", "algorithm", "protocol", "state", "kind")
        ] == [0] * 7
        assert row["peer"] == -1
    assert (snapshot.process["phase"], snapshot.process["host_wait"]) == (0, 0)


def test_strings_without_an_end_are_read(image: bytearray, memory: Callable[..., int]) -> None:
    for name in ("job", "attempt", "framework", "phase_name", "host_wait_name"):
        field = PROCESS.field(name)
        image[field.offset : field.offset + field.bytes] = b"\xff" * field.bytes
    image[PROCESS.field("attempt").offset + 3] = 0
    snapshot = PageReader(memory(bytes(image))).read()
    assert snapshot.text("job") == "�" * 128
    assert snapshot.text("attempt") == "�" * 3


def _use_everything(reader: PageReader) -> None:
    """What an agent does with a snapshot: every code must be in its vocabulary, every index in range."""
    snapshot = reader.read()
    codes.Phase(int(snapshot.process["phase"]))
    codes.HostWait(int(snapshot.process["host_wait"]))
    assert snapshot.text("job") is not None
    for frame, detail in zip(snapshot.frames, snapshot.details, strict=True):
        for row in (frame, *detail.newest()[0], *detail.kept(12)[0]):
            codes.Function(int(row["function"]))
            codes.OpState(int(row["state"]))
            codes.OpKind(int(row["kind"]))
            assert -2 <= row["peer"] < frame["nranks"]
        assert frame["comm_rank"] < frame["nranks"]
        assert all(0 <= peer < frame["nranks"] or peer == -2 for peer in detail.peers["peer"])
        assert all(0 <= peer < frame["nranks"] for peer in detail.edges["peer"])


@pytest.mark.parametrize("seed", range(3))
def test_random_page_is_refused(memory: Callable[..., int], seed: int) -> None:
    with pytest.raises(PageError, match="page magic"):
        PageReader(memory(random.Random(seed).randbytes(PAGE_BYTES)))


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_never_escapes(image: bytearray, memory: Callable[..., int], seed: int) -> None:
    chance = random.Random(seed)
    fd = memory(bytes(image))
    reader = PageReader(fd)
    regions = [(0, 4096), (FRAMES_OFFSET, 2 * FRAME_STRIDE), (DETAIL_OFFSET, DETAIL_STRIDE)]
    for _ in range(FUZZ_ROUNDS):
        damaged = bytearray(image)
        for _ in range(chance.randrange(1, 200)):
            start, length = chance.choice(regions)
            damaged[start + chance.randrange(length)] = chance.randrange(256)
        os.pwrite(fd, damaged[: DETAIL_OFFSET + 2 * DETAIL_STRIDE], 0)
        with suppress(PageError):
            _use_everything(reader)


def _noise_behind_good_locks(image: bytearray, chance: random.Random) -> bytearray:
    """64 frames that are good as far as one looks, and noise in all the rest."""
    header = np.zeros(64, FRAME_DTYPE)
    block = bytearray(PAGE_BYTES)
    block[:FRAMES_OFFSET] = image[:FRAMES_OFFSET]
    block[DETAIL_OFFSET:] = chance.randbytes(PAGE_BYTES - DETAIL_OFFSET)
    for slot in range(64):
        header[slot] = np.frombuffer(chance.randbytes(FRAME.size), FRAME_DTYPE)[0]
        for name in ("magic", "version", "frame_bytes"):
            header[name][slot] = int.from_bytes(
                image[FRAMES_OFFSET + FRAME.field(name).offset :][: FRAME.field(name).bytes], "little"
            )
        header["slot"][slot] = slot
        header["lock"][slot] &= 0xFFFFFFFE
        header["nranks"][slot] = chance.randrange(1, 100)
        header["comm_rank"][slot] = 0
        start = FRAMES_OFFSET + slot * FRAME_STRIDE
        block[start : start + FRAME.size] = header[slot].tobytes()
    return block


@pytest.mark.parametrize("seed", range(4))
def test_noise_behind_good_locks_is_read_as_plainly_as_can_be(
    image: bytearray, memory: Callable[..., int], seed: int
) -> None:
    page = bytes(_noise_behind_good_locks(image, random.Random(seed)))
    reader = PageReader(memory(page))
    snapshot = reader.read()
    assert (len(snapshot.frames), snapshot.faults) == (64, ())
    assert snapshot.blocks == plain_blocks(page).tobytes()
    assert reader.read(detail=False).blocks == snapshot.frames.tobytes()
    _use_everything(reader)


def test_page_that_becomes_something_else_is_refused_while_read(
    image: bytearray, memory: Callable[..., int]
) -> None:
    fd = memory(bytes(image))
    reader = PageReader(fd)
    os.pwrite(fd, bytes(PAGE_BYTES), 0)
    with pytest.raises(PageError, match="page magic is 0"):
        reader.read()


def test_closed_reader_says_so(probe: Probe) -> None:
    reader = PageReader(probe.page.page_fd, probe.page.control_fd)
    reader.close()
    with pytest.raises(ValueError, match="the mapping is closed"):
        reader.read()
    assert reader.control is not None
    with pytest.raises(ValueError, match="closed"):
        reader.control.write()


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 0, PAGE_BYTES + 8, 0, 0, 1),
        (0, PAGE_BYTES, 8, 0, 0, 1),
        (0, (1 << 64) - 8, 16, 0, 0, 1),
        (0, 0, 8, (1 << 64) - 8, 8, 1),
        (0, 4, 8, 0, 0, 1),
        (PAGE_BYTES, 0, 8, 0, 0, 1),
        (2, 0, 8, 0, 0, 1),
    ],
)
def test_native_copy_stays_inside_its_mapping(probe: Probe, arguments: tuple[int, ...]) -> None:
    mapping = _native.Mapping(probe.page.page_fd, PAGE_BYTES, False)
    with pytest.raises(ValueError, match="range outside the mapping"):
        mapping.copy(*arguments)
    with pytest.raises(ValueError, match="not writable"):
        mapping.write_control(1, 2, 3)


def test_reading_does_not_change_the_page(probe: Probe) -> None:
    probe.enter(probe.open())
    before = os.pread(probe.page.page_fd, PAGE_BYTES, 0)
    probe.read()
    after = os.pread(probe.page.page_fd, PAGE_BYTES, 0)
    assert before[PROCESS_DTYPE.itemsize :] == after[PROCESS_DTYPE.itemsize :]
    assert probe.detail().open()[0]["state"].tolist() == [OpState.ENTERED]
