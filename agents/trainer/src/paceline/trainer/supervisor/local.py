"""What a training process tells its supervisor besides the messages of `contracts.recovery`."""

import json
from dataclasses import asdict, dataclass, fields

from paceline.contracts.agent_socket import LENGTH
from paceline.contracts.recovery import RecoveryMessage, RecoveryMessageError, parse_recovery


@dataclass(frozen=True)
class ChildState:
    """What only the training process knows of its member; sent again whenever something has changed."""

    rank: int
    world_size: int
    generation: int
    step: int  # newest finished step, -1 before the first
    store: str = ""
    replica: str = ""
    support: str = "experimental"
    ready: bool = False
    type: str = "child_state"


@dataclass(frozen=True)
class ChildDying:
    """An uncaught exception ends the training process; it may hang at its exit."""

    type: str = "child_dying"


def encode_from_child(message: ChildState | ChildDying) -> bytes:
    """Length and JSON."""
    body = json.dumps(asdict(message), separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def parse_from_child(body: bytes) -> ChildState | ChildDying | RecoveryMessage:
    """A message of our own child; RecoveryMessageError for anything else."""
    try:
        raw = json.loads(body)
    except ValueError:
        raw = None
    if isinstance(raw, dict) and raw.get("type") == "child_dying":
        return ChildDying()
    if not isinstance(raw, dict) or raw.get("type") != "child_state":
        return parse_recovery(body)
    values = {one.name: raw[one.name] for one in fields(ChildState) if one.name in raw}
    try:
        state = ChildState(**values)
    except TypeError as error:
        raise RecoveryMessageError(f"child_state: {error}") from None
    for one in fields(ChildState):
        if type(getattr(state, one.name)) is not one.type:
            raise RecoveryMessageError(f"child_state.{one.name} is {getattr(state, one.name)!r:.40}")
    return state
