"""How an adapter looks: lines of logs, or whole documents, to facts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.analysis.facts import Fact, Line, Speaker

LOOKAHEAD_LINES = 64  # longest block that belongs to one line (desync reports, stacks)
LOOK_CHARS = 8_192  # of a line that messages are looked for in: a search that is quadratic stays short
LINE_CHARS_MAX = 65_536  # longer lines are cut and counted
DOCUMENT_BYTES_MAX = 256 << 20  # larger documents are refused by name


@dataclass(frozen=True)
class Block:
    """A line and at most LOOKAHEAD_LINES lines after it, for reports of several lines."""

    line: Line
    after: Sequence[Line]


def base_of(block: Block, speaker: Speaker | None = None) -> dict[str, Any]:
    """The fields that every fact takes from its line; `speaker` where the text says more than the line's."""
    line = block.line
    return {
        "origin": line.origin,
        "speaker": line.speaker if speaker is None else speaker,
        "time_s": line.time_s,
        "clock": line.clock,
        "attempt": line.attempt,
    }


class LineAdapter(Protocol):
    """Reads one kind of message out of any log. Never raises, whatever the text."""

    name: str

    @property
    def needles(self) -> tuple[str, ...]:
        """Every line it reads contains one of them: lines without are not offered."""
        ...

    def read(self, block: Block) -> Iterator[Fact]:
        """Facts that begin at `block.line`; none where it only looks alike."""
        ...


@dataclass(frozen=True)
class Document:
    """A whole small or binary input. `name` is its path as given, for origins and rank hints only.

    `path` is where it can be read again; None inside archives and of standard input.
    """

    name: str
    content: bytes
    path: str | None = None


class DocumentAdapter(Protocol):
    """Reads one kind of document. Raises `UnusableInput` only for what the user must know."""

    name: str

    def recognise(self, document: Document) -> bool:
        """By content, in bounded time; never by name."""
        ...

    def read(self, document: Document) -> Iterator[Fact]: ...


class Companion:
    """Base of adapters for documents that belong to others: to find nothing in them is no news."""


class UnusableInput(ValueError):
    """An input that cannot be read; the message names it, says why and what to do."""
