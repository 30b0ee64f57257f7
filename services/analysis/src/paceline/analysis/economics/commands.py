"""`paceline economics`: what failures cost a long job under three policies."""

import argparse
import sys

EPILOG = """\
exit status: 0 answered, 2 a parameter that makes no sense

  paceline economics                                       a job of 8,192 GPUs
  paceline economics --set job.gpus=512 --set job.step_s=1.8 --set job.failure_every_s=86400
  paceline economics --scenario phoenix --json             one of the papers' cases
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand; nothing heavy is imported before it runs."""
    parser = subparsers.add_parser(
        "economics",
        help="what failures cost: restart, survivors go on, hot swap",
        description="Simulates a long job and its failures: restart from a checkpoint, survivors that go on "
        "(torchft-like), hot swap (Paceline). Every parameter is printed with its unit and source.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "--scenario", default="job", metavar="NAME", help="job, phoenix, rebalance, 64k, 128k"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value for a parameter; repeat",
    )
    parser.add_argument(
        "--arrivals", metavar="KIND", help="of failures: exponential, training (none while down), every"
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="runs of each policy (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """0 answered, 2 where a parameter makes no sense."""
    import dataclasses
    import json

    from paceline.analysis.economics import SCENARIOS, UnusableScenario, compare
    from paceline.analysis.economics.papers import check_papers

    try:
        scenario = SCENARIOS.get(arguments.scenario)
        if scenario is None:
            raise UnusableScenario(
                f"there is no scenario {arguments.scenario!r}; known: {', '.join(SCENARIOS)}"
            )
        if arguments.arrivals is not None:
            scenario = dataclasses.replace(scenario, arrivals=arguments.arrivals)
        values = dict(_assignment(text) for text in arguments.set)
        report = compare(scenario.with_values(values, "given"), seeds=arguments.seeds)
    except UnusableScenario as error:
        sys.stderr.write(f"paceline: {error}\n")
        return 2
    checks = check_papers()
    if arguments.json:
        answer = {**report.as_json(), "papers": [dataclasses.asdict(check) for check in checks]}
        sys.stdout.write(json.dumps(answer, ensure_ascii=False, indent=2) + "\n")
        return 0
    from rich.console import Console

    from paceline.analysis.economics.text import render

    console = Console(highlight=False)
    for part in render(report, checks):
        console.print(part)
    return 0


def _assignment(text: str) -> tuple[str, float]:
    from paceline.analysis.economics import UnusableScenario

    name, separator, value = text.partition("=")
    try:
        return name.strip(), float(value.replace("_", "").replace(",", ""))
    except ValueError:
        expected = "NAME=VALUE with a number" if separator else "NAME=VALUE"
        raise UnusableScenario(f"--set {text!r}: expected {expected}") from None
