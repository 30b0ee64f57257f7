"""`paceline up`: the platform without a job, until Ctrl-C."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.lab.platform import LocalPlatform, parse_only, redact
from paceline.lab.processes import LabError
from paceline.runtime.app import App
from paceline.runtime.clock import SystemClock
from paceline.runtime.health import HealthServer
from paceline.runtime.kafka import KafkaUnavailable, TopicError
from paceline.runtime.local import HOME_VARIABLE, home_directory, leave_bootstrap
from paceline.runtime.logging import configure_logging
from paceline.runtime.runner import AppFailed, checks_of, run_apps
from paceline.runtime.settings import (
    HttpSettings,
    LogSettings,
    SettingsError,
    TelemetrySettings,
    load_settings,
)
from paceline.runtime.telemetry import configure_telemetry


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0 after an orderly stop, 1 where something did not start, 2 for a wrong setting."""
    home = Path(arguments.home).expanduser().absolute() if arguments.home else home_directory()
    os.environ[HOME_VARIABLE] = str(home)
    try:
        configure_logging(load_settings(LogSettings, **_quiet()))
        platform = LocalPlatform(home, port=arguments.port, only=parse_only(arguments.only))
    except (LabError, SettingsError) as error:
        return _fail(error, 2)
    try:
        _say("starting, Ctrl-C stops all of it")
        platform.launch()
        leave_bootstrap(home, platform.bootstrap)
        asyncio.run(_serve(platform, with_agent=arguments.with_agent))
    except (LabError, SettingsError, AppFailed, KafkaUnavailable, TopicError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        pass
    finally:
        _say("stopping")
        platform.stop()
    return 0


async def _serve(platform: LocalPlatform, *, with_agent: bool) -> None:
    await platform.prepare()
    telemetry = configure_telemetry(load_settings(TelemetrySettings), "paceline-platform")
    apps = platform.build()
    if with_agent:
        apps.extend(_build_agent())
    health = HealthServer(load_settings(HttpSettings), checks_of(apps), telemetry.scrape)
    started = asyncio.Event()
    announcing = asyncio.create_task(_announce(platform, apps, health, started))
    try:
        await run_apps([*apps, health], on_started=started)
    finally:
        announcing.cancel()
        telemetry.shutdown()


async def _announce(
    platform: LocalPlatform, apps: Sequence[App], health: HealthServer, started: asyncio.Event
) -> None:
    await started.wait()
    try:
        await platform.wait_ready(apps)
    except LabError as error:
        sys.stderr.write(f"paceline up: {error}\n")  # it goes on trying; the addresses are right anyway
    for line in describe(platform, health.port):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def describe(platform: LocalPlatform, health_port: int) -> list[str]:
    """What a person needs to know of a running platform; the token only when it is new."""
    lines = []
    if "api" in platform.only:
        lines.append(f"console and API  {platform.url}")
        if platform.is_new_token:
            lines.append(
                f"first token      {platform.token}  (shown once, kept in {platform.home / 'token'})"
            )
        else:
            lines.append(f"token            in {platform.home / 'token'}")
    lines += [
        f"health, metrics  http://127.0.0.1:{health_port}/readyz  /metrics",
        f"Kafka            {platform.bootstrap}",
        f"PostgreSQL       {redact(platform.database_url)}",
        f"services         {', '.join(platform.only)}",
        "agent            paceline agent  (on this machine it finds this Kafka; elsewhere --kafka HOST:PORT)",
        "incidents        in the console, GET /v1/incidents, webhooks; nothing more is printed here",
    ]
    return lines


def _build_agent() -> list[App]:
    from paceline.agent.evidence import make_agent
    from paceline.agent.settings import AgentSettings
    from paceline.runtime.settings import CommandSettings, KafkaSettings

    settings, kafka = load_settings(AgentSettings), load_settings(KafkaSettings)
    return make_agent(settings, kafka, load_settings(CommandSettings).read_key(), SystemClock())


def _quiet() -> dict[str, object]:
    """In a terminal the log is for people and says only what they should look at."""
    quiet: dict[str, object] = {}
    if "PACELINE_LOG_FORMAT" not in os.environ:
        quiet["format"] = "console"
    if "PACELINE_LOG_LEVEL" not in os.environ:
        quiet["level"] = "warning"
    return quiet


def _say(line: str) -> None:
    sys.stderr.write(f"paceline up: {line}\n")


def _fail(error: Exception, status: int) -> int:
    sys.stderr.write(f"paceline up: {error}\n")
    return status
