"""Subcommands `demo`, `doctor` and `up`; nothing heavy is imported before one of them runs."""

import argparse
import sys
from pathlib import Path

Subparsers = argparse._SubParsersAction  # noqa: SLF001  (argparse has no public name for it)

FAULTS = {
    "h1": "a rank never enters a collective",
    "h2": "a rank calls another operation",
    "h3": "a rank is frozen (SIGSTOP) inside a collective",
    "s1": "a rank is late every step",
}
REPAIRED = {
    "kill": "a rank of a job with a warm standby is killed (SIGKILL)",
    "hang": "a rank of a job with a warm standby is stopped (SIGSTOP)",
}


def add_doctor(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """`paceline doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine and say how to get what is missing",
        description="Checks what the platform, the demo and the tests need. "
        "Exit status 0 where nothing required is missing, else 1.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.set_defaults(run=run_doctor)


def add_up(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """`paceline up`."""
    parser = subparsers.add_parser(
        "up",
        help="start the platform: Kafka, PostgreSQL, every service, API and console",
        description="Runs the whole platform in this process until Ctrl-C. Apache Kafka and PostgreSQL are "
        "started on\nloopback below the home, except where PACELINE_KAFKA_BOOTSTRAP or "
        "PACELINE_DATABASE_URL\nnames one. Settings: PACELINE_* variables.",
    )
    _add_home(parser)
    parser.add_argument("--port", type=int, metavar="N", help="port of API and console (default 8300)")
    parser.add_argument(
        "--only",
        metavar="LIST",
        help="only these services, separated by commas: detector, localizer, incidents, remediator, "
        "notifier, api",
    )
    parser.add_argument("--with-agent", action="store_true", help="also observe the jobs of this machine")
    parser.set_defaults(run=run_up)


def add_demo(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """`paceline demo`."""
    faults = "\n".join(f"  {name:4}  {text}" for name, text in (FAULTS | REPAIRED).items())
    parser = subparsers.add_parser(
        "demo",
        help="a real 8-rank training job, a real fault, a verdict",
        description="Starts the platform, one node agent and a torch.distributed job of 8 gloo ranks, "
        "injects one\nfault after a warm-up and prints the verdict. Runs until Ctrl-C.\n"
        "With kill and hang the job has 4 ranks and a warm standby, and --mode auto lets the standby\n"
        "take the place of the lost rank while the job runs.",
        epilog=f"faults:\n{faults}\n",
    )
    _add_home(parser)
    parser.add_argument("--fault", choices=(*FAULTS, *REPAIRED), default="h1", help="which one (default h1)")
    parser.add_argument(
        "--mode",
        choices=("observe", "auto"),
        default="observe",
        help="repair of kill and hang: only propose it, or do it (default observe)",
    )
    parser.add_argument("--rank", type=int, metavar="N", help="into which rank (default: drawn)")
    parser.add_argument("--seed", type=int, metavar="N", help="for the drawn rank (default: drawn, printed)")
    parser.add_argument(
        "--warmup", type=float, metavar="S", help="healthy seconds (default 20; kill and hang 3)"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port of API and console (default 8300)")
    parser.add_argument(
        "--once", action="store_true", help="end with the verdict or repair; status 0 if it is right"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.set_defaults(run=run_demo)


def _add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", type=Path, metavar="DIR", help="where state lives (PACELINE_HOME)")


def run_doctor(arguments: argparse.Namespace) -> int:
    """Status 0 where nothing required is missing."""
    from paceline.lab.doctor import examine, render

    findings = examine()
    sys.stdout.write(render(findings, as_json=arguments.json))
    return 0 if all(finding.ok or not finding.required for finding in findings) else 1


def run_up(arguments: argparse.Namespace) -> int:
    """Status 0 after an orderly stop, 1 where something did not start, 2 for a wrong setting."""
    from paceline.lab.up import run

    return run(arguments)


def run_demo(arguments: argparse.Namespace) -> int:
    """Status 0 after an orderly stop; with --once 0 only where class and rank are right, or, with kill and
    hang, where the job was repaired; a job that was not is status 1 without --once as well."""
    from paceline.lab.demo.main import run

    return run(arguments)
