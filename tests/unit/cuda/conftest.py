"""The kernels compiled for the host, run as threads on real probe pages."""

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from paceline.collectives.cuda.memory import Member, RingMemory, Shape, mark_of
from paceline.collectives.cuda.ring import enter, open_slot
from paceline.collectives.cuda.sources import KERNELS, MAIN, source_folder
from paceline.probe.reader import PageReader
from paceline.probe.snapshot import FrameDetail
from paceline.probe.writer import Page

Fill = Callable[[int], npt.NDArray[Any]]  # the array of a rank, made float32
COMM, TAG = 0xCDA, 7
FLAGS = ("-std=c++17", "-O2", "-g", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="session")
def host_kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    assert shutil.which("g++"), "g++ is part of the toolchain this project needs"
    target = tmp_path_factory.mktemp("cuda") / "ring.so"
    folder = source_folder()
    includes = [f"-I{folder}/{name}" for name in ("cuda", "include")]
    command = ["g++", *FLAGS, "-DPACELINE_HOST", *includes, "-x", "c++", f"{folder}/cuda/{MAIN}"]
    done = subprocess.run([*command, "-o", target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(target))
    library.paceline_host_block.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p]
    library.paceline_host_block.restype = None
    return library


@dataclass
class Seat:
    """One rank: its page, what a reader of another process sees of it, its array."""

    page: Page
    reader: PageReader
    slot: int
    array: npt.NDArray[np.float32]
    ticket: int = -1
    thread: threading.Thread | None = None

    @property
    def frame(self) -> np.void:
        frame: np.void = self.reader.read(detail=False).frames[0]
        return frame

    @property
    def detail(self) -> FrameDetail:
        return self.reader.read().details[0]


@dataclass
class Ring:
    """A ring of ranks in one process; block k of the kernel is a thread."""

    library: ctypes.CDLL
    shape: Shape
    seats: list[Seat] = field(default_factory=list)
    round: int = 0

    def __post_init__(self) -> None:
        self.block = np.zeros(self.shape.bytes + 128, np.uint8)
        start = -self.block.ctypes.data % 128
        part = self.block[start : start + self.shape.bytes]
        self.memory = RingMemory(part, part.ctypes.data, self.shape)
        size = self.shape.size
        for rank in range(size):
            page = Page.create("job", "a1", rank, size, rank, "kernels")
            slot = open_slot(page, COMM, rank, size)
            self.seats.append(Seat(page, PageReader(page.page_fd), slot, np.zeros(0, np.float32)))

    def enter(self, count: int, fill: Fill, **how: int) -> None:
        """All ranks call; nothing runs yet."""
        self.round += 1
        root = how.get("root", -1)
        for rank, seat in enumerate(self.seats):
            seat.array = np.array(fill(rank), np.float32)
            seat.ticket = enter(seat.page, seat.slot, root, count)
            seat.page.returned(seat.ticket)
        members = [Member(seat.array.ctypes.data, seat.page.address, seat.slot) for seat in self.seats]
        how["root"] = max(root, 0)
        self.memory.prepare(members, count, mark_of(TAG, self.round), **how)

    def launch(self, kernel: int = 0, only: set[int] | None = None) -> None:
        for rank, seat in enumerate(self.seats):
            if only is None or rank in only:
                arguments = (kernel, rank, self.memory.work_address())
                seat.thread = threading.Thread(target=self.library.paceline_host_block, args=arguments)
                seat.thread.start()

    def hold(self, rank: int, barriers: int) -> None:
        """Block `rank` stops at its `barriers`th barrier; -1: everybody goes on."""
        ctypes.c_int32.in_dll(self.library, "paceline_held_block").value = -1
        ctypes.c_uint64.in_dll(self.library, "paceline_hold_at").value = barriers
        ctypes.c_int32.in_dll(self.library, "paceline_hold_block").value = rank

    def held(self) -> int:
        """The block that stands at the barrier where it was to stop; -1: none yet."""
        return ctypes.c_int32.in_dll(self.library, "paceline_held_block").value

    def join(self) -> None:
        """Wait for all that were launched, and say that their operation is over."""
        for seat in self.seats:
            if seat.thread is not None:
                seat.thread.join(30.0)
                assert not seat.thread.is_alive(), "a block is stuck"
                seat.thread = None
                seat.page.complete(seat.ticket)

    def run(self, count: int, fill: Fill, kernel: int = 0, **how: int) -> None:
        self.enter(count, fill, **how)
        self.launch(kernel)
        self.join()

    def close(self) -> None:
        self.hold(-1, 0)
        self.memory.stop()
        for seat in self.seats:
            if seat.thread is not None:
                seat.thread.join(30.0)
            seat.reader.close()
            seat.page.close()


MakeRing = Callable[..., Ring]


@pytest.fixture
def make_ring(host_kernels: ctypes.CDLL) -> Iterator[MakeRing]:
    """`make_ring(size, slice_elements, window=4)`."""
    assert len(KERNELS) == 2
    rings: list[Ring] = []

    def make(size: int, slice_elements: int, window: int = 4) -> Ring:
        ring = Ring(host_kernels, Shape(size, slice_elements, window))
        rings.append(ring)
        return ring

    yield make
    for ring in rings:
        ring.close()
