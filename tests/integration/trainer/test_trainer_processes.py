"""`paceline run` and the ends of processes, as the agent sees them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs_torch
PACELINE = str(Path(sys.executable).parent / "paceline")
TORCHRUN = str(Path(sys.executable).parent / "torchrun")
SEEN = "ObservedProcessGroup [1.0, 1.0, 1.0]"
PLAIN = "ProcessGroup [1.0, 1.0, 1.0]"


def job(port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "1", "RANK": "0"}


def run(agent: Any, programs: Path, *arguments: str) -> list[str]:
    program = str(programs / "one_rank.py")
    return [PACELINE, "run", "--socket", str(agent.path), "--", sys.executable, program, *arguments]


def test_torchruns_parent_is_no_rank(
    agent: Any, begin: Callable[..., Any], ended: Callable[..., Any], programs: Path, until: Any, port: Any
) -> None:
    command = [PACELINE, "run", "--name", "one", "--socket", str(agent.path), "--"]
    command += [
        TORCHRUN,
        "--nproc-per-node",
        "1",
        "--master-port",
        str(port()),
        str(programs / "one_rank.py"),
    ]
    parent = begin(command, {})
    result = ended(parent)
    assert result.status == 0, result.errors
    assert SEEN in result.output
    until(lambda: agent.connections and agent.connections[0].ended)
    (connection,) = agent.connections
    assert connection.hello.pid != parent.pid
    assert (connection.hello.name, connection.hello.local_rank) == ("one", 0)
    assert connection.hello.job_source == "generated", "torchrun's default run id is none"
    assert connection.goodbye.reason == "finished"
    assert len(connection.fds) == 2


def test_two_jobs_on_one_machine_and_a_restart_under_the_same_name(
    agent: Any, begin: Callable[..., Any], ended: Callable[..., Any], programs: Path, until: Any, port: Any
) -> None:
    command = run(agent, programs)
    first, second = begin(command, job(port())), begin(command, job(port()))
    assert [ended(process).status for process in (first, second)] == [0, 0]
    named = {**job(port()), "PACELINE_JOB_ID": "same"}
    for _ in range(2):
        assert ended(begin(command, named)).status == 0
    until(lambda: sum(connection.ended for connection in agent.connections) == 4)
    hellos = [connection.hello for connection in agent.connections]
    assert len({hello.job for hello in hellos if hello.job != "same"}) == 2
    restarts = [hello for hello in hellos if hello.job == "same"]
    assert len(restarts) == 2
    assert len({hello.attempt for hello in restarts}) == 2, "a restart is another attempt"
    assert {hello.attempt_source for hello in restarts} == {"store"}


def test_an_uncaught_exception_is_told_and_not_changed(
    agent: Any, begin: Callable[..., Any], ended: Callable[..., Any], programs: Path, until: Any, port: Any
) -> None:
    result = ended(begin(run(agent, programs, "raise"), job(port())))
    assert result.status == 1
    assert "ValueError: the loss is NaN" in result.errors
    until(lambda: agent.connections and agent.connections[0].ended)
    goodbye = agent.connections[0].goodbye
    assert (goodbye.reason, goodbye.message) == ("error", "ValueError: the loss is NaN")


def test_disabled_means_untouched(
    agent: Any, begin: Callable[..., Any], ended: Callable[..., Any], programs: Path, port: Any
) -> None:
    result = ended(begin(run(agent, programs), {**job(port()), "PACELINE_DISABLED": "1"}))
    assert result.status == 0
    assert result.output.strip() == PLAIN
    assert "PACELINE_DISABLED is set" in result.errors
    assert agent.connections == []


@pytest.mark.parametrize("work", ["keep", "drop"])
def test_an_exit_with_an_operation_in_flight_keeps_its_status(
    launch: Callable[..., Any], work: str, tmp_path: Path
) -> None:
    """torch reports the end of that operation while the interpreter ends; unguarded it aborts there."""
    environment = {"PACELINE": "1", "PACELINE_AGENT_SOCKET": str(tmp_path / "none.sock")}
    first, second = launch("leaves_early.py", work, environment=environment)
    assert (first.status, second.status) == (3, 0), first.errors
