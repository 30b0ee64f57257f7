"""Real supervisors of processes without torch, led by a controller in this process."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.recovery import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_REQUEUE,
    ChildExit,
    Lease,
    Member,
    Order,
    OrderKind,
    OrderOutcome,
    OrderResult,
    RecoveryMessage,
    SupervisorHello,
    encode_recovery,
    format_members,
    parse_recovery,
)
from paceline.trainer.supervisor.channel import Channel

PROGRAM = Path(__file__).parent / "programs" / "supervised.py"


class Agent:
    """Hears everything and does only what the test tells it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[RecoveryMessage] = []
        self._channels: list[Channel] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._closed = False
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._listener.settimeout(0.01)
        while not self._closed:
            try:
                self._channels.append(Channel(self._listener.accept()[0]))
            except TimeoutError:
                pass
            except OSError:
                return
            for channel in self._channels:
                if channel.open:
                    self.heard += [parse_recovery(body) for body in channel.receive()]

    def send(self, message: Order | Lease) -> None:
        for channel in self._channels:
            if channel.open:
                channel.send(encode_recovery(message))

    def close(self) -> None:
        self._closed = True
        self._thread.join(10)
        self._listener.close()
        for channel in self._channels:
            channel.close()

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    @property
    def hello(self) -> SupervisorHello | None:
        found = self.of(SupervisorHello)
        return found[-1] if found else None


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Callable[[], Agent]]:
    agents: list[Agent] = []

    def make() -> Agent:
        agents.append(Agent(tmp_path / "a.sock"))
        return agents[-1]

    yield make
    for agent in agents:
        agent.close()


@pytest.fixture
def supervise(begin: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start `supervised.py` under a supervisor; keywords are environment variables without their prefix."""
    started: list[Any] = []

    def run(*words: str, rank: int = 0, role: str = "member", **options: str) -> Any:
        command = [sys.executable, "-m", "paceline.trainer.supervisor", "--", sys.executable, str(PROGRAM)]
        environment = {
            "PACELINE_AGENT_SOCKET": str(tmp_path / "a.sock"), "PACELINE_JOB_ID": "j", "PACELINE_ROLE": role,
            "WORLD_SIZE": "2", **{f"PACELINE_{name.upper()}": text for name, text in options.items()},
        }  # fmt: skip
        if role == "member" and rank >= 0:
            environment["RANK"] = str(rank)
        started.append(begin([*command, *words], environment))
        return started[-1]

    yield run
    for process in started:
        process.kill()


def order(agent: Agent, number: int, kind: OrderKind, generation: int = 1, **arguments: str) -> None:
    agent.send(Order(f"o{number}", kind, generation, 0, time.time() + 60, arguments))


def result(agent: Agent, number: int) -> Any:
    return next((one for one in agent.of(OrderResult) if one.id == f"o{number}"), None)


def ready(agent: Agent) -> bool:
    return agent.hello is not None and agent.hello.ready


def test_the_status_of_the_command_is_that_of_the_supervisor(supervise: Any, ended: Any) -> None:
    assert ended(supervise("exit", "0")).status == 0
    assert ended(supervise("exit", "7", repair_wait_s="0")).status == 7


def test_without_a_rank_or_disabled_there_is_only_the_command(supervise: Any, ended: Any) -> None:
    assert ended(supervise("exit", "5", disabled="1")).status == 5
    nobody = ended(supervise("exit", "6", rank=-1))
    assert nobody.status == 6
    assert "no RANK" in nobody.errors


def test_an_exit_is_told_within_milliseconds_and_the_supervisor_stays(
    supervise: Any, listening: Any, until: Any
) -> None:
    agent = listening()
    process = supervise("wait")
    until(lambda: ready(agent))
    os.kill(agent.hello.child_pid, signal.SIGKILL)
    killed_s = time.monotonic()
    until(lambda: agent.of(ChildExit))
    assert time.monotonic() - killed_s < 1.0
    assert agent.of(ChildExit)[0].code == -signal.SIGKILL
    assert process.poll() is None


def test_a_fence_kills_the_named_process_and_no_other(supervise: Any, listening: Any, until: Any) -> None:
    agent = listening()
    supervise("wait")
    until(lambda: ready(agent))
    hello = agent.hello
    pid, start = str(hello.child_pid), str(hello.child_pid_start)
    order(agent, 1, OrderKind.FENCE, pid=str(os.getpid()), pid_start=start)
    order(agent, 2, OrderKind.FENCE, pid=pid, pid_start=str(hello.child_pid_start + 1))
    until(lambda: result(agent, 2))
    assert [result(agent, number).outcome for number in (1, 2)] == [OrderOutcome.REFUSED] * 2
    assert agent.of(ChildExit) == []
    order(agent, 3, OrderKind.FENCE, pid=pid, pid_start=start)
    until(lambda: result(agent, 3))
    assert result(agent, 3).outcome is OrderOutcome.DONE
    assert agent.of(ChildExit)[0].code == -signal.SIGKILL


def test_a_frozen_process_is_fenced_too(supervise: Any, listening: Any, until: Any) -> None:
    agent = listening()
    supervise("wait")
    until(lambda: ready(agent))
    hello = agent.hello
    os.kill(hello.child_pid, signal.SIGSTOP)
    order(agent, 1, OrderKind.FENCE, pid=str(hello.child_pid), pid_start=str(hello.child_pid_start))
    until(lambda: result(agent, 1))
    assert result(agent, 1).outcome is OrderOutcome.DONE


def test_orders_reach_the_child_once_and_old_ones_never(supervise: Any, listening: Any, until: Any) -> None:
    agent = listening()
    supervise("wait")
    until(lambda: ready(agent))
    members = format_members([Member(0, agent.hello.member)])
    for _ in range(2):
        order(agent, 1, OrderKind.REBUILD, 2, members=members)
    until(lambda: result(agent, 1))
    assert result(agent, 1).message == "member went on"
    order(agent, 2, OrderKind.REBUILD, 1, members=members)
    until(lambda: result(agent, 2))
    assert result(agent, 2).outcome is OrderOutcome.REFUSED
    order(agent, 1, OrderKind.REBUILD, 2, members=members)
    until(lambda: len([one for one in agent.of(OrderResult) if one.id == "o1"]) == 2)


def test_a_child_that_the_new_generation_does_without_is_stopped_and_stands_by_later(
    supervise: Any, listening: Any, until: Any
) -> None:
    agent = listening()
    supervise("wait", respawn_after_s="0")
    until(lambda: ready(agent))
    first = agent.hello.child_pid
    order(agent, 1, OrderKind.REBUILD, members=format_members([Member(0, "somebody else")]))
    until(lambda: agent.hello.rank == -1 and ready(agent))
    assert agent.hello.child_pid != first
    assert agent.hello.store == "standby:1"


def test_a_cold_joiner_takes_its_rank_where_no_standby_is(supervise: Any, listening: Any, until: Any) -> None:
    agent = listening()
    supervise("wait", rank=1)
    until(lambda: ready(agent))
    os.kill(agent.hello.child_pid, signal.SIGKILL)
    until(lambda: agent.of(ChildExit))
    members = format_members([Member(0, "other"), Member(1, agent.hello.member)])
    order(agent, 1, OrderKind.REBUILD, members=members)
    until(lambda: result(agent, 1))
    assert result(agent, 1).message == "joiner went on"


@pytest.mark.parametrize(("requeue", "status"), [("1", EXIT_REQUEUE), ("0", EXIT_DO_NOT_REQUEUE)])
def test_a_fallback_ends_the_job_with_a_status_that_says_what_to_do(
    supervise: Any, listening: Any, until: Any, ended: Any, requeue: str, status: int
) -> None:
    agent = listening()
    process = supervise("wait")
    until(lambda: ready(agent))
    order(agent, 1, OrderKind.FALLBACK, requeue=requeue, reason="no copy is left")
    result_ = ended(process)
    assert result_.status == status
    assert "no copy is left" in result_.errors


def test_an_agent_that_comes_back_is_told_what_it_missed(supervise: Any, listening: Any, until: Any) -> None:
    agent = listening()
    process = supervise("wait")
    until(lambda: ready(agent))
    hello = agent.hello
    agent.close()
    os.kill(hello.child_pid, signal.SIGKILL)
    again = listening()
    until(lambda: again.of(ChildExit))
    assert again.of(ChildExit)[0].child_pid == hello.child_pid
    assert process.poll() is None
    order(again, 9, OrderKind.RELEASE)
    until(lambda: process.poll() == 0)


def test_a_lease_that_nobody_renews_stops_the_child(supervise: Any, listening: Any, until: Any) -> None:
    agent = listening()
    supervise("wait")
    until(lambda: ready(agent))
    agent.send(Lease(1, 0.05))
    until(lambda: agent.of(ChildExit))
    assert agent.of(ChildExit)[0].code == -signal.SIGKILL


def test_nobody_outlives_a_killed_supervisor(supervise: Any, listening: Any, until: Any) -> None:
    agent = listening()
    process = supervise("wait")
    until(lambda: ready(agent))
    process.kill()
    until(lambda: not Path(f"/proc/{agent.hello.child_pid}").exists())
