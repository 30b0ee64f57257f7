"""Reduction of real pages, and of pages full of nonsense."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.agent.batches import merge_rows
from paceline.agent.pages import PageFault, PageView, view_of
from paceline.agent.rows import (
    Facts,
    RowMemory,
    RowPolicy,
    Suspicion,
    find_suspicion,
    reduce_page,
)
from paceline.contracts.batch import ROW_DTYPES, Batch, BatchKind, RowKind, decode_batch, encode_batch
from paceline.contracts.codes import (
    DType,
    FrameFlag,
    Function,
    HostWait,
    OpState,
    Phase,
    ProcessState,
    ReduceOp,
)
from paceline.contracts.dtypes import FRAME_DTYPE, PROCESS_DTYPE
from paceline.contracts.layout import FRAMES_OFFSET, PAGE_BYTES
from paceline.probe.reader import PageReader
from paceline.probe.writer import Page

FACTS = Facts(rank=3, pid=100, pid_start=7, state=ProcessState.SLEEPING, cpu_ms=5, context_switches=9)
POLICY = RowPolicy(suspect_ms=3000)
S = 1_000_000_000


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page.create("job", "a1", 3, 8, 3, "test")
    yield page
    page.close()


@pytest.fixture
def slot(page: Page) -> int:
    return int(page.open_communicator(0xABC, 0, 1, 4, 3, 1))


def view(page: Page) -> PageView:
    reader = PageReader(page.page_fd)
    try:
        return view_of(reader.read())
    finally:
        reader.close()


def enter(page: Page, slot: int, function: Function = Function.ALL_REDUCE, peer: int = -1) -> int:
    ticket = int(page.enter(slot, function, DType.FLOAT32, ReduceOp.SUM, peer, 10, 40, 10))
    page.returned(ticket)
    return ticket


def test_open_round_with_its_age_and_its_own_words(page: Page, slot: int) -> None:
    page.complete(enter(page, slot), False)
    enter(page, slot, Function.BROADCAST, 2)
    enter(page, slot, Function.ALL_REDUCE)
    now = time.monotonic_ns() + 10 * S
    rows = reduce_page(view(page), FACTS, RowMemory(), now, POLICY, detail=True).rows
    state = rows[RowKind.STATE][0]
    assert (state["comm"], state["rank"], state["comm_rank"]) == (0xABC, 3, 1)
    assert (state["entered"], state["completed"], state["head_round"], state["open_ops"]) == (3, 1, 2, 2)
    assert 10_000 <= state["head_age_ms"] < 11_000
    assert (state["function"], state["peer"]) == (Function.BROADCAST, 2)  # the head's, not the newest
    assert state["head_issue"] == 2
    opened = rows[RowKind.ROUND][rows[RowKind.ROUND]["state"] < OpState.COMPLETED]
    assert opened["round"].tolist() == [2, 3]
    assert opened["duration_ns"].tolist() == [0, 0]
    assert len(rows[RowKind.FRAME]) == 1


def test_idle_before_the_first_progress_counts_from_the_head(page: Page, slot: int) -> None:
    enter(page, slot)
    row = reduce_page(view(page), FACTS, RowMemory(), time.monotonic_ns() + 5 * S, POLICY, detail=False)
    state = row.rows[RowKind.STATE][0]
    assert state["idle_ms"] == state["head_age_ms"] >= 5000


def test_durations_and_gaps(page: Page, slot: int) -> None:
    for _ in range(3):
        page.complete(enter(page, slot), False)
    before = view(page)
    reduction = reduce_page(before, FACTS, RowMemory(), time.monotonic_ns(), POLICY, detail=False)
    rounds = reduction.rows[RowKind.ROUND]
    assert rounds["round"].tolist() == [1, 2, 3]
    ring = {int(r["round"]): r for r in before.rounds[0]}
    times = {int(r["round"]): t for r, t in zip(before.rounds[0], before.round_times[0], strict=True)}
    assert rounds["duration_ns"][1] == ring[2]["completed_ns"] - times[2]["started_ns"] > 0
    assert rounds["gap_ns"][1] == times[2]["started_ns"] - ring[1]["completed_ns"]
    assert rounds["gap_ns"][0] == 0  # nothing came before the first


def test_each_round_is_told_once(page: Page, slot: int) -> None:
    memory, seen = RowMemory(), []
    for _ in range(5):
        for _ in range(4):
            page.complete(enter(page, slot), False)
        reduction = reduce_page(view(page), FACTS, memory, time.monotonic_ns(), POLICY, detail=False)
        memory = reduction.memory
        seen += reduction.rows[RowKind.ROUND]["round"].tolist()
    assert seen == list(range(1, 21))


def test_many_rounds_fall_back_to_a_coarser_level(page: Page, slot: int) -> None:
    for _ in range(2000):
        page.complete(enter(page, slot), False)
    rows = reduce_page(view(page), FACTS, RowMemory(), time.monotonic_ns(), POLICY, detail=False).rows
    levels = rows[RowKind.ROUND]["level"]
    assert 0 < len(levels) <= 64
    assert levels.min() >= 8  # levels 0 and 4 have overflowed, so their choice is not everybody's


def test_frame_once_per_stalled_round(page: Page, slot: int) -> None:
    enter(page, slot)
    later = time.monotonic_ns() + 4 * S
    first = reduce_page(view(page), FACTS, RowMemory(), later, POLICY, detail=True)
    second = reduce_page(view(page), FACTS, first.memory, later + S, POLICY, detail=True)
    assert (len(first.rows[RowKind.FRAME]), len(second.rows[RowKind.FRAME])) == (1, 0)
    frame = first.rows[RowKind.FRAME].view(FRAME_DTYPE)[0]
    assert (frame["comm"], frame["head_round"]) == (0xABC, 1)


def test_busy_communicator_sends_no_frame_while_another_is_suspect(page: Page, slot: int) -> None:
    page.complete(enter(page, slot), False)
    rows = reduce_page(view(page), FACTS, RowMemory(), time.monotonic_ns(), POLICY, detail=True).rows
    assert len(rows[RowKind.FRAME]) == 0
    assert len(rows[RowKind.STATE]) == 1


def test_point_to_point_heads(page: Page, slot: int) -> None:
    enter(page, slot, Function.RECV, 2)
    page.complete(enter(page, slot, Function.SEND, 0), False)
    now = time.monotonic_ns() + 4 * S
    peers = reduce_page(view(page), FACTS, RowMemory(), now, POLICY, detail=True).rows[RowKind.PEER]
    by_peer = {int(row["peer"]): row for row in peers}
    assert by_peer[2]["posted"].tolist() == [0, 1]
    assert by_peer[2]["head_age_ms"][1] >= 4000
    assert by_peer[2]["head_age_ms"][0] == 0
    assert by_peer[0]["completed"].tolist() == [1, 0]
    assert find_suspicion(view(page), FACTS, now, POLICY) is Suspicion.PEER_HEAD_OLD


def test_process_row(page: Page, slot: int) -> None:
    page.set_phase(Phase.CHECKPOINT, "save")
    page.set_step(12)
    page.set_host_wait(HostWait.STORE, "key", 5)
    page.add_paced(7_000_000)
    page.beat()
    row = reduce_page(view(page), FACTS, RowMemory(), time.monotonic_ns() + 2 * S, POLICY, detail=False)
    process = row.rows[RowKind.PROCESS][0]
    assert (process["phase"], process["step"], process["paced_ms"]) == (Phase.CHECKPOINT, 12, 7)
    assert (process["host_wait"], process["host_wait_rank"]) == (HostWait.STORE, 5)
    assert process["host_wait_age_ms"] >= 2000
    assert 2000 <= process["python_age_ms"] < 3000
    assert (process["cpu_ms"], process["context_switches"], process["communicators"]) == (5, 9, 1)


@pytest.mark.parametrize(
    ("state", "later_s", "expected"),
    [
        (ProcessState.SLEEPING, 0, Suspicion.NONE),
        (ProcessState.STOPPED, 0, Suspicion.STOPPED),
        (ProcessState.TRACED, 0, Suspicion.NONE),
        (ProcessState.GONE, 0, Suspicion.GONE),
        (ProcessState.SLEEPING, 4, Suspicion.NATIVE_BEAT_STALE),
    ],
)
def test_suspicion(page: Page, state: ProcessState, later_s: int, expected: Suspicion) -> None:
    page.beat()
    seen = view(page)
    process = seen.process.copy()
    process["native_beat_ns"] = process["python_beat_ns"]  # its own first beat may still be to come
    now = int(process["native_beat_ns"]) + later_s * S
    facts = replace(FACTS, state=state)
    assert find_suspicion(replace(seen, process=process), facts, now, POLICY) is expected


def test_held_gil_is_suspect(page: Page) -> None:
    page.beat()
    seen = view(page)
    process = seen.process.copy()
    process["native_beat_ns"] = process["python_beat_ns"] + 4 * S
    now = int(process["native_beat_ns"])
    assert find_suspicion(replace(seen, process=process), FACTS, now, POLICY) is Suspicion.PYTHON_BEAT_STALE


def test_old_head_is_suspect_until_the_communicator_is_closed(page: Page, slot: int) -> None:
    enter(page, slot)
    now = time.monotonic_ns() + 4 * S
    assert find_suspicion(view(page), FACTS, now, POLICY) is Suspicion.HEAD_OLD
    page.add_flags(slot, 8)
    assert find_suspicion(view(page), FACTS, now, POLICY) is not Suspicion.HEAD_OLD


def test_ages_clamp_the_future_and_the_unknown(page: Page, slot: int) -> None:
    enter(page, slot)
    seen = view(page)
    process = seen.process.copy()
    process["native_beat_ns"], process["python_beat_ns"], process["phase_entered_ns"] = 0, 2**64 - 1, 1
    now = 2**63
    rows = reduce_page(replace(seen, process=process), FACTS, RowMemory(), now, POLICY, detail=False).rows
    row = rows[RowKind.PROCESS][0]
    assert [int(row[name]) for name in ("native_age_ms", "python_age_ms", "phase_age_ms")] == [
        0,
        0,
        2**32 - 1,
    ]


def _hostile_page(seed: int, frames: int) -> int:
    """A sealed page with the right magics and noise everywhere else."""
    noise = np.random.default_rng(seed)
    data = np.frombuffer(noise.bytes(PAGE_BYTES), np.uint8).copy()
    header = data[: PROCESS_DTYPE.itemsize].view(PROCESS_DTYPE)
    header["magic"], header["version"], header["header_bytes"] = 0x31504C50, 1, 4096
    header["page_bytes"], header["lock"] = PAGE_BYTES, 0
    for slot in range(64):
        start = FRAMES_OFFSET + slot * 1216
        frame = data[start : start + 1184].view(FRAME_DTYPE)
        if slot >= frames:
            data[start : start + 1216] = 0
            continue
        frame["magic"], frame["version"], frame["frame_bytes"] = 0x31464C50, 1, 1184
        frame["lock"], frame["slot"], frame["nranks"], frame["comm_rank"] = 0, slot, 1 << 20, slot
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.write(fd, data.tobytes())
    import fcntl

    fcntl.fcntl(fd, 1033, 0x0002)  # F_ADD_SEALS, F_SEAL_SHRINK
    return fd


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), frames=st.integers(0, 6), now=st.integers(0, 2**63))
def test_hostile_page_gives_bounded_rows_of_the_admitted_rank(seed: int, frames: int, now: int) -> None:
    seen = _read(_hostile_page(seed, frames))
    assert len(seen.frames) == len(seen) == frames
    rows = reduce_page(seen, FACTS, RowMemory(), now, POLICY, detail=True).rows
    for table in rows.values():
        if table.dtype.names:
            assert (table["rank"] == FACTS.rank).all()
    assert len(rows[RowKind.ROUND]) <= frames * (5 * 32 + POLICY.open_rounds_max + POLICY.recent_rounds_max)
    batch = Batch(BatchKind.FRAMES, "j", "a", "n", 0, 1, 1, now, now, merge_rows([rows]))
    assert decode_batch(encode_batch(batch)).rows.keys() <= ROW_DTYPES.keys()


def _read(fd: int) -> PageView:
    reader = PageReader(fd)
    os.close(fd)
    try:
        return view_of(reader.read())
    finally:
        reader.close()


def test_header_that_turns_into_something_else_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.agent.pages import MappedPage

    fd = _hostile_page(1, 0)
    page = MappedPage(PageReader(fd))
    os.pwrite(fd, b"\0\0\0\0", 0)
    with pytest.raises(PageFault, match="page magic"):
        page.read()
    page.close()
    os.close(fd)


@pytest.mark.parametrize("kernels", [0, 2])
def test_kernel_that_has_begun_is_said_and_never_believed_of_a_page(
    page: Page, slot: int, kernels: int
) -> None:
    enter(page, slot)
    page.add_flags(slot, FrameFlag.KERNEL_STARTED | FrameFlag.DROPPED)
    seen = view(page)
    seen.frames["kernels_started"] = kernels
    row = reduce_page(seen, FACTS, RowMemory(), time.monotonic_ns(), POLICY, detail=False).rows[RowKind.STATE]
    asked = int(row["flags"][0]) & (FrameFlag.KERNEL_STARTED | FrameFlag.DROPPED)
    assert asked == FrameFlag.DROPPED | (FrameFlag.KERNEL_STARTED if kernels else 0)
