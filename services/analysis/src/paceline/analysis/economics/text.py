"""The report for a terminal."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from paceline.analysis.economics.papers import Check
from paceline.analysis.economics.report import Outcome, Report


def render(report: Report, checks: Sequence[Check]) -> Iterator[RenderableType]:
    """The comparison, its parameters, and the papers' figures; sources stay whole."""
    yield f"{report.title}; {report.seeds} runs of each policy, failures: {report.arrivals}\n"
    yield _outcomes(report.outcomes)
    yield ""
    yield _parameters(report)
    if checks:
        yield ""
        yield _checks(checks)


def _outcomes(outcomes: Sequence[Outcome]) -> Table:
    table = _table("", *(each.title for each in outcomes))
    for title, cell in _ROWS:
        table.add_row(title, *(cell(each) for each in outcomes))
    return table


_ROWS: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("ETTR", lambda each: f"{each.ettr.mean:.4f}"),
    ("  least to most", lambda each: f"{each.ettr.least:.4f} to {each.ettr.most:.4f}"),
    ("wall time, h", lambda each: f"{each.wall_h.mean:,.1f}"),
    ("GPU hours lost", lambda each: f"{each.lost_hours.mean:,.0f}"),
    ("  job is down", lambda each: f"{each.down_hours:,.0f}"),
    ("  done again", lambda each: f"{each.replay_hours:,.0f}"),
    ("  smaller batch", lambda each: f"{each.reduced_hours:,.0f}"),
    ("  cost of each step", lambda each: f"{each.overhead_hours:,.0f}"),
    ("  standbys", lambda each: f"{each.standby_hours:,.0f}"),
    ("failures", lambda each: f"{each.failures.mean:,.1f}"),
    ("  back to the checkpoint", lambda each: f"{each.fallbacks.mean:,.1f}"),
    ("  waited for a machine", lambda each: f"{each.waits.mean:,.1f}"),
    ("planned replacements", lambda each: f"{each.planned.mean:,.1f}"),
    ("steps replayed", lambda each: f"{each.replayed_steps.mean:,.1f}"),
    ("  most at one failure", lambda each: f"{each.replayed_steps_most:,}"),
)


def _parameters(report: Report) -> Table:
    table = _table("parameter", "value")
    table.add_column("unit")
    table.add_column("source", overflow="fold")
    for each in report.parameters:
        table.add_row(each.name, f"{each.value:,g}", each.unit, each.source)
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = _table("figure of a paper", "paper", "formula", "simulated")
    table.add_column("unit")
    table.add_column("source", overflow="fold")
    for each in checks:
        table.add_row(
            each.claim,
            f"{each.paper:g}",
            f"{each.formula:.4g}",
            f"{each.simulated:.4g}",
            each.unit,
            each.source,
        )
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table
