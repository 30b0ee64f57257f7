"""Messages of the agent socket: JSON to dataclass, and the checks that need no state.

Everything that comes over the socket is hostile until it has passed here.
"""

import json
import string
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from paceline.agent.ranks import read_ranks
from paceline.contracts.agent_socket import (
    MESSAGE_TYPES,
    PROTOCOL_VERSION,
    CommunicatorClosed,
    CommunicatorOpened,
    Goodbye,
    Hello,
)
from paceline.contracts.layout import COMMUNICATORS_MAX
from paceline.contracts.recovery import (
    FROM_SUPERVISOR_TYPES,
    ChildError,
    ChildExit,
    FromSupervisor,
    OrderResult,
    PhaseReport,
    RecoveryMessageError,
    SupervisorHello,
    parse_recovery,
)

WORLD_SIZE_MAX = 1_000_000
JOB_BYTES_MAX = 127  # the page keeps 128 with a NUL
ATTEMPT_BYTES_MAX = 63
TEXT_BYTES_MAX = 255
PATH_BYTES_MAX = 4096
ENTRIES_MAX = 32  # versions, coordinates
GPU_MAX = 1_023  # index of a GPU on its node

FromProcess = Hello | CommunicatorOpened | CommunicatorClosed | Goodbye
FromPeer = FromProcess | FromSupervisor
_FROM_PROCESS: Mapping[str, type] = {
    name: kind
    for name, kind in MESSAGE_TYPES.items()
    if kind in (Hello, CommunicatorOpened, CommunicatorClosed, Goodbye)
}
_ADAPTERS: dict[str, TypeAdapter[FromProcess]] = {
    name: TypeAdapter(kind) for name, kind in _FROM_PROCESS.items()
}
_HEX = frozenset(string.hexdigits)


SUPERVISOR_KINDS = (SupervisorHello, ChildExit, ChildError, OrderResult, PhaseReport)


class MessageError(ValueError):
    """A message that is not one; the text names the field, its value and what was expected."""


def parse_message(body: bytes) -> FromPeer:
    """The validated message in `body`; MessageError for anything else."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"message is not JSON: {error}") from None
    kind = raw.get("type") if isinstance(raw, dict) else None
    if isinstance(kind, str) and kind in FROM_SUPERVISOR_TYPES:
        return _parse_supervisor(body)
    adapter = _ADAPTERS.get(kind) if isinstance(kind, str) else None
    if adapter is None:
        expected = sorted({*_ADAPTERS, *FROM_SUPERVISOR_TYPES})
        raise MessageError(f"type is {str(kind)[:40]!r}, expected one of {expected}")
    try:
        message = adapter.validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise MessageError(f"{kind}.{where} is {str(first['input'])[:80]!r}: {first['msg']}") from None
    _check(message)
    return message


def _parse_supervisor(body: bytes) -> FromSupervisor:
    try:
        message = parse_recovery(body)
    except RecoveryMessageError as error:
        raise MessageError(str(error)) from None
    assert isinstance(message, SUPERVISOR_KINDS)
    return message


def _check(message: FromProcess) -> None:
    if isinstance(message, Hello):
        check_hello(message)
    elif isinstance(message, CommunicatorOpened):
        _check_communicator(message)
    elif isinstance(message, CommunicatorClosed):
        _check_hex(message.communicator)


def check_hello(hello: Hello) -> None:
    """MessageError names the first field of `hello` that cannot be right."""
    if hello.protocol != PROTOCOL_VERSION:
        raise MessageError(
            f"hello.protocol is {hello.protocol}, expected {PROTOCOL_VERSION}; "
            "use a paceline-trainer and an agent of the same release"
        )
    _check_text("hello.job", hello.job, JOB_BYTES_MAX, empty=False, key=True)
    _check_text("hello.attempt", hello.attempt, ATTEMPT_BYTES_MAX, empty=False)
    for name in ("job_source", "attempt_source", "name", "cluster", "tenant", "user", "coordinate_source"):
        _check_text(f"hello.{name}", getattr(hello, name), TEXT_BYTES_MAX)
    for name in ("nccl_log", "nccl_graph", "nccl_topology"):
        _check_text(f"hello.{name}", getattr(hello, name), PATH_BYTES_MAX)
    if not 0 <= hello.nccl_dump_rank < 1 << 31:
        raise MessageError(f"hello.nccl_dump_rank is {hello.nccl_dump_rank}, expected a rank")
    _check_rank(hello)
    if not -1 <= hello.local_rank < WORLD_SIZE_MAX:
        raise MessageError(f"hello.local_rank is {hello.local_rank}, expected -1 or a rank")
    if hello.gpu is not None and not 0 <= hello.gpu <= GPU_MAX:
        raise MessageError(f"hello.gpu is {hello.gpu}, expected 0 to {GPU_MAX}, or null")
    if not 1 <= hello.pid < 1 << 31 or not 0 <= hello.pid_start < 1 << 63:
        raise MessageError(f"hello.pid is {hello.pid}, pid_start {hello.pid_start}: not a process")
    for name in ("versions", "coordinates"):
        entries = getattr(hello, name)
        if len(entries) > ENTRIES_MAX:
            raise MessageError(f"hello.{name} has {len(entries)} entries, expected at most {ENTRIES_MAX}")
        for key, value in entries.items():
            _check_text(f"hello.{name}", f"{key}={value}", TEXT_BYTES_MAX)
    for axis, place in hello.coordinates.items():
        if not -1 <= place < WORLD_SIZE_MAX:
            raise MessageError(
                f"hello.coordinates.{axis} is {place}, expected -1 to {WORLD_SIZE_MAX - 1}, -1 while unknown"
            )


def is_complete(hello: Hello) -> bool:
    """Whether the process knows its rank; before `init_process_group` it may not."""
    return hello.rank >= 0 and hello.world_size > 0


def _check_rank(hello: Hello) -> None:
    if not 0 <= hello.world_size <= WORLD_SIZE_MAX:
        raise MessageError(
            f"hello.world_size is {hello.world_size}, expected 1 to {WORLD_SIZE_MAX}, 0 while unknown"
        )
    last = hello.world_size - 1 if hello.world_size else WORLD_SIZE_MAX
    if not -1 <= hello.rank <= last:
        raise MessageError(f"hello.rank is {hello.rank}, expected 0 to {last}, -1 while unknown")


def _check_communicator(message: CommunicatorOpened) -> None:
    _check_hex(message.communicator)
    for name in ("name", "backend", "kind"):
        _check_text(f"communicator_opened.{name}", getattr(message, name), TEXT_BYTES_MAX)
    if not -1 <= message.slot < COMMUNICATORS_MAX:
        raise MessageError(f"communicator_opened.slot is {message.slot}, expected -1 to 63")
    if not 0 <= message.instance < 1 << 32:
        raise MessageError(f"communicator_opened.instance is {message.instance}, expected 0 or more")
    try:
        read_ranks(message.ranks, WORLD_SIZE_MAX)
    except ValueError as error:
        raise MessageError(f"communicator_opened.ranks: {str(error)[:200]}") from None


def _check_hex(text: str) -> None:
    if len(text) != 16 or not _HEX.issuperset(text) or text.lower() != text or int(text, 16) == 0:
        raise MessageError(f"communicator is {text[:40]!r}, expected 16 lower-case hex digits, not all 0")


def _check_text(where: str, text: str, bytes_max: int, *, empty: bool = True, key: bool = False) -> None:
    size = len(text.encode(errors="replace"))
    if size > bytes_max or (not empty and size == 0):
        raise MessageError(f"{where} has {size} bytes, expected {0 if empty else 1} to {bytes_max}")
    if not text.isprintable():
        raise MessageError(f"{where} is {text[:40]!r}, expected printable text")
    if key and ":" in text:
        raise MessageError(f"{where} is {text[:40]!r}, expected no colon: it separates the parts of a key")
