"""From inputs to facts: what each input is, decided by its content, and which adapters read it."""

import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TypeVar

from paceline.analysis.adapters.inputs import FILE_BYTES_MAX, Skipped, Source, find_sources
from paceline.analysis.adapters.model import (
    LINE_CHARS_MAX,
    LOOKAHEAD_LINES,
    Block,
    Companion,
    Document,
    DocumentAdapter,
    LineAdapter,
    UnusableInput,
)
from paceline.analysis.facts import Fact, Line, Origin, Speaker

FACTS_MAX = 2_000_000
DOCUMENT_TEXT_MAX = 64 << 20  # a text larger than this is a log, whatever its head looks like
Made = TypeVar("Made")
_HEAD_BYTES = 65_536
_JSON_LOOK_MAX = 16 << 20
_RANK_IN_NAME = re.compile(r"(?:^|[/_.-])(?:rank|task|worker)[_-]?(\d{1,6})(?=$|[/_.-])", re.IGNORECASE)
_TORCHRUN_DIR = re.compile(r"(?:^|/)(\d{1,6})/(?:std(?:err|out))\.log$")  # torchrun --log-dir: local rank
_NODE_IN_NAME = re.compile(
    r"(?:^|[/_.-])((?:node|host)(?:[_-]?\d{1,6}|[_-][a-z](?=[/_.-])|[_-]\w{1,32}?(?=$|[/.])))(?=$|[/_.-])",
    re.IGNORECASE,
)


@dataclass
class Reading:
    """All facts of the inputs, in order of files and lines."""

    facts: list[Fact] = field(default_factory=list)
    skipped: Skipped = field(default_factory=Skipped)
    files: int = 0
    lines: int = 0
    lines_cut: int = 0
    facts_dropped: int = 0
    sources: Counter[str] = field(default_factory=Counter)  # adapter name: facts
    unread: list[str] = field(default_factory=list)  # files in which nothing was recognised; bounded
    reduce: Callable[[Fact], Fact] = lambda fact: fact  # makes facts smaller before they are kept

    def add(self, adapter: str, facts: Iterator[Fact]) -> int:
        before = len(self.facts)
        for fact in facts:
            if len(self.facts) >= FACTS_MAX:
                self.facts_dropped += 1
            else:
                self.facts.append(self.reduce(fact))
        found = len(self.facts) - before
        if found:
            self.sources[adapter] += found
        return found


class Later(Iterable[Made]):
    """Adapters that are made, one after the other, each time somebody goes through them."""

    def __init__(self, make: Callable[[], Iterator[Made]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Made]:
        return self._make()


@dataclass(frozen=True)
class Adapters:
    """What can be read; the order is that of asking."""

    documents: Iterable[DocumentAdapter]
    lines: Iterable[LineAdapter]


def read_inputs(
    paths: Sequence[str],
    adapters: Adapters,
    watch: Callable[[Reading, Source], None] = lambda reading, source: None,
    reduce: Callable[[Fact], Fact] = lambda fact: fact,
) -> Reading:
    """Facts of every file below `paths`; `watch` is called before each file, for progress, `reduce` with
    each fact before it is kept.

    Raises `UnusableInput` where a path does not exist or no input could be opened at all.
    """
    reading = Reading(reduce=reduce)
    for source in find_sources(paths, reading.skipped):
        watch(reading, source)
        reading.files += 1
        try:
            found = _read_source(source, adapters, reading)
        except UnusableInput as error:
            reading.skipped.add(source.name, str(error))
            continue
        if not found and len(reading.unread) < 100:
            reading.unread.append(source.name)
    if reading.files == 0:
        raise UnusableInput(f"no readable file in {', '.join(paths)}")
    return reading


def _read_source(source: Source, adapters: Adapters, reading: Reading) -> int:
    head = _peek(source.stream)
    binary = b"\x00" in head[:4096] or head[:1] == b"\x80"  # pickles begin with 0x80
    if binary or len(head) < _HEAD_BYTES or source.size <= DOCUMENT_TEXT_MAX:
        document = Document(source.name, source.read_all(), source.path)
        for adapter in adapters.documents:
            if adapter.recognise(document):
                found = reading.add(adapter.name, adapter.read(document))
                return max(found, int(isinstance(adapter, Companion)))
        if binary:
            reading.skipped.add(source.name, "binary, and of no known kind")
            return 0
        if _is_document(document.content):  # prose and examples inside are no log lines
            return 0
        return _read_lines(source.name, iter(document.content.splitlines()), adapters, reading)
    return _read_lines(source.name, _lines_of(source.stream, reading), adapters, reading)


def _is_document(content: bytes) -> bool:
    """One JSON object or array over several lines, which no adapter knows."""
    if content[:1] not in (b"{", b"[") or len(content) > _JSON_LOOK_MAX or b"\n" not in content[:-1]:
        return False
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _peek(stream: IO[bytes]) -> bytes:
    peek = getattr(stream, "peek", None)
    return bytes(peek(_HEAD_BYTES)[:_HEAD_BYTES]) if peek else b""


def _lines_of(stream: IO[bytes], reading: Reading) -> Iterator[bytes]:
    """Lines of a log of any length; carriage returns of progress bars end a line as well."""
    taken = 0
    while taken < FILE_BYTES_MAX:
        line = stream.readline(LINE_CHARS_MAX)
        if not line:
            return
        taken += len(line)
        reading.lines_cut += len(line) == LINE_CHARS_MAX and not line.endswith(b"\n")
        yield from line.splitlines()


def _read_lines(name: str, raw: Iterator[bytes], adapters: Adapters, reading: Reading) -> int:
    """Offers each line with a needle to the adapters that look for it."""
    from paceline.analysis.adapters.prefixes import read_line

    hint, year = hint_of(name), time.gmtime().tm_year
    asked = tuple(adapters.lines)
    found = 0
    waiting: deque[Line] = deque()
    numbered = enumerate(raw, 1)

    def fill() -> None:
        for number, content in islice(numbered, LOOKAHEAD_LINES + 1 - len(waiting)):
            text = content[:LINE_CHARS_MAX].decode("utf-8", "replace")
            waiting.append(read_line(text, Origin(name, number), hint, year))

    fill()
    while waiting:
        line = waiting.popleft()
        fill()
        reading.lines += 1
        for adapter in asked:
            if any(needle in line.text for needle in adapter.needles):
                found += reading.add(adapter.name, adapter.read(Block(line, waiting)))
    return found


def hint_of(name: str) -> Speaker:
    """What a path says of its writer; weaker than anything in the text."""
    rank = _RANK_IN_NAME.search(name)
    local = _TORCHRUN_DIR.search(name)
    node = _NODE_IN_NAME.search(name)
    return Speaker(
        rank=int(rank[1]) if rank else None,
        local_rank=int(local[1]) if local else None,
        host=node[1] if node else "",
    )
