"""Signed commands to node agents and their results.

The signature is HMAC-SHA256 over the canonical JSON of all other fields, with the cluster's
command key: whoever can write the topic alone cannot act on a rank.
"""

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass, field, replace
from enum import Enum


class CommandKind(str, Enum):
    SET_DETAIL = "set_detail"
    SET_PACE = "set_pace"
    FREEZE_EVIDENCE = "freeze_evidence"
    FENCE = "fence"
    # Orders for supervisors, relayed by the agent of their node (`contracts.recovery`).
    REBUILD = "rebuild"
    RETRY = "retry"
    PREPARE = "prepare"
    SWITCH = "switch"
    FALLBACK = "fallback"
    CANCEL = "cancel"
    RELEASE = "release"


class CommandOutcome(str, Enum):
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Command:
    id: str
    kind: CommandKind
    node: str
    job: str
    attempt: str
    generation: int
    expires_unix_s: float
    rank: int | None = None
    pid: int | None = None
    pid_start: int | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    signature: str = ""


@dataclass(frozen=True)
class CommandResult:
    command: str
    node: str
    job: str
    attempt: str
    generation: int
    outcome: CommandOutcome
    message: str
    at_unix_s: float


def _signed_bytes(command: Command) -> bytes:
    fields = asdict(replace(command, signature=""))
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str).encode()


def sign(command: Command, key: bytes) -> Command:
    """`command` with its signature for `key`."""
    return replace(command, signature=hmac.new(key, _signed_bytes(command), hashlib.sha256).hexdigest())


def is_signed(command: Command, key: bytes) -> bool:
    """Whether the signature fits; constant time. Any text may stand there: bytes compare without an error."""
    expected = hmac.new(key, _signed_bytes(command), hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), command.signature.encode("utf-8", "replace"))
