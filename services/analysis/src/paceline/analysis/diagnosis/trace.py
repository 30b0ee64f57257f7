"""Trace events for Perfetto and chrome://tracing: works of each rank and group, timeouts, events.

One process for each clock and group, one thread for each rank; clocks that cannot be compared each begin at
zero. A work that had not ended is drawn up to the last known moment and marked `open`.
Format: "Trace Event Format", JSON object form.
"""

import json
from collections.abc import Generator, Iterator
from typing import IO, Any

from paceline.analysis.diagnosis.answer import Diagnosis
from paceline.analysis.diagnosis.picture import Picture
from paceline.analysis.diagnosis.words import blame_text
from paceline.contracts.verdicts import Role

EVENTS_MAX = 2_000_000
_OPEN_MIN_S = 0.001


def write_trace(stream: IO[str], diagnosis: Diagnosis, picture: Picture) -> int:
    """Write the whole JSON object event by event; returns how many events were left out."""
    head = {
        "class": diagnosis.verdict_class.value,
        "summary": diagnosis.summary,
        "blame": [blame_text(root) for root in diagnosis.roots if root.role is Role.INITIATING][:16],
    }
    stream.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n')
    written = left_out = 0
    for event in _events(diagnosis, picture):
        if written >= EVENTS_MAX:
            left_out += 1
            continue
        stream.write((",\n" if written else "") + json.dumps(event, separators=(",", ":")))
        written += 1
    stream.write("\n]}\n")
    return left_out


def _events(diagnosis: Diagnosis, picture: Picture) -> Iterator[dict[str, Any]]:
    spans, processes = _clocks(picture), _Processes()
    blamed = {root.rank for root in diagnosis.roots if root.rank is not None}
    for bar in picture.bars():
        start, end = spans[bar.clock]
        pid = yield from processes.thread(bar.clock, bar.group, bar.rank, bar.rank in blamed)
        stop = bar.end_s if bar.end_s is not None else max(end, bar.start_s + _OPEN_MIN_S)
        number = "" if bar.sequence is None else f" {bar.sequence}"
        name = f"{bar.function or 'work'}{number}"
        yield {
            "ph": "X", "cat": "work", "name": name, "pid": pid, "tid": bar.rank,
            "ts": _us(bar.start_s - start), "dur": _us(stop - bar.start_s),
            "args": {"open": bar.end_s is None, "sequence": bar.sequence},
        }  # fmt: skip
    for mark in picture.marks:
        if mark.at_s is None or mark.clock not in spans:
            continue
        rank = mark.rank if mark.rank is not None else -1
        pid = yield from processes.thread(mark.clock, "events", rank, mark.rank in blamed)
        yield {
            "ph": "i", "s": "t", "cat": "event", "name": mark.kind, "pid": pid, "tid": rank,
            "ts": _us(mark.at_s - spans[mark.clock][0]),
            "args": {"text": mark.text, "host": mark.host, "from": str(mark.origin)},
        }  # fmt: skip


def _clocks(picture: Picture) -> dict[str, tuple[float, float]]:
    """First and last known moment of each clock."""
    spans: dict[str, tuple[float, float]] = {}
    for bar in picture.bars():
        _widen(spans, bar.clock, bar.start_s)
        if bar.end_s is not None:
            _widen(spans, bar.clock, bar.end_s)
    for mark in picture.marks:
        if mark.at_s is not None and mark.clock != "none":
            _widen(spans, mark.clock, mark.at_s)
    return spans


def _widen(spans: dict[str, tuple[float, float]], clock: str, at_s: float) -> None:
    low, high = spans.get(clock, (at_s, at_s))
    spans[clock] = (min(low, at_s), max(high, at_s))


class _Processes:
    """Numbers of (clock, group), and the events that name them and their threads once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._threads: set[tuple[int, int]] = set()

    def thread(self, clock: str, group: str, rank: int, blamed: bool) -> Generator[dict[str, Any], None, int]:
        key = (clock, group)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers) + 1
            yield _name("process_name", self._numbers[key], 0, f"{group} ({clock} clock)")
        pid = self._numbers[key]
        if (pid, rank) not in self._threads:
            self._threads.add((pid, rank))
            label = f"rank {rank}{' (to blame)' if blamed else ''}" if rank >= 0 else "no rank named"
            yield _name("thread_name", pid, rank, label)
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": pid,
                "tid": rank,
                "args": {"sort_index": rank},
            }
        return pid


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1e6, 3)
