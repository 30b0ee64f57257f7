"""Communicators, handles, detail, the time budget, a second profiler: what must hold whatever NCCL does."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.contracts.codes import DetailLevel, FrameFlag, Source
from paceline.probe.reader import PageReader
from tests.gpu.traces import read_trace
from tests.unit.nccl.calls import PROXY, SEND_WAIT, USER, Call, Operation, Trace
from tests.unit.nccl.conftest import ROOT, StartNccl, compile_all

FULL = {"PACELINE_NCCL_TIER": "2", "PACELINE_NCCL_BUDGET_PERCENT": "100"}  # a script calls at full speed
ENTRIES = 256 | 512 | 1024 | 2048 | 2 | 4
KERNELS, PROXIES = 64, 8 | 16


def test_library_shows_two_symbols_and_needs_no_cuda(built: Path) -> None:
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", built / "plugin.so"], capture_output=True, text=True, check=True
    )
    assert [line.split()[1:] for line in shown.stdout.splitlines()] == [
        ["D", "ncclProfiler_v4"],
        ["D", "ncclProfiler_v5"],
    ]
    needed = subprocess.run(["ldd", built / "plugin.so"], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in needed
    assert "stdc++" not in needed


def test_p_seventy_communicators_and_their_slots(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    contexts = [trace.init(hash_=1000 + number) for number in range(70)]
    for context in contexts:
        trace.run(context)
    process.make(trace)
    snapshot = process.read()
    assert len(snapshot.frames) == 64
    assert snapshot.frames["completed"].tolist() == [1] * 64
    assert snapshot.process["communicators_dropped"] == 6
    for context in contexts:
        trace.finalize(context)
    again = trace.init(hash_=5)
    trace.run(again)
    process.make(trace)
    found = process.read().frames
    assert (found["context"] == 5).sum() == 1


def test_q_late_calls_after_finalize_find_what_they_need(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context, other = trace.init(hash_=1), trace.init(hash_=2)
    operation = trace.enter(context)
    trace.launch_kernels(operation)
    trace.begin_task(operation, channels=1)
    proxy = trace.append_proxy(operation, 0, 1, is_send=True)
    trace.end_task(operation)
    trace.begin_kernels(operation, 1)
    step = trace.step(proxy, 0, is_send=True, upto=SEND_WAIT)
    process.make(trace)
    trace.finalize(context)
    process.make(trace)
    trace.stop(PROXY, step)
    trace.step(proxy, 1, is_send=True)
    trace.stop(PROXY, proxy)
    trace.end_kernels(operation)
    trace.run(other)
    process.make(trace)
    snapshot = process.read()
    assert snapshot.process["nccl_late"] > 0
    assert snapshot.frames["flags"][0] & FrameFlag.CLOSED
    assert snapshot.frames["send_count"].tolist() == [0, 8]
    assert snapshot.frames["open_ops"].tolist() == [0, 0]


def test_r_detail_is_changed_while_it_runs(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(), Trace()
    context = trace.init()
    trace.run(context)
    process.make(trace)
    assert process.mask == ENTRIES
    assert process.frame()["kernels_started"] == 0
    process.request(DetailLevel.FULL)
    trace.run(context)  # this one was asked for before; at its end the wish is seen
    process.make(trace)
    assert process.mask == ENTRIES | KERNELS | PROXIES
    trace.run(context)
    process.make(trace)
    snapshot = process.read()
    frame = snapshot.frames[0]
    assert (frame["started"], frame["completed"], frame["kernels_done"], frame["send_count"]) == (3, 3, 2, 8)
    assert snapshot.process["nccl_tier"] == 2
    # Its counts began in the middle: they are shown, and nobody may compare them.
    assert frame["flags"] & (FrameFlag.COUNTS_UNOBSERVABLE | FrameFlag.COMPLETION_UNOBSERVABLE) == (
        FrameFlag.COUNTS_UNOBSERVABLE
    )
    process.request(DetailLevel.ROUNDS)
    trace.run(context)
    trace.run(context)
    process.make(trace)
    frame = process.frame()
    assert process.mask == ENTRIES
    assert (frame["completed"], frame["kernels_done"]) == (4, 4)
    assert frame["flags"] & FrameFlag.COMPLETION_UNOBSERVABLE


def test_s_two_communicators_of_one_hash_are_two(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(), Trace()
    for nranks in (4, 4, 8):
        trace.run(trace.init(nranks=nranks, hash_=9), nranks=nranks, network=False)
    process.make(trace)
    frames = process.read().frames
    assert len(set(frames["comm"].tolist())) == 3
    assert frames["instance"].tolist() == [0, 1, 0]
    assert frames["context"].tolist() == [9, 9, 9]


def test_all_ranks_name_a_communicator_alike(start_nccl: StartNccl) -> None:
    names = set()
    for rank in range(2):
        process, trace = start_nccl(), Trace()
        trace.init(rank=rank)
        process.make(trace)
        names.add(int(process.frame()["comm"]))
    assert len(names) == 1


def test_t_killed_process_leaves_a_page_that_reads(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    for _ in range(50):
        trace.run(context)
    page = None
    process.make(trace)
    page = process.descriptor("paceline-page", os.O_RDONLY)
    assert page is not None
    for _ in range(500):
        trace.run(context)
    assert process.process.stdin is not None
    process.process.stdin.write(trace.take().lines(process.process.pid))
    process.process.send_signal(signal.SIGKILL)
    process.process.wait(10)
    reader = PageReader(page)
    os.close(page)
    frame = reader.read().frames[0]
    reader.close()
    assert frame["completed"] >= 50


@pytest.mark.parametrize("reason", ["disabled", "refused"])
def test_v_without_a_page_nccl_is_left_alone(start_nccl: StartNccl, reason: str) -> None:
    """Switched off, or no memory for a page: beyond the limit of file sizes, which would send a signal."""
    process = start_nccl(**FULL, PACELINE_DISABLED="1" if reason == "disabled" else "0")
    if reason == "refused":
        resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (65_536, 65_536))
    trace = Trace()
    context = trace.init()
    process.make(trace)
    assert process.mask == 0  # events that nobody reads cost all the same
    operation = trace.enter(context)
    operation.mask = 0  # an NCCL that asks all the same
    trace.begin_task(operation)
    trace.append_proxy(operation, 0, 1, is_send=True)
    trace.end_task(operation)
    trace.finalize(context)
    process.make(trace)
    assert process.is_null(operation.tasks[0])
    assert process.descriptor("paceline-page", os.O_RDONLY) is None
    assert process.end() == 0


def test_proxy_operation_that_is_stopped_twice_counts_once(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    operation = trace.enter(trace.init())
    trace.begin_task(operation)
    proxy = trace.append_proxy(operation, 0, 1, is_send=True)
    trace.stop(PROXY, proxy)
    trace.stop(PROXY, proxy)
    late = trace.start(PROXY, 0, "ProxyStep", proxy, step=0)
    process.make(trace)
    assert process.frame()["proxies_open"] == 0
    assert process.is_null(late)


def test_captured_calls_do_not_use_up_the_handles(start_nccl: StartNccl) -> None:
    """A server captures a graph for each batch size, again and again."""
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    for _ in range(33_000):
        captured = trace.start(
            USER,
            context,
            "CollApi",
            0,
            function="AllReduce",
            count=4,
            dtype="ncclInt8",
            root=0,
            captured=True,
        )
        trace.stop(USER, captured)
    trace.run(context)
    process.make(trace)
    snapshot = process.read()
    assert snapshot.process["nccl_dropped"] == 0
    assert (snapshot.frames[0]["started"], snapshot.frames[0]["algorithm"]) == (1, 1)


@pytest.mark.parametrize("version", [4, 7])
def test_rounds_advance_where_no_handle_is_left(start_nccl: StartNccl, version: int) -> None:
    """Else a rank without handles would be the one that did not call."""
    process, trace = start_nccl(version, **FULL), Trace(min(version, 5))
    context = trace.init()
    trace.run(context)
    for _ in range(33_000):
        trace.start(USER, context, "Group" if version < 5 else "GroupApi", 0)
    last = trace.run(context)
    process.make(trace)
    assert not process.is_null(last.task_group or last.group)  # else 2.27 says nothing of what is in it
    snapshot = process.read()
    assert snapshot.process["nccl_dropped"] > 0
    frame = snapshot.frames[0]
    assert frame["started"] == 2
    unseen = FrameFlag.COUNTS_UNOBSERVABLE | FrameFlag.COMPLETION_UNOBSERVABLE
    assert frame["flags"] & unseen == unseen


def test_detail_raised_between_group_and_call_makes_no_counts(start_nccl: StartNccl) -> None:
    """NCCL has read its mask by then: the first operation has no slices, so none are comparable later."""
    process, trace = start_nccl(PACELINE_NCCL_BUDGET_PERCENT="100"), Trace()
    context, other = trace.init(hash_=1), trace.init(hash_=2)
    process.make(trace)
    process.request(DetailLevel.FULL)
    first = Operation(context, trace.sample(USER))
    first.group = trace.start(USER, context, "GroupApi", 0, first.mask, captured=False, depth=1)
    trace.run(other, network=False)
    call = trace.start(
        USER, context, "CollApi", first.group, first.mask, function="AllReduce", count=4, dtype="ncclInt8",
        root=0, stream=7, captured=False,
    )  # fmt: skip
    trace.stop(USER, call)
    trace.stop(USER, first.group)
    trace.run(context)
    process.make(trace)
    frame = process.frame()
    assert (frame["started"], frame["send_count"]) == (2, 8)
    assert frame["flags"] & FrameFlag.COUNTS_UNOBSERVABLE


def test_handles_that_hang_are_bounded_and_never_given_again(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    stuck = []
    for _ in range(6000):  # more than a communicator keeps open
        operation = trace.enter(context)
        trace.launch_kernels(operation)
        trace.begin_task(operation, channels=1)
        trace.end_task(operation)
        stuck.append(operation)
    process.make(trace)
    snapshot = process.read()
    assert snapshot.frames[0]["started"] == 6000
    assert snapshot.frames[0]["head_round"] == 1
    assert snapshot.process["nccl_dropped"] > 0
    for operation in stuck[:300]:
        trace.begin_kernels(operation, 1)
        trace.end_kernels(operation)
    process.make(trace)
    assert process.frame()["head_round"] == 301  # exact for the oldest 512


def test_busy_handles_come_back(start_nccl: StartNccl) -> None:
    """More handles than the pool of 32,768 has."""
    process, trace = start_nccl(**FULL), Trace()
    context = trace.init()
    for _ in range(5):
        for _ in range(1000):
            trace.run(context, channels=4, network=False)
        process.make(trace)
    snapshot = process.read()
    assert (snapshot.process["nccl_dropped"], snapshot.process["errors"]) == (0, 0)
    assert (snapshot.frames[0]["completed"], snapshot.frames[0]["kernels_done"]) == (5000, 20_000)


def test_time_above_the_budget_lowers_the_tier_and_says_so(start_nccl: StartNccl) -> None:
    process, trace = start_nccl(PACELINE_NCCL_TIER="2", PACELINE_NCCL_BUDGET_PERCENT="0.000001"), Trace()
    context = trace.init()
    process.make(trace)
    assert process.mask == ENTRIES | KERNELS | PROXIES
    for _ in range(40):
        for _ in range(20):
            trace.run(context)
        process.make(trace)
        process.ask("sleep 60")
        header = process.read().process
        if header["nccl_tier"] == 0:
            break
    assert (header["nccl_tier"], header["nccl_tier_max"]) == (0, 0)
    assert header["nccl_lowered"] == 2
    assert header["nccl_own_ns"] > 0
    assert header["nccl_over_ns"] > 0
    assert process.mask == ENTRIES
    assert process.frame()["flags"] & FrameFlag.COUNTS_UNOBSERVABLE


def test_second_profiler_is_called_with_its_own_handles(start_nccl: StartNccl, tmp_path: Path) -> None:
    process, trace = start_nccl(**record_calls(tmp_path)), Trace()
    context = trace.init()
    trace.run(context)
    late = trace.enter(context)
    trace.launch_kernels(late)
    trace.begin_task(late)
    trace.end_task(late)
    process.make(trace)
    assert process.frame()["completed"] == 1
    trace.begin_kernels(late)  # long after NCCL is through with the task itself
    trace.end_kernels(late)
    process.make(trace)
    assert process.frame()["completed"] == 2
    trace.finalize(context)
    process.make(trace)
    assert process.mask == 4094 | ENTRIES  # what either of them wants
    assert process.end() == 0
    recorded = read_trace((tmp_path / "calls").read_text().splitlines()).calls  # refuses handles of others
    calls = [call for call in recorded if call["call"] != "sample"]
    first, last = calls[0], calls[-1]
    assert (first["call"], first["hash"], first["nranks"], first["rank"]) == ("init", 12648430, 4, 0)
    assert (last["call"], last["context"]) == ("finalize", first["context"])
    started = {call["handle"]: call for call in calls if call["call"] == "start"}
    assert {call["context"] for call in started.values()} <= {first["context"], 0}
    # Its own parents: a step names its proxy operation, that names the task, that the call, that the group.
    chains = {_chain(call, started) for call in started.values() if call["type"] in ("ProxyStep", "KernelCh")}
    assert chains == {
        ("ProxyStep", "ProxyOp", "Coll", "CollApi", "GroupApi"), ("KernelCh", "Coll", "CollApi", "GroupApi"),
    }  # fmt: skip
    assert all(call["parent"] for call in started.values() if call["type"] != "GroupApi")
    assert sum(call["type"] == "KernelCh" for call in started.values()) == 4
    assert len(started) == sum(call["call"] == "stop" for call in calls)


@pytest.mark.parametrize("version", [4, 7])
@pytest.mark.parametrize("place", ["disabled", "no frame left"])
def test_second_profiler_sees_late_kernels_where_nothing_is_written(
    start_nccl: StartNccl, tmp_path: Path, version: int, place: str
) -> None:
    """Kernels begin when NCCL is through with their task: its handle has to outlive that, page or none."""
    process = start_nccl(
        version,
        **record_calls(tmp_path),
        **({"PACELINE_DISABLED": "1"} if place == "disabled" else {}),
    )
    trace = Trace(min(version, 5))
    for number in range(0 if place == "disabled" else 64):
        trace.init(hash_=0x100 + number)
    context = trace.init()
    late = []
    for _ in range(3):
        operation = trace.enter(context)
        trace.launch_kernels(operation)
        trace.begin_task(operation)
        trace.end_task(operation)
        late.append(operation)
    process.make(trace)
    for operation in late:
        trace.begin_kernels(operation)
        trace.end_kernels(operation)
    for _ in range(4_200):  # more than a communicator keeps open
        trace.run(context, channels=1, network=False)
    process.make(trace)
    trace.finalize(context)
    process.make(trace)
    assert process.end() == 0
    calls = read_trace((tmp_path / "calls").read_text().splitlines()).calls
    started = {call["handle"]: call for call in calls if call["call"] == "start"}
    kernels = [_chain(call, started)[:2] for call in started.values() if call["type"] == "KernelCh"]
    assert kernels == [("KernelCh", "Coll")] * (2 * 3 + 4_200)
    assert len(started) == sum(call["call"] == "stop" for call in calls)


def record_calls(folder: Path) -> dict[str, str]:
    """The environment with a recorder of everything behind the plugin; it writes to `calls`."""
    recorder = folder / "recorder.so"
    errors = compile_all([ROOT / "tests/gpu/recorder.cc"], recorder, ["-fPIC", "-O1"], ["-shared"])
    assert not errors, errors
    return {
        "PACELINE_CHAIN_PROFILER": str(recorder),
        "RECORDER_FILE": str(folder / "calls"),
        "RECORDER_MASK": "4094",
    }


def _chain(call: Call, started: dict[int, Call]) -> tuple[str, ...]:
    """Kinds of an event and of all it descends from."""
    parent = started.get(call["parent"])
    return (call["type"], *(_chain(parent, started) if parent is not None else ()))


def test_page_of_the_trainer_is_shared(built: Path) -> None:
    """In a process that has the hook's page already the plugin writes there and makes none of its own."""
    script = Path(__file__).with_name("two_writers.py")
    environment = {**os.environ, "PACELINE_NCCL_TIER": "0"}
    done = subprocess.run(
        [sys.executable, script, built / "plugin.so"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    source, mine, plugins, pages = done.stdout.split()
    assert (int(source), int(mine), int(plugins), int(pages)) == (
        Source.TORCH_HOOK | Source.NCCL_PROFILER, Source.TORCH_HOOK, Source.NCCL_PROFILER, 1,
    )  # fmt: skip
