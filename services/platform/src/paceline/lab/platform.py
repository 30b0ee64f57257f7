"""The whole platform on this machine: Kafka, PostgreSQL, topics, tables, services in one event loop.

`launch` starts the two servers without waiting (on the main thread, see `processes.Child`), `prepare`
waits for them and makes topics and tables, `build` gives the services. Servers that are named in the
environment are used as they are.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from paceline.lab.kafka import LocalKafka
from paceline.lab.ports import draw_ports, is_free
from paceline.lab.postgres import LocalPostgres
from paceline.lab.postgres_binaries import URL_VARIABLE
from paceline.lab.processes import LabError
from paceline.runtime.app import App, Checked
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.kafka import create_topics
from paceline.runtime.local import leave_command_key
from paceline.runtime.settings import KafkaSettings, load_settings
from paceline.store import migrate
from paceline.store.engine import driver_dsn

KAFKA_VARIABLE = "PACELINE_KAFKA_BOOTSTRAP"
TOKEN_VARIABLE = "PACELINE_API_ADMIN_TOKEN"  # noqa: S105 (the name of a variable)
CONSOLE_VARIABLE = "PACELINE_API_CONSOLE_PATH"
URL_BASE_VARIABLE = "PACELINE_CONSOLE_URL"
PRIVATE_VARIABLE = "PACELINE_NOTIFIER_ALLOW_PRIVATE_ADDRESSES"
COMMAND_KEY_VARIABLE = "PACELINE_COMMAND_KEY"
COMMAND_KEY_FILE_VARIABLE = "PACELINE_COMMAND_KEY_FILE"
API_PORT = 8300
READY_S_MAX = 60.0
READY_POLL_S = 0.05
DATABASE = "paceline"
SERVICES = ("detector", "localizer", "incidents", "remediator", "notifier", "api")
CONSOLE_FOLDER = Path("web") / "dist"


def parse_only(text: str | None) -> tuple[str, ...]:
    """Services named in `--only`; LabError for one that does not exist."""
    if text is None:
        return SERVICES
    wanted = tuple(filter(None, (part.strip() for part in text.split(","))))
    unknown = sorted(set(wanted) - set(SERVICES))
    if unknown or not wanted:
        raise LabError(f"--only {text!r}: expected some of {', '.join(SERVICES)}")
    return tuple(name for name in SERVICES if name in wanted)


class LocalPlatform:
    """One platform below `home`."""

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        only: Sequence[str] = SERVICES,
        durable: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.home = home
        self.only = tuple(only)
        self.is_new_token = False
        self._port = port
        self._clock = clock or SystemClock()
        self.kafka = None if os.environ.get(KAFKA_VARIABLE) else LocalKafka(home)
        self.postgres = None if os.environ.get(URL_VARIABLE) else LocalPostgres(home, durable=durable)
        self._set: dict[str, str | None] = {}  # variables that we set, with their former values

    def launch(self, *, fresh: bool = False) -> None:
        """Start the servers without waiting. `fresh` forgets the records of our own Kafka first."""
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.kafka is not None:
            if fresh:
                self.kafka.reset()
            self.kafka.launch()
            self.export(KAFKA_VARIABLE, self.kafka.bootstrap)
        if self.postgres is not None:
            self.postgres.launch()
            self.export(URL_VARIABLE, self.postgres.url(DATABASE))
        is_local = self.kafka is not None or self.postgres is not None
        if is_local and PRIVATE_VARIABLE not in os.environ:
            self.export(PRIVATE_VARIABLE, "true")  # receivers of a local platform are local, too
        if COMMAND_KEY_VARIABLE not in os.environ and COMMAND_KEY_FILE_VARIABLE not in os.environ:
            self.export(COMMAND_KEY_FILE_VARIABLE, str(leave_command_key(self.home)))
        self._export_api()

    async def prepare(self, *, fresh: bool = False) -> None:
        """Wait for the servers, then topics and tables. `fresh` empties our own database first."""
        if self.kafka is not None:
            await asyncio.to_thread(self.kafka.wait_ready)
        if self.postgres is not None:
            await asyncio.to_thread(self.postgres.wait_ready)
            await _create_database(self.postgres.url(), fresh=fresh)
        await asyncio.gather(create_topics(load_settings(KafkaSettings)), migrate(self.database_url))

    @property
    def database_url(self) -> str:
        return os.environ[URL_VARIABLE]

    @property
    def url(self) -> str:
        """Base of the links that people get."""
        return os.environ[URL_BASE_VARIABLE]

    @property
    def bootstrap(self) -> str:
        return os.environ[KAFKA_VARIABLE]

    @property
    def token(self) -> str:
        """The first token of the API."""
        return os.environ[TOKEN_VARIABLE]

    def build(self) -> list[App]:
        """The services of `only`, not started; they take their settings from the environment."""
        return [app for name in self.only for app in BUILDERS[name](self._clock)]

    async def wait_ready(self, apps: Sequence[App], timeout_s: float = READY_S_MAX) -> None:
        """Until every app says that it does its work; LabError with its own word where it does not."""
        deadline = time.monotonic() + timeout_s
        for app in apps:
            while isinstance(app, Checked) and not app.readiness().ready:
                if time.monotonic() > deadline:
                    raise LabError(f"{app.name} is not ready after {timeout_s:g} s: {app.readiness().detail}")
                await asyncio.sleep(READY_POLL_S)

    def stop(self) -> None:
        """Stop the servers and give the environment back. May be called twice."""
        for server in (self.postgres, self.kafka):
            if server is not None:
                server.stop()
        for name, former in self._set.items():
            if former is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = former
        self._set.clear()

    def export(self, name: str, value: str) -> None:
        """Set an environment variable until `stop`."""
        self._set.setdefault(name, os.environ.get(name))
        os.environ[name] = value

    def _export_api(self) -> None:
        if self._port is not None:
            self.export("PACELINE_API_PORT", str(self._port))
        if URL_BASE_VARIABLE not in os.environ:
            self.export(URL_BASE_VARIABLE, api_url())
        console = find_console()
        if console is not None and CONSOLE_VARIABLE not in os.environ:
            self.export(CONSOLE_VARIABLE, str(console))
        if TOKEN_VARIABLE not in os.environ:
            self.export(TOKEN_VARIABLE, self._read_token())

    def _read_token(self) -> str:
        path = self.home / "token"
        if not path.exists():
            self.is_new_token = True
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"plt_{secrets.token_urlsafe(32)}\n")
        return path.read_text().strip()


def free_port(wanted: int) -> int:
    """`wanted` where it is free on loopback, else another that is."""
    if wanted and is_free(wanted):
        return wanted
    try:
        return draw_ports(1)[0]
    except OSError as error:
        raise LabError(str(error)) from None


def api_url() -> str:
    """Where the API of this process listens, by its settings."""
    host = os.environ.get("PACELINE_API_HOST", "127.0.0.1")
    return f"http://{host}:{os.environ.get('PACELINE_API_PORT', API_PORT)}"


def find_console() -> Path | None:
    """The built console of this checkout, if there is one."""
    folders = (parent / CONSOLE_FOLDER for parent in Path(__file__).resolve().parents)
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


async def _create_database(url: str, *, fresh: bool) -> None:
    """The platform's database on the server whose maintenance database is `url`."""
    connection = await asyncpg.connect(driver_dsn(url))
    try:
        if fresh:
            await connection.execute(f'DROP DATABASE IF EXISTS "{DATABASE}" WITH (FORCE)')
        with contextlib.suppress(asyncpg.DuplicateDatabaseError):
            await connection.execute(f'CREATE DATABASE "{DATABASE}"')
    finally:
        await connection.close()


def redact(url: str) -> str:
    """`url` without its password, for people."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit(parts._replace(netloc=f"{user}{parts.hostname or ''}{port}"))


def _build_detector(clock: Clock) -> list[App]:
    from paceline.detector import DetectorApp, DetectorSettings

    return [DetectorApp(load_settings(DetectorSettings), clock)]


def _build_localizer(clock: Clock) -> list[App]:
    from paceline.localizer import LocalizerApp, LocalizerSettings

    return [LocalizerApp(load_settings(LocalizerSettings), clock)]


def _build_incidents(clock: Clock) -> list[App]:
    from paceline.incidents.app import IncidentsApp
    from paceline.incidents.relay import OutboxRelay
    from paceline.incidents.settings import IncidentsSettings

    settings = load_settings(IncidentsSettings)
    return [IncidentsApp(settings, clock), OutboxRelay(settings, clock)]


def _build_remediator(clock: Clock) -> list[App]:
    from paceline.remediator.app import RemediatorApp
    from paceline.remediator.settings import RemediatorSettings

    return [RemediatorApp(load_settings(RemediatorSettings), clock)]


def _build_notifier(clock: Clock) -> list[App]:
    from paceline.notifier import NotifierApp, NotifierSettings

    return [NotifierApp(load_settings(NotifierSettings), clock)]


def _build_api(clock: Clock) -> list[App]:
    from paceline.api.server import ApiApp
    from paceline.api.settings import ApiSettings

    return [ApiApp(load_settings(ApiSettings), clock)]


BUILDERS: dict[str, Callable[[Clock], list[App]]] = {
    "detector": _build_detector,
    "localizer": _build_localizer,
    "incidents": _build_incidents,
    "remediator": _build_remediator,
    "notifier": _build_notifier,
    "api": _build_api,
}
