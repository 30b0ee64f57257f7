"""PyTorch Flight Recorder dumps as JSON: `dump_nccl_trace_json`, the worker server's `fr_trace_json`.

It differs from the pickle: numbers of `pg_status` are strings, missing times 0, `entries` absent where
there are none, and the keys may be sorted, so that a cut file has lost its group table.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from paceline.analysis.adapters.flight_dump import ENTRIES_MAX, is_dump, read_dump
from paceline.analysis.adapters.model import Document, UnusableInput
from paceline.analysis.facts import Fact

JSON_BYTES_MAX = 64 << 20  # 2,000 entries are about 1 MB
CONTAINERS_MAX = 4_000_000
_HEAD_BYTES = 4096
_BEGINS = re.compile(rb'\s*\{\s*"(?:entries|nccl_comm_state|pg_config|pg_status|version|\w+_version)"')
_OTHERS = re.compile(r'"(pg_config|pg_status|version|comm_lib_version|nccl_version)"\s*:\s*')
_ENTRIES = re.compile(r'"entries"\s*:\s*\[\s*')
_GAP = re.compile(r"[\s,]*")


class FlightJson:
    name = "flight recorder json"

    def recognise(self, document: Document) -> bool:
        content = document.content
        if not _BEGINS.match(content[:_HEAD_BYTES]):
            return False
        return b'"pg_config"' in content or (b'"profiling_name"' in content and b'"entries"' in content)

    def read(self, document: Document) -> Iterator[Fact]:
        content = document.content
        if len(content) > JSON_BYTES_MAX:
            raise UnusableInput(f"{document.name} is larger than {JSON_BYTES_MAX >> 20} MiB: not read")
        if content.count(b"[") + content.count(b"{") > CONTAINERS_MAX:
            raise UnusableInput(f"{document.name} has more containers than any dump has: refused")
        text = content.decode("utf-8", "replace")
        notes: tuple[str, ...] = ()
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            record = _salvaged(text)
            notes = (f"the file is cut or damaged ({str(error)[:80]}); whole entries were read",)
        if not is_dump(record):
            raise UnusableInput(f"{document.name} is a Flight Recorder dump of which nothing can be read")
        yield read_dump(document.name, record, notes)


def _salvaged(text: str) -> dict[str, Any]:
    """Whole entries, and the other keys as far as they stand whole."""
    decoder = json.JSONDecoder()
    record: dict[str, Any] = {}
    begin = _ENTRIES.search(text)
    parts = [text] if begin is None else [text[: begin.start()]]
    if begin is not None:
        entries: list[Any] = []
        at = begin.end()
        while len(entries) < ENTRIES_MAX:
            try:
                entry, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                break
            entries.append(entry)
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
        record["entries"] = entries
        parts.append(text[at:])
    for part in parts:
        for key in _OTHERS.finditer(part):
            try:
                record.setdefault(key[1], decoder.raw_decode(part, key.end())[0])
            except (ValueError, RecursionError):
                continue
    return record
