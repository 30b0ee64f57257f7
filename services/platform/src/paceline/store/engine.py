"""The connection pool, transactions, and which errors are worth another try."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

# SQLSTATE classes that say nothing about the statement: connection lost, rolled back by a
# conflict, resources, server shutting down or starting.
TRANSIENT_CLASSES = ("08", "40", "53", "57")
# Other operating system errors are of files, and those do not heal by waiting.
_UNREACHABLE = frozenset(
    {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL}
)
_CONNECTION_ERRORS = (
    PoolTimeoutError,
    TimeoutError,
    asyncio.TimeoutError,
    ConnectionError,
    socket.gaierror,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)


class Database:
    """One pool. `transaction()` commits on success, rolls back on any exception."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 5,
        overflow_max: int = 5,
        connect_timeout_s: float = 5.0,
        statement_timeout_s: float = 30.0,
    ) -> None:
        self.url = normalize_url(url)
        self._engine = create_async_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=overflow_max,
            pool_timeout=connect_timeout_s,
            # A restarted server leaves dead connections in the pool; the ping replaces them.
            pool_pre_ping=True,
            hide_parameters=True,  # errors are logged, and parameters are names, notes, hashes
            connect_args={
                "timeout": connect_timeout_s,
                "command_timeout": statement_timeout_s,
                "server_settings": {
                    "application_name": "paceline",
                    "statement_timeout": str(int(statement_timeout_s * 1000)),
                    "idle_in_transaction_session_timeout": str(int(2 * statement_timeout_s * 1000)),
                },
            },
        )
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """One session in one transaction."""
        async with self._sessions() as session, session.begin():
            yield session

    async def ping(self) -> None:
        """Raises where the database does not answer."""
        async with self._engine.connect() as connection:
            await connection.execute(text("SELECT 1"))

    async def stop(self) -> None:
        """Close every connection."""
        await self._engine.dispose()


def normalize_url(url: str) -> str:
    """`postgres://` and `postgresql://` with asyncpg's driver name; ValueError for another dialect."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"postgres", "postgresql", "postgresql+asyncpg"}:
        raise ValueError(
            f"database URL starts with {scheme[:40]!r}, expected postgresql+asyncpg://USER@HOST:PORT/NAME"
        )
    return f"postgresql+asyncpg://{rest}"


def driver_dsn(url: str) -> str:
    """The same address as asyncpg itself takes it, for LISTEN connections."""
    return "postgresql://" + normalize_url(url).partition("://")[2]


def is_transient(error: BaseException) -> bool:
    """Whether trying the whole transaction again may succeed without anybody changing anything."""
    if isinstance(error, _CONNECTION_ERRORS):
        return True
    if isinstance(error, OSError):
        return _is_unreachable(error)
    if isinstance(error, asyncpg.InterfaceError):
        # asyncpg says the same of a value that fits no column: waiting would not make it fit.
        return not isinstance(error, ValueError) and "closed" in str(error)
    state = getattr(error, "sqlstate", None)
    if isinstance(error, DBAPIError):
        if error.connection_invalidated:
            return True
        state = getattr(error.orig, "sqlstate", None)
    return isinstance(state, str) and state.startswith(TRANSIENT_CLASSES)


def _is_unreachable(error: OSError) -> bool:
    """Whether `error` comes from connecting, although its class says nothing of it."""
    if error.errno is None:  # asyncio, where a name has several addresses and each failed differently
        return str(error).startswith("Multiple exceptions")
    if error.errno == errno.ENOENT:  # connect() to the unix socket of a stopped server names no file
        return error.filename is None
    return error.errno in _UNREACHABLE
