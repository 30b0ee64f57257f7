"""Addresses, and which errors are worth another try."""

import asyncio
import errno
import socket
import ssl
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError

from paceline.store import is_transient
from paceline.store.engine import driver_dsn, normalize_url
from paceline.store.times import from_unix, to_unix


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_all_spellings_of_a_url_are_one(scheme: str) -> None:
    assert normalize_url(f"{scheme}://u:p@h:1/d") == "postgresql+asyncpg://u:p@h:1/d"
    assert driver_dsn(f"{scheme}://u:p@h:1/d") == "postgresql://u:p@h:1/d"


@pytest.mark.parametrize("url", ["sqlite:///x", "h:1/d", ""])
def test_another_dialect_is_refused_without_repeating_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected postgresql\+asyncpg"):
        normalize_url(url)


class _Origin(Exception):
    def __init__(self, sqlstate: str | None) -> None:
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), True),
        (TimeoutError(), True),
        (asyncio.TimeoutError(), True),
        (socket.gaierror(socket.EAI_AGAIN, "temporary failure"), True),
        (OSError(errno.EHOSTUNREACH, "no route to host"), True),
        (OSError("Multiple exceptions: [Errno 111] ('::1', 1), [Errno 101] ('h', 1)"), True),
        (ssl.SSLEOFError(), True),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), False),
        (OSError(errno.ENOSPC, "no space left on device"), False),
        (PermissionError(errno.EACCES, "permission denied", "/f"), False),
        (FileNotFoundError(errno.ENOENT, "no such file", "/f"), False),
        (asyncpg.InterfaceError("connection is closed"), True),
        (asyncpg.DataError("invalid input for query argument $1"), False),
        (InterfaceError("s", None, _Origin(None)), False),
        (asyncpg.CannotConnectNowError("starting up"), True),
        (DBAPIError("s", None, _Origin("40P01")), True),
        (DBAPIError("s", None, _Origin("22021")), False),
        (DBAPIError("s", None, _Origin(None), connection_invalidated=True), True),
        (IntegrityError("s", None, _Origin("23505")), False),
        (ValueError(), False),
    ],
)
def test_transient(error: Exception, expected: bool) -> None:
    assert is_transient(error) is expected


@pytest.mark.parametrize("bad", [-1.0, 1e15, float("nan"), float("inf")])
def test_times_that_no_timestamp_holds(bad: float) -> None:
    with pytest.raises(ValueError, match="expected unix seconds"):
        from_unix(bad)


def test_times_there_and_back() -> None:
    assert to_unix(from_unix(1_767_323_045.25)) == 1_767_323_045.25


async def test_server_whose_unix_socket_is_gone_is_away(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        await asyncpg.connect(host=str(tmp_path), port=1, user="u", database="d", timeout=2)
    assert is_transient(caught.value)
