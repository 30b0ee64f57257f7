"""The list of processes in an archive of `paceline collect`: which rank is which process on which host."""

import json
from collections.abc import Iterator

from paceline.analysis.adapters.model import Document
from paceline.analysis.facts import Fact, Group, Membership, Origin, Speaker

FORMAT = b'"format": "paceline-collect-'
_HEAD = 256


class CollectedProcesses:
    """Written by `paceline.analysis.collect`; a damaged one says nothing."""

    name = "paceline collect"

    def recognise(self, document: Document) -> bool:
        return FORMAT in document.content[:_HEAD]

    def read(self, document: Document) -> Iterator[Fact]:
        try:
            content = json.loads(document.content)
            processes = list(content.get("processes", []))
        except (ValueError, TypeError, AttributeError, RecursionError):
            return
        host = content.get("host")
        for number, process in enumerate(processes, 1):
            if not isinstance(process, dict) or _count(process.get("rank")) is None:
                continue
            speaker = Speaker(
                rank=_count(process.get("rank")),
                local_rank=_count(process.get("local_rank")),
                host=host if isinstance(host, str) else "",
                pid=_count(process.get("pid")),
            )
            size = _count(process.get("world_size")) or 0
            yield Membership(origin=Origin(document.name, number), speaker=speaker, group=Group(size=size))


def _count(value: object) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
    return int(value) if known and isinstance(value, int) else None
