"""What the environment says; read once, injected everywhere else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from paceline.contracts.agent_socket import SOCKET_VARIABLE, default_socket_path

HookChoice = Literal["auto", "wrapper", "native", "off"]
HOOK_CHOICES: tuple[HookChoice, ...] = ("auto", "wrapper", "native", "off")
HEARTBEATS_HZ = 4.0  # the page is sampled once a second, so a stopped beat is certain after one sample


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of one training process; `warnings` says what was ignored and what was expected."""

    active: bool
    disabled: bool
    socket_path: str
    hook: HookChoice = "auto"
    job_id: str = ""
    attempt: str = ""
    name: str = ""
    cluster: str = ""
    tenant: str = ""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Whether the job is not to be observed at all."""
    return environment.get("PACELINE_DISABLED", "0") not in ("", "0")


def read_settings(environment: Mapping[str, str]) -> TrainerSettings:
    """Settings from `PACELINE_*`; never raises, a bad value is ignored and named in `warnings`."""
    warnings: list[str] = []
    hook = environment.get("PACELINE_HOOK", "auto")
    if hook not in HOOK_CHOICES:
        warnings.append(f"PACELINE_HOOK={hook!r}: expected one of {', '.join(HOOK_CHOICES)}; using auto")
        hook = "auto"
    try:
        coordinates = parse_coordinates(environment.get("PACELINE_COORDINATES", ""))
    except ValueError as error:
        warnings.append(f"PACELINE_COORDINATES: {error}; ignored")
        coordinates = {}
    return TrainerSettings(
        active=environment.get("PACELINE") == "1",
        disabled=is_disabled(environment),
        socket_path=environment.get(SOCKET_VARIABLE) or default_socket_path(),
        hook=cast(HookChoice, hook),
        job_id=environment.get("PACELINE_JOB_ID", ""),
        attempt=environment.get("PACELINE_ATTEMPT", ""),
        name=environment.get("PACELINE_NAME", ""),
        cluster=environment.get("PACELINE_CLUSTER", ""),
        tenant=environment.get("PACELINE_TENANT", ""),
        coordinates=coordinates,
        warnings=tuple(warnings),
    )


def parse_coordinates(text: str) -> dict[str, int]:
    """`tp=1,pp=0` as a mapping; ValueError names the part that is wrong."""
    coordinates: dict[str, int] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, number = part.partition("=")
        if not equals or not name.strip() or not number.strip().isdigit():
            raise ValueError(f"{part!r} is not NAME=NUMBER, for example tp=1")
        coordinates[name.strip()] = int(number)
    return coordinates
