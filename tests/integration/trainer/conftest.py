"""An agent that only listens, and launching of ranks; torch is imported as rarely as possible (3 s each).

The programs run on the torch of this environment, or of another interpreter:

    uv venv /tmp/newest && uv pip install --python /tmp/newest/bin/python torch numpy \\
        -e contracts -e kernels -e agents/trainer
    PACELINE_TEST_PYTHON=/tmp/newest/bin/python pytest tests/integration/trainer/test_trainer_callers.py
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from paceline.contracts.agent_socket import Goodbye, Hello, Message, Welcome, encode_message
from paceline.probe.messages import MessageDecoder, receive_with_fds
from paceline.trainer.testing.job import free_port

PROGRAMS = Path(__file__).parent / "programs"
RANK_TIMEOUT_S = 150


@dataclass
class Connection:
    """What one process said, and the descriptors of its page and its control page."""

    messages: list[Message] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def hello(self) -> Hello:
        """The newest."""
        return [message for message in self.messages if isinstance(message, Hello)][-1]

    @property
    def goodbye(self) -> Goodbye | None:
        found = [message for message in self.messages if isinstance(message, Goodbye)]
        return found[-1] if found else None


class ListeningAgent:
    """Accepts processes, says welcome and writes down what they say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: list[Connection] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        self._run(self._accept)

    def stop(self) -> None:
        """Like a killed agent: the listener and all connections end, the socket file stays."""
        for sock in (self._listener, *self._open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(10)
        self._listener.close()
        for connection in self.connections:
            for fd in connection.fds:
                os.close(fd)

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            self._run(self._listen, sock)

    def _listen(self, sock: socket.socket) -> None:
        connection, decoder = Connection(), MessageDecoder()
        with sock:
            while True:
                try:
                    data, fds = receive_with_fds(sock)
                except OSError:
                    break
                connection.fds += fds
                if not data:
                    break
                connection.messages += decoder.feed(data)
                if connection not in self.connections:
                    self.connections.append(connection)
                    sock.sendall(encode_message(Welcome("node", "agent")))
        connection.ended = True


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ListeningAgent]:
    listening = ListeningAgent(tmp_path / "agent.sock")
    listening.start()
    yield listening
    listening.stop()


@dataclass
class Ended:
    status: int
    output: str
    errors: str


def clean_environment(changes: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PACELINE", "SLURM", "TORCHELASTIC", "KUBERNETES"))
    }
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **changes}


def start(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, env=clean_environment(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def end(process: "subprocess.Popen[str]") -> Ended:
    try:
        output, errors = process.communicate(timeout=RANK_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return Ended(process.returncode, output, errors)


@pytest.fixture(scope="session")
def launch() -> Callable[..., list[Ended]]:
    """Run one program as the ranks of one job; all have ended when it returns."""

    def run(
        program: str, *arguments: str, ranks: int = 2, environment: Mapping[str, str] | None = None
    ) -> Any:
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        interpreter = os.environ.get("PACELINE_TEST_PYTHON", sys.executable)
        command = [interpreter, str(PROGRAMS / program), *arguments]
        processes = [
            start(command, {**job, "RANK": str(rank), "LOCAL_RANK": str(rank), **(environment or {})})
            for rank in range(ranks)
        ]
        try:
            return [end(process) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()

    return run


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Return as soon as `condition` holds; fails the test at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s")
        time.sleep(0.02)


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def begin() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a command with a clean environment; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        process = start(command, environment)
        started.append(process)
        return process

    yield run
    for process in started:
        end(process)


@pytest.fixture
def ended() -> Callable[["subprocess.Popen[str]"], Ended]:
    return end


@pytest.fixture
def programs() -> Path:
    return PROGRAMS


@pytest.fixture
def port() -> Callable[[], int]:
    return free_port
