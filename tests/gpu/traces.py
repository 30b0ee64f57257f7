"""What the recorder wrote, as a trace that the harness of tests/unit/nccl replays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from tests.unit.nccl.calls import OFFSETS, OWN_PID, Trace

CALLS_MAX = 200_000
_CUT = '{"call": "cut"}'


class TraceError(ValueError):
    """A line that no recorder writes."""


class _Reader:
    """Handles keep their numbers. NCCL reads a plugin's mask when a group of calls begins, for all in it."""

    def __init__(self, version: int, last: int) -> None:
        self.trace = Trace(version, _last=last)
        self._masks: dict[int | str, int] = {}  # of handles: the sample of the mask that decides
        self._known: set[int] = {0}

    def take(self, line: Mapping[str, Any]) -> bool:
        """False where the recording ends before the program did."""
        call = line["call"]
        if call == "cut":
            return False
        thread = f"t{int(line['thread'])}"
        if call == "init":
            self._known.add(int(line["context"]))
            name = line["name"] and str(line["name"]).replace(" ", "_")
            numbers = {key: int(line[key]) for key in ("context", "hash", "nodes", "nranks", "rank")}
            self.trace.add(thread, "init", name=name, log=bool(line["log"]), **numbers)
        elif call == "start":
            self._start(thread, line)
        elif call == "record":
            argument = None if line["argument"] is None else int(line["argument"])
            self.trace.record(thread, self._own(line["handle"]), int(line["state"]), argument)
        elif call == "stop":
            self.trace.stop(thread, self._own(line["handle"]))
        elif call == "finalize":
            self.trace.add(thread, "finalize", context=self._own(line["context"]))
        else:
            raise TraceError(f"call {call!r}")
        return True

    def _start(self, thread: str, line: Mapping[str, Any]) -> None:
        kind, fields, handle = line["type"], dict(line["fields"]), int(line["handle"])
        if not fields.keys() <= OFFSETS[kind].keys():
            raise TraceError(f"fields of {kind}: {sorted(fields)}")
        for name, value in fields.items():
            if OFFSETS[kind][name][0] == "s":
                fields[name] = None if value is None else str(value).replace(" ", "_")
            elif value != OWN_PID and not _is_address(value):
                fields[name] = int(value)
        parent = _number_or_address(line["parent"])
        mask = self._masks.get(parent, 0)
        if mask == 0 and parent == 0:
            mask = self.trace.sample(thread)
        if handle == 0:
            handle = self.trace.handle()  # a foreign operation, which got none
        self._known.add(handle)
        self._masks[handle] = mask
        context = _number_or_address(line["context"])
        self.trace.restart(thread, handle, context, kind, parent, mask, **fields)

    def _own(self, handle: Any) -> int:
        if int(handle) not in self._known:
            raise TraceError(f"handle {handle}, which nobody was given")
        return int(handle)


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("raw:0x")


def _number_or_address(value: Any) -> int | str:
    return str(value) if _is_address(value) else int(value)


def read_trace(lines: Iterable[str]) -> Trace:
    """At most CALLS_MAX calls; TraceError names the first line that makes no sense."""
    reader: _Reader | None = None
    kept = list(islice(lines, CALLS_MAX + 1))
    for number, text in enumerate(kept, 1):
        try:
            line = json.loads(text)
            if reader is None:
                if line["recorder"] != 1:
                    raise TraceError(f"recorder {line['recorder']!r}, expected 1")
                # Numbers of our own are above all that the recorder gave out: a line makes one at most.
                reader = _Reader(int(line["version"]), len(kept) + 1)
            elif not reader.take(line):
                break
        except (TraceError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise TraceError(f"line {number} {text.strip()[:80]!r}: {error!r}") from error
    if reader is None:
        raise TraceError("line 1: nothing was recorded")
    return reader.trace


def cut(lines: Iterable[str], bytes_max: int) -> list[str]:
    """As many lines of a recording as fit, and that it was cut: a golden trace is small."""
    kept: list[str] = []
    left = bytes_max - len(_CUT) - 1
    for line in lines:
        left -= len(line.encode()) + 1
        if left < 0:
            return [*kept, _CUT]
        kept.append(line)
    return kept


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
