"""What must be shown, each as one line: bar, figure, met."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paceline.contracts.verdicts import VerdictClass
from paceline.fleet import FaultKind, Program
from paceline.fleet.profiles import Profile
from paceline.lab.evaluation.cases import Coverage
from paceline.lab.evaluation.peers import PeerRow
from paceline.lab.evaluation.plan import NAMED, Amount, step_seconds
from paceline.lab.evaluation.runner import Result
from paceline.lab.evaluation.score import Match

INJECTIONS_MIN = 30  # per class and topology
HEALTHY_HOURS = 24.0
ITERATIONS_MAX = 20
VERDICT_S_MAX = 15.0
_HANGS = frozenset(
    {
        VerdictClass.H1,
        VerdictClass.H2,
        VerdictClass.H3,
        VerdictClass.DEADLOCK,
        VerdictClass.DEAD_PROCESS,
    }
)
# What a simulated job in memory cannot show, and what shows it.
ELSEWHERE: tuple[tuple[str, str, str], ...] = (
    ("real sockets: H3, S1, S2, S3", "class >= 95%, root >= 95%", "make eval-sockets"),
    ("one analysis, 4,096 / 16,384 / 98,304 ranks", "<= 20 / 60 / 250 ms", "tests/bench/judge.py"),
    ("detector tick, 98,304 ranks", "<= 25 ms", "tests/bench/detector_step.py"),
    ("ingest, and stall to verdict, through Kafka", "lag < 2 s, P90 <= 15 s", "paceline sim and a platform"),
)
Test = Callable[[Result], bool]


@dataclass(frozen=True)
class Bar:
    """`met` None: nothing was run that could show it."""

    name: str
    bar: str
    figure: str
    met: bool | None


def judge_bars(
    results: Sequence[Result], peers: Sequence[PeerRow], amount: Amount, *, short: bool
) -> list[Bar]:
    """All bars that simulated jobs can show. A short run needs no minimal numbers."""
    corpus = [r for r in results if r.case.part == "corpus"]
    floor = [r for r in results if r.case.part.startswith("floor")]
    bars = [
        _class_bar(corpus, short=short),
        _root_bar(corpus),
        _group_bar(corpus),
        _victims_bar(results),
        _time_bar(corpus),
        _healthy_bar([r for r in results if r.case.part == "healthy"], amount, short=short),
        *_coverage_bars(results),
        *(_named_bar(results, label) for label, *_ in NAMED),
        _dumps_bar(peers),
        *_floor_bars(floor),
        _control_bar(corpus),
    ]
    return bars + [Bar(name, bar, f"measured by {command}", None) for name, bar, command in ELSEWHERE]


def _is_exact(result: Result) -> bool:
    return result.score.match is Match.EXACT


def _share(results: Sequence[Result], right: Test) -> tuple[int, int, float]:
    hits = sum(right(result) for result in results)
    return hits, len(results), hits / len(results) if results else 0.0


def _bar(
    name: str, bar: str, results: Sequence[Result], right: Callable[[Result], bool], least: float
) -> Bar:
    hits, count, share = _share(results, right)
    if not count:
        return Bar(name, bar, "not run", None)
    return Bar(name, bar, f"{share:.1%} ({hits} of {count})", share >= least)


def _class_bar(corpus: Sequence[Result], *, short: bool) -> Bar:
    seen = [r for r in corpus if r.truth.class_observable]
    bar = _bar("class accuracy, complete samples", ">= 99%", seen, lambda r: r.score.class_right, 0.99)
    if bar.met is None or short:
        return bar
    counts: dict[tuple[VerdictClass, str], int] = defaultdict(int)
    for result in seen:
        counts[result.truth.verdict_class, result.case.topology] += 1
    (verdict_class, topology), least = min(counts.items(), key=lambda entry: entry[1])
    figure = f"{bar.figure}; fewest of a class and topology: {least} ({verdict_class.value} on {topology})"
    return Bar(bar.name, bar.bar, figure, bar.met and least >= INJECTIONS_MIN)


def _root_bar(corpus: Sequence[Result]) -> Bar:
    seen = [r for r in corpus if r.truth.class_observable and r.truth.root_observable]
    return _bar("exact root where it can be seen", ">= 98%", seen, _is_exact, 0.98)


def _group_bar(corpus: Sequence[Result]) -> Bar:
    blind = [
        r
        for r in corpus
        if r.truth.verdict_class is VerdictClass.H3
        and r.truth.class_observable
        and not Profile.named(r.case.profile).network_counts
        and r.case.kind in (FaultKind.STUCK, FaultKind.LINK_DOWN)
    ]
    return _bar(
        "H3 where progress is unseen: minimal group",
        ">= 98%",
        blind,
        _is_exact,
        0.98,
    )


def _victims_bar(results: Sequence[Result]) -> Bar:
    cases = [r for r in results if r.score.victims_named]
    figure = f"{len(cases)} of {len(results)} jobs"
    return Bar("a victim named as cause, anywhere, any revision", "0", figure, not cases if results else None)


def _time_bar(corpus: Sequence[Result]) -> Bar:
    """Without transport; bootstrap and first connections are waited for by design."""
    hangs = [r for r in corpus if r.truth.class_observable and r.truth.verdict_class in _HANGS]
    times = sorted(r.score.seconds if r.score.seconds is not None else float("inf") for r in hangs)
    name, bar = "hang to verdict in memory, P90", f"<= {VERDICT_S_MAX:g} s"
    if not times:
        return Bar(name, bar, "not run", None)
    p90_s = times[min(len(times) - 1, int(0.9 * len(times)))]
    figure = f"{p90_s:.1f} s, median {times[len(times) // 2]:.1f} s, worst {times[-1]:.1f} s, n {len(times)}"
    return Bar(name, bar, figure, p90_s <= VERDICT_S_MAX)


def _healthy_bar(runs: Sequence[Result], amount: Amount, *, short: bool) -> Bar:
    hours: dict[str, float] = defaultdict(float)
    for run in runs:
        hours[run.case.topology] += run.case.limit_s / 3600
    alarms = sum(run.score.false_alarms for run in runs)
    name, bar = "healthy jobs", f"0 false alarms in {HEALTHY_HOURS:g} h per topology"
    if not runs:
        return Bar(name, bar, "not run", None)
    least = min(hours.get(topology, 0.0) for topology in amount.topologies)
    figure = f"{alarms} in {sum(hours.values()):.1f} h, n {len(runs)}, at least {least:.2f} h per topology"
    return Bar(name, bar, figure, alarms == 0 and (short or least >= HEALTHY_HOURS))


def _coverage_bars(results: Iterable[Result]) -> list[Bar]:
    parts = {
        Coverage.OTHERS: ("10% of the ranks unobserved", 0.9),
        Coverage.GUILTY: ("the guilty rank unobserved, H1", 0.8),
    }
    bars = []
    known = list(results)
    for cover, (name, least) in parts.items():
        mine = [r for r in known if r.case.coverage is cover and r.truth.class_observable]
        wrong = sum(r.score.match is Match.WRONG or r.score.wrong_before for r in mine)
        figure = f"{wrong} of {len(mine)}" if mine else "not run"
        bars.append(Bar(f"{name}: wrong root", "0", figure, wrong == 0 if mine else None))
        seen = [r for r in mine if r.truth.root_observable]
        bars.append(_bar(f"{name}: right", f">= {least:.0%}", seen, _is_exact, least))
    return bars


def _named_bar(results: Iterable[Result], label: str) -> Bar:
    mine = [r for r in results if r.case.part == f"named {label}"]
    return _bar(f"128 ranks 8x4x4, {label}", "exactly the injected", mine, lambda r: r.score.all_right, 1.0)


def _dumps_bar(peers: Sequence[PeerRow]) -> Bar:
    """Flight Recorder shows no progress inside an operation: of H3 only the group can be named."""
    ours = [row for row in peers if row.tool == "paceline"]
    name, bar = "the same jobs as Flight Recorder dumps", "exactly what the dumps can show"
    if not ours:
        return Bar(name, bar, "not run", None)
    right = sum(row.is_exact for row in ours)
    figure = f"{right} of {len(ours)}"
    for tool in dict.fromkeys(row.tool for row in peers if row.tool != "paceline"):
        theirs = [row for row in peers if row.tool == tool]
        figure += f"; {tool} {sum(row.is_exact for row in theirs)} of {len(theirs)}"
    return Bar(name, bar, figure, right == len(ours))


def _floor_bars(floor: Sequence[Result]) -> list[Bar]:
    limit_s = ITERATIONS_MAX * step_seconds(Program()) * 1.05

    def is_found(result: Result) -> bool:
        return result.score.all_right

    def in_time(result: Result) -> bool:
        return is_found(result) and (result.score.seconds or limit_s + 1) <= limit_s

    jitter = [r for r in floor if r.case.part == "floor jitter"]
    sustained = [r for r in floor if r.case.part == "floor 5%"]
    burst = [r for r in floor if r.case.part == "floor burst"]
    raised = sum(r.score.false_alarms for r in jitter)
    slowest = max((r.score.seconds or 0.0 for r in sustained), default=0.0) / step_seconds(Program())
    late = _bar(
        "5% slower at 2% jitter", f"named within {ITERATIONS_MAX} iterations", sustained, in_time, 1.0
    )
    if sustained:
        late = Bar(late.name, late.bar, f"{late.figure}; slowest after {slowest:.0f}", late.met)
    minutes = sum(r.case.limit_s for r in jitter) / 60
    figure = f"{raised} in {len(jitter)} runs, {minutes:.0f} min together" if jitter else "not run"
    return [
        late,
        _bar("8 iterations of 1.3x", "found", burst, is_found, 1.0),
        Bar("10% jitter alone", "nothing raised", figure, raised == 0 if jitter else None),
    ]


def _control_bar(corpus: Sequence[Result]) -> Bar:
    seen = [r for r in corpus if r.truth.class_observable and r.truth.root_observable]
    hits, count, share = _share(seen, lambda r: r.control.all_right)
    victims = sum(bool(r.control.victims_named) for r in seen)
    figure = f"{share:.1%} ({hits} of {count}), victims named in {victims}" if count else "not run"
    return Bar("argmin-only control", "fails (< 98% exact)", figure, share < 0.98 if count else None)
