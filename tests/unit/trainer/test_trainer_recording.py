"""Starting the agent of `--record`: whatever is odd about the surroundings, the command is started."""

import fcntl
import os
import resource
import signal
import sys
from pathlib import Path

import pytest

from paceline.trainer import recording

# What stands for the agent: it answers on the descriptor behind --ready-fd.
AGENT = f"""#!{sys.executable} -SE
import os, sys
os.write(int(sys.argv[sys.argv.index("--ready-fd") + 1]), b"ok\\n")
"""


@pytest.fixture
def _agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent"
    path.write_text(AGENT)
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setattr(recording, "entry_points", lambda group: [type("Entry", (), {"name": "agent"})])


def start(folder: Path) -> None:
    socket = Path(recording.start_recorder(str(folder), "64M", os.environ))
    assert socket.name == "agent.sock"
    socket.parent.rmdir()


@pytest.mark.usefixtures("_agent")
def test_a_python_without_pidfd_open_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are built against headers that do not have it."""
    monkeypatch.delattr(os, "pidfd_open")
    start(tmp_path)


@pytest.mark.usefixtures("_agent")
def test_a_process_that_ignores_its_children_records(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        start(tmp_path)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_an_answer_is_heard_on_a_descriptor_beyond_those_of_select() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4096), limits[1]))
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, 1500)
    try:
        os.write(writing, b"ready\n")
        assert recording._await_answer(high, 5.0) == b"ready\n"
        assert recording._await_answer(high, 0.01) is None
    finally:
        for descriptor in (high, reading, writing):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
