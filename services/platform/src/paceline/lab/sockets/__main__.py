"""Command line of the fault runs; status 1 where fewer than 95% are right, 2 where they cannot be made.

`series` as the first word: many runs and a table. Both are this module, because every rank imports
again whatever else was started with `-m`.
"""

import argparse
import random
import signal
import sys
from types import FrameType

from paceline.contracts.codes import Algorithm
from paceline.lab.processes import LabError
from paceline.lab.sockets.faults import Fault
from paceline.lab.sockets.network import make_network
from paceline.lab.sockets.report import render_json, render_run, render_signatures, render_summary
from paceline.lab.sockets.run import RunOptions, RunResult, run_once
from paceline.lab.sockets.series import run_series
from paceline.lab.sockets.team import start_method

BAR = 0.95
FAILURES_MAX = 3  # runs that could not be made, before we give up


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.lab.sockets",
        description="Injects real faults into a host all-reduce over TCP between network namespaces "
        "and scores the verdicts. Needs root. `series` as the first word: many of them and a table.",
    )
    parser.add_argument("--fault", choices=[fault.value for fault in Fault], default="s2")
    parser.add_argument("--runs", type=int, default=1, metavar="N")
    parser.add_argument("--ranks", type=int, default=8, metavar="N")
    parser.add_argument("--algorithm", choices=("ring", "tree", "trees"), default="ring")
    parser.add_argument(
        "--shuffle", action="store_true", help="links in a drawn order, not that of the ranks"
    )
    parser.add_argument("--rate", type=float, default=40.0, metavar="MBIT", help="of each link (40)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the first run (default: drawn, printed)")
    parser.add_argument("--blind", action="store_true", help="hide process states: judge by counts alone")
    parser.add_argument("--distant", action="store_true", help="edges as seldom as the agent sends them")
    parser.add_argument("--signatures", action="store_true", help="print the counters of each run")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser.parse_args(arguments)


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    if sys.argv[1:2] == ["series"]:
        return run_series(sys.argv[2:])
    arguments = parse()
    seed = arguments.seed if arguments.seed is not None else random.randrange(1_000_000)
    fault = Fault(arguments.fault)
    options = RunOptions(
        algorithm=Algorithm.RING if arguments.algorithm == "ring" else Algorithm.TREE,
        trees=2 if arguments.algorithm == "trees" else 1,
        size=arguments.ranks,
        shuffle=arguments.shuffle,
        see_processes=not arguments.blind,
        close=not arguments.distant,
    )
    sys.stderr.write(
        f"{arguments.runs} x {fault.value}, {arguments.algorithm} of {options.size}, seed {seed}\n"
    )
    try:
        results = _run_all(arguments, fault, options, seed)
    except LabError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stderr.write(render_summary(results))
    if arguments.json:
        sys.stdout.write(render_json(results))
    right = sum(result.score.class_right and result.score.root_right for result in results)
    return 0 if right >= BAR * len(results) else 1


def _run_all(arguments: argparse.Namespace, fault: Fault, options: RunOptions, seed: int) -> list[RunResult]:
    results: list[RunResult] = []
    failures = 0
    context = start_method()
    with make_network(options.size, arguments.rate) as network:
        number = 0
        while len(results) < arguments.runs:
            number += 1
            try:
                result = run_once(context, network, fault, options, seed + number - 1)
            except LabError as error:
                failures += 1
                sys.stderr.write(f"{number:3d}  not made: {error}\n")
                if failures >= FAILURES_MAX:
                    raise LabError(f"{failures} runs could not be made; the last one: {error}") from error
                continue
            results.append(result)
            sys.stderr.write(render_run(number, result))
            if arguments.signatures:
                sys.stderr.write(render_signatures(result))
    return results


def _leave(number: int, frame: FrameType | None) -> None:
    """Leave through the context managers, so that no namespace stays behind."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
