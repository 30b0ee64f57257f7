"""The printed tables, and the same as plain data."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from paceline.lab.evaluation.bars import Bar
from paceline.lab.evaluation.cases import TOPOLOGIES, Coverage
from paceline.lab.evaluation.peers import PeerRow, missing_peers
from paceline.lab.evaluation.runner import Result
from paceline.lab.evaluation.score import Match

FAILURES_MAX = 40
_CUTS: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("class", lambda r: r.truth.verdict_class.value),
    ("fault", lambda r: r.case.kind.value if r.case.kind else ""),
    ("ranks", lambda r: f"{TOPOLOGIES[r.case.topology].ranks:4d}"),
    ("topology", lambda r: r.case.topology),
    ("profile", lambda r: r.case.profile.value),
    ("coverage", lambda r: r.case.coverage.value),
)


@dataclass(frozen=True)
class Row:
    """Figures of one slice; shares from 0 to 1, None where nothing was to be found."""

    slice: str
    jobs: int
    class_accuracy: float
    seen: int  # of the jobs: whose root can be known exactly; what follows is of them
    exact: float | None
    precision: float | None
    recall: float | None
    victims: int
    p50_s: float | None
    p90_s: float | None
    alarms: int
    argmin: float | None


def make_rows(results: Sequence[Result]) -> list[Row]:
    """All, then by class, size, topology, profile and coverage."""
    faults = [r for r in results if r.case.kind is not None and r.truth.class_observable]
    rows = [_row("all", faults)] if faults else []
    for name, key in _CUTS:
        for value in sorted({key(result) for result in faults}):
            rows.append(_row(f"{name} {value.strip()}", [r for r in faults if key(r) == value]))
    return rows


def _row(name: str, results: Sequence[Result]) -> Row:
    seen = [r for r in results if r.truth.root_observable]
    named, right = sum(r.score.named for r in results), sum(r.score.right for r in results)
    wanted = sum(r.score.wanted for r in seen)
    times = sorted(r.score.seconds for r in results if r.score.seconds is not None)
    return Row(
        name,
        len(results),
        sum(r.score.class_right for r in results) / len(results),
        len(seen),
        sum(r.score.match is Match.EXACT for r in seen) / len(seen) if seen else None,
        right / named if named else None,
        sum(r.score.right for r in seen) / wanted if wanted else None,
        sum(bool(r.score.victims_named) for r in results),
        statistics.median(times) if times else None,
        times[min(len(times) - 1, int(0.9 * len(times)))] if times else None,
        sum(r.score.false_alarms for r in results),
        sum(r.control.match is Match.EXACT for r in seen) / len(seen) if seen else None,
    )


@dataclass(frozen=True)
class Quiet:
    """Jobs without a fault of one slice."""

    slice: str
    jobs: int
    hours: float
    alarms: int
    alarmed: int  # jobs with an alarm


def quiet_rows(results: Sequence[Result]) -> list[Quiet]:
    """Healthy jobs and those with nothing but jitter: all, by topology, by profile."""
    healthy = [r for r in results if r.case.kind is None]
    rows = [_quiet("all", healthy)] if healthy else []
    for name, key in _CUTS:
        if name in ("topology", "profile"):
            for value in sorted({key(result) for result in healthy}):
                rows.append(_quiet(f"{name} {value}", [r for r in healthy if key(r) == value]))
    return rows


def _quiet(name: str, results: Sequence[Result]) -> Quiet:
    alarms = [r.score.false_alarms for r in results]
    hours = sum(r.case.limit_s for r in results) / 3600
    return Quiet(name, len(results), hours, sum(alarms), sum(bool(count) for count in alarms))


def failures(results: Iterable[Result]) -> list[Result]:
    """Jobs whose verdict is not what can be known."""
    return [r for r in results if not _is_fine(r)]


def _is_fine(result: Result) -> bool:
    if result.score.victims_named or result.score.false_alarms or result.score.wrong_before:
        return False
    if result.case.kind is None:
        return True
    if not result.truth.class_observable:
        return result.score.match is not Match.WRONG
    if result.case.coverage is Coverage.GUILTY:
        return result.score.match is Match.EXACT
    if not result.truth.root_observable and result.score.match is Match.NONE:
        return False
    return result.score.class_right and result.score.match is Match.EXACT


def render(results: Sequence[Result], bars: Sequence[Bar], peers: Sequence[str]) -> str:
    """The tables as text."""
    lines = [
        f"{'':<30} {'jobs':>5} {'class':>7} {'seen':>5} {'root':>7} {'prec.':>7} {'recall':>7} "
        f"{'victims':>7} {'P50 s':>6} {'P90 s':>6} {'alarms':>6} {'argmin':>7}"
    ]
    for row in make_rows(results):
        lines.append(
            f"{row.slice:<30} {row.jobs:>5} {_percent(row.class_accuracy)} {row.seen:>5} "
            f"{_percent(row.exact)} {_percent(row.precision)} {_percent(row.recall)} {row.victims:>7} "
            f"{_number(row.p50_s)} {_number(row.p90_s)} {row.alarms:>6} {_percent(row.argmin)}"
        )
    hidden = [r for r in results if r.case.kind is not None and not r.truth.class_observable]
    if hidden:
        wrong = sum(r.score.match is Match.WRONG or bool(r.score.victims_named) for r in hidden)
        lines.append(f"{len(hidden)} more jobs whose class their profile hides: a wrong root in {wrong}")
    lines += _quiet_lines(results)
    bad = failures(results)
    if bad:
        lines += ["", f"not as injected: {len(bad)} jobs"]
        lines += [f"  {describe(result)}" for result in bad[:FAILURES_MAX]]
        if len(bad) > FAILURES_MAX:
            lines.append(f"  and {len(bad) - FAILURES_MAX} more (--json has all)")
    if peers:
        lines += ["", *peers]
    lines += ["", f"{'what must be shown':<52} {'bar':<34} {'met':<8} figure"]
    for bar in bars:
        met = {True: "yes", False: "NO", None: "not run"}[bar.met]
        lines.append(f"{bar.name:<52} {bar.bar:<34} {met:<8} {bar.figure}")
    return "\n".join(lines) + "\n"


def _quiet_lines(results: Sequence[Result]) -> list[str]:
    rows = quiet_rows(results)
    if not rows:
        return []
    head = f"{'without a fault':<30} {'jobs':>5} {'hours':>7} {'alarms':>7} {'in jobs':>7}"
    return ["", head] + [
        f"{row.slice:<30} {row.jobs:>5} {row.hours:>7.1f} {row.alarms:>7} {row.alarmed:>7}" for row in rows
    ]


def peer_lines(peers: Sequence[PeerRow]) -> list[str]:
    """Who names what from the same Flight Recorder dumps."""
    if not peers:
        return []
    lines = [
        f"{'the same jobs as Flight Recorder dumps':<40} {'tool':<15} {'exact':<6} {'named':>5} {'sets':>5} "
        f"{'prec.':>7} {'s':>6}  first line names"
    ]
    for row in peers:
        injected = ",".join(str(rank) for rank in row.injected)
        first = ",".join(str(rank) for rank in row.first[:8]) or "nobody"
        lines.append(
            f"{row.case + ' of ' + injected:<40} {row.tool:<15} {'yes' if row.is_exact else 'no':<6} "
            f"{len(row.named):>5} {row.sets:>5} {row.precision:>7.1%} {row.seconds:>6.1f}  {first}"
            f"{'  ' + row.note[:150] if row.note else ''}"
        )
    return [*lines, *_tool_lines(peers), *missing_peers()]


def _tool_lines(peers: Sequence[PeerRow]) -> list[str]:
    """One line a tool: how often exact, and how many innocent ranks it names beside, or instead."""
    lines = []
    for tool in dict.fromkeys(row.tool for row in peers):
        mine = [row for row in peers if row.tool == tool]
        exact = sum(row.is_exact for row in mine)
        found = sum(set(row.injected) <= set(row.named) for row in mine)
        first = sum(bool(row.first) and set(row.first) <= set(row.injected) for row in mine)
        named = statistics.median(len(row.named) for row in mine)
        sets = statistics.median(row.sets for row in mine)
        lines.append(
            f"{tool}: exact in {exact} of {len(mine)}, the injected among the named in {found}, the first "
            f"line right in {first}; median {named:g} ranks in {sets:g} sets"
        )
    return lines


def describe(result: Result) -> str:
    """One line: what was injected, what was said."""
    truth, score = result.truth, result.score
    roots = ", ".join(_root(root) for root in truth.roots[:3]) or "none"
    seconds = "-" if score.seconds is None else f"{score.seconds:.0f} s"
    victims = f", victims named {list(score.victims_named)[:6]}" if score.victims_named else ""
    alarms = f", {score.false_alarms} before the fault" if score.false_alarms else ""
    return (
        f"{result.case.name}: {truth.verdict_class.value} {roots} -> {score.got.value} "
        f"{score.sub_reason.value} {score.match.value} after {seconds}{victims}{alarms}: {score.summary}"
    )


def _root(root: object) -> str:
    kept = {key: value for key, value in asdict(root).items() if value not in (None, (), "")}  # type: ignore[call-overload]
    kept.pop("role", None)
    kept.pop("node", None)
    kind = str(getattr(kept.pop("kind"), "value", ""))
    return f"{kind} {'-'.join(str(value) for value in kept.values())}".strip()[:80]


def _percent(share: float | None) -> str:
    return f"{'-':>7}" if share is None else f"{share:>7.1%}"


def _number(value: float | None) -> str:
    return f"{'-':>6}" if value is None else f"{value:>6.1f}"
