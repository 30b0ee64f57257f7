"""Starting the agent of `--record`: whatever is odd about the surroundings, the command is started."""

import os
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
