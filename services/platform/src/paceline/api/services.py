"""What endpoints are given: made once by `create_app`, found on the application's state."""

import tempfile
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, Annotated, cast

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.errors import Unavailable
from paceline.api.settings import ApiSettings
from paceline.contracts.ids import NewId
from paceline.runtime.clock import Clock
from paceline.runtime.metrics import gauge
from paceline.store import Database
from paceline.store.outbox_watch import OutboxWatch
from paceline.store.times import from_unix


class Streams:
    """How many event streams are open; a bound, since each keeps a connection."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.count = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Unavailable where there are too many already."""
        if self.count >= self._count_max:
            raise Unavailable(f"{self.count} event streams are open, the most that is allowed; try again")
        self.count += 1
        gauge("paceline.api.streams", self.count)
        try:
            yield
        finally:
            self.count -= 1
            gauge("paceline.api.streams", self.count)


class _Download(tempfile.SpooledTemporaryFile[bytes]):
    """Closed at the latest when nobody holds it any more."""

    def __init__(self, memory_bytes_max: int, closed: Callable[[], None]) -> None:
        super().__init__(memory_bytes_max)
        self._note_closed = weakref.finalize(self, closed)

    def close(self) -> None:
        super().close()
        self._note_closed()  # does nothing the second time


class Downloads:
    """Files that lie on disk while they are made and sent; a bound, since clients may be slow."""

    def __init__(self, count_max: int = 8) -> None:
        self._count_max = count_max
        self.count = 0

    def open(self, memory_bytes_max: int) -> IO[bytes]:
        """A file that counts until it is closed; Unavailable where there are too many already."""
        if self.count >= self._count_max:
            raise Unavailable(f"{self.count} downloads are going on, the most that is allowed; try again")
        self.count += 1
        return cast(IO[bytes], _Download(memory_bytes_max, self._give_back))

    def _give_back(self) -> None:
        self.count -= 1


@dataclass(frozen=True)
class Services:
    """Shared by all requests. `console_url` is the base of the links in events."""

    settings: ApiSettings
    database: Database
    clock: Clock
    new_id: NewId
    watch: OutboxWatch
    streams: Streams
    console_url: str
    downloads: Downloads = field(default_factory=Downloads)

    def now(self) -> datetime:
        return from_unix(self.clock.unix_s())


def get_services(request: Request) -> Services:
    return cast(Services, request.app.state.services)


Shared = Annotated[Services, Depends(get_services)]


async def get_session(services: Shared) -> AsyncIterator[AsyncSession]:
    """One request, one transaction; committed before the answer leaves (scope="function")."""
    async with services.database.transaction() as session:
        yield session


Session = Annotated[AsyncSession, Depends(get_session, scope="function")]
