"""NCCL's RAS: who is dead, who is missing and how far each rank has launched, as NCCL itself sees the job.

Off unless a setting turns it on, asked only when an incident wants evidence, and never of versions that are
known to crash while they answer. Protocol 2 over TCP: a line is sent, a line is answered, and after STATUS
the server writes its body and closes. What an answer says is read by the adapters of the analysis.
"""

import asyncio
import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

PORT = 28028
LOCAL = "localhost"
PROTOCOL = 2
LINE_BYTES_MAX = 1024
ANSWER_BYTES_MAX = 4 << 20  # 300 bytes a rank: about 14,000 ranks
LINE_S = 2.0
# NCCL gives its collection two legs of 5 s; what has not come by then comes no more.
ANSWER_S = 15.0
COLLECTION_S = 10
# 2.24.3 brought RAS. Up to 2.27 it has crashed jobs or raced while it was asked (NCCL #1669, #1718, #1996).
FIRST, FIRST_SAFE, FIRST_JSON = (2, 24, 3), (2, 28, 0), (2, 28, 7)
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")


class RasChoice(str, Enum):
    """Whether RAS is asked, and in which form."""

    OFF = "off"
    NOT_WANTED = "not_wanted"  # the incident's command asks nothing of processes
    NO_VERSION = "no_version"
    NO_RAS = "no_ras"
    UNSAFE = "unsafe"
    TEXT = "text"
    JSON = "json"

    @property
    def asks(self) -> bool:
        return self in (RasChoice.TEXT, RasChoice.JSON)


class RasStatus(str, Enum):
    """What became of one question."""

    OK = "ok"
    NOBODY = "nobody"  # nothing listens there
    NO_ANSWER = "no_answer"
    CUT = "cut"  # it ended, or the time or the size did, before the answer was whole
    NOT_RAS = "not_ras"
    OLD_PROTOCOL = "old_protocol"
    OTHER_JOB = "other_job"  # two jobs of a node share the port, and the kernel chose


@dataclass(frozen=True)
class RasAnswer:
    status: RasStatus
    content: bytes = b""
    form: RasChoice = RasChoice.TEXT

    @property
    def is_evidence(self) -> bool:
        return bool(self.content) and self.status in (RasStatus.OK, RasStatus.CUT)


def choose_ras(enabled: bool, wanted: bool, version: str) -> RasChoice:
    """By NCCL's version as the job says it, `2.28.9`."""
    if not enabled:
        return RasChoice.OFF
    if not wanted:
        return RasChoice.NOT_WANTED
    found = _VERSION.match(version)
    if found is None:
        return RasChoice.NO_VERSION
    number = (int(found[1]), int(found[2]), int(found[3] or 0))
    if number < FIRST:
        return RasChoice.NO_RAS
    if number < FIRST_SAFE:
        return RasChoice.UNSAFE
    return RasChoice.JSON if number >= FIRST_JSON else RasChoice.TEXT


def choose_address(environment: Mapping[str, str], default: str) -> tuple[str, int]:
    """Where the job's RAS listens. A job may move its port; it may not send the agent to another machine."""
    host, port = _split(environment.get("NCCL_RAS_ADDR", ""))
    if port and _is_local(host):
        return host, port
    host, port = _split(default)
    return host or LOCAL, port or PORT


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    return host.strip("[]"), number if 0 < number < 65_536 else 0


def _is_local(host: str) -> bool:
    try:
        return host == LOCAL or ip_address(host).is_loopback
    except ValueError:
        return False


async def ask_ras(
    host: str,
    port: int,
    form: RasChoice,
    pids: Collection[int],
    *,
    line_s: float = LINE_S,
    answer_s: float = ANSWER_S,
    bytes_max: int = ANSWER_BYTES_MAX,
) -> RasAnswer:
    """One VERBOSE STATUS, within `2 * line_s + answer_s` seconds and `bytes_max` bytes; never raises.

    `pids` are those of the job here: an answer that names processes and none of them is another job's.
    """
    try:
        async with asyncio.timeout(line_s):
            reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
    except (OSError, TimeoutError):
        return RasAnswer(RasStatus.NOBODY)
    try:
        refused, form = await _greet(reader, writer, form, line_s)
        if refused is not None:
            return RasAnswer(refused)
        writer.write(b"VERBOSE STATUS\n")
        content, whole = await _body(reader, answer_s, bytes_max)
    except (OSError, TimeoutError, ValueError, EOFError):
        return RasAnswer(RasStatus.NO_ANSWER)
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return judge_answer(content, whole, form, pids)


def judge_answer(content: bytes, whole: bool, form: RasChoice, pids: Collection[int]) -> RasAnswer:
    """What was received, and whether it is of this job. A cut answer still says something."""
    if not content.strip():
        return RasAnswer(RasStatus.NO_ANSWER)
    named = _pids(content, form)
    if named and not named & set(pids):
        return RasAnswer(RasStatus.OTHER_JOB)
    return RasAnswer(RasStatus.OK if whole else RasStatus.CUT, content, form)


async def _greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, form: RasChoice, line_s: float
) -> tuple[RasStatus | None, RasChoice]:
    """Why not, and the form that the server agreed to."""
    async with asyncio.timeout(line_s):
        hello = await _ask(reader, writer, f"CLIENT PROTOCOL {PROTOCOL}")
        words = hello.split()
        if words[:2] != ["SERVER", "PROTOCOL"] or len(words) < 3 or not words[2].isdigit():
            return RasStatus.NOT_RAS, form
        if int(words[2][:9]) < PROTOCOL:
            return RasStatus.OLD_PROTOCOL, form
        if await _ask(reader, writer, f"TIMEOUT {COLLECTION_S}") != "OK":
            return RasStatus.NOT_RAS, form
        if form is RasChoice.JSON and await _ask(reader, writer, "SET FORMAT json") != "OK":
            form = RasChoice.TEXT  # an older server: its text is as good
    return None, form


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> str:
    """ValueError for a line without end, EOFError where the server has gone."""
    writer.write(f"{line}\n".encode())
    await writer.drain()
    answer = await reader.readline()
    if not answer.endswith(b"\n"):
        raise EOFError
    return answer.decode("ascii", "replace").strip()


async def _body(reader: asyncio.StreamReader, answer_s: float, bytes_max: int) -> tuple[bytes, bool]:
    """What came, and whether the server ended it by itself."""
    content = bytearray()
    try:
        async with asyncio.timeout(answer_s):
            while len(content) < bytes_max:
                part = await reader.read(min(64 << 10, bytes_max - len(content)))
                if not part:
                    return bytes(content), True
                content += part
    except (TimeoutError, OSError):
        pass
    return bytes(content), False


def _pids(content: bytes, form: RasChoice) -> set[int]:
    """Processes that the answer names; text names only those that are odd."""
    pattern = rb'"pid"\s*:\s*(\d{1,9})\b' if form is RasChoice.JSON else rb"\bprocess (\d{1,9})\b"
    return {int(found) for found in re.findall(pattern, content, re.IGNORECASE)}
