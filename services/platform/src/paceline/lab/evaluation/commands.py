"""Subcommand `eval`; nothing heavy is imported before it runs."""

import argparse

Subparsers = argparse._SubParsersAction  # noqa: SLF001  (argparse has no public name for it)


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """`paceline eval`."""
    parser = subparsers.add_parser(
        "eval",
        help="simulated jobs with known faults through the real detector and localizer",
        description="Runs a fixed corpus of simulated jobs in memory, compares each verdict with what was\n"
        "injected and prints one table. Exit status 1 where a bar is missed.",
    )
    parser.add_argument("--short", action="store_true", help="a subset, at most a minute of one core")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="only these parts (corpus, coverage, named, floor, healthy, peers), jobs whose name has NAME",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.add_argument("--seeds", type=int, default=30, metavar="N", help="of each fault and topology (30)")
    parser.add_argument(
        "--healthy-hours", type=float, default=24.0, metavar="H", help="simulated, per topology (24)"
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="append each finished job as a JSON line; jobs that FILE has of the same code are not run again",
    )
    parser.add_argument("--no-run", action="store_true", help="only the tables of what --record FILE has")
    parser.set_defaults(run=run_eval)


def run_eval(arguments: argparse.Namespace) -> int:
    """Status 0 where every bar is met, 1 where one is missed, 2 where nothing was run, 130 interrupted."""
    from paceline.lab.evaluation.main import run

    return run(arguments)
