"""The one script `paceline`: every distribution adds its subcommands as entry points.

An entry point of group `paceline.commands` names a function `add(subparsers)` that adds one
parser and sets `run` to a function of the parsed arguments that returns an exit status.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

GROUP = "paceline.commands"
STARTS = {
    "doctor": ("paceline doctor", "what this machine has and lacks"),
    "demo": ("paceline demo --fault h1", "a real 8-rank job, a real fault, a verdict"),
    "run": ("paceline run -- python train.py", "observe a job, no change to its script"),
    "diagnose": ("paceline diagnose LOGS DUMPS", "the verdict from the files of a job"),
}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=96)


class CommandParser(argparse.ArgumentParser):
    """Parser of one subcommand: keeps line breaks of its description and epilog."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        super().__init__(*args, **options)


def build_parser(commands: Sequence[EntryPoint]) -> CommandParser:
    """The parser with one subcommand for each entry point, in the order of their names."""
    parser = CommandParser(
        prog="paceline",
        description="Names the one first cause when a distributed training job hangs or slows.",
        epilog=where_to_start([entry.name for entry in commands]),
    )
    parser.add_argument("--version", action="version", version=f"paceline {version('paceline-contracts')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    for command in sorted(commands, key=lambda entry: entry.name):
        command.load()(subparsers)
    return parser


def where_to_start(names: Sequence[str]) -> str:
    """Examples of those commands that are installed; empty where none is."""
    lines = [f"  {command:<32} {words}" for name, (command, words) in STARTS.items() if name in names]
    return "\n".join(["start here:", *lines]) if lines else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `paceline`; returns the exit status of the subcommand, 2 for a usage error."""
    parser = build_parser(list(entry_points(group=GROUP)))
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 2
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
