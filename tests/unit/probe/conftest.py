"""A page and its reader in one process; a native helper built once."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from paceline.contracts.codes import DType, Function, ReduceOp, Source
from paceline.probe.reader import PageReader
from paceline.probe.snapshot import FrameDetail, PageSnapshot
from paceline.probe.writer import Page
from tests.waiting import until

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "kernels/native"
WRITER_SOURCES = (
    "communicator",
    "heart",
    "memfd",
    "open_ops",
    "operations",
    "page",
    "peers",
    "progress",
    "ring",
)
HELPER = Path(__file__).parent / "native/stress.cc"


@dataclass
class Probe:
    """A live page that is read back through its own descriptors."""

    page: Page
    reader: PageReader

    def open(self, comm: int = 0xABC, rank: int = 1, nranks: int = 4, instance: int = 0) -> int:
        return self.page.open_communicator(comm, instance, rank, nranks, rank, Source.TORCH_HOOK)

    def enter(self, slot: int, function: int = Function.ALL_REDUCE, peer: int = -1, count: int = 10) -> int:
        reduce_op = ReduceOp.SUM if function == Function.ALL_REDUCE else ReduceOp.UNKNOWN
        return self.page.enter(slot, function, DType.FLOAT32, reduce_op, peer, count, 4 * count, count)

    def run(self, slot: int, rounds: int) -> None:
        for _ in range(rounds):
            self.page.complete(self.enter(slot))

    def read(self) -> PageSnapshot:
        return self.reader.read()

    def frame(self, index: int = 0) -> np.void:
        frame: np.void = self.read().frames[index]
        return frame

    def detail(self, index: int = 0) -> FrameDetail:
        return self.read().details[index]


@pytest.fixture
def probe() -> Iterator[Probe]:
    page = Page.create("job", "attempt-1", 1, 4, 1, "torch 2.13.0")
    reader = PageReader(page.page_fd, page.control_fd)
    yield Probe(page, reader)
    reader.close()
    page.close()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    """Waits on a condition with a deadline: how these tests order things."""
    return until


def build_helper(target: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("g++")
    assert compiler, "g++ is part of the toolchain this project needs"
    sources = [str(NATIVE / f"{name}.cc") for name in WRITER_SOURCES]
    includes = [f"-I{NATIVE}", f"-I{ROOT}/kernels/include"]
    command = [compiler, "-std=c++17", "-O1", "-g", "-pthread", *flags, *includes, str(HELPER), *sources]
    return subprocess.run([*command, "-o", str(target)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def build_native() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`build_native(target, *flags)` compiles the helper with the writer's sources."""
    return build_helper


@pytest.fixture(scope="session")
def native_helper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("native") / "stress"
    built = build_helper(target)
    assert built.returncode == 0, built.stderr
    return target
