"""`paceline overhead JOB`; nothing heavy is imported before it runs."""

import argparse
import asyncio
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.lab.overhead.run import Outcome

EPILOG = """\
exit status: 0 measured, 3 too few blocks for an answer, 1 not measured, 2 usage

  paceline overhead llama-7b                          what proxy steps and kernel events cost
  paceline overhead llama-7b --level edges --pairs 20
"""
PAIRS_MAX, BLOCK_S_MIN, BLOCK_S_MAX = 100, 4.0, 300.0
INCONCLUSIVE = 3


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `paceline overhead`."""
    parser = subparsers.add_parser(
        "overhead",
        help="what more detail costs a live job, measured on it",
        description="Alternates the level of detail of a running job in drawn order, through the same\n"
        "signed commands as always, reads its step times from the samples, and prints their ratio with its\n"
        "interval.",
        epilog=EPILOG,
    )
    parser.add_argument("job", metavar="JOB")
    parser.add_argument(
        "--level",
        choices=("off", "edges", "full"),
        default="full",
        help="compared with --base (default full)",
    )
    parser.add_argument("--base", choices=("off", "rounds", "edges"), default="rounds", help="default rounds")
    parser.add_argument("--pairs", type=int, default=10, metavar="N", help="of blocks, 1 to 100 (default 10)")
    parser.add_argument("--block", type=float, default=15.0, metavar="S", help="4 to 300 s (default 15)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order and the bootstrap")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="default: as `paceline agent`")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    problem = _problem(arguments)
    if problem:
        return _fail(problem, 2)
    from paceline.lab.overhead.report import as_object, lines
    from paceline.lab.overhead.run import NotMeasured
    from paceline.lab.overhead.statistics import Finding
    from paceline.runtime.settings import SettingsError

    try:
        outcome = asyncio.run(_measure(arguments))
    except SettingsError as error:
        return _fail(str(error), 2)
    except NotMeasured as error:
        return _fail(str(error), 1)
    text = json.dumps(as_object(outcome)) if arguments.json else "\n".join(lines(outcome))
    sys.stdout.write(f"{text}\n")
    found = outcome.estimate
    return INCONCLUSIVE if found is None or found.finding is Finding.TOO_FEW else 0


def _problem(arguments: argparse.Namespace) -> str:
    if not 1 <= arguments.pairs <= PAIRS_MAX:
        return f"--pairs {arguments.pairs}: expected 1 to {PAIRS_MAX}"
    if not BLOCK_S_MIN <= arguments.block <= BLOCK_S_MAX:
        return f"--block {arguments.block:g}: expected {BLOCK_S_MIN:g} to {BLOCK_S_MAX:g} seconds"
    if arguments.level == arguments.base:
        return f"--level and --base are both {arguments.base}: nothing to compare"
    return ""


async def _measure(arguments: argparse.Namespace) -> "Outcome":
    from paceline.contracts.detail import LEVELS
    from paceline.lab.overhead.run import NotMeasured, Overhead, Plan
    from paceline.lab.overhead.wire import KafkaWire
    from paceline.runtime.clock import SystemClock
    from paceline.runtime.local import find_command_settings, find_kafka_settings
    from paceline.runtime.logging import configure_logging
    from paceline.runtime.settings import LogSettings, load_settings

    configure_logging(load_settings(LogSettings, level="error"))
    kafka, key = find_kafka_settings(arguments.kafka), find_command_settings().read_key()
    if key is None:
        raise NotMeasured("no command key: set PACELINE_COMMAND_KEY or PACELINE_COMMAND_KEY_FILE")
    plan = Plan(
        LEVELS[arguments.base], LEVELS[arguments.level], arguments.pairs, arguments.block, arguments.seed
    )
    wire, clock = KafkaWire(kafka, arguments.job), SystemClock()
    try:
        await wire.start()
        name = f"overhead-{clock.unix_s():.3f}-{os.getpid()}"
        return await Overhead(wire, wire.target(), plan, key, clock, name, _say).run()
    finally:
        await wire.stop()


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"paceline overhead: {message}\n")
    return status
