"""Reads what is new in the NCCL logs of observed processes: bounded, in steps, in a thread of its own.

The file is the one that the process announced (NCCL_DEBUG_FILE), seen through its own root, else what its
standard output goes to where that is a regular file. A file on a file system that hangs holds up this reader
and nothing else.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.analysis.adapters.prefixes import read_line
from paceline.analysis.facts import Line, Origin, Speaker

LOOK_BYTES_MAX = 1 << 20  # of all files together, at one look
FILE_BYTES_MAX = 64 << 20  # of one file; communicators are made early in a job
LINE_BYTES_MAX = 4096
FILES_MAX = 1024
LINES_MAX = 4096  # handed over at one look
# The cheap test on bytes; what a line means is for `adapters.nccl_order` to say.
_WANTED = re.compile(
    rb"NCCL INFO (?:Trees \[|Ring \d|Channel \d+/\d+ : *\d+(?: |\r?$)|[^\n]*Paceline communicator "
    rb"|[^\n]*Init (?:START|COMPLETE))"
)


@dataclass(frozen=True)
class Wanted:
    """One observed process: `pid` as the agent sees it (0: not at all), `uid` its owner."""

    pid: int
    uid: int
    path: str  # as announced, empty where it was not


@dataclass
class _File:
    offset: int = 0
    rest: bytes = b""
    ended: bool = False


@dataclass
class Look:
    """Lines of NCCL's about orders, by the position in `wanted` of the process they may be of."""

    lines: list[tuple[int, Line]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    more: bool = False  # a bound was reached: there is more to read already


class NcclLogs:
    """Remembers how far each file was read. One thread at a time calls `read`."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._files: dict[tuple[int, int], _File] = {}

    def read(self, wanted: Sequence[Wanted]) -> Look:
        """What was written since the last time. Never raises for files, whatever they are."""
        look = Look()
        shared: dict[tuple[int, int], list[int]] = {}
        paths: dict[tuple[int, int], tuple[str, int]] = {}
        for place, one in enumerate(wanted):
            found = self._find(one)
            if found is not None:
                key, path, size = found
                shared.setdefault(key, []).append(place)
                paths[key] = (path, size)
        self._files = {key: file for key, file in self._files.items() if key in shared}
        left = LOOK_BYTES_MAX
        for key, places in shared.items():
            if key not in self._files and len(self._files) >= FILES_MAX:
                look.dropped["nccl_log_files"] += 1
                continue
            file = self._files.setdefault(key, _File())
            left -= self._read_file(file, *paths[key], left, places, look)
        return look

    def _find(self, one: Wanted) -> tuple[tuple[int, int], str, int] | None:
        for path, is_own in self._candidates(one):
            try:
                status = os.stat(path)
            except (OSError, ValueError):
                continue
            # An announced file of somebody else is not read on anybody's word.
            if stat.S_ISREG(status.st_mode) and (is_own or status.st_uid == one.uid):
                return (status.st_dev, status.st_ino), path, status.st_size
        return None

    def _candidates(self, one: Wanted) -> list[tuple[str, bool]]:
        home = f"{self._proc}/{one.pid}"
        if not one.path:
            return [(f"{home}/fd/1", True)] if one.pid else []
        if not one.path.startswith("/"):
            return [(f"{home}/cwd/{one.path}", False)] if one.pid else []
        through = [(f"{home}/root{one.path}", False)] if one.pid else []
        return [*through, (one.path, False)]

    def _read_file(self, file: _File, path: str, size: int, left: int, places: list[int], look: Look) -> int:
        if size < file.offset:  # begun anew: what was read stays known, what follows cannot be placed
            file.offset, file.rest, file.ended = size, b"", True
            look.dropped["nccl_log_rewritten"] += 1
        if file.ended or size == file.offset:
            return 0
        if left <= 0 or len(look.lines) >= LINES_MAX:
            look.more = True
            return 0
        try:
            data = _read_at(path, file.offset, min(left, size - file.offset, FILE_BYTES_MAX - file.offset))
        except OSError:
            look.dropped["nccl_log_unreadable"] += 1
            return 0
        file.offset += len(data)
        if file.offset >= FILE_BYTES_MAX:
            file.ended = True
            look.dropped["nccl_log_too_long"] += 1
        look.more |= file.offset < size and not file.ended
        lines = (file.rest + data).split(b"\n")
        file.rest = lines.pop()[-LINE_BYTES_MAX:]
        origin = Origin(path)
        for content in lines:
            if _WANTED.search(content[:LINE_BYTES_MAX]):
                text = content[:LINE_BYTES_MAX].decode("utf-8", "replace").rstrip("\r")
                line = read_line(text, origin, Speaker(), 1970)
                look.lines += [(place, line) for place in places]
        return len(data)


def _read_at(path: str, offset: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
