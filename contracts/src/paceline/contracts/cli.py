"""The one script `paceline`: every distribution adds its subcommands as entry points.

An entry point of group `paceline.commands` names a function `add(subparsers)` that adds one
parser and sets `run` to a function of the parsed arguments that returns an exit status.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "paceline.commands"
# Commands whose start counts: found by name, because reading the entry points of all that is installed
# takes longer than they do; and those that stay, for what others import stays with them. Without that
# distribution the entry points are asked.
DIRECT = {
    "agent": ("paceline.agent.commands", "add"),
    "diagnose": ("paceline.analysis.commands", "add_diagnose"),
    "collect": ("paceline.analysis.commands", "add_collect"),
    "overhead": ("paceline.lab.overhead.commands", "add"),
}
Add = Callable[[Any], None]
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


class _Version(argparse.Action):
    """Says the version; it is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any, **options: Any) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"paceline {version('paceline-contracts')}\n")
        parser.exit()


def build_parser(commands: "Sequence[EntryPoint]") -> CommandParser:
    """The parser with one subcommand for each entry point, in the order of their names."""
    parser = CommandParser(
        prog="paceline",
        description="Names the one first cause when a distributed training job hangs or slows.",
        epilog=where_to_start([entry.name for entry in commands]),
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    for command in sorted(commands, key=lambda entry: entry.name):
        command.load()(subparsers)
    return parser


def _whole_parser() -> CommandParser:
    from importlib.metadata import entry_points

    return build_parser(list(entry_points(group=GROUP)))


def _direct_parser(words: Sequence[str]) -> CommandParser | None:
    """A parser of the one command that `words` name, where it is in DIRECT and installed."""
    module, function = DIRECT.get(words[0] if words else "", ("", ""))
    if not module:
        return None
    try:
        add: Add = getattr(import_module(module), function)
    except ImportError:
        return None
    parser = CommandParser(prog="paceline")
    add(parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser))
    return parser


def where_to_start(names: Sequence[str]) -> str:
    """Examples of those commands that are installed; empty where none is."""
    lines = [f"  {command:<32} {words}" for name, (command, words) in STARTS.items() if name in names]
    return "\n".join(["start here:", *lines]) if lines else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `paceline`; returns the exit status of the subcommand, 2 for a usage error."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _direct_parser(words) or _whole_parser()
    arguments = parser.parse_args(words)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 2
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
