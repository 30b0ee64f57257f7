"""What endpoints are given: made once by `create_app`, found on the application's state."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, cast

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
