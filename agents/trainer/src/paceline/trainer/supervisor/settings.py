"""What a supervisor reads from its environment; every value has a default that works."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.contracts.agent_socket import SOCKET_VARIABLE, default_socket_path
from paceline.trainer.identity import job_identity, provisional_attempt, read_ranks
from paceline.trainer.supervisor import ROLE_VARIABLE
from paceline.trainer.supervisor.child import read_pid_start
from paceline.trainer.surroundings import read_surroundings

WAIT_VARIABLE = "PACELINE_REPAIR_WAIT_S"
RESPAWN_VARIABLE = "PACELINE_RESPAWN_AFTER_S"
DOMAIN_VARIABLE = "PACELINE_FAILURE_DOMAIN"


@dataclass(frozen=True)
class SupervisorSettings:
    """`warnings` says what was ignored and what was expected."""

    job: str
    attempt: str
    member: str
    role: str  # member, standby
    rank: int  # -1 for a standby
    world_size: int
    socket_path: str
    failure_domain: str
    wait_s: float = 60.0  # that a dead child waits for an order, and a broken group for its successor
    respawn_s: float | None = 5.0  # after it was replaced, a fresh child stands by; None: the supervisor ends
    stop_s: float = 10.0  # from SIGTERM to SIGKILL
    fence_s: float = 2.0  # from SIGKILL to the exit
    warnings: tuple[str, ...] = ()


def read_supervisor_settings(environment: Mapping[str, str]) -> SupervisorSettings:
    """Settings of the supervisor with this environment; a bad value is ignored and named in `warnings`."""
    warnings: list[str] = []
    ranks = read_ranks(environment)
    standby = environment.get(ROLE_VARIABLE) == "standby"
    if not standby and ranks.rank < 0:
        warnings.append(
            "no RANK in the environment: nothing is repaired here; start it by torchrun, Slurm or Open MPI, "
            f"or set {ROLE_VARIABLE}=standby"
        )
    job = job_identity(environment, read_surroundings())
    host, pid = socket.gethostname(), os.getpid()
    respawn = _seconds(environment, RESPAWN_VARIABLE, 5.0, warnings)
    return SupervisorSettings(
        job=job.value,
        attempt=provisional_attempt(environment).value,
        member=f"{host[:60]}-{pid}-{read_pid_start(pid)}".replace(":", "_"),
        role="standby" if standby else "member",
        rank=-1 if standby else ranks.rank,
        world_size=ranks.world_size,
        socket_path=environment.get(SOCKET_VARIABLE) or default_socket_path(),
        failure_domain=environment.get(DOMAIN_VARIABLE) or host,
        wait_s=_seconds(environment, WAIT_VARIABLE, 60.0, warnings),
        respawn_s=None if respawn < 0 else respawn,
        warnings=tuple(warnings),
    )


def _seconds(environment: Mapping[str, str], name: str, otherwise: float, warnings: list[str]) -> float:
    text = environment.get(name, "")
    if not text:
        return otherwise
    try:
        value = float(text)
        if value != value or abs(value) > 1e6:
            raise ValueError
    except ValueError:
        warnings.append(f"{name}={text!r}: expected a number of seconds; using {otherwise:g}")
        return otherwise
    return value
