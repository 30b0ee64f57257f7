"""What the recorder wrote, as a trace that the harness of tests/unit/nccl replays."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from tests.unit.nccl.calls import OFFSETS, OWN_PID, TYPES, WIDTHS, Trace

CALLS_MAX = 200_000
_NAMES = {bits: name for name, bits in TYPES.items()}


class TraceError(ValueError):
    """A line that no recorder writes."""


class _Reader:
    def __init__(self, pid: int) -> None:
        self.trace = Trace()
        self._pid = pid
        self._handles: dict[int, int] = {0: 0}
        self._contexts: dict[int, int] = {0: 0}
        self._threads: dict[str, str] = {}

    def take(self, words: list[str]) -> None:
        thread = self._threads.setdefault(words[0], f"t{len(self._threads)}")
        call, rest = words[1], words[2:]
        if call == "init":
            context = self._contexts[int(rest[0])] = self.trace.handle()
            name = None if rest[5] == "-" else " ".join(rest[5:])
            self.trace.add(
                thread, "init", context=context, name=name, hash=int(rest[1]), nodes=int(rest[2]),
                nranks=int(rest[3]), rank=int(rest[4]), log=True,
            )  # fmt: skip
        elif call == "start":
            self._start(thread, rest)
        elif call == "record":
            argument = None if rest[2] == "-" else int(rest[2])
            self.trace.record(thread, self._handles[int(rest[0])], int(rest[1]), argument)
        elif call == "stop":
            self.trace.stop(thread, self._handles[int(rest[0])])
        elif call == "finalize":
            self.trace.add(thread, "finalize", context=self._contexts[int(rest[0])])
        else:
            raise TraceError(f"call {call!r}")

    def _start(self, thread: str, rest: list[str]) -> None:
        kind = _NAMES[int(rest[1])]
        data = bytes.fromhex(rest[3])
        texts = dict(text.split("=", 1) for text in rest[4:])
        fields: dict[str, Any] = {}
        for name, (width, offset) in OFFSETS[kind].items():
            if width == "s":
                text = texts[str(offset)]
                fields[name] = None if text == "-" else text
                continue
            (value,) = struct.unpack_from(WIDTHS[width], data, offset)
            fields[name] = self._handles.get(value, 0) if width == "h" else value
        if kind == "ProxyOp" and fields["pid"] == self._pid:
            fields["pid"] = OWN_PID
        parent = self._handles.get(int.from_bytes(data[8:16], "little"), 0)
        context = self._contexts.get(int(rest[0]), 0)
        self._handles[int(rest[2])] = self.trace.start(thread, context, kind, parent, **fields)


def read_trace(lines: Iterable[str], pid: int) -> Trace:
    """At most CALLS_MAX calls; TraceError names the first line that makes no sense."""
    reader = _Reader(pid)
    for number, line in enumerate(lines, 1):
        if number > CALLS_MAX:
            break
        try:
            reader.take(line.split())
        except (TraceError, KeyError, ValueError, IndexError, struct.error) as error:
            raise TraceError(f"line {number} {line.strip()[:80]!r}: {error!r}") from error
    return reader.trace


def outline(trace: Trace) -> dict[str, Any]:
    """How many events of each kind and states of each number, and on how many threads."""
    kinds: dict[str, int] = {}
    states: dict[str, int] = {}
    for call in trace.calls:
        if call["call"] == "start":
            kinds[call["type"]] = kinds.get(call["type"], 0) + 1
        elif call["call"] == "record":
            states[str(call["state"])] = states.get(str(call["state"]), 0) + 1
    return {"kinds": kinds, "states": states, "threads": len({call["thread"] for call in trace.calls})}
