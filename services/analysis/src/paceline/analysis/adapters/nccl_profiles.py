"""JSON of NCCL's Inspector (2.28 and later, also RCCL's) and of Google's CoMMA: one object an operation.

Both number the operations of one function from 0, as RAS counts launches: operation n is the (n+1)th. The
Inspector writes completed operations only, so a hang shows as the last number of each rank. CoMMA also writes
those that never ended (`reclaimed`): launched, not completed. The rank is that of the communicator.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline.analysis.adapters.functions import function_of
from paceline.analysis.adapters.model import Document
from paceline.analysis.adapters.repaired_json import integer, objects_of, word
from paceline.analysis.facts import Clock, Counted, Fact, Group, Membership, Origin, SampleRow, Speaker

ROWS_MAX = 200_000  # of one document; all are counted
KEYS_MAX = 100_000  # (communicator, rank, function)
CUMULATIVE = -1  # files of one run belong together, whenever they were written
_HEAD = 1 << 16


@dataclass(frozen=True)
class _Operation:
    group: Group
    speaker: Speaker
    function: str
    sequence: int | None
    ended: bool
    time_s: float | None
    numbers: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


@dataclass
class _Count:
    operation: _Operation
    number: int
    launched: int
    completed: int | None = None
    given_up: bool = False


class NcclProfiles:
    """Every operation as a row, and how far each rank has come in each function."""

    name = "nccl profiles"

    def recognise(self, document: Document) -> bool:
        head = document.content[:_HEAD]
        if b'"coll_perf"' in head or b'"p2p_perf"' in head:
            return b'"header"' in head
        return b'"comm_hash"' in head and b'"ph"' in head and b'"cat"' in head

    def read(self, document: Document) -> Iterator[Fact]:
        text = document.content.decode("utf-8", "replace")
        counts: dict[tuple[str, int | None, str], _Count] = {}
        rows = 0
        for number, item in enumerate(objects_of(text), 1):
            operation = _inspector(item) if "header" in item else _comma(item)
            if operation is None:
                continue
            rows += 1
            if rows <= ROWS_MAX:
                yield _row(operation, Origin(document.name, number))
            _count(counts, operation, number)
        yield from _totals(document.name, counts)


def _count(counts: dict[tuple[str, int | None, str], _Count], operation: _Operation, number: int) -> None:
    if operation.sequence is None:
        return
    key = (operation.group.name, operation.speaker.group_rank, operation.function)
    launched = operation.sequence + 1
    found = counts.get(key)
    if found is None:
        if len(counts) >= KEYS_MAX:
            return
        found = counts[key] = _Count(operation, number, launched)
    found.launched = max(found.launched, launched)
    if operation.ended:
        found.completed = max(found.completed or 0, launched)
    if launched >= found.launched:
        found.operation, found.number, found.given_up = operation, number, not operation.ended


def _totals(name: str, counts: dict[tuple[str, int | None, str], _Count]) -> Iterator[Fact]:
    members: set[tuple[str, int | None]] = set()
    for (group, rank, function), count in counts.items():
        operation = count.operation
        base: dict[str, Any] = {
            "origin": Origin(name, count.number),
            "speaker": operation.speaker,
            "time_s": operation.time_s,
            "clock": Clock.NONE if operation.time_s is None else Clock.UNIX,
            "group": operation.group,
        }
        if (group, rank) not in members:
            members.add((group, rank))
            yield Membership(**base, rank_in_group=rank, complete=True)
        yield Counted(
            **base,
            function=function,
            launched=count.launched,
            completed=count.completed,
            snapshot=CUMULATIVE,
            given_up=count.given_up,
        )


def _row(operation: _Operation, origin: Origin) -> Fact:
    return SampleRow(
        origin=origin,
        speaker=operation.speaker,
        time_s=operation.time_s,
        clock=Clock.NONE if operation.time_s is None else Clock.UNIX,
        kind="operations",
        numbers=operation.numbers,
        words=operation.words,
    )


def _inspector(item: dict[str, Any]) -> _Operation | None:
    header, performance = item.get("header"), item.get("coll_perf")
    point = not isinstance(performance, dict)
    performance = item.get("p2p_perf") if point else performance
    if not isinstance(header, dict) or not isinstance(performance, dict):
        return None
    metadata = item.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    of = "p2p" if point else "coll"
    group = _group(header.get("id"), header.get("n_ranks"), word(header.get("comm_name")))
    speaker = Speaker(
        group_rank=integer(header.get("rank")),
        host=word(metadata.get("hostname")),
        pid=integer(metadata.get("pid")),
    )
    stamp = integer(metadata.get("dump_timestamp_us"))
    values = {
        "sequence": performance.get(f"{of}_sn"),
        "size": performance.get(f"{of}_msg_size_bytes"),
        "algbw": performance.get(f"{of}_algobw_gbs"),
        "busbw": performance.get(f"{of}_busbw_gbs"),
        "peer": performance.get("p2p_peer"),
    }
    return _operation(
        group,
        speaker,
        word(performance.get(of)),
        None if point else integer(performance.get("coll_sn")),
        stamp,
        _numbers(values, performance.get(f"{of}_exec_time_us")),
    )


def _comma(item: dict[str, Any]) -> _Operation | None:
    if word(item.get("cat")) not in ("COLL", "P2P") or "comm_hash" not in item:
        return None
    arguments = item.get("args")
    values = {
        "sequence": item.get("seq_num"),
        "size": arguments.get("size") if isinstance(arguments, dict) else None,
        "peer": item.get("peer"),
    }
    ended = item.get("reclaimed") is not True
    took = item.get("child_dur", item.get("dur")) if ended else None  # `dur` alone is the enqueue
    speaker = Speaker(group_rank=integer(item.get("rank")), pid=integer(item.get("pid")))
    return _operation(
        _group(item.get("comm_hash"), None, ""),
        speaker,
        word(item.get("name")),
        integer(item.get("seq_num")),
        None,
        _numbers(values, took),
        ended,
    )


def _operation(
    group: Group,
    speaker: Speaker,
    name: str,
    sequence: int | None,
    stamp_us: int | None,
    numbers: dict[str, float],
    ended: bool = True,
) -> _Operation | None:
    if not name:
        return None
    function = function_of(name)
    if speaker.group_rank is not None:
        numbers["group_rank"] = float(speaker.group_rank)
    words = {"op": function, "comm": group.name}
    if speaker.host:
        words["node"] = speaker.host
    valid = sequence if sequence is not None and 0 <= sequence < 1 << 62 else None
    time_s = None if stamp_us is None else stamp_us / 1e6
    return _Operation(group, speaker, function, valid, ended, time_s, numbers, words)


def _numbers(values: dict[str, Any], took_us: Any) -> dict[str, float]:
    numbers = {name: float(value) for name, value in values.items() if _is_number(value)}
    if _is_number(took_us):
        numbers["collective_s"] = float(took_us) / 1e6
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _group(identity: Any, size: Any, description: str) -> Group:
    digits = word(identity, 40).lower().removeprefix("0x").lstrip("0")
    return Group(name=f"0x{digits or '0'}", description=description, size=max(0, integer(size) or 0))
