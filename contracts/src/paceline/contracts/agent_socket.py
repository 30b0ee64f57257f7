"""What a training process and the agent on its node say over the unix socket.

Each message is a little-endian u32 length and that many bytes of JSON with a `type`. The first
message is `hello` and carries two file descriptors (SCM_RIGHTS): the probe page opened read-only
and the control page. The agent answers `welcome` or `refused`. The connection stays open: its end
without `goodbye` is itself news. A lost agent is reconnected to and sent everything again, so each
message may arrive twice (docs/adr/0006-agent-socket.md).
"""

import json
import os
import socket
import struct
from dataclasses import asdict, dataclass, field

PROTOCOL_VERSION = 1
MESSAGE_BYTES_MAX = 1 << 20
LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of SO_PEERCRED
SOCKET_VARIABLE = "PACELINE_AGENT_SOCKET"


@dataclass(frozen=True)
class Hello:
    """First message of a process; sent again whenever something in it has changed."""

    job: str
    job_source: str  # declared, slurm, kubernetes, torchrun, generated
    attempt: str
    attempt_source: str  # declared, store, restart_count, provisional
    rank: int
    world_size: int
    local_rank: int
    pid: int
    pid_start: int
    name: str = ""
    cluster: str = ""
    tenant: str = ""
    user: str = ""
    gpu: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    coordinates: dict[str, int] = field(default_factory=dict)
    coordinate_source: str = "none"
    nccl_log: str = ""  # NCCL_DEBUG_FILE with its pattern filled in
    nccl_graph: str = ""  # NCCL_GRAPH_DUMP_FILE
    nccl_topology: str = ""  # NCCL_TOPO_DUMP_FILE, where the same rank writes it
    nccl_dump_rank: int = 0  # rank of each communicator that writes them
    type: str = "hello"
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class CommunicatorOpened:
    """A communicator this process is a member of, by the time its frame is live."""

    communicator: str  # 16 hex digits
    name: str
    ranks: str  # ids.format_ranks, communicator order
    instance: int
    backend: str
    slot: int
    kind: str = ""
    type: str = "communicator_opened"


@dataclass(frozen=True)
class CommunicatorClosed:
    communicator: str
    type: str = "communicator_closed"


@dataclass(frozen=True)
class Goodbye:
    """Orderly end; without it an end of the process is an exit to be explained."""

    # finished, error, terminated. `sys.exit(1)` says finished too: SystemExit leaves no trace in the
    # interpreter, so only the kernel's exit status makes a clean end of it.
    reason: str
    message: str = ""
    type: str = "goodbye"


@dataclass(frozen=True)
class Welcome:
    node: str
    agent: str
    type: str = "welcome"
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Refused:
    """The agent will not observe this process; the process goes on without it."""

    reason: str
    type: str = "refused"


Message = Hello | CommunicatorOpened | CommunicatorClosed | Goodbye | Welcome | Refused
MESSAGE_TYPES: dict[str, type] = {
    "hello": Hello,
    "communicator_opened": CommunicatorOpened,
    "communicator_closed": CommunicatorClosed,
    "goodbye": Goodbye,
    "welcome": Welcome,
    "refused": Refused,
}


class FramingError(ValueError):
    """A length that no message has: what follows on this connection means nothing."""

    def __init__(self, length: int) -> None:
        super().__init__(f"message length {length}, expected 2 to {MESSAGE_BYTES_MAX} bytes")
        self.length = length


class Framer:
    """Cuts a byte stream into message bodies. Holds at most one message and one read."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies that `data` completes, in order; FramingError ends the stream."""
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) >= start + LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, start)
            if not 2 <= length <= MESSAGE_BYTES_MAX:
                raise FramingError(length)
            end = start + LENGTH.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + LENGTH.size : end]))
            start = end
        # Once for all of them: a read full of small messages would move its rest thousands of times.
        del self._buffer[:start]
        return bodies


def default_socket_path() -> str:
    """`$PACELINE_AGENT_SOCKET`, else one path per user below the runtime folder or /tmp."""
    declared = os.environ.get(SOCKET_VARIABLE)
    if declared:
        return declared
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return f"{runtime}/paceline-agent.sock"
    return f"/tmp/paceline-{os.getuid()}/agent.sock"  # noqa: S108 the agent makes the folder 0700 and checks its owner


def is_trusted_listener(path: str, listener_uid: int, own_uid: int) -> bool:
    """Below /tmp anybody could have made the folder first: only root and this user are believed there.

    Elsewhere the path was declared, and the agent may run as a user of its own.
    """
    return not path.startswith("/tmp/") or listener_uid in (0, own_uid)  # noqa: S108


def peer_uid(sock: socket.socket) -> int:
    """The user whose process listens at the other end of a connected unix socket."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


def encode_message(message: Message) -> bytes:
    """Length and JSON; ValueError where it exceeds MESSAGE_BYTES_MAX."""
    body = json.dumps(asdict(message), separators=(",", ":")).encode()
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"message of {len(body)} bytes, expected at most {MESSAGE_BYTES_MAX}")
    return LENGTH.pack(len(body)) + body
