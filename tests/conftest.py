"""Fixtures of all tests: a real Apache Kafka and a real PostgreSQL, started once a session.

`kafka_bootstrap` and `database_url` name the servers; `database` is a fresh migrated database for one
test; `kafka_server` and `postgres_server` are the handles that chaos tests restart; `eventually` waits
on a condition with a deadline, which is how tests order things instead of sleeping.
"""

import asyncio
import inspect
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest
import structlog

from paceline.lab.kafka import LocalKafka
from paceline.lab.postgres import LocalPostgres
from paceline.lab.postgres_binaries import URL_VARIABLE
from paceline.store import Database

T = TypeVar("T")
Eventually = Callable[..., Awaitable[T]]
ROOT = Path(__file__).parent.parent
POLL_S = 0.02


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run."""
    absent = {
        "needs_torch": None if find_spec("torch") else "torch is not installed",
        "needs_gpu": None if shutil.which("nvidia-smi") else "no NVIDIA driver",
    }
    for item in items:
        for marker, reason in absent.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """Tracebacks as text. structlog's default draws them with all locals, which can take seconds: long
    enough for an event loop to lose its place in a consumer group."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
        ]
    )


@pytest.fixture(scope="session")
def lab_home() -> Iterator[Path]:
    """A short path (unix sockets) that the server's user may walk when the tests run as root."""
    home = Path(tempfile.mkdtemp(prefix="paceline-test-"))
    home.chmod(0o755)
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka_server(lab_home: Path) -> Iterator[LocalKafka]:
    """The session's Kafka node; a test that stops it starts it again."""
    server = LocalKafka(lab_home)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kafka_bootstrap(kafka_server: LocalKafka) -> str:
    """`host:port` of a running node; started again where an earlier test left it down."""
    return kafka_server.start()


@pytest.fixture(scope="session")
def postgres_server(lab_home: Path) -> Iterator[LocalPostgres]:
    """The session's PostgreSQL; a test that stops it starts it again."""
    server = LocalPostgres(lab_home, durable=False)
    server.start()
    yield server
    server.destroy()


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """SQLAlchemy URL (asyncpg) of the server's maintenance database: `PACELINE_DATABASE_URL`, else ours."""
    declared = os.environ.get(URL_VARIABLE)
    if declared:
        return declared
    server: LocalPostgres = request.getfixturevalue("postgres_server")
    return server.start()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[str]:
    """URL of a database of this test's own, a copy of the migrated template."""
    template = await _template(database_url)
    name = f"test_{secrets.token_hex(6)}"
    await _execute(database_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    yield with_database(database_url, name)
    await _execute(database_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
async def store(database: str) -> AsyncIterator[Database]:
    """The test's own database, opened."""
    opened = Database(database)
    yield opened
    await opened.stop()


@pytest.fixture
def eventually() -> Eventually[T]:
    """`await eventually(condition, deadline_s=10)`: the first true value, else a failure with the last."""

    async def wait(condition: Callable[[], T | Awaitable[T]], deadline_s: float = 10.0) -> T:
        deadline = time.monotonic() + deadline_s
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
            assert time.monotonic() < deadline, f"not within {deadline_s:g} s, last value {value!r}"
            await asyncio.sleep(POLL_S)

    return wait


def with_database(url: str, name: str) -> str:
    """`url` with another database name."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


_templates: dict[str, str] = {}  # server URL -> migrated template of this session


async def _template(url: str) -> str:
    if url not in _templates:
        name = f"template_{secrets.token_hex(6)}"
        await _execute(url, f'CREATE DATABASE "{name}"')
        import paceline.store

        migrate = getattr(paceline.store, "migrate", None)
        if migrate is not None:
            done = migrate(with_database(url, name))
            if inspect.isawaitable(done):
                await done
        _templates[url] = name
    return _templates[url]


async def _execute(url: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url.replace("postgresql+asyncpg://", "postgresql://"))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
