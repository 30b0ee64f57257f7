"""Whether a command is obeyed, and the collector as a process of its own.

`paceline collect` runs beside the agent, at lowest priority and within a time and a size: a read of
/proc that never returns, or a large dump, costs the collector and never a sample.
"""

import asyncio
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from paceline.contracts.commands import Command, CommandKind, is_signed
from paceline.runtime.processes import end_group

ITEM_S = 5.0
TAIL_BYTES_MAX = 1 << 20
GRACE_S = 10.0  # from the end of the collector's own time to its end by force
_CLI = "paceline.contracts.cli"
_WRITTEN = (0, 1)  # 1: nothing of a job was found


class Answer(str, Enum):
    """What is done with a command, and why."""

    ACCEPT = "accept"
    OTHER_NODE = "other_node"
    OTHER_KIND = "other_kind"
    NO_KEY = "no_key"
    UNSIGNED = "unsigned"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"
    BUSY = "busy"
    NO_JOB = "no_job"  # no process of the attempt lives here
    BAD_ARGUMENT = "bad_argument"

    @property
    def is_told(self) -> bool:
        """Whether the sender gets a result: what is not signed gets none."""
        return self in (Answer.EXPIRED, Answer.BUSY, Answer.NO_JOB, Answer.BAD_ARGUMENT)


@dataclass(frozen=True)
class Load:
    """What this agent has to do already."""

    known: Collection[str]  # ids of commands that were taken
    waiting: int
    waiting_max: int
    last_hour: int
    per_hour_max: int


def decide_command(command: Command, node: str, key: bytes | None, now_unix_s: float, load: Load) -> Answer:
    """Whether evidence is collected."""
    if command.node == node and command.kind is not CommandKind.FREEZE_EVIDENCE:
        return Answer.OTHER_KIND
    answer = check_command(command, node, key, now_unix_s, load.known)
    if answer is not Answer.ACCEPT:
        return answer
    if load.waiting >= load.waiting_max or load.last_hour >= load.per_hour_max:
        return Answer.BUSY
    return Answer.ACCEPT


def check_command(
    command: Command, node: str, key: bytes | None, now_unix_s: float, known: Collection[str]
) -> Answer:
    """What holds for commands of every kind."""
    if command.node != node:
        return Answer.OTHER_NODE
    if key is None:
        return Answer.NO_KEY
    if not is_signed(command, key):
        return Answer.UNSIGNED
    if command.id in known:
        return Answer.DUPLICATE
    return Answer.EXPIRED if command.expires_unix_s <= now_unix_s else Answer.ACCEPT


@dataclass(frozen=True)
class Run:
    """One run of the collector."""

    target: Path
    processes: Sequence[tuple[int, int]]  # (pid, rank); none: kernel and GPU state only
    total_s: float
    bytes_max: int
    ask: bool
    files: Sequence[Path] = ()  # taken along whole

    def arguments(self) -> list[str]:
        """The command line; it pauses no process."""
        line = [
            sys.executable, "-m", _CLI, "collect", "--quiet", "--gentle",
            "--out", str(self.target), "--limit", f"{min(ITEM_S, self.total_s):g}",
            "--total", f"{self.total_s:g}", "--bytes", str(self.bytes_max), "--tail", str(TAIL_BYTES_MAX),
        ]  # fmt: skip
        for pid, rank in self.processes:
            line += ["--pid", f"{pid}={rank}"]
        for path in self.files:
            line += ["--file", str(path)]
        return line + ["--no-dumps"] * (not self.ask) + ["--node-only"] * (not self.processes)


def bounded(text: str | None, limit: float) -> float:
    """A number of a command's argument, at most `limit`; `limit` where it says none."""
    try:
        value = float(text or "")
    except ValueError:
        return limit
    return value if 0 < value <= limit else limit


async def run_collector(collection: Run) -> str:
    """Empty once the archive is written, else why it is not."""
    try:
        process = await asyncio.create_subprocess_exec(
            *collection.arguments(), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"the collector cannot be started: {error.strerror or error}"
    try:
        async with asyncio.timeout(collection.total_s + GRACE_S):
            _, errors = await process.communicate()
    except TimeoutError:
        return f"the collector had not ended after {collection.total_s + GRACE_S:g} s"
    finally:
        await end_group(process)
    if process.returncode in _WRITTEN and collection.target.is_file():
        return ""
    words = errors.decode("utf-8", "replace").strip().splitlines()
    return f"the collector: {words[-1][:300] if words else f'exit status {process.returncode}'}"
