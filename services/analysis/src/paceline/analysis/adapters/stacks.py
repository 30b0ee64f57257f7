"""Stacks of hung processes: py-spy, pystack, gdb, faulthandler, and what a GPU is running (cuda-gdb, notes).

A stack says where a process is, not how long; frames are innermost first whatever the tool's order. The rank
comes from a `# rank 3` line above, from the line's prefix, or from the file's name.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from paceline.analysis.adapters.model import LOOK_CHARS, Block, base_of
from paceline.analysis.facts import Fact, Line, StackSeen

FRAMES_MAX = 60
FRAME_CHARS_MAX = 300
GPU_THREAD = "gpu kernel"
_RULE = re.compile(r"^\s{0,8}(?:#{1,6}|={2,40}|-{2,40}|\*{2,40})\s*(?P<words>.{0,200})")
_RANK = re.compile(r"\b(?:global )?rank[ =:#]{1,3}(?P<rank>\d{1,7})\b", re.IGNORECASE)
_HOST = re.compile(r"\b(?:host|node)(?:name)?[ =:]{1,3}(?P<host>[A-Za-z][\w.-]{0,63})", re.IGNORECASE)
_PID = re.compile(r"\bpid[ =:]{1,3}(?P<pid>\d{1,9})\b", re.IGNORECASE)
_PROCESS = re.compile(r"^\s{0,8}Process (?P<pid>\d{1,9})(?::|$)")
_PY_SPY = re.compile(
    r"^\s{0,8}Thread (?:\d{1,20}|0x[\da-fA-F]{1,16}) \((?P<state>[a-z+]{2,20})\)"
    r'(?:: "(?P<name>[^"]{0,80}))?'
)
_PY_SPY_FRAME = re.compile(r"^\s+(?P<name>[^\s(][^(]{0,160}?(?:\(\))?) \((?P<place>[^()]{1,200})\)\s*$")
_PYSTACK = re.compile(r"^\s{0,8}Traceback for thread (?P<tid>\d{1,20})(?: \((?P<name>[^)]{0,60})\))?")
_PYSTACK_FRAME = re.compile(
    r'^\s+\((?P<kind>Python|C|C\+\+|Cython)\) File "(?P<file>[^"]{1,300})", line (?P<line>\d{1,9}), '
    r"in (?P<name>[^\n]{1,200})"
)
_GDB = re.compile(r'^\s{0,8}Thread (?P<number>\d{1,9}) \((?:Thread|LWP)[^"]{0,80}(?:"(?P<name>[^"]{0,80}))?')
_GDB_FRAME = re.compile(
    r"^\s{0,8}#(?P<number>\d{1,4}) {1,3}(?:0x[\da-fA-F]{1,16} in )?(?P<name>[^\s(][^(]{0,160}?) ?(?:\(|<<<)"
)
_GDB_PLACE = re.compile(r"\) (?:at|from) (?P<place>\S{1,200})\s*$")
_FAULT = re.compile(
    r"^\s{0,8}(?:(?P<current>Current thread)|Thread) 0x[\da-fA-F]{1,16}(?: \[(?P<name>[^\]]{0,60})\])?"
    r" \(most recent call first\)"
)
_FAULT_FRAME = re.compile(
    r'^\s+File "(?P<file>[^"]{1,300})", line (?P<line>\d{1,9}),? in (?P<name>\S{1,200})'
)
_KERNEL = re.compile(
    r"\b(?:running|stuck in|executing|active|current)(?: in)?(?: CUDA| GPU| HIP| device)? kernel:? {1,3}"
    r"(?P<name>[A-Za-z_][\w:]{2,200})",
    re.IGNORECASE,
)
_CUDA_GDB = re.compile(
    r"^[\s*]{0,8}\d{1,6}\s{1,20}[-\d]{1,6}\s{1,20}(?P<device>\d{1,4})\s{1,20}\d{1,12}\s{1,20}"
    r"(?P<status>Active|Sleeping|Pending)\s{1,20}0x[\da-fA-F]{1,64}\s{1,20}\([\d, ]{1,40}\)\s{1,20}"
    r"\([\d, ]{1,40}\)\s{1,20}(?P<name>[^\s(<]{1,200})"
)


class Stacks:
    """One fact for each thread; ranks and processes are remembered from the lines above, within one file."""

    name = "stacks"
    needles = (
        "rank", "Rank", "RANK", "Process ", "Thread ", "thread 0x", "Traceback for thread", "kernel",
        "Active", 'File "', "#0 ",
    )  # fmt: skip

    def __init__(self) -> None:
        self._forget("")

    def _forget(self, file: str) -> None:
        self._file, self._line, self._gdb_line = file, 0, -1
        self._rank: int | None = None
        self._host = ""
        self._pid: int | None = None
        self._thread: str | None = None  # of pystack, while its frames follow
        self._frames: deque[str] = deque(maxlen=FRAMES_MAX)

    def read(self, block: Block) -> Iterator[Fact]:
        origin, text = block.line.origin, block.line.text[:LOOK_CHARS]
        if origin.file != self._file or origin.line < self._line:
            self._forget(origin.file)
        self._line = origin.line
        if self._heading(text):
            return
        if self._thread is not None and (found := _PYSTACK_FRAME.match(text)):
            yield from self._pystack(block, found)
        elif found := _PY_SPY.match(text):
            frames = _frames(block.after, _py_spy_frame)
            yield from self._stack(block, frames, found["name"] or "", active="active" in found["state"])
        elif found := _GDB.match(text):
            self._gdb_line = origin.line
            frames = _frames(block.after, _gdb_frame)
            yield from self._stack(block, frames, found["name"] or f"thread {found['number']}", native=True)
        elif (found := _GDB_FRAME.match(text)) and found["number"] == "0" and not self._headed(block):
            yield from self._stack(block, _frames([block.line, *block.after], _gdb_frame), "", native=True)
        elif found := _FAULT.match(text):
            thread = found["name"] or ("MainThread" if found["current"] else "")
            yield from self._stack(block, _frames(block.after, _fault_frame), thread)
        elif found := _CUDA_GDB.match(text):
            yield from self._kernel(block, found["name"], int(found["device"]))
        elif found := _KERNEL.search(text):
            yield from self._kernel(block, found["name"], None)

    def _headed(self, block: Block) -> bool:
        """Whether the thread line that was read just before has taken this frame along."""
        return self._gdb_line == block.line.origin.line - 1

    def _heading(self, text: str) -> bool:
        """Takes notice of who the next stacks belong to."""
        if found := _PROCESS.match(text):
            self._pid = int(found["pid"])
        elif found := _PYSTACK.match(text):
            self._thread = "MainThread" if found["tid"] == str(self._pid) else found["name"] or ""
            self._frames.clear()
        elif (rule := _RULE.match(text)) and (rank := _RANK.search(rule["words"])):
            host, pid = _HOST.search(rule["words"]), _PID.search(rule["words"])
            self._rank, self._thread = int(rank["rank"]), None
            self._host = host["host"] if host else ""
            self._pid = int(pid["pid"]) if pid else None
        else:
            return False
        return True

    def _pystack(self, block: Block, found: re.Match[str]) -> Iterator[Fact]:
        """pystack writes the innermost frame last: the stack is complete where no frame follows soon."""
        self._frames.append(_frame(found["name"], f"{found['file']}:{found['line']}"))
        for line in list(block.after)[:3]:
            if _PYSTACK_FRAME.match(line.text[:LOOK_CHARS]):
                return
            if _PYSTACK.match(line.text[:LOOK_CHARS]) or not line.text[:LOOK_CHARS].strip():
                break
        frames, thread = tuple(reversed(self._frames)), self._thread or ""
        self._thread = None
        yield from self._stack(block, frames, thread, native=False)

    def _stack(
        self, block: Block, frames: tuple[str, ...], thread: str, active: bool = True, native: bool = False
    ) -> Iterator[Fact]:
        if frames:
            yield StackSeen(**self._base(block), frames=frames, thread=thread, active=active, native=native)

    def _kernel(self, block: Block, name: str, device: int | None) -> Iterator[Fact]:
        base = self._base(block)
        if device is not None:
            base["speaker"] = replace(base["speaker"], local_rank=device)
        yield StackSeen(**base, frames=(_frame(name, GPU_THREAD),), thread=GPU_THREAD, native=True)

    def _base(self, block: Block) -> dict[str, Any]:
        base = base_of(block)
        speaker = base["speaker"]
        base["speaker"] = replace(
            speaker,
            rank=speaker.rank if self._rank is None else self._rank,
            host=self._host or speaker.host,
            pid=speaker.pid if self._pid is None else self._pid,
        )
        return base


def _frames(lines: Iterable[Line], read: Callable[[str], str | None]) -> tuple[str, ...]:
    """The frames at the head of `lines`; details of a frame (locals, source) may stand between them."""
    frames: list[str] = []
    other = 0
    for line in lines:
        frame = read(line.text[:LOOK_CHARS])
        if frame is not None:
            frames.append(frame)
            other = 0
        elif not line.text[:LOOK_CHARS].strip() or not line.text[:1].isspace() or (other := other + 1) > 24:
            break
        if len(frames) >= FRAMES_MAX:
            break
    return tuple(frames)


def _frame(name: str, place: str) -> str:
    return f"{name.strip()} ({place.strip()})"[:FRAME_CHARS_MAX]


def _py_spy_frame(text: str) -> str | None:
    found = _PY_SPY_FRAME.match(text)
    return _frame(found["name"], found["place"]) if found else None


def _gdb_frame(text: str) -> str | None:
    found = _GDB_FRAME.match(text)
    if not found:
        return None
    place = _GDB_PLACE.search(text[:4096])
    return _frame(found["name"], place["place"] if place else "?")


def _fault_frame(text: str) -> str | None:
    found = _FAULT_FRAME.match(text)
    return _frame(found["name"], f"{found['file']}:{found['line']}") if found else None
