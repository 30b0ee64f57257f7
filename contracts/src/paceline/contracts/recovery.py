"""What a supervisor of a training process and whoever leads its recovery say.

Framing is that of `agent_socket`: a little-endian u32 length and that many bytes of JSON with a `type`.
A supervisor speaks first, with `supervisor_hello`; it is answered `welcome` or `refused`. Each message may
arrive twice. An order of an older generation than the supervisor has seen is refused, an order that was
carried out is answered again and not repeated (docs/adr/0043-remediation.md). Standard library only.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import Enum
from typing import Any

from paceline.contracts.agent_socket import LENGTH, MESSAGE_BYTES_MAX

EXIT_DO_NOT_REQUEUE = 93  # of a job that must not be started again as it is (the code NVRx uses for it)
EXIT_REQUEUE = 94  # of a job that its scheduler should start again from the checkpoint on disk
MEMBERS_MAX = 4096  # of one order: 1 MiB is their bound
ID_BYTES_MAX = 127
TEXT_BYTES_MAX = 1000
# Classes of what torch's transports raise. A script's own errors, of its storage or workers, have others.
TRANSPORT_ERRORS = frozenset(
    {"RuntimeError", "PeerLost", "DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}
)
# What gloo, c10d and NCCL say of a peer that is gone or silent. A rank whose own link fails may say the same
# of all of its peers, so these words name nobody.
PEER_WORDS = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "pair closure",
    "likely closed",
    "connection timed out",
    "connection refused",
    "software caused connection abort",
    "no route to host",
    "connect timeout",
    "socket timeout",
    "operation timeout",
    "wait timeout",
    "timed out waiting",
    "timed out after",
    "communicator was aborted",
    "ncclremoteerror",
    "remote process exit",
)


def blames_a_peer(message: str) -> bool:
    """Whether `Class: message` says that another one is gone or silent: no reason to replace who says so."""
    kind, words = message.partition(":")[0], message.lower()
    is_other = kind.isidentifier() and kind not in TRANSPORT_ERRORS
    return not is_other and any(each in words for each in PEER_WORDS)


class Role(str, Enum):
    MEMBER = "member"
    STANDBY = "standby"  # rank -1 until it is promoted


class Support(str, Enum):
    """What is known of the job's kind of parallelism; only VERIFIED is repaired without a person."""

    VERIFIED = "verified"
    EXPERIMENTAL = "experimental"
    REFUSED = "refused"


class OrderKind(str, Enum):
    FENCE = "fence"  # kill the child; arguments: pid, pid_start
    REBUILD = "rebuild"  # arguments: store, members, reason
    RETRY = "retry"  # transient: the same members on a new generation; arguments as REBUILD
    PREPARE = "prepare"  # planned: get ready in the background; arguments: store, members, leaver, joiner
    SWITCH = "switch"  # planned: at the next step boundary that all can reach; arguments as PREPARE
    FALLBACK = "fallback"  # stop the child, exit; arguments: requeue ("1" or "0"), reason
    CANCEL = "cancel"  # forget what PREPARE began
    RELEASE = "release"  # the job has ended, or needs this member no more: stop the child, exit 0


class OrderOutcome(str, Enum):
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"  # another try may help
    EXPIRED = "expired"
    LOST = "lost"  # no copy of some state is left: only the checkpoint on disk helps


class RecoveryPhase(str, Enum):
    """Phases of one recovery, in order (DEADPOOL's, and the proof of it)."""

    DETECT = "detect"
    FENCE = "fence"
    RENDEZVOUS = "rendezvous"
    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"
    RESUME = "resume"
    FIRST_STEP = "first_step"  # the first step of the new generation is done


@dataclass(frozen=True)
class SupervisorHello:
    """First message of a supervisor; sent again whenever something in it has changed."""

    job: str
    attempt: str
    member: str  # the same for the supervisor's life
    role: Role
    rank: int  # -1 for a standby
    pid: int
    child_pid: int  # 0 while there is none
    child_pid_start: int  # field 22 of /proc/PID/stat
    generation: int
    step: int  # newest committed step, -1 before the first
    store: str  # "host:port" of the child's control store, empty while there is none
    replica: str  # "host:port" where it takes its neighbour's state
    failure_domain: str
    ready: bool  # a member: in its group; a standby: warmed up
    world_size: int = 0
    support: Support = Support.EXPERIMENTAL
    type: str = "supervisor_hello"


@dataclass(frozen=True)
class ChildExit:
    """The training process is gone; sent at once."""

    member: str
    child_pid: int
    child_pid_start: int
    code: int  # status, or minus the signal
    type: str = "child_exit"


@dataclass(frozen=True)
class ChildError:
    """The training process lives and met an error that a peer or the network may be the cause of."""

    member: str
    generation: int
    step: int
    message: str
    type: str = "child_error"


@dataclass(frozen=True)
class Order:
    """To one supervisor, or to all of a node where the sender is the agent's command."""

    id: str
    kind: OrderKind
    generation: int
    attempt_no: int  # grows with each try within a generation: the rendezvous prefix contains it
    expires_unix_s: float
    arguments: dict[str, str] = field(default_factory=dict)
    type: str = "order"


@dataclass(frozen=True)
class OrderResult:
    id: str
    member: str
    outcome: OrderOutcome
    message: str
    generation: int
    type: str = "order_result"


@dataclass(frozen=True)
class PhaseReport:
    """One phase of one member, with the duration that its own clock measured."""

    member: str
    rank: int
    generation: int
    phase: RecoveryPhase
    duration_ms: float
    step: int  # that training goes on at, or has reached
    replayed: int = 0  # steps that are run a second time
    bytes: int = 0  # moved in this phase
    detail: str = ""
    attempt_no: int = -1  # of the order that it belongs to; -1 where the member does not say
    type: str = "phase_report"


@dataclass(frozen=True)
class Lease:
    """A supervisor that has no newer one when it ends stops its child: a newer generation may then write."""

    generation: int
    until_monotonic_s_from_now: float
    type: str = "lease"


FromSupervisor = SupervisorHello | ChildExit | ChildError | OrderResult | PhaseReport
ToSupervisor = Order | Lease
RecoveryMessage = FromSupervisor | ToSupervisor
RECOVERY_TYPES: dict[str, type] = {
    "supervisor_hello": SupervisorHello,
    "child_exit": ChildExit,
    "child_error": ChildError,
    "order": Order,
    "order_result": OrderResult,
    "phase_report": PhaseReport,
    "lease": Lease,
}
FROM_SUPERVISOR_TYPES = frozenset(
    {"supervisor_hello", "child_exit", "child_error", "order_result", "phase_report"}
)


@dataclass(frozen=True)
class Member:
    """One entry of an order's `members`."""

    rank: int
    member: str
    replica: str = ""
    failure_domain: str = ""


class RecoveryMessageError(ValueError):
    """A message that is not one; the text names the field, its value and what was expected."""


def encode_recovery(message: RecoveryMessage) -> bytes:
    """Length and JSON; RecoveryMessageError where it exceeds MESSAGE_BYTES_MAX."""
    body = json.dumps(asdict(message), separators=(",", ":")).encode()
    if len(body) > MESSAGE_BYTES_MAX:
        raise RecoveryMessageError(f"message of {len(body)} bytes, expected at most {MESSAGE_BYTES_MAX}")
    return LENGTH.pack(len(body)) + body


def parse_recovery(body: bytes) -> RecoveryMessage:
    """The checked message in `body`; RecoveryMessageError for anything else. Unknown fields are skipped."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RecoveryMessageError(f"message is not JSON: {str(error)[:200]}") from None
    kind = raw.get("type") if isinstance(raw, dict) else None
    found = RECOVERY_TYPES.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise RecoveryMessageError(f"type is {str(kind)[:40]!r}, expected one of {sorted(RECOVERY_TYPES)}")
    message: RecoveryMessage = _build(found, raw, f"{kind}.")
    _check(message)
    return message


def format_members(members: Sequence[Member]) -> str:
    """The text of an order's `members`, in the order of the ranks."""
    if len(members) > MEMBERS_MAX:
        raise RecoveryMessageError(f"members has {len(members)} entries, expected at most {MEMBERS_MAX}")
    rows = [asdict(member) for member in sorted(members, key=lambda member: member.rank)]
    return json.dumps(rows, separators=(",", ":"))


def parse_members(text: str) -> tuple[Member, ...]:
    """Inverse of `format_members`; RecoveryMessageError unless the ranks are 0 to N-1 and the ids differ."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecoveryMessageError(f"members is not JSON: {str(error)[:200]}") from None
    if not isinstance(rows, list) or not 1 <= len(rows) <= MEMBERS_MAX:
        raise RecoveryMessageError(f"members is {text[:80]!r}, expected a list of 1 to {MEMBERS_MAX} members")
    members = tuple(_build_member(row, place) for place, row in enumerate(rows))
    if [member.rank for member in members] != list(range(len(members))):
        raise RecoveryMessageError(f"members has ranks {[m.rank for m in members][:40]}, expected 0 to N-1")
    if len({member.member for member in members}) != len(members):
        raise RecoveryMessageError("members names one member twice, expected each once")
    return members


def _build_member(row: object, place: int) -> Member:
    if not isinstance(row, dict):
        raise RecoveryMessageError(f"members[{place}] is {str(row)[:40]!r}, expected an object")
    member: Member = _build(Member, row, f"members[{place}].")
    _check_text(f"members[{place}].member", member.member, ID_BYTES_MAX, empty=False)
    return member


def _build(kind: type, raw: dict[str, Any], where: str) -> Any:
    values: dict[str, Any] = {}
    for one in fields(kind):
        if one.name in raw:
            values[one.name] = _convert(f"{where}{one.name}", one.type, raw[one.name])
        elif one.default is MISSING and one.default_factory is MISSING:
            raise RecoveryMessageError(f"{where}{one.name} is missing, expected {_name_of(one.type)}")
    return kind(**values)


def _convert(where: str, kind: Any, value: object) -> object:
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            expected = [one.value for one in kind]
            raise RecoveryMessageError(
                f"{where} is {str(value)[:40]!r}, expected one of {expected}"
            ) from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1 << 63 else value
    if not _FITS[kind](value):
        raise RecoveryMessageError(f"{where} is {str(value)[:80]!r}, expected {_name_of(kind)}")
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for pair in value.items() for one in pair)


_FITS: dict[Any, Callable[[object], bool]] = {
    str: lambda value: isinstance(value, str),
    int: _is_int,
    bool: lambda value: isinstance(value, bool),
    float: lambda value: isinstance(value, float) and abs(value) < float("inf"),  # NaN is not below it
    dict[str, str]: _is_texts,
}


def _name_of(kind: Any) -> str:
    return {str: "a text", int: "a 64-bit number", bool: "true or false", float: "a finite number"}.get(
        kind, "an object of texts" if kind == dict[str, str] else str(getattr(kind, "__name__", kind))
    )


def _check(message: RecoveryMessage) -> None:
    where = message.type
    for name in ("job", "attempt", "member", "id"):
        if hasattr(message, name):
            _check_text(f"{where}.{name}", getattr(message, name), ID_BYTES_MAX, empty=False)
    for name in ("store", "replica", "failure_domain"):
        if hasattr(message, name):
            _check_text(f"{where}.{name}", getattr(message, name), 255)
    for name in ("message", "detail"):
        if hasattr(message, name):
            _check_text(f"{where}.{name}", getattr(message, name), TEXT_BYTES_MAX, printable=False)
    if not isinstance(message, ChildExit):
        _check_range(f"{where}.generation", message.generation, 0)
    if isinstance(message, PhaseReport):
        _check_range(f"{where}.attempt_no", message.attempt_no, -1)
    if isinstance(message, SupervisorHello):
        _check_hello(message)


def _check_hello(hello: SupervisorHello) -> None:
    for name in ("job", "member"):
        if ":" in getattr(hello, name):
            raise RecoveryMessageError(
                f"supervisor_hello.{name} is {getattr(hello, name)[:40]!r}, "
                "expected no colon: it separates the parts of a key"
            )
    _check_range("supervisor_hello.pid", hello.pid, 1)
    _check_range("supervisor_hello.child_pid", hello.child_pid, 0)
    _check_range("supervisor_hello.child_pid_start", hello.child_pid_start, 0)
    _check_range("supervisor_hello.step", hello.step, -1)
    _check_range("supervisor_hello.world_size", hello.world_size, 0)
    _check_range("supervisor_hello.rank", hello.rank, -1)
    if (hello.role is Role.STANDBY) != (hello.rank == -1):
        raise RecoveryMessageError(
            f"supervisor_hello.rank is {hello.rank} of a {hello.role.value}, "
            "expected -1 for a standby and a rank for a member"
        )


def _check_range(where: str, value: int, low: int) -> None:
    if value < low:
        raise RecoveryMessageError(f"{where} is {value}, expected {low} or more")


def _check_text(where: str, text: str, bytes_max: int, *, empty: bool = True, printable: bool = True) -> None:
    size = len(text.encode(errors="replace"))
    if size > bytes_max or (not empty and size == 0):
        raise RecoveryMessageError(f"{where} has {size} bytes, expected {0 if empty else 1} to {bytes_max}")
    if printable and not text.isprintable():
        raise RecoveryMessageError(f"{where} is {text[:40]!r}, expected printable text")
