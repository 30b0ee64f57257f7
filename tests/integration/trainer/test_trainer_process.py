"""One rank inside this process: faults of the probe and of the agent, phases, steps, heartbeats."""

import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.agent_socket import CommunicatorClosed, CommunicatorOpened, Hello
from paceline.contracts.codes import HostWait, OpState, Phase
from paceline.probe.errors import PageUnavailableError
from paceline.probe.reader import PageReader
from paceline.trainer import attach, phase, process, step
from paceline.trainer.probe import NativeProbe

pytestmark = pytest.mark.needs_torch
Install = Callable[..., Any]


@pytest.fixture
def dist() -> Iterator[Any]:
    import torch.distributed as distributed

    yield distributed
    with suppress(AssertionError, ValueError):
        distributed.destroy_process_group()


@pytest.fixture
def install(dist: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Install]:
    """Install the hook in this process with a probe; everything is undone at the end."""
    monkeypatch.setattr(process, "_process", None)
    monkeypatch.setenv("PACELINE_AGENT_SOCKET", str(tmp_path / "agent.sock"))
    monkeypatch.setenv("PACELINE_JOB_ID", "inside")
    installed: list[process.Process] = []

    def run(probe: Any = None, **environment: str) -> process.Process:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        state = process.install(probe or NativeProbe())
        installed.append(state)
        return state

    yield run
    for state in installed:
        state.remove()


def make_world(dist: Any) -> Any:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


def sum_of_ones(dist: Any, group: Any = None) -> list[float]:
    import torch

    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    values: list[float] = tensor.tolist()
    return values


def read(state: process.Process) -> Any:
    assert state.session is not None
    return PageReader(state.session.page.page_fd, state.session.page.control_fd).read()


class BrokenProbe(NativeProbe):
    """A page whose method `name` raises."""

    def __init__(self, name: str) -> None:
        self.name = name

    def page(self, *arguments: Any) -> Any:
        page, broken = super().page(*arguments), self.name

        class Page:
            def __getattr__(self, name: str) -> Any:
                return self.fail if name == broken else getattr(page, name)

            def fail(self, *arguments: Any) -> Any:
                raise RuntimeError(f"{broken} is broken")

        return Page()


@pytest.mark.parametrize("name", ["enter", "returned", "complete", "open_communicator", "set_identity"])
def test_a_probe_that_raises_changes_nothing_for_training(
    install: Install, dist: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = install(BrokenProbe(name))
    with caplog.at_level(logging.WARNING, "paceline"):
        make_world(dist)
        dist.barrier()
        assert [sum_of_ones(dist) for _ in range(3)] == [[1.0, 1.0, 1.0]] * 3
    assert state.session is None, "one error switches the hook off"
    assert f"{name} is broken" in caplog.text
    assert caplog.text.count("training goes on") == 1


@pytest.mark.parametrize(
    "error", [PageUnavailableError(1, "memfd refused"), ImportError("no probe"), ValueError("x")]
)
def test_without_a_page_the_job_runs_unobserved(
    install: Install, dist: Any, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing(NativeProbe):
        def page(self, *arguments: Any) -> Any:
            raise error

    state = install(Refusing())
    with caplog.at_level(logging.WARNING, "paceline"):
        world = make_world(dist)
        assert sum_of_ones(dist) == [1.0, 1.0, 1.0]
    assert type(world) is dist.ProcessGroup
    assert state.session is None
    assert "training goes on" in caplog.text


@pytest.mark.parametrize("environment", [{"PACELINE_DISABLED": "1"}, {"PACELINE_HOOK": "off"}])
def test_switched_off(install: Install, dist: Any, environment: dict[str, str]) -> None:
    install(**environment)
    assert type(make_world(dist)) is dist.ProcessGroup
    assert sum_of_ones(dist) == [1.0, 1.0, 1.0]


def test_a_call_that_raises_is_failed_and_its_error_is_the_users(install: Install, dist: Any) -> None:
    import torch

    state = install()
    world = make_world(dist)
    with pytest.raises((ValueError, RuntimeError)):
        world.allgather([[torch.ones(3)]], [torch.ones(4), torch.ones(4)])
    sum_of_ones(dist)
    (detail,) = read(state).details
    assert detail.newest()[0]["state"].tolist() == [OpState.FAILED, OpState.COMPLETED]
    assert len(detail.open()[0]) == 0


def test_a_future_taken_instead_of_a_wait_completes_too(install: Install, dist: Any, until: Any) -> None:
    import torch

    state = install()
    world = make_world(dist)
    options = dist.AllreduceOptions()
    options.asyncOp = False
    future = world.allreduce([torch.ones(3)], options).get_future()
    future.wait()  # torch wakes the waiter before it calls back
    until(lambda: int(read(state).frames[0]["completed"]) == 1)
    assert int(read(state).frames[0]["started"]) == 1
    assert int(read(state).process["errors"]) == 0


def test_a_work_has_completed_when_wait_returns(install: Install, dist: Any) -> None:
    import torch

    state = install()
    make_world(dist)
    for done in range(1, 21):
        work = dist.all_reduce(torch.ones(3), async_op=done % 2 == 0)
        if work is not None:
            work.wait()
        assert int(read(state).frames[0]["completed"]) == done


def test_phases_nest_and_steps_are_counted(install: Install, dist: Any) -> None:
    import torch

    state = install()
    make_world(dist)
    assert read(state).process["phase"] == Phase.TRAIN
    with phase("evaluate"):
        with phase("checkpoint"):
            assert read(state).process["phase"] == Phase.CHECKPOINT
        assert read(state).process["phase"] == Phase.EVALUATE
        with phase("make tea"):
            header = read(state).process
            assert (header["phase"], bytes(header["phase_name"])) == (Phase.UNKNOWN, b"make tea")
    assert read(state).process["phase"] == Phase.TRAIN
    optimizers = [torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1) for _ in range(2)]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.step()
    assert read(state).process["step"] == 3, "two optimizers make one step"
    step()
    assert read(state).process["step"] == 4
    step(100)
    optimizers[0].step()
    assert read(state).process["step"] == 100, "a script that counts itself is believed"


def test_an_exception_in_a_phase_passes_and_the_phase_ends(install: Install, dist: Any) -> None:
    state = install()
    make_world(dist)
    with pytest.raises(KeyError), phase("checkpoint"):
        raise KeyError("theirs")
    assert read(state).process["phase"] == Phase.TRAIN


def test_a_held_gil_stops_the_python_heartbeat_only(install: Install, dist: Any, until: Any) -> None:
    state = install()
    make_world(dist)
    assert state.session is not None
    reader = PageReader(state.session.page.page_fd, state.session.page.control_fd)
    start = reader.read().process
    until(lambda: reader.read().process["python_beats"] > start["python_beats"])
    before = reader.read().process
    ctypes.PyDLL(None).usleep(900_000)  # PyDLL keeps the GIL
    after = reader.read().process
    assert after["native_beats"] - before["native_beats"] >= 5
    assert after["python_beats"] - before["python_beats"] <= 1


def test_destroyed_groups_are_closed(install: Install, dist: Any, agent: Any, until: Any) -> None:
    install()
    make_world(dist)
    group = dist.new_group([0], group_desc="tp_0")
    sum_of_ones(dist, group)
    dist.destroy_process_group(group)
    until(lambda: agent.connections and said(agent, CommunicatorClosed))
    opened = said(agent, CommunicatorOpened)
    assert [message.name for message in opened] == ["world", "tp_0"]
    assert [message.communicator for message in said(agent, CommunicatorClosed)] == [opened[1].communicator]
    dist.destroy_process_group()
    until(lambda: len(said(agent, CommunicatorClosed)) == 2)


def said(agent: Any, kind: type) -> list[Any]:
    return [message for message in agent.connections[-1].messages if isinstance(message, kind)]


def test_an_agent_that_comes_back_is_told_everything_again(
    install: Install, dist: Any, agent: Any, until: Any, tmp_path: Path
) -> None:
    state = install()
    make_world(dist)
    until(lambda: agent.connections and said(agent, CommunicatorOpened))
    agent.stop()
    agent.connections.clear()
    assert sum_of_ones(dist) == [1.0, 1.0, 1.0], "nothing waits for the agent"
    again = type(agent)(tmp_path / "agent.sock")
    again.start()
    try:
        until(lambda: again.connections and said(again, CommunicatorOpened))
        (connection,) = again.connections
        until(lambda: connection.hello.attempt_source == "store")
        snapshot = PageReader(*connection.fds).read()
        assert int(snapshot.frames[0]["started"]) == int(read(state).frames[0]["started"])
        assert connection.hello.pid == os.getpid()
        assert said(again, CommunicatorOpened)[0].name == "world"
        assert isinstance(connection.messages[0], Hello)
    finally:
        again.stop()


def test_attach_after_the_world_observes_later_groups_and_says_so(
    install: Install, dist: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(dist)
    with caplog.at_level(logging.WARNING, logger="paceline"):
        state = install()
    assert "call attach() first" in caplog.text
    assert attach(name="late", coordinates={"dp": 4})
    group = dist.new_group([0])
    sum_of_ones(dist, group)
    assert type(world) is dist.ProcessGroup
    assert state.session is not None
    assert (state.session.hello.world_size, state.session.hello.coordinates) == (1, {"dp": 4})
    (frame,) = read(state).frames
    assert int(frame["started"]) == 1


def test_more_groups_than_the_page_holds(install: Install, dist: Any) -> None:
    state = install()
    make_world(dist)
    groups = [dist.new_group([0]) for _ in range(66)]
    assert all(sum_of_ones(dist, group) == [1.0, 1.0, 1.0] for group in groups)
    snapshot = read(state)
    assert len(snapshot.frames) == 64
    assert int(snapshot.process["communicators_dropped"]) == 3


def watch_waits(state: Any, store: Any, shown: Callable[[Any], bool], seen: list[tuple[int, bytes]]) -> None:
    """Note the first header that `shown` accepts, then set the key the other thread waits for."""
    deadline = time.monotonic() + 10
    while not seen and time.monotonic() < deadline:
        header = read(state).process
        if shown(header):
            seen.append((int(header["host_wait"]), bytes(header["host_wait_name"])))
    store.set("later", "1")


def test_waits_of_the_training_thread_outside_collectives_are_marked(install: Install, dist: Any) -> None:
    state = install()
    seen: list[tuple[int, bytes]] = []
    store = dist.HashStore()
    make_world(dist)
    assert read(state).process["host_wait"] == HostWait.NONE
    store.set("ready", "1")
    watcher = threading.Thread(
        target=watch_waits, args=(state, store, lambda header: bool(header["host_wait"]), seen), daemon=True
    )
    watcher.start()
    assert store.get("later") == b"1"
    watcher.join(10)
    assert seen == [(HostWait.STORE, b"later")]
    assert store.get("ready") == b"1"
    assert read(state).process["host_wait"] == HostWait.NONE


def test_a_wait_of_another_thread_is_not_that_of_the_rank(install: Install, dist: Any) -> None:
    state = install()
    store = dist.HashStore()
    make_world(dist)
    asked = threading.Event()

    def wait_in_background() -> None:
        asked.set()
        store.get("later")

    thread = threading.Thread(target=wait_in_background, daemon=True)
    thread.start()
    assert asked.wait(10)
    seen: list[tuple[int, bytes]] = []
    until_told = time.monotonic() + 0.3
    watch_waits(state, store, lambda header: bool(header["host_wait"]) or time.monotonic() > until_told, seen)
    thread.join(10)
    assert seen == [(HostWait.NONE, b"")]


def test_a_handle_that_is_dropped_holds_nobody_up(install: Install, dist: Any) -> None:
    import torch

    state = install()
    world = make_world(dist)
    options = dist.AllreduceOptions()
    options.asyncOp = False
    work = world.allreduce([torch.ones(3)], options)
    inner = work.paceline_inner  # keeps the operation itself alive, only the handle is dropped
    assert int(read(state).frames[0]["open_ops"]) == 1
    del work
    assert int(read(state).frames[0]["open_ops"]) == 0
    inner.wait()


@pytest.mark.parametrize("number", ["7", 7.5, object()])
def test_a_step_that_is_no_number_raises_nothing(install: Install, dist: Any, number: Any) -> None:
    state = install()
    make_world(dist)
    step(number)
    assert read(state).process["step"] == 1
