"""Whom a supervisor obeys."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.contracts.recovery import Role, SupervisorHello, Support
from paceline.trainer.supervisor import link as links
from paceline.trainer.supervisor.link import AgentLink

STRANGER = 4242


@pytest.fixture
def folder() -> Iterator[Path]:
    """Below /tmp, whatever TMPDIR says."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


def hello() -> SupervisorHello:
    return SupervisorHello(
        job="j", attempt="a", member="m", role=Role.MEMBER, rank=0, pid=1, child_pid=2, child_pid_start=3,
        generation=0, step=0, store="h:1", replica="h:2", failure_domain="d", ready=True, world_size=1,
        support=Support.VERIFIED,
    )  # fmt: skip


@pytest.mark.parametrize("trusted", [True, False])
def test_a_strangers_socket_below_tmp_is_told_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    said: list[str] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "agent.sock"))
        listener.listen(1)
        if not trusted:
            monkeypatch.setattr(links, "peer_uid", lambda sock: STRANGER, raising=False)
        link = AgentLink(str(folder / "agent.sock"), hello, lambda: 100.0, said.append)
        assert link.connect() is trusted
        theirs, _ = listener.accept()
        with theirs:
            theirs.settimeout(5)
            heard = theirs.recv(65536)
        assert bool(heard) is trusted
        assert [f"uid {STRANGER}" in line for line in said] == [True] * (not trusted)
        assert (link.due_in_s() is None) is trusted
        link.drop()
