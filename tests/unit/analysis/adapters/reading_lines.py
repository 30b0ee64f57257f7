"""Facts of lines and documents as a user's file would hold them."""

from pathlib import Path
from typing import TypeVar

from paceline.analysis.adapters.catalog import ADAPTERS
from paceline.analysis.adapters.reading import read_inputs
from paceline.analysis.facts import Fact

T = TypeVar("T", bound=Fact)


def facts_of(folder: Path, text: str, name: str = "input.txt") -> list[Fact]:
    """What the catalog reads in one file that holds `text`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return read_inputs([str(path)], ADAPTERS).facts


def of_type(facts: list[Fact], kind: type[T]) -> list[T]:
    return [fact for fact in facts if isinstance(fact, kind)]
