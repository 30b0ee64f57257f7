"""The answer for a terminal: no wall of text, a usual case fits 80 columns and 40 lines."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from paceline.analysis.diagnosis.answer import Blame, Diagnosis, Ground
from paceline.analysis.diagnosis.words import (
    CLASS_WORDS,
    action_text,
    blame_text,
    coverage_text,
    exports,
    named_ranks,
    sentence,
    victims_text,
)
from paceline.contracts.verdicts import Role, RootKind, VerdictClass

BLAMES_SHOWN = 5
GROUNDS_SHOWN = 5
ORIGINS_SHOWN = 3
NOTES_SHOWN = 3
STATEMENT_CHARS_MAX = 240
SUMMARY_CHARS_MAX = 400
_STYLES = {VerdictClass.NONE: "bold green", VerdictClass.INCONCLUSIVE: "bold yellow"}


class Answer:
    """A diagnosis as rich shows it."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        diagnosis = self.diagnosis
        style = _STYLES.get(diagnosis.verdict_class, "bold red")
        summary = sentence(_cut(diagnosis.summary.strip(), SUMMARY_CHARS_MAX))
        yield Text.assemble((diagnosis.verdict_class.value, style), "  ", (summary, "bold"))
        yield Text(f"{CLASS_WORDS[diagnosis.verdict_class]}; {coverage_text(diagnosis)}", "dim")
        yield Text()
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for title, content in _sections(diagnosis):
            table.add_row(title, content)
            table.add_row()
        yield table


def _sections(diagnosis: Diagnosis) -> Iterable[tuple[str, RenderableType]]:
    if diagnosis.roots:
        yield "to blame", _lines(_blames(diagnosis), BLAMES_SHOWN)
    if diagnosis.victims:
        yield "only waited", Text(victims_text(diagnosis))
    if diagnosis.grounds:
        yield "why", _grounds(diagnosis.grounds)
    yield "what to do", Text(action_text(diagnosis))
    if diagnosis.would_decide:
        yield "would decide", _lines([Text(words) for words in diagnosis.would_decide], NOTES_SHOWN)
    if diagnosis.export_next:
        yield "next run", Group(*(Text(line, no_wrap=True, overflow="fold") for line in exports(diagnosis)))
    if diagnosis.attempts > 1:
        yield (
            "attempts",
            Text(f"{diagnosis.attempts} in this input: --attempt N shows another, 1 is the first"),
        )
    if diagnosis.seen.notes:
        yield "mind", _lines([Text(note) for note in diagnosis.seen.notes], NOTES_SHOWN)


def _blames(diagnosis: Diagnosis) -> list[Text]:
    """One line for each cause; ranks of which the same is said share a line."""
    found = []
    for (why, role, plain), group in groupby(
        diagnosis.roots, key=lambda root: (root.why, root.role, _is_bare(root))
    ):
        same = list(group)
        ranks = [root.rank for root in same if root.rank is not None]
        names = (
            [named_ranks(ranks)]
            if plain and ranks
            else [blame_text(root, diagnosis.verdict_class) for root in same]
        )
        for name in names:
            text = Text(name, "bold")
            if role is not Role.INITIATING and same[0].kind is not RootKind.NONE:
                text.append(f" ({role.value})", "dim")
            if why:
                text.append(f": {why}", "not bold")
            found.append(text)
    return found


def _is_bare(root: Blame) -> bool:
    return root.kind is RootKind.RANK and not (root.node or root.gpu or root.name)


def _grounds(grounds: tuple[Ground, ...]) -> Group:
    ordered = sorted(grounds, key=lambda ground: not ground.supports)
    shown: list[Text] = []
    for ground in ordered[:GROUNDS_SHOWN]:
        statement = _cut(ground.statement.strip(), STATEMENT_CHARS_MAX)
        text = Text(statement if ground.supports else f"against it: {statement}")
        origins = [str(origin) for origin in ground.origins[:ORIGINS_SHOWN]]
        more = len(ground.origins) - len(origins)
        if origins:
            text.append(f"\n  {', '.join(origins)}{f' and {more} more' if more else ''}", "cyan")
        shown.append(text)
    if len(ordered) > GROUNDS_SHOWN:
        shown.append(Text(f"and {len(ordered) - GROUNDS_SHOWN} more: --json, --html", "dim"))
    return Group(*shown)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _lines(lines: list[Text], count_max: int) -> Group:
    more = len(lines) - count_max
    rest = [Text(f"and {more} more", "dim")] if more > 0 else []
    return Group(*lines[:count_max], *rest)
