"""`paceline agent`: observe the training processes of this machine."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.agent.settings import AgentSettings
    from paceline.runtime.settings import CommandSettings, HttpSettings, KafkaSettings, TelemetrySettings


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand; nothing heavy is imported before it runs."""
    parser = subparsers.add_parser(
        "agent",
        help="observe the training processes of this machine",
        description="Reads the probe pages of training processes and publishes what it sees to Kafka. "
        "Needs no root. Settings: PACELINE_AGENT_*, PACELINE_KAFKA_*, PACELINE_LOG_*, PACELINE_HTTP_*.",
    )
    parser.add_argument(
        "--kafka",
        metavar="HOST:PORT",
        help="default: PACELINE_KAFKA_BOOTSTRAP, else the Kafka of `paceline up` on this machine",
    )
    parser.add_argument("--socket", type=Path, metavar="PATH", help="PACELINE_AGENT_SOCKET")
    parser.add_argument("--node", help="name of this machine (default: its host name)")
    parser.add_argument("--interval", type=float, metavar="S", help="seconds between samples, 0.1 to 10")
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="write files for `paceline diagnose DIR`; no Kafka"
    )
    parser.add_argument("--record-max", default="64M", metavar="SIZE", help="of this node (default 64M)")
    parser.add_argument("--follow", type=int, default=0, help=argparse.SUPPRESS)  # pid; for `paceline run`
    parser.add_argument("--follow-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--ready-fd", type=int, default=-1, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; 1 where the agent cannot run, 2 for a wrong setting."""
    if arguments.record is not None:
        return _record(arguments)
    from paceline.agent.settings import AgentSettings
    from paceline.runtime.local import find_command_settings, find_kafka_settings
    from paceline.runtime.logging import configure_logging
    from paceline.runtime.runner import AppFailed
    from paceline.runtime.settings import (
        HttpSettings,
        LogSettings,
        SettingsError,
        TelemetrySettings,
        load_settings,
    )

    named = {"socket": arguments.socket, "node": arguments.node, "interval_s": arguments.interval}
    try:
        settings = load_settings(AgentSettings, **{k: v for k, v in named.items() if v is not None})
        kafka = find_kafka_settings(arguments.kafka)
        configure_logging(load_settings(LogSettings))
        command = find_command_settings()
        command.read_key()  # what is wrong with it is said now
        http, telemetry = load_settings(HttpSettings), load_settings(TelemetrySettings)
    except SettingsError as error:
        return _fail(str(error), 2)
    try:
        asyncio.run(_serve(settings, kafka, command, http, telemetry))
    except AppFailed as error:
        return _fail(str(error), 1)
    return 0


def _record(arguments: argparse.Namespace) -> int:
    from paceline.agent.recording import Request, record, say
    from paceline.agent.settings import AgentSettings
    from paceline.contracts.recording import RECORDING_BYTES_MIN
    from paceline.contracts.sizes import parse_size
    from paceline.runtime.logging import configure_logging
    from paceline.runtime.settings import LogSettings, SettingsError, load_settings

    named = {"socket": arguments.socket, "node": arguments.node, "interval_s": arguments.interval}
    if arguments.follow:
        named["state_dir"] = arguments.socket.parent  # of this command alone, and gone with it
    try:
        bytes_max = parse_size(arguments.record_max, RECORDING_BYTES_MIN)
        settings = load_settings(AgentSettings, **{k: v for k, v in named.items() if v is not None})
        configure_logging(load_settings(LogSettings, **({"level": "error"} if arguments.follow else {})))
    except (SettingsError, ValueError) as error:
        return _fail(str(error), 2)
    request = Request(arguments.record, bytes_max, arguments.follow, arguments.follow_fd, arguments.ready_fd)
    return record(settings, request, say)


async def _serve(
    settings: "AgentSettings",
    kafka: "KafkaSettings",
    command: "CommandSettings",
    http: "HttpSettings",
    telemetry: "TelemetrySettings",
) -> None:
    from paceline.agent.evidence import make_agent
    from paceline.runtime.clock import SystemClock
    from paceline.runtime.health import HealthServer
    from paceline.runtime.runner import checks_of, run_apps
    from paceline.runtime.telemetry import configure_telemetry

    clock = SystemClock()
    installed = configure_telemetry(telemetry, "paceline-agent", settings.node)
    apps = make_agent(settings, kafka, command.read_key(), clock)
    health = HealthServer(http, checks_of(apps), installed.scrape)
    try:
        await run_apps([*apps, health])
    finally:
        installed.shutdown()


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"paceline agent: {message}\n")
    return status
