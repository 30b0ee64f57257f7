"""The whole platform in one event loop, as `paceline up` runs it, with short limits."""

import asyncio
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx

from paceline.agent.app import AgentApp
from paceline.agent.kafka_publisher import KafkaPublisher
from paceline.agent.settings import AgentSettings
from paceline.api.server import ApiApp
from paceline.lab.kafka import LocalKafka
from paceline.lab.platform import BUILDERS, SERVICES
from paceline.lab.postgres import LocalPostgres
from paceline.runtime.app import App, Checked, Watched
from paceline.runtime.clock import SystemClock
from paceline.runtime.kafka import create_topics
from paceline.runtime.settings import KafkaSettings, load_settings
from paceline.store import migrate

READY_S_MAX = 60.0
STOP_S_MAX = 30.0
POLL_S = 0.1
# A hang is found in 3 to 5 seconds: floor, two samples, one tick.
LIMITS = {
    "PACELINE_KAFKA_GROUP_PREFIX": "chaos",
    "PACELINE_KAFKA_REQUEST_TIMEOUT_S": "8",
    "PACELINE_KAFKA_STUCK_S": "8",
    "PACELINE_DETECTOR_FLOOR_S": "2.5",
    "PACELINE_DETECTOR_DEAD_FLOOR_S": "1",
    "PACELINE_DETECTOR_TICK_S": "0.5",
    "PACELINE_DETECTOR_SNAPSHOT_S": "2",
    "PACELINE_DETECTOR_SILENCE_S": "4",
    "PACELINE_LOCALIZER_HEALTH_WAIT_S": "2",
    "PACELINE_AGENT_INTERVAL_S": "0.25",
    "PACELINE_AGENT_SUSPECT_S": "1",
    "PACELINE_AGENT_DRAIN_S": "1",
    "PACELINE_NOTIFIER_ALLOW_PRIVATE_ADDRESSES": "true",
    "PACELINE_NOTIFIER_WEBHOOK_TIMEOUT_S": "5",
    "PACELINE_API_PORT": "0",
    "PACELINE_CONSOLE_URL": "http://console.test",
}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the time of one block: services read their settings when they are built."""
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class AgentProcess:
    """An agent of its own, as a process that can be killed."""

    def __init__(self, stack: "Stack", node: str) -> None:
        self.node = node
        self.socket = stack.home / f"{node}.sock"
        self._process: asyncio.subprocess.Process | None = None
        self._environment = {
            **os.environ,
            **stack.settings,
            "PACELINE_AGENT_SOCKET": str(self.socket),
            "PACELINE_AGENT_STATE_DIR": str(stack.home / node),
            "PACELINE_AGENT_NODE": node,
            "PACELINE_LOG_LEVEL": "warning",
        }

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Until it listens."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "paceline.contracts.cli", "agent", env=self._environment
        )
        deadline = time.monotonic() + READY_S_MAX
        while not _listens(self.socket):
            assert self._process.returncode is None, f"the agent ended with {self._process.returncode}"
            assert time.monotonic() < deadline, f"the agent does not listen at {self.socket}"
            await asyncio.sleep(POLL_S)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Signal it and wait for its end."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await asyncio.wait_for(self._process.wait(), STOP_S_MAX)


class Stack:
    """Every service, one agent and a client of the API."""

    def __init__(self, home: Path, kafka: LocalKafka, postgres: LocalPostgres, database_url: str) -> None:
        self.home = home
        self.kafka = kafka
        self.postgres = postgres
        self.socket = home / "agent.sock"
        self.token = f"plt_{secrets.token_urlsafe(32)}"
        self.settings = {
            **LIMITS,
            "PACELINE_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "PACELINE_DATABASE_URL": database_url,
            "PACELINE_API_ADMIN_TOKEN": self.token,
            "PACELINE_AGENT_SOCKET": str(self.socket),
            "PACELINE_AGENT_STATE_DIR": str(home / "agent"),
            "PACELINE_AGENT_NODE": "node-a",
        }
        self.parts: dict[str, list[App]] = {}
        self.client = httpx.AsyncClient()
        self._watches: dict[App, asyncio.Task[BaseException]] = {}

    @property
    def agent(self) -> AgentApp:
        return cast(AgentApp, self.parts["agent"][0])

    @property
    def kafka_settings(self) -> KafkaSettings:
        with environment(self.settings):
            return load_settings(KafkaSettings)

    async def open(self) -> None:
        """Topics, tables, services, agent; ready when this returns."""
        await asyncio.gather(
            create_topics(self.kafka_settings), migrate(self.settings["PACELINE_DATABASE_URL"])
        )
        for name in (*SERVICES, "agent"):
            await self.start(name)
        await self.ready()
        api = cast(ApiApp, self.parts["api"][0])
        self.client = httpx.AsyncClient(
            base_url=api.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=10.0
        )

    async def close(self) -> None:
        await self.client.aclose()
        for name in reversed(list(self.parts)):
            await self.stop(name)

    async def start(self, name: str) -> None:
        with environment(self.settings):
            self.parts[name] = [self._make_agent()] if name == "agent" else BUILDERS[name](SystemClock())
        for app in self.parts[name]:
            await app.start()
            if isinstance(app, Watched):
                self._watches[app] = asyncio.create_task(app.crashed(), name=f"watch-{app.name}")

    async def stop(self, name: str) -> None:
        for app in reversed(self.parts.pop(name)):
            watch = self._watches.pop(app, None)
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            await asyncio.wait_for(app.stop(), STOP_S_MAX)

    async def restart(self, name: str) -> None:
        await self.stop(name)
        await self.start(name)

    async def ready(self) -> None:
        """Until every app says that it does its work."""
        deadline = time.monotonic() + READY_S_MAX
        for app in [app for apps in self.parts.values() for app in apps]:
            while isinstance(app, Checked) and not app.readiness().ready:
                assert time.monotonic() < deadline, f"{app.name}: {app.readiness().detail}"
                await asyncio.sleep(POLL_S)

    def crashes(self) -> dict[str, BaseException]:
        """Apps that could not go on, with the cause."""
        return {app.name: watch.result() for app, watch in self._watches.items() if watch.done()}

    async def start_kafka(self) -> None:
        """Launched here: the server dies with the thread that launched it."""
        self.kafka.launch()
        await asyncio.to_thread(self.kafka.wait_ready)

    async def stop_kafka(self) -> None:
        await asyncio.to_thread(self.kafka.stop)

    async def start_postgres(self) -> None:
        self.postgres.launch()
        await asyncio.to_thread(self.postgres.wait_ready)

    async def stop_postgres(self) -> None:
        await asyncio.to_thread(self.postgres.stop)

    async def get(self, path: str, **query: Any) -> Any:
        answer = await self.client.get(path, params=query)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def incidents(self, job: str) -> list[dict[str, Any]]:
        """Incidents of a job, oldest first; none while the API cannot say."""
        try:
            answer = await self.client.get("/v1/incidents", params={"job": job})
        except httpx.HTTPError:
            return []
        if answer.status_code != 200:
            return []
        return list(reversed(answer.json()["items"]))

    def _make_agent(self) -> AgentApp:
        clock, settings = SystemClock(), load_settings(AgentSettings)
        publisher = KafkaPublisher(load_settings(KafkaSettings), f"agent-{settings.node}", clock, 3.0)
        return AgentApp(settings, clock, publisher)


def _listens(path: Path) -> bool:
    """Whether somebody answers; a killed agent leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
