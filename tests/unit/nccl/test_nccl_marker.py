"""Marks that the GPU writes into the frames, with a driver made for these tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.agent.pages import PageView, view_of
from paceline.contracts.codes import FrameFlag, Function, OpState
from paceline.contracts.layout import MARK_ROUND_BITS
from paceline.contracts.verdicts import SubReason, VerdictClass
from tests.unit.nccl.calls import USER, Operation, Trace
from tests.unit.nccl.conftest import DRIVER, StartNccl, build_driver, verdict_of
from tests.unit.nccl.test_nccl_agent import Job
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.agent.conftest import MemoryPublisher
    from tests.unit.nccl.conftest import NcclProcess
    from tests.unit.nccl.test_nccl_agent import Eventually

UNSEEN = FrameFlag.COMPLETION_UNOBSERVABLE
ALLOWED, DONE, QUEUED, REGISTERED, REGISTERED_BYTES, CAPTURING, FAILS, CANNOT, NO_CONTEXT, FLAGS = range(10)
EVERYTHING = 1 << 40
NOT_YET, ON, NO_DRIVER, REFUSED = range(4)


class Driver:
    """The words that the fake driver of one process shares with the test."""

    def __init__(self, library: Path, file: Path, allowed: int = EVERYTHING) -> None:
        file.write_bytes(bytes(4096))
        self.words = np.memmap(file, np.uint64, "r+")
        self.words[ALLOWED] = allowed
        self.environment = {
            "HARNESS_DRIVER": str(library),
            "FAKE_CUDA": str(file),
            "PACELINE_NCCL_MARKER": "1",
        }

    def settle(self) -> None:
        """Wait until the GPU has made all the writes that it may make now."""
        until(lambda: self.words[DONE] >= min(int(self.words[QUEUED]), int(self.words[ALLOWED])))


@pytest.fixture(scope="session")
def fake_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cuda") / DRIVER
    assert build_driver(target, "-O1") == ""
    return target


@pytest.fixture
def make_driver(fake_cuda: Path, tmp_path: Path) -> Callable[..., Driver]:
    made: list[Driver] = []

    def make(allowed: int = EVERYTHING) -> Driver:
        made.append(Driver(fake_cuda, tmp_path / f"words{len(made)}", allowed))
        return made[-1]

    return make


def call(trace: Trace, context: int, function: str = "AllReduce") -> Operation:
    """One collective as NCCL's cheapest tier shows it: called, launched, returned."""
    operation = trace.enter(context, function)
    trace.launch_kernels(operation)
    trace.begin_task(operation)
    trace.end_task(operation)
    return operation


def view(process: NcclProcess) -> PageView:
    return view_of(process.read())


def seen_states(page: PageView) -> list[int]:
    ring = page.rounds[0][:128]
    return [int(state) for state in ring["state"][np.argsort(ring["round"])] if state]


def test_marks_show_ends_although_the_host_calls_nothing(
    start_nccl: StartNccl, make_driver: Callable[..., Driver]
) -> None:
    driver = make_driver()
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    for _ in range(3):
        call(trace, context)
    process.make(trace)
    driver.settle()
    raw, frame = process.frame(), view(process).frames[0]
    tag = int(raw["gpu_tag"])
    assert tag >> MARK_ROUND_BITS == 1
    assert (raw["gpu_arrive"], raw["gpu_leave"]) == (tag + 3, tag + 3)
    assert (frame["started"], frame["completed"], frame["head_round"]) == (3, 3, 0)
    assert not frame["flags"] & UNSEEN
    assert (driver.words[QUEUED], driver.words[FLAGS]) == (6, 0)
    assert process.read().process["nccl_marker"] == ON


def test_rounds_stay_open_until_the_gpu_is_through(
    start_nccl: StartNccl, make_driver: Callable[..., Driver]
) -> None:
    """The host has run four rounds ahead; the stream is inside the second, later in front of the third."""
    driver = make_driver(3)
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    for _ in range(4):
        call(trace, context)
    process.make(trace)
    driver.settle()
    page = view(process)
    frame = page.frames[0]
    assert (frame["started"], frame["completed"], frame["head_round"], frame["open_ops"]) == (4, 1, 2, 3)
    assert not frame["flags"] & UNSEEN
    over, inside, waits = OpState.COMPLETED, OpState.STARTED, OpState.ENTERED
    assert seen_states(page) == [over, inside, waits, waits]
    driver.words[ALLOWED] = 4
    driver.settle()
    assert seen_states(view(process)) == [over, over, waits, waits]
    driver.words[ALLOWED] = EVERYTHING
    driver.settle()
    call(trace, context)
    process.make(trace)
    assert process.frame()["completed"] == 4  # the plugin itself looks, too, when it is called
    assert process.detail().newest()[0]["state"].tolist()[:4] == [over] * 4


def test_frames_are_registered_once_and_each_communicator_has_its_tag(
    start_nccl: StartNccl, make_driver: Callable[..., Driver]
) -> None:
    driver = make_driver()
    process, trace = start_nccl(**driver.environment), Trace()
    contexts = [trace.init(hash_=0xA), trace.init(hash_=0xB)]
    for context in (*contexts, contexts[0]):
        call(trace, context)
    process.make(trace)
    driver.settle()
    frames = process.read().frames
    assert [int(tag) >> MARK_ROUND_BITS for tag in frames["gpu_tag"]] == [1, 2]
    assert (frames["gpu_leave"] - frames["gpu_tag"]).tolist() == [2, 1]
    assert (driver.words[REGISTERED], driver.words[REGISTERED_BYTES]) == (1, 64 * 1216)


def test_write_that_comes_after_its_communicator_says_nothing(
    start_nccl: StartNccl, make_driver: Callable[..., Driver]
) -> None:
    driver = make_driver(0)
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    for _ in range(3):
        call(trace, context)
    trace.finalize(context)
    process.make(trace)
    for number in range(63):  # slots are used again in order of closing, when all were used
        trace.init(hash_=0x100 + number)
    context = trace.init(hash_=0x999)
    for _ in range(3):
        call(trace, context)
    process.make(trace)
    driver.words[ALLOWED] = 6  # of the closed one
    driver.settle()
    frame = process.read().frames[0]
    assert frame["comm"] != 0
    assert (int(frame["gpu_leave"]) & 0xFFFF, int(frame["gpu_leave"]) >> MARK_ROUND_BITS) == (3, 1)
    assert int(frame["gpu_tag"]) >> MARK_ROUND_BITS == 65
    assert (view(process).frames["completed"][0], view(process).frames["head_round"][0]) == (0, 1)


def test_group_of_calls_has_one_end(start_nccl: StartNccl, make_driver: Callable[..., Driver]) -> None:
    driver = make_driver()
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    operation = trace.enter(context)
    second = trace.start(
        USER, context, "CollApi", operation.group, operation.mask, function="Broadcast", count=8,
        dtype="ncclFloat32", root=0, stream=7, captured=False,
    )  # fmt: skip
    trace.stop(USER, second)
    operation.calls.append(second)
    trace.launch_kernels(operation)
    trace.begin_task(operation)
    trace.end_task(operation)
    process.make(trace)
    driver.settle()
    frame = view(process).frames[0]
    assert (frame["started"], frame["completed"], driver.words[QUEUED]) == (2, 2, 3)


def test_all_to_all_of_messages_is_marked_and_other_messages_are_not(
    start_nccl: StartNccl, make_driver: Callable[..., Driver]
) -> None:
    driver = make_driver()
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init(nranks=4)
    for peers in ([0, 1, 2, 3], [1]):
        pairs = [(side, peer, 64) for peer in peers for side in ("Send", "Recv")]
        operation = trace.messages(context, *pairs)
        trace.launch_kernels(operation)
        trace.begin_messages(operation)
        trace.end_task(operation)
    process.make(trace)
    driver.settle()
    frame = view(process).frames[0]
    assert (frame["started"], frame["completed"], frame["p2p_started"]) == (1, 1, 2)
    assert driver.words[QUEUED] == 2
    assert process.detail().newest()[0]["function"][0] == Function.ALL_TO_ALL


def run_with(process: NcclProcess, trace: Trace, context: int) -> np.void:
    for _ in range(2):
        call(trace, context)
    process.make(trace)
    return process.frame()


@pytest.mark.parametrize("word", [CAPTURING, FAILS])
def test_capture_or_failure_switches_marks_off_for_good(
    start_nccl: StartNccl, make_driver: Callable[..., Driver], word: int
) -> None:
    driver = make_driver(0)
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    assert not run_with(process, trace, context)["flags"] & UNSEEN
    driver.words[word] = 1
    frame = run_with(process, trace, context)
    driver.words[word] = 0
    assert (frame["gpu_tag"], frame["completed"]) == (0, 3)
    assert frame["flags"] & UNSEEN
    run_with(process, trace, context)
    assert driver.words[QUEUED] == 4  # of the first two rounds
    assert process.read().process["nccl_marks_off"] == 1


def test_second_stream_switches_marks_off(start_nccl: StartNccl, make_driver: Callable[..., Driver]) -> None:
    driver = make_driver()
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    call(trace, context)
    begin = len(trace.calls)
    call(trace, context)
    for made in trace.calls[begin:]:
        if made.get("type") == "CollApi":
            made["fields"]["stream"] = 8
    process.make(trace)
    frame = process.frame()
    assert (frame["gpu_tag"], driver.words[QUEUED]) == (0, 2)
    assert frame["flags"] & UNSEEN


def test_group_without_a_launch_switches_marks_off(
    start_nccl: StartNccl, make_driver: Callable[..., Driver]
) -> None:
    """A communicator that does not block launches from another thread, later: an end here would be a lie."""
    driver = make_driver()
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    operation = trace.enter(context)
    trace.connect(operation)
    trace.stop(USER, operation.group)
    process.make(trace)
    frame = process.frame()
    assert (frame["gpu_tag"], driver.words[QUEUED], frame["head_round"]) == (0, 1, 1)
    assert frame["flags"] & UNSEEN


def test_captured_calls_are_not_marked(start_nccl: StartNccl, make_driver: Callable[..., Driver]) -> None:
    driver = make_driver()
    process, trace = start_nccl(**driver.environment), Trace()
    context = trace.init()
    operation = trace.enter(context, captured=True)
    trace.launch_kernels(operation)
    trace.stop(USER, operation.group)
    process.make(trace)
    assert (driver.words[QUEUED], process.frame()["started"]) == (0, 0)
    assert not run_with(process, trace, context)["flags"] & UNSEEN


@pytest.mark.parametrize(("word", "state"), [(CANNOT, REFUSED), (NO_CONTEXT, REFUSED)])
def test_gpu_that_cannot_is_left_alone_and_said(
    start_nccl: StartNccl, make_driver: Callable[..., Driver], word: int, state: int
) -> None:
    driver = make_driver()
    driver.words[word] = 1
    process, trace = start_nccl(**driver.environment), Trace()
    frame = run_with(process, trace, trace.init())
    assert (frame["gpu_tag"], driver.words[QUEUED], driver.words[REGISTERED]) == (0, 0, 0)
    assert frame["flags"] & UNSEEN
    assert process.read().process["nccl_marker"] == state


@pytest.mark.parametrize("without", ["HARNESS_DRIVER", "PACELINE_NCCL_MARKER"])
def test_nothing_is_asked_without_a_driver_or_unless_wanted(
    start_nccl: StartNccl, make_driver: Callable[..., Driver], without: str
) -> None:
    driver = make_driver()
    environment = {name: value for name, value in driver.environment.items() if name != without}
    process, trace = start_nccl(**environment), Trace()
    frame = run_with(process, trace, trace.init())
    assert (frame["gpu_tag"], driver.words[QUEUED], driver.words[REGISTERED]) == (0, 0, 0)
    expected = NO_DRIVER if without == "HARNESS_DRIVER" else NOT_YET
    assert process.read().process["nccl_marker"] == expected


def test_version_4_has_no_stream_and_so_no_marks(
    start_nccl: StartNccl, make_driver: Callable[..., Driver]
) -> None:
    driver = make_driver()
    process, trace = start_nccl(4, **driver.environment), Trace(4)
    context = trace.init()
    for _ in range(2):
        trace.run(context)
    process.make(trace)
    assert (process.frame()["gpu_tag"], driver.words[QUEUED]) == (0, 0)


async def test_gpu_that_does_not_come_to_the_operation_is_named(
    start_nccl: StartNccl, agent_socket: Path, publisher: MemoryPublisher, eventually: Eventually,
    make_driver: Callable[..., Driver],
) -> None:  # fmt: skip
    """All hosts have called and launched; the stream of rank 2 stands in a kernel before the operation."""
    drivers = [make_driver() for _ in range(4)]
    job = Job(start_nccl, agent_socket, [driver.environment for driver in drivers])
    for rank, trace in enumerate(job.traces):
        for _ in range(3):
            call(trace, job.contexts[rank])
    job.make()
    for rank, driver in enumerate(drivers):
        driver.settle()
        driver.words[ALLOWED] = 6 if rank == 2 else 7
    for rank, trace in enumerate(job.traces):
        call(trace, job.contexts[rank])
    job.make()
    verdict = await eventually(lambda: verdict_of(publisher, VerdictClass.H3))
    assert [root.rank for root in verdict.roots] == [2]
    assert verdict.sub_reason is SubReason.DEVICE_QUEUE
