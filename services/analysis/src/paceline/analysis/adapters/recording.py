"""Files of `paceline run --record`: an index of the samples, which stay on disk until they are replayed."""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from paceline.analysis.adapters.model import Document, UnusableInput
from paceline.analysis.adapters.recorded_events import read_event
from paceline.analysis.facts import Fact, Origin, Speaker
from paceline.analysis.facts.recorded import RECORDED_SAMPLE, RecordedEvent, RecordedSamples
from paceline.contracts.batch import PEEK_BYTES, BatchError, BatchKind, peek_identity
from paceline.contracts.recording import VERSION, Damage, Record, RecordKind, is_recording, scan_records
from paceline.contracts.registry import NodeRecord

Key = tuple[str, str]  # job, attempt
TIME_NS_MAX = 1 << 62  # year 2116; differences still fit a signed number


@dataclass
class _Part:
    """What one file says of one attempt."""

    samples: list[tuple[int, int, int, int]] = field(default_factory=list)
    events: list[RecordedEvent] = field(default_factory=list)


@dataclass
class _File:
    """What is read of one file."""

    head: dict[str, Any] = field(default_factory=dict)
    parts: dict[Key, _Part] = field(default_factory=lambda: defaultdict(_Part))
    of_node: list[RecordedEvent] = field(default_factory=list)  # health without a job
    node: str = ""
    dropped: dict[str, int] = field(default_factory=dict)
    ended: str = ""
    unreadable: int = 0


class Recordings:
    """A damaged record costs itself; a file of a newer version is refused by name."""

    name = "paceline recording"

    def recognise(self, document: Document) -> bool:
        return is_recording(document.content)

    def read(self, document: Document) -> Iterator[Fact]:
        found, damage = _File(), Damage()
        for number, record in enumerate(scan_records(document.content, damage), 1):
            _take(found, document, record, number)
        for (job, run), part in found.parts.items():
            yield RecordedSamples(
                origin=Origin(document.name),
                speaker=Speaker(host=found.node),
                job=job,
                run=run,
                recorder=_text(found.head.get("recorder")) or document.name,
                node=_text(found.head.get("node")) or found.node,
                segment=_count(found.head.get("segment")),
                samples=np.array(part.samples, RECORDED_SAMPLE),
                events=tuple(sorted([*part.events, *found.of_node], key=lambda event: event.time_ns)),
                read=_reader(document),
                dropped=found.dropped,
                ended=found.ended,
                bytes_damaged=damage.bytes_skipped,
                unreadable=found.unreadable,
            )


def _take(found: _File, document: Document, record: Record, number: int) -> None:
    payload = document.content[record.offset : record.offset + record.size]
    try:
        if record.kind == RecordKind.BATCH:
            kind, job, run, node = peek_identity(zlib.decompressobj().decompress(payload, PEEK_BYTES))
            if kind is BatchKind.FRAMES:
                found.node = found.node or node
                place = (_bounded(record.time_ns), record.offset, record.size, number)
                found.parts[job, run].samples.append(place)
        elif record.kind == RecordKind.EVENT:
            _take_event(found, payload, record)
        elif record.kind in (RecordKind.HEAD, RecordKind.COUNTS, RecordKind.END):
            _take_words(found, document, record.kind, json.loads(payload))
    except (BatchError, zlib.error, ValueError, RecursionError) as error:
        if isinstance(error, UnusableInput):
            raise
        found.unreadable += 1


def _take_event(found: _File, payload: bytes, record: Record) -> None:
    event = read_event(payload)
    if event is None:
        return
    held = RecordedEvent(_bounded(record.time_ns), event)
    if isinstance(event, NodeRecord):
        found.node = found.node or event.node
    if event.job:
        found.parts[event.job, event.attempt].events.append(held)
    else:
        found.of_node.append(held)


def _take_words(found: _File, document: Document, kind: int, words: Any) -> None:
    if not isinstance(words, dict):
        raise ValueError("no object")
    if kind == RecordKind.HEAD:
        found.head = words
        if _count(words.get("version")) > VERSION:
            raise UnusableInput(
                f"{document.name} is a recording of version {words.get('version')}, this reads {VERSION}: "
                "upgrade paceline-analysis"
            )
    elif kind == RecordKind.COUNTS:
        found.dropped = {str(name)[:80]: _count(number) for name, number in list(words.items())[:64]}
    else:
        found.ended = _text(words.get("reason")) or "ended"


def _reader(document: Document) -> "partial[bytes]":
    if document.path is None:
        return partial(_from_content, document.content)
    return partial(_from_path, document.path)


def _from_content(content: bytes, offset: int, size: int) -> bytes:
    return content[offset : offset + size]


def _from_path(path: str, offset: int, size: int) -> bytes:
    with open(path, "rb", buffering=0) as stream:
        stream.seek(offset)
        return stream.read(size)


def _bounded(time_ns: int) -> int:
    return min(time_ns, TIME_NS_MAX)


def _text(value: object) -> str:
    return value[:255] if isinstance(value, str) else ""


def _count(value: object) -> int:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
    return int(value) if known and isinstance(value, int) else 0
