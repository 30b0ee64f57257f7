"""Several writers, other processes, killed writers, ThreadSanitizer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.contracts.codes import FrameFlag, Function
from paceline.probe.reader import PageReader
from paceline.probe.writer import Page

if TYPE_CHECKING:
    from tests.unit.probe.conftest import Probe

# Python 3.12 and newer warn of any fork beside a thread; here the child does nothing a thread could block.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
THREADS = 4
OPERATIONS = 3000


@contextmanager
def other_process(helper: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], PageReader]]:
    """A helper process with a page, and a reader of it; killed and reaped at the end."""
    with subprocess.Popen(
        [helper, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pid, fd = map(int, process.stdout.readline().split())
            page_fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY)
            reader = PageReader(page_fd)
            os.close(page_fd)
            yield process, reader
            reader.close()
        finally:
            process.kill()


def holds(frame: np.void) -> bool:
    """What is true of every frame that was not torn."""
    counts = frame["completed"] <= frame["enqueued"] <= frame["started"] == frame["round"]
    head = (frame["head_round"] == 0) == (frame["started"] == frame["completed"])
    return bool(counts and head and (frame["head_round"] == 0) == (frame["head_entered_ns"] == 0))


def test_threads_write_while_a_reader_reads(probe: Probe) -> None:
    slots = [probe.open(1), probe.open(2)]
    start = threading.Barrier(THREADS + 1)

    def write(index: int) -> None:
        chance = random.Random(index)
        open_tickets: list[int] = []
        start.wait()
        for _ in range(OPERATIONS):
            function = Function.SEND if chance.random() < 0.2 else Function.ALL_REDUCE
            open_tickets.append(probe.enter(slots[index % 2], function, 2))
            probe.page.returned(open_tickets[-1])
            if len(open_tickets) > 6:
                probe.page.complete(open_tickets.pop(chance.randrange(len(open_tickets))))
        for ticket in open_tickets:
            probe.page.complete(ticket)

    threads = [threading.Thread(target=write, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    whole = 0
    while any(thread.is_alive() for thread in threads):
        for frame in probe.read().frames:
            if not frame["flags"] & FrameFlag.PARTIAL:
                whole += 1
                assert holds(frame)
    for thread in threads:
        thread.join()
    snapshot = probe.read()
    assert whole > 0
    assert int((snapshot.frames["started"] + snapshot.frames["p2p_started"]).sum()) == THREADS * OPERATIONS
    assert snapshot.frames["open_ops"].tolist() == [0, 0]
    assert snapshot.process["errors"] == 0
    assert snapshot.process["issued"] == THREADS * OPERATIONS


def test_native_threads_and_reader(native_helper: Path) -> None:
    done = subprocess.run([native_helper, "race", "1.0"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bad 0 open 0" in done.stdout


def test_no_data_race_by_thread_sanitizer(
    build_native: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    target = tmp_path / "stress"
    built = build_native(target, "-fsanitize=thread", "-Wno-tsan")
    if built.returncode != 0:
        pytest.skip(f"no ThreadSanitizer here: {built.stderr.splitlines()[-1:]}")
    done = subprocess.run([target, "race", "1.5"], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not run under this kernel's address randomisation")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "data race" not in done.stderr


def test_two_processes_keep_the_same_rounds(native_helper: Path) -> None:
    with (
        other_process(native_helper, "rounds", "50000", "77", "0") as (_, first),
        other_process(native_helper, "rounds", "50000", "77", "1") as (_, second),
    ):
        one, other = first.read(), second.read()
    assert one.frames["comm_rank"].tolist() + other.frames["comm_rank"].tolist() == [0, 1]
    for level in (0, 4, 8, 12):
        rounds, _ = one.details[0].kept(level)
        assert len(rounds) > 4
        assert rounds["round"].tolist() == other.details[0].kept(level)[0]["round"].tolist()
        assert rounds["signature"].tolist() == other.details[0].kept(level)[0]["signature"].tolist()


def test_same_places_whatever_order_completes(probe: Probe) -> None:
    chance = random.Random(5)
    slots = [probe.open(1), probe.open(2)]
    for _ in range(300):
        for slot in slots:
            tickets = [probe.enter(slot) for _ in range(20)]
            chance.shuffle(tickets)
            for ticket in tickets:
                probe.page.complete(ticket)
    first, second = probe.read().details
    assert first.rounds["round"][128:].tolist() == second.rounds["round"][128:].tolist()


def test_writer_killed_inside_a_write_is_flagged(native_helper: Path) -> None:
    with other_process(native_helper, "torn") as (process, reader):
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        snapshot = reader.read()
    assert snapshot.frames["flags"][0] & FrameFlag.PARTIAL
    assert snapshot.details[0].partial
    assert (snapshot.frames["completed"][0], snapshot.frames["comm"][0]) == (3, 7)
    assert snapshot.details[0].newest()[0]["round"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_writer_killed_anywhere_leaves_a_page_that_reads(seed: int) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            page = Page.create("job", "1", 0, 2, 0, "f")
            slot = page.open_communicator(9, 0, 0, 2, 0, 1)
            os.write(write_end, f"{page.page_fd}\n".encode())
            while True:
                page.complete(page.enter(slot, 1, 8, 1, -1, 1, 4, 1))
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        page_fd = os.open(f"/proc/{child}/fd/{int(pipe.readline())}", os.O_RDONLY)
    reader = PageReader(page_fd)
    os.close(page_fd)
    for _ in range(random.Random(seed).randrange(1, 20)):
        reader.read()
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    snapshot = reader.read()
    frame = snapshot.frames[0]
    assert frame["flags"] & FrameFlag.PARTIAL or holds(frame)
    assert snapshot.process["native_beats"] >= 1
    reader.close()
