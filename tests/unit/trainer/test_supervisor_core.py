"""What a supervisor does with its child and its leases; clock, agent and child are doubles."""

import socket
from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from paceline.trainer.protection import Member, ring
from paceline.trainer.supervisor.child import StartError, TrainingChild
from paceline.trainer.supervisor.core import Supervisor
from paceline.trainer.supervisor.settings import DOMAIN_VARIABLE, read_supervisor_settings
from paceline.trainer.supervisor.signals import Signals


class NoSignals:
    def fileno(self) -> int:
        return 0

    def pop(self) -> list[int]:
        return []


NO_SIGNALS = cast(Signals, NoSignals())


def domain_told_to_the_child(environment: dict[str, str]) -> str:
    """Of a supervisor that cannot start its child."""
    told: list[str] = []

    def start(command: Sequence[str], given: Mapping[str, str], member: str, role: str) -> TrainingChild:
        told.append(given[DOMAIN_VARIABLE])
        raise StartError("enough")

    settings = read_supervisor_settings(environment)
    with pytest.raises(StartError):
        Supervisor(settings, ["train"], environment, NO_SIGNALS, start=start).run()
    return told[0]


def test_copies_leave_the_node_where_nobody_declared_a_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    members = []
    for rank in range(8):
        monkeypatch.setattr(socket, "gethostname", lambda rank=rank: f"node-{rank // 4}")
        domain = domain_told_to_the_child({"RANK": str(rank), "WORLD_SIZE": "8"})
        members.append(Member(rank, f"host:{rank + 1}", domain))
    assert {member.failure_domain for member in members} == {"node-0", "node-1"}
    assert ring.unprotected(members) == []


def test_a_declared_domain_is_the_childs_too() -> None:
    assert domain_told_to_the_child({"RANK": "0", DOMAIN_VARIABLE: "rack-7"}) == "rack-7"
