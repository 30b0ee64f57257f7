"""The process header, slots of communicators, seals, forks, and a kernel that refuses."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.contracts.codes import FrameFlag, HostWait, Phase, Source
from paceline.contracts.layout import COMMUNICATORS_MAX, CONTROL, CONTROL_BYTES, PAGE_BYTES
from paceline.probe.reader import PageReader
from paceline.probe.writer import Page

if TYPE_CHECKING:
    from tests.unit.probe.conftest import Probe

# Python 3.12 and newer warn of any fork beside a thread; here the child does nothing a thread could block.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
F_GET_SEALS = 1034
F_ADD_SEALS = 1033
SHRINK_GROW_SEAL = 0x0001 | 0x0002 | 0x0004


def test_header_says_who_writes(probe: Probe) -> None:
    snapshot = probe.read()
    process = snapshot.process
    assert [snapshot.text(name) for name in ("job", "attempt", "framework")] == [
        "job",
        "attempt-1",
        "torch 2.13.0",
    ]
    assert [process[name] for name in ("global_rank", "world_size", "local_rank", "pid")] == [
        1,
        4,
        1,
        os.getpid(),
    ]
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    assert process["pid_start"] == int(start)
    assert process["created_ns"] <= time.monotonic_ns()
    assert process["host_wait_rank"] == -1
    assert not snapshot.process_partial


def test_identity_may_be_learned_later(probe: Probe) -> None:
    probe.page.set_identity("other", "attempt-2", 7, 16, 3)
    snapshot = probe.read()
    assert (snapshot.text("job"), snapshot.text("attempt")) == ("other", "attempt-2")
    assert [snapshot.process[n] for n in ("global_rank", "world_size", "local_rank")] == [7, 16, 3]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x" * 500, "x" * 127),
        ("é" * 100, "é" * 63),
        ("a" + "é" * 100, "a" + "é" * 63),
        ("a\0b", "ab"),
        ("bad \ud800", "bad ?"),
        ("", ""),
    ],
)
def test_strings_are_cut_between_characters(text: str, shown: str) -> None:
    page = Page.create(text, "1", 0, 1, 0, "f")
    reader = PageReader(page.page_fd)
    assert reader.read().text("job") == shown
    reader.close()


def test_phase_step_wait_and_pace(probe: Probe) -> None:
    page = probe.page
    page.set_phase(Phase.CHECKPOINT, "save weights")
    page.set_step(41)
    page.set_host_wait(HostWait.STORE, "rendezvous key", 3)
    page.add_paced(5)
    page.add_paced(6)
    page.beat()
    snapshot = probe.read()
    process = snapshot.process
    assert (process["phase"], snapshot.text("phase_name"), process["step"]) == (4, "save weights", 41)
    assert (process["host_wait"], snapshot.text("host_wait_name"), process["host_wait_rank"]) == (
        HostWait.STORE,
        "rendezvous key",
        3,
    )
    assert (process["paced_ns"], process["python_beats"], process["finished"]) == (11, 1, 0)
    times = [process[f"{name}_ns"] for name in ("phase_entered", "step_entered", "host_wait_entered")]
    assert times == sorted(times)
    page.set_host_wait(HostWait.NONE, "ignored", 3)
    page.finish()
    process = probe.read().process
    assert [process[n] for n in ("host_wait", "host_wait_entered_ns", "host_wait_rank")] == [0, 0, -1]
    assert process["finished"] == 1


def test_native_heartbeat_needs_no_python(
    probe: Probe, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    first = int(probe.read().process["native_beats"])
    wait_until(lambda: probe.read().process["native_beats"] >= first + 3)
    process = probe.read().process
    assert process["python_beats"] == 0
    assert 0 <= time.monotonic_ns() - int(process["native_beat_ns"]) < 5_000_000_000


def test_closed_page_ignores_everything(probe: Probe) -> None:
    slot = probe.open()
    ticket = probe.enter(slot)
    assert probe.page.active
    probe.page.close()
    beats = probe.read().process["native_beats"]
    assert not probe.page.active
    assert probe.enter(slot) == -1
    probe.page.complete(ticket)
    probe.page.set_phase(Phase.TRAIN, "x")
    probe.page.beat()
    probe.page.close()
    snapshot = probe.read()
    assert (snapshot.frames["completed"][0], snapshot.process["phase"]) == (0, Phase.UNKNOWN)
    assert snapshot.process["native_beats"] == beats
    assert probe.page.read_control() == (0, 0, 0, 0)


def test_agent_asks_through_the_control_page(probe: Probe) -> None:
    assert probe.page.read_control() == (1, 0, 0, 0)
    control = probe.reader.control
    assert control is not None
    assert control.write(pace_ns=1000, pace_expires_ns=99) == 1
    assert control.write(pace_ns=2000, pace_expires_ns=100) == 2
    control.beat()
    assert probe.page.read_control() == (1, 2000, 100, 2)


def test_half_a_request_of_a_killed_agent_paces_nobody(probe: Probe) -> None:
    control = probe.reader.control
    assert control is not None
    control.write(pace_ns=1000, pace_expires_ns=99)
    lock = CONTROL.field("lock")
    os.pwrite(probe.page.control_fd, (3).to_bytes(lock.bytes, "little"), lock.offset)
    assert probe.page.read_control()[1] == 0
    assert probe.read().process["errors"] == 1
    control.write(pace_ns=2000, pace_expires_ns=99)
    assert probe.page.read_control()[1] == 2000


def test_slots_run_out_and_are_counted(probe: Probe) -> None:
    slots = [probe.open(comm) for comm in range(1, COMMUNICATORS_MAX + 1)]
    assert slots == list(range(COMMUNICATORS_MAX))
    assert [probe.open(100), probe.open(101)] == [-1, -1]
    snapshot = probe.read()
    assert (snapshot.process["communicators_dropped"], snapshot.process["frames_open"]) == (2, 64)
    assert len(snapshot.frames) == COMMUNICATORS_MAX


def test_closed_slot_is_used_again_when_nothing_is_open(probe: Probe) -> None:
    for comm in range(1, COMMUNICATORS_MAX + 1):
        probe.open(comm)
    ticket = probe.enter(5)
    probe.run(9, 20)
    probe.page.close_communicator(5)
    probe.page.close_communicator(9)
    frames = probe.read().frames
    assert frames["flags"][5] & frames["flags"][9] & FrameFlag.CLOSED
    assert probe.enter(9) == -1
    assert probe.open(200) == 9  # 5 was closed first and still has an open operation
    assert probe.open(201) == -1
    probe.page.complete(ticket)
    assert probe.open(202) == 5
    snapshot = probe.read()
    assert snapshot.frames["comm"][[5, 9]].tolist() == [202, 200]
    assert snapshot.frames["round"][[5, 9]].tolist() == [0, 0]
    assert len(snapshot.details[9].newest()[0]) == 0
    assert snapshot.process["frames_open"] == COMMUNICATORS_MAX
    probe.page.complete(ticket)
    assert probe.read().frames["completed"][5] == 0


def test_closing_twice_is_counted(probe: Probe) -> None:
    slot = probe.open()
    for number in (slot, slot, 63, -1, 64):
        probe.page.close_communicator(number)
    snapshot = probe.read()
    assert (snapshot.process["errors"], snapshot.process["frames_open"]) == (4, 0)


def test_flags_and_sources(probe: Probe) -> None:
    torch = probe.page.open_communicator(1, 0, 0, 2, 0, Source.TORCH_HOOK)
    probe.page.open_communicator(2, 0, 0, 2, 0, Source.NCCL_PROFILER)
    probe.page.add_flags(torch, FrameFlag.COMPLETION_UNOBSERVABLE)
    snapshot = probe.read()
    unseen = FrameFlag.COUNTS_UNOBSERVABLE | FrameFlag.COMPLETION_UNOBSERVABLE
    assert snapshot.frames["flags"].tolist() == [unseen, 0]
    assert snapshot.process["sources"] == Source.TORCH_HOOK | Source.NCCL_PROFILER


def test_seals_hold(probe: Probe) -> None:
    for fd in (probe.page.page_fd, probe.page.control_fd):
        assert fcntl.fcntl(fd, F_GET_SEALS) & SHRINK_GROW_SEAL == SHRINK_GROW_SEAL
        with pytest.raises(OSError, match=r"not permitted|Invalid"):
            os.ftruncate(fd, 0)
    assert os.fstat(probe.page.page_fd).st_size == PAGE_BYTES
    assert os.fstat(probe.page.control_fd).st_size == CONTROL_BYTES


def test_agent_cannot_write_the_page(probe: Probe) -> None:
    fd = probe.page.page_fd
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    with pytest.raises(PermissionError):
        mmap.mmap(fd, PAGE_BYTES, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(again, PAGE_BYTES, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.pwrite(again, b"x", 0)
    finally:
        os.close(again)
    with pytest.raises(PermissionError):
        fcntl.fcntl(probe.page.control_fd, F_ADD_SEALS, 0x0010)


def test_forked_child_never_writes_its_parents_page(probe: Probe) -> None:
    slot = probe.open()
    ticket = probe.enter(slot)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            page = probe.page
            page.complete(ticket)
            page.set_phase(Phase.TRAIN, "child")
            page.beat()
            page.close_communicator(slot)
            seen = (page.active, page.page_fd, page.control_fd, probe.enter(slot), page.read_control())
            own = Page.create("child", "1", 0, 1, 0, "f")
            own_reader = PageReader(own.page_fd)
            own_slot = own.open_communicator(5, 0, 0, 2, 0, 1)
            own.complete(own.enter(own_slot, 1, 8, 1, -1, 1, 4, 1))
            done = own_reader.read().frames["completed"][0]
            tid = own_reader.read().frames["tid"][0]
            own.close()
            os.write(write, repr((seen, int(done), int(tid) == os.getpid())).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as file:
        assert file.read() == "((False, -1, -1, -1, (0, 0, 0, 0)), 1, True)"
    assert status == 0
    snapshot = probe.read()
    assert (snapshot.frames["completed"][0], snapshot.frames["flags"][0] & FrameFlag.CLOSED) == (0, 0)
    assert (snapshot.process["phase"], snapshot.process["python_beats"]) == (Phase.UNKNOWN, 0)
    assert probe.page.active
    probe.page.complete(ticket)
    assert probe.frame()["completed"] == 1


def test_heartbeat_goes_on_in_the_parent_after_a_fork(
    probe: Probe, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    first = int(probe.read().process["native_beats"])
    wait_until(lambda: probe.read().process["native_beats"] > first)


# Filter: memfd_create fails with ENOSYS, as in a strict container; all else is allowed.
REFUSED_BY_SECCOMP = """
import ctypes, struct, platform
number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7FFF0000)]
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
buffer = ctypes.create_string_buffer(code)
program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, ctypes.get_errno()
"""
REFUSED_BY_DESCRIPTORS = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (os.open("/dev/null", 0) + 1,) * 2)
"""
REFUSED_BY_FILE_SIZE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
"""
REPORT = """
from paceline.probe.errors import PageUnavailableError
from paceline.probe.writer import Page
{refuse}
before = sorted(__import__("os").listdir("/proc/self/fd")) if "{name}" != "descriptors" else []
try:
    Page.create("job", "1", 0, 1, 0, "f")
except PageUnavailableError as error:
    print(type(error).__mro__[1].__name__, error.errno, error.strerror)
after = sorted(__import__("os").listdir("/proc/self/fd")) if "{name}" != "descriptors" else []
assert before == after, (before, after)
"""


@pytest.mark.parametrize(
    ("name", "refuse", "errno"),
    [
        ("seccomp", REFUSED_BY_SECCOMP, 38),
        ("descriptors", REFUSED_BY_DESCRIPTORS, 24),
        ("size", REFUSED_BY_FILE_SIZE, 27),
    ],
)
def test_refused_page_is_one_typed_error(name: str, refuse: str, errno: int) -> None:
    script = REPORT.format(refuse=refuse, name=name)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"OSError {errno} no probe page: ")
    assert "training goes on unobserved" in done.stdout


def test_writer_needs_no_third_party_module() -> None:
    script = (
        "import sys, paceline.probe.writer, paceline.probe.connection;"
        "print([m for m in ('numpy', 'pydantic', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
