"""Many runs with known faults, one line of JSON each, and the table that says whether the bar is met.

`python -m paceline.lab.sockets series` runs every cell; `--only ring/h3` some of them, `--seed` and
`--append` make it possible to run a series in parts, and `--read` prints the table of what is recorded.
Status 0 where every cell meets the bar, 1 where one does not, 2 where runs could not be made.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.contracts.codes import Algorithm
from paceline.lab.processes import LabError
from paceline.lab.sockets.faults import Fault
from paceline.lab.sockets.network import Network, make_network
from paceline.lab.sockets.report import as_dict, render_run
from paceline.lab.sockets.run import RunOptions, run_once
from paceline.lab.sockets.team import start_method

BAR = 0.95
FAULTS = (Fault.H3, Fault.S1, Fault.S2, Fault.S3)
ALGORITHMS = ("ring", "tree", "trees")
HEALTHY_S = 180.0
FAILURES_MAX = 3  # runs of one cell that could not be made, before we give up
COMMIT_CHARS = 9
GIT_TIMEOUT_S = 5.0
Record = dict[str, object]


@dataclass(frozen=True)
class Cell:
    """Runs that are judged together."""

    algorithm: str  # one of ALGORITHMS
    fault: Fault
    runs: int

    @property
    def name(self) -> str:
        return f"{self.algorithm}/{self.fault.value}"


@dataclass(frozen=True)
class CellResult:
    """One line of the table. `first_*`: of the first conclusive verdict, before it was revised."""

    name: str
    runs: int
    class_right: int
    root_right: int
    first_right: int
    innocent: int  # runs in which a rank or link without part in the fault was named at any time
    median_s: float  # fault to first verdict
    worst_s: float
    load: tuple[float, float]  # lowest and highest load average of one minute

    @property
    def met(self) -> bool:
        """At least 95% of class and of root; one verdict on a healthy job is too many."""
        wanted = BAR * self.runs
        return self.runs > 0 and self.class_right >= wanted and self.root_right >= wanted


def plan_cells(ring: int, tree: int, trees: int) -> list[Cell]:
    """Every fault for each algorithm that has runs, and a healthy job of each."""
    runs = dict(zip(ALGORITHMS, (ring, tree, trees), strict=True))
    wanted = [algorithm for algorithm in ALGORITHMS if runs[algorithm]]
    cells = [Cell(algorithm, fault, runs[algorithm]) for algorithm in wanted for fault in FAULTS]
    return cells + [Cell(algorithm, Fault.NONE, 1) for algorithm in wanted]


def make_options(algorithm: str, healthy_s: float) -> RunOptions:
    """`trees` is a tree on either half of the array, one the other backwards."""
    return RunOptions(
        algorithm=Algorithm.RING if algorithm == "ring" else Algorithm.TREE,
        trees=2 if algorithm == "trees" else 1,
        healthy_s=healthy_s,
    )


def summarise(records: Iterable[Record]) -> list[CellResult]:
    """One result for each cell among `records`, in the order of their first record."""
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(str(record["cell"]), []).append(record)
    return [_summarise_cell(name, cell) for name, cell in cells.items()]


def _summarise_cell(name: str, records: Sequence[Record]) -> CellResult:
    def count(test: Callable[[Record], object]) -> int:
        return sum(bool(test(record)) for record in records)

    firsts = [_mapping(record["first"]) for record in records]
    times = sorted(_number(record["verdict_s"]) for record in records if record["class"])
    loads = [_number(record["load"]) for record in records]
    return CellResult(
        name=name,
        runs=len(records),
        class_right=count(lambda record: record["class_right"]),
        root_right=count(lambda record: record["root_right"]),
        first_right=sum(bool(first["class_right"] and first["root_right"]) for first in firsts),
        innocent=sum(
            bool(record["innocent"] or first["innocent"])
            for record, first in zip(records, firsts, strict=True)
        ),
        median_s=times[len(times) // 2] if times else 0.0,
        worst_s=times[-1] if times else 0.0,
        load=(min(loads), max(loads)),
    )


def render_table(results: Sequence[CellResult]) -> str:
    """For people; the bar is the last column."""
    lines = [
        f"{'cell':12s} {'runs':>4s} {'class':>7s} {'root':>7s} {'first':>7s} {'innocent':>8s} "
        f"{'median s':>8s} {'worst s':>8s} {'load':>11s}  95%\n"
    ]
    for r in results:
        shares = " ".join(f"{f'{n}/{r.runs}':>7s}" for n in (r.class_right, r.root_right, r.first_right))
        load = f"{r.load[0]:.1f} to {r.load[1]:.1f}"
        lines.append(
            f"{r.name:12s} {r.runs:4d} {shares} {r.innocent:8d} {r.median_s:8.1f} {r.worst_s:8.1f} "
            f"{load:>11s}  {'met' if r.met else 'MISSED'}\n"
        )
    return "".join(lines)


def read_records(paths: Sequence[Path]) -> list[Record]:
    """All lines of `paths`; LabError names the line that is no record."""
    records: list[Record] = []
    for path in paths:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                record = json.loads(line)
                missing = {"cell", "class", "first", "load", "verdict_s"} - set(record)
            except (ValueError, TypeError) as error:
                raise LabError(f"{path}:{number}: no JSON object: {error}") from None
            if missing:
                raise LabError(f"{path}:{number}: no {', '.join(sorted(missing))}; is it from a series?")
            records.append(record)
    return records


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.lab.sockets series",
        description="Injects real faults into host all-reduces between network namespaces, many times, "
        "and says which bars the verdicts meet. Needs root. All of it takes about 45 minutes.",
    )
    for algorithm, runs in zip(ALGORITHMS, (30, 10, 10), strict=True):
        parser.add_argument(f"--{algorithm}", type=int, default=runs, metavar="N", help=f"runs ({runs})")
    parser.add_argument("--only", nargs="+", default=[], metavar="CELL", help="such as ring/h3, tree, s2")
    parser.add_argument("--healthy-s", type=float, default=HEALTHY_S, metavar="S", help=f"({HEALTHY_S:g})")
    parser.add_argument("--rate", type=float, default=40.0, metavar="MBIT", help="of each link (40)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the first run of each cell (default: drawn)"
    )
    parser.add_argument("--append", type=Path, metavar="FILE", help="write each run there as a line of JSON")
    parser.add_argument(
        "--read", type=Path, nargs="+", default=[], metavar="FILE", help="only print the table"
    )
    return parser.parse_args(arguments)


def select(cells: Sequence[Cell], only: Sequence[str]) -> list[Cell]:
    """Cells whose name, algorithm or fault is among `only`; all where it is empty."""
    return [c for c in cells if not only or {c.name, c.algorithm, c.fault.value} & set(only)]


def run_series(given: list[str]) -> int:
    """The whole program; its status."""
    arguments = parse(given)
    seed = arguments.seed if arguments.seed is not None else random.randrange(1_000_000)
    cells = select(plan_cells(arguments.ring, arguments.tree, arguments.trees), arguments.only)
    try:
        records = read_records(arguments.read) if arguments.read else _run_cells(cells, seed, arguments)
    except (LabError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    results = summarise(records)
    sys.stdout.write(render_table(results))
    return 0 if results and all(result.met for result in results) else 1


def _run_cells(cells: Sequence[Cell], seed: int, arguments: argparse.Namespace) -> list[Record]:
    if not cells:
        raise LabError("no runs to make: --only names no cell, or there are no runs")
    size = RunOptions().size
    with make_network(size, arguments.rate) as network:
        return [record for cell in cells for record in _run_cell(network, cell, seed, arguments)]


def _run_cell(network: Network, cell: Cell, seed: int, arguments: argparse.Namespace) -> list[Record]:
    options = make_options(cell.algorithm, arguments.healthy_s)
    sys.stderr.write(f"{cell.name}: {cell.runs} runs from seed {seed}\n")
    context, commit = start_method(), read_commit()
    records: list[Record] = []
    failures = 0
    while len(records) < cell.runs:
        number = len(records) + failures
        try:
            result = run_once(context, network, cell.fault, options, seed + number)
        except LabError as error:
            failures += 1
            sys.stderr.write(f"{number + 1:3d}  not made: {error}\n")
            if failures >= FAILURES_MAX:
                raise LabError(
                    f"{cell.name}: {failures} runs could not be made, the last: {error}"
                ) from error
            continue
        sys.stderr.write(render_run(number + 1, result))
        record = {"cell": cell.name, "commit": commit, "load": os.getloadavg()[0], **as_dict(result)}
        # What a file gives back is what the table is made of.
        line = json.dumps(record, default=str)
        records.append(json.loads(line))
        if arguments.append is not None:
            with arguments.append.open("a") as file:
                file.write(line + "\n")
    return records


def read_commit() -> str:
    """Of the code that runs, with `+` where it was changed; `unknown` outside a checkout."""
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "-uno"],
            capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return head.stdout.strip()[:COMMIT_CHARS] + ("+" if dirty.stdout.strip() else "")


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
