"""Migrations in-process: no alembic.ini, no shell. Safe to call from several services at once."""

import io
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from paceline.store.engine import normalize_url

MIGRATIONS_PATH = Path(__file__).parent / "migrations"
MIGRATION_LOCK = 0x7061_6365_0001  # advisory lock: one migrator at a time


class SchemaDriftError(RuntimeError):
    """Models and migrations disagree; write a migration."""


async def migrate(url: str, revision: str = "head") -> None:
    """Bring the database at `url` to `revision`; a second caller waits for the first."""
    await _with_connection(url, lambda connection: _upgrade(connection, revision))


async def check(url: str) -> None:
    """SchemaDriftError where the migrated database and the models differ (`alembic check`)."""
    await _with_connection(url, _check)


async def downgrade(url: str, revision: str = "base") -> None:
    """Take migrations back; loses the data of what is dropped."""
    await _with_connection(url, lambda connection: command.downgrade(_config(connection), revision))


async def _with_connection(url: str, run: Callable[[Connection], None]) -> None:
    engine = create_async_engine(normalize_url(url), poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await _lock(connection)
            await connection.run_sync(run)
    finally:
        await engine.dispose()


async def _lock(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})


def _config(connection: Connection) -> Config:
    config = Config(stdout=io.StringIO())  # Alembic reports to the terminal otherwise
    config.set_main_option("script_location", str(MIGRATIONS_PATH))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _upgrade(connection: Connection, revision: str) -> None:
    command.upgrade(_config(connection), revision)


def _check(connection: Connection) -> None:
    try:
        command.check(_config(connection))
    except CommandError as error:
        raise SchemaDriftError(f"{error}; write a migration in {MIGRATIONS_PATH / 'versions'}") from None
