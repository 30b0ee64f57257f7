"""Measured rows as JSON, one object a line or lists of objects in a document.

One file may mix kinds, and lines that are no row are skipped. What a row is follows from its fields
(names in `row_fields`) and never from the file's name. A row that measures several things gives one
`SampleRow` for each, with the same numbers and words:

| kind | has | further fact |
|---|---|---|
| steps | a step or rank, and own, collective, wait, tail, data or step time | |
| operations | an operation and how long it took, no step | |
| collections | garbage collection: a generation or the word gc, and how long | PhaseSeen COLLECT |
| waits | where a host thread waited, and how long | |
| captures | where a host thread is | |
| heads | which kernel is at the head of a stream | |
| counters | launched, completed, sends or receives | Counted |
| calls | an operation and its place in the order, peer or shape | CallSeen |
| actions | what an agent or tool did, and when | |
| pairs | two ends and a rate or time | |
| rates | send or receive rate of a rank or node | |
| bandwidth | bus or algorithm bandwidth, size | |
| telemetry | utilisation, power, temperature, clocks | |
| nvlink | recovery events of a link | |
| network | counters of a NIC or port | |
| phases | a phase that is announced: checkpoint, evaluation | PhaseSeen |
| places | which GPU and node a rank has | Membership |
| other | a rank or node and other numbers (benchmarks of nodes) | |
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import Block
from paceline.analysis.adapters.row_fields import (
    NETWORK_COUNTER,
    WORD_OF,
    bare_name,
    bare_time,
    number_of,
    stamp_of,
)
from paceline.analysis.adapters.row_ranks import by_rank
from paceline.analysis.adapters.row_times import point_in_time
from paceline.analysis.facts import (
    CallSeen,
    Clock,
    Counted,
    Fact,
    Group,
    Line,
    Membership,
    PhaseKind,
    PhaseSeen,
    SampleRow,
    Speaker,
    Work,
)

FIELDS_MAX = 256  # of one row
_WORD_CHARS = 400
_DEPTH = 3  # objects inside a row
_RANK = re.compile(r"^(?:rank|r)?[ _-]?(\d{1,9})$", re.IGNORECASE)
_QUANTITY = re.compile(
    r"^(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?) ?(ns|us|ms|s|sec|W|%|MHz|C|Gbps|Mbps|GB/s|MB/s)?$"
)
_PCI = re.compile(r"^(?:[\da-f]{4,8}:)?[\da-f]{2}:[\da-f]{2}(?:\.\d)?$", re.IGNORECASE)
_STEP_TIMES = ("own_s", "collective_s", "wait_s", "tail_s", "data_s", "step_s", "forward_s", "backward_s")
_TELEMETRY = ("sm_util", "mem_util", "power_w", "temp_c", "sm_clock_mhz", "pcie_rx", "pcie_tx")
_COUNTERS = ("launched", "completed", "sends", "receives")
_COLLECT = re.compile(r"\bgc\b|garbage", re.IGNORECASE)
_PHASES = (
    (re.compile(r"checkpoint|ckpt|\bsav(?:e|ing)", re.IGNORECASE), PhaseKind.CHECKPOINT),
    (re.compile(r"\beval|valid", re.IGNORECASE), PhaseKind.EVALUATION),
    (re.compile(r"compil|cuda.?graph", re.IGNORECASE), PhaseKind.COMPILE),
    (re.compile(r"offload", re.IGNORECASE), PhaseKind.OFFLOAD),
    (_COLLECT, PhaseKind.COLLECT),
)
_BEGIN = re.compile(r"begin|start|enter|_on$", re.IGNORECASE)


@dataclass
class Fields:
    """One row with names and units as used here."""

    numbers: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    time_s: float | None = None
    clock: Clock = Clock.NONE
    end_s: float | None = None
    stamp: int | None = None  # the raw time or number of the sample: rows that share it belong together

    def has(self, *names: str) -> bool:
        return any(name in self.numbers for name in names)


class JsonRows:
    """Lines that are one JSON object each, as far as they are rows of a known kind."""

    name = "rows"
    needles = ("{",)

    def read(self, block: Block) -> Iterator[Fact]:
        text = block.line.text.strip().rstrip(",")
        if not (text.startswith("{") and text.endswith("}")):
            return
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(row, dict):
            yield from row_facts(row, block.line)


def row_facts(row: Mapping[str, Any], line: Line) -> Iterator[Fact]:
    """Facts of one row; none where no kind is recognised. `line` gives origin, and what the file knows."""
    if "coll_perf" in row:  # NCCL Inspector, which has an adapter of its own
        return
    if melted := list(by_rank(row)):
        for one in melted:
            yield from row_facts(one, line)
        return
    fields = read_fields(row)
    kinds = kinds_of(fields)
    if not kinds:
        return
    base = _base(fields, line)
    if kinds != ("places",):
        for kind in kinds:
            yield SampleRow(**base, kind=kind, numbers=fields.numbers, words=fields.words)
    if "counters" in kinds:
        yield _counted(fields, base)
    if "calls" in kinds:
        yield _call(fields, base)
    if "collections" in kinds or "phases" in kinds:
        yield _phase(fields, base, PhaseKind.COLLECT if "collections" in kinds else None)
    if "places" in kinds:
        yield Membership(**base, group=Group())


def read_fields(row: Mapping[str, Any]) -> Fields:
    """Flattens and names the fields; what is neither a finite number nor a word is left out."""
    fields = Fields()
    flat: list[tuple[str, Any]] = []
    _flatten(row, flat, 0)
    stamps = [(name, value, stamp_of(name)) for name, value in flat]
    measures = {name for name, _, stamp in stamps if stamp is None}
    for name, value, stamp in stamps:
        if stamp is not None and not _is_duration(name, stamps, measures):
            when = point_in_time(value, stamp[1])
            if when is not None:
                _stamp(fields, stamp[0], value, when)
            continue
        _put(fields, "duration_" + name.rpartition("_")[2] if stamp is not None else name, value)
    _settle(fields)
    if fields.end_s is not None and fields.time_s is not None and fields.end_s >= fields.time_s:
        fields.numbers.setdefault("duration_s", fields.end_s - fields.time_s)
    return fields


def _settle(fields: Fields) -> None:
    """Names that may be times are times in a row of times; a collection that took no time was none."""
    numbers = fields.numbers
    if "own_s" in numbers or "step_s" in numbers:
        for name in [name for name in numbers if (known := bare_time(name)) and known not in numbers]:
            numbers[str(bare_time(name))] = numbers.pop(name)
    if numbers.get("gc_s", 0.0) > 0:
        numbers.setdefault("duration_s", numbers["gc_s"])


def _stamp(fields: Fields, which: str, value: Any, when: tuple[float, Clock]) -> None:
    if which == "end":
        fields.end_s = when[0]
    elif fields.time_s is None:
        fields.time_s, fields.clock = when
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        fields.stamp = int(value) if is_whole else int(when[0] * 1e3)


def kinds_of(fields: Fields) -> tuple[str, ...]:
    """Every kind that the row shows, the most telling first."""
    numbers, words = fields.numbers, fields.words
    placed = "rank" in numbers or "node" in words
    found = []
    timed = any(name in numbers for name in _STEP_TIMES)
    spoken = " ".join(words.get(name, "") for name in ("phase", "op", "action"))
    if "generation" in numbers or (_COLLECT.search(spoken) and fields.has("duration_s")):
        return ("collections",)
    if numbers.get("gc_s", 0.0) > 0:
        found.append("collections")
    if "action" in words and not timed and fields.time_s is not None:
        return ("actions",)
    if (
        "at" in words
        and fields.has("wait_s", "duration_s")
        and not fields.has("own_s", "step_s", "collective_s")
    ):
        return ("waits",)
    if _ends(fields) and fields.has("bandwidth", "busbw", "algbw", "send_rate", "receive_rate", "duration_s"):
        return ("pairs",)
    if timed and ("step" in numbers or ("rank" in numbers and "op" not in words)):
        found.append("steps")
    elif "op" in words and fields.has("duration_s", "collective_s"):
        found.append("operations")
    if "at" in words and "steps" not in found:
        found.append("captures")
    if any(name in numbers for name in _COUNTERS) and (placed or "comm" in words):
        found.append("counters")
    if "head" in words and placed:
        found.append("heads")
    if (
        "op" in words
        and not found
        and "rank" in numbers
        and (fields.has("index", "peer") or "shape" in words)
    ):
        found.append("calls")
    if fields.has("send_rate", "receive_rate") and placed:
        found.append("rates")
    if fields.has("busbw", "algbw", "bandwidth") and (not placed or "size" in numbers):
        found.append("bandwidth")
    if "recovery_events" in numbers:
        found.append("nvlink")
    if fields.has(*_TELEMETRY) and "recovery_events" not in numbers:
        found.append("telemetry")
    if any(NETWORK_COUNTER.search(name) for name in numbers) and "recovery_events" not in numbers:
        found.append("network")
    if not found and "phase" in words and _phase_kind(words["phase"]) is not None:
        found.append("phases")
    if not found and "rank" in numbers and "node" in words and "gpu" in words and len(numbers) <= 2:
        found.append("places")
    if not found and placed and len(numbers) - ("rank" in numbers) > 0:
        found.append("other")
    return tuple(found)


def _ends(fields: Fields) -> bool:
    """Whether the row names two ends."""
    if fields.has("src_rank") and fields.has("dst_rank"):
        return True
    if "src" in fields.words and "dst" in fields.words:
        return True
    return fields.has("peer") and fields.has("rank") and not fields.has("index", "sends", "receives")


def _is_duration(
    name: str, stamps: list[tuple[str, Any, tuple[str, float] | None]], measures: set[str]
) -> bool:
    """`time_us` of a benchmark row says how long it took, where something else says when or nothing does."""
    if not name.startswith("time") or name.startswith("timestamp"):
        return False
    other = any(stamp is not None and one != name for one, _, stamp in stamps)
    sized = any(one in ("size", "bytes", "size_bytes", "busbw", "algbw") for one in measures)
    return other or (sized and "_" in name)


def _flatten(row: Mapping[str, Any], into: list[tuple[str, Any]], depth: int) -> None:
    for key, value in row.items():
        if len(into) >= FIELDS_MAX:
            return
        if isinstance(value, dict):
            if depth < _DEPTH:
                _flatten(value, into, depth + 1)
        else:
            into.append((bare_name(str(key)), value))


def _put(fields: Fields, name: str, value: Any) -> None:
    if isinstance(value, str):
        _put_word(fields, name, value)
        return
    if isinstance(value, list):
        if name in WORD_OF and len(value) <= 64:
            fields.words.setdefault(WORD_OF[name], str(value)[:_WORD_CHARS])
        return
    number = _finite(value)
    if number is None:
        return
    word = WORD_OF.get(name)
    if word == "comm" and number != int(number):
        word = None  # how long, not which
    if word in ("node", "gpu", "comm", "src", "dst") and not isinstance(value, bool):
        fields.words.setdefault(word, str(value)[:_WORD_CHARS])
        if word not in ("src", "dst"):
            return
    known, scaled = number_of(name, number)
    fields.numbers.setdefault(known, scaled)


def _put_word(fields: Fields, name: str, value: str) -> None:
    if (
        len(value) <= 40
        and (found := _QUANTITY.match(value.strip()))
        and WORD_OF.get(name) not in ("node", "comm", "gpu")
    ):
        unit = {"%": "", "sec": "s"}.get(found[2] or "", found[2] or "").lower().replace("/", "_")
        named = f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name
        known, scaled = number_of(named, float(found[1]))
        fields.numbers.setdefault(known, scaled)
        return
    known, _ = number_of(name, 0.0)
    ranked = _RANK.match(value.strip()) if known in ("rank", "peer", "src_rank", "dst_rank") else None
    if ranked:
        fields.numbers.setdefault(known, float(ranked[1]))
    else:
        fields.words.setdefault(WORD_OF.get(name, name), value[:_WORD_CHARS])


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def whole(numbers: Mapping[str, float], name: str) -> int | None:
    """A field as an integer, None where it is absent or no rank, count or number can be it."""
    value = numbers.get(name)
    return int(value) if value is not None and abs(value) < 1 << 53 and value == int(value) else None


def _base(fields: Fields, line: Line) -> dict[str, Any]:
    spoken, numbers, words = line.speaker, fields.numbers, fields.words
    rank = whole(numbers, "rank")
    gpu = words.get("gpu", "")
    return {
        "origin": line.origin,
        "speaker": Speaker(
            rank=rank if rank is not None and rank >= 0 else spoken.rank,
            group_rank=spoken.group_rank,
            local_rank=whole(numbers, "local_rank") if "local_rank" in numbers else spoken.local_rank,
            host=words.get("node", "") or spoken.host,
            pid=whole(numbers, "pid") if "pid" in numbers else spoken.pid,
            gpu=_pci(gpu) or spoken.gpu,
        ),
        "time_s": fields.time_s if fields.time_s is not None else line.time_s,
        "clock": fields.clock if fields.time_s is not None else line.clock,
        "attempt": line.attempt,
    }


def _pci(text: str) -> str:
    """`0000:9b:00`; of an index nothing, it says little without its node."""
    if not _PCI.match(text):
        return ""
    parts = text.lower().split(".")[0].split(":")
    domain = parts[0][-4:] if len(parts) == 3 else "0000"
    return f"{domain}:{parts[-2]}:{parts[-1]}"


def _counted(fields: Fields, base: dict[str, Any]) -> Counted:
    numbers = fields.numbers
    snapshot = whole(numbers, "capture") if "capture" in numbers else fields.stamp
    if snapshot is None:
        snapshot = whole(numbers, "step")
    op = fields.words.get("op", "")
    return Counted(
        **base,
        group=Group(name=fields.words.get("comm", "")),
        function=function_of(op) if op else "",
        launched=whole(numbers, "launched"),
        completed=whole(numbers, "completed"),
        sends=whole(numbers, "sends"),
        receives=whole(numbers, "receives"),
        snapshot=snapshot or 0,
    )


def _call(fields: Fields, base: dict[str, Any]) -> CallSeen:
    numbers, words = fields.numbers, fields.words
    phase = words.get("phase", "")
    return CallSeen(
        **base,
        group=Group(name=words.get("comm", "")),
        work=Work(
            function=function_of(words["op"]),
            sequence=whole(numbers, "sequence") if "sequence" in numbers else whole(numbers, "index"),
            count_in=whole(numbers, "count"),
            shapes=words.get("shape", ""),
            dtype=words.get("dtype", ""),
            reduce_op=words.get("reduce_op", ""),
            root=whole(numbers, "root"),
            peer=whole(numbers, "peer") if "peer" in numbers else _far_end(numbers),
        ),
        returned=bool(re.search(r"exit|end|return|complete|done", phase, re.IGNORECASE)),
    )


def _far_end(numbers: Mapping[str, float]) -> int | None:
    return whole(numbers, "dst_rank") if "dst_rank" in numbers else whole(numbers, "src_rank")


def _phase_kind(text: str) -> PhaseKind | None:
    return next((kind for pattern, kind in _PHASES if pattern.search(text)), None)


def _phase(fields: Fields, base: dict[str, Any], kind: PhaseKind | None) -> PhaseSeen:
    words = fields.words
    text = words.get("phase", "") or words.get("op", "") or words.get("at", "")
    if "generation" in fields.numbers:
        text = f"{text} generation {fields.numbers['generation']:.0f}".strip()
    duration = fields.numbers.get("duration_s", fields.numbers.get("wait_s"))
    return PhaseSeen(
        **base,
        kind=kind or _phase_kind(text) or PhaseKind.DATA,
        ended=duration is not None or not _BEGIN.search(text),
        text=text,
        duration_s=duration,
    )
