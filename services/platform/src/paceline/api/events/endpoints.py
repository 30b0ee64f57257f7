"""Server-sent events: the outbox from the sequence the client has seen, then what follows live.

Ids are outbox sequences, which are handed out in commit order, so a client that resumes misses
nothing and sees nothing twice. Where the gap was cleaned away or is too long the first event is
`reset`. Nothing is buffered here: a slow client holds its own place, a lost one costs nothing.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from paceline.api.auth import Bearer, Caller, Cookie, authenticate
from paceline.api.errors import (
    FieldProblem,
    InvalidRequest,
    MissingScope,
    Unauthenticated,
    Unavailable,
    responses,
)
from paceline.api.events.schemas import EventRead, ResetRead
from paceline.api.services import Services, Shared
from paceline.api.text import JobText
from paceline.runtime.metrics import count
from paceline.store import is_transient
from paceline.store.models.outbox import OutboxEvent
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.scopes import Scope

router = APIRouter(prefix="/v1/events", tags=["events"])
BATCH_COUNT = 200
RETRY_MS = 2000
# Which scope shows which events; types of no known prefix are shown to nobody.
SCOPE_OF_PREFIX = {
    "incident": Scope.INCIDENTS_READ,
    "job": Scope.JOBS_READ,
    "repair": Scope.INCIDENTS_READ,
    "webhook": Scope.WEBHOOKS_READ,
    "delivery": Scope.WEBHOOKS_READ,
}
After = Annotated[int | None, Query(ge=0, lt=2**63, description="As Last-Event-ID, for a first connection")]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)]


@dataclass
class Subscription:
    """One stream: who reads, from where, what is wanted. `position` grows as it is sent."""

    services: Services
    caller: Caller
    bearer: str | None
    cookie: str | None
    position: int | None
    jobs: frozenset[str]
    incidents: frozenset[str]
    began_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.began_ns = self.services.clock.monotonic_ns()

    def wants(self, row: OutboxEvent) -> bool:
        scope = SCOPE_OF_PREFIX.get(row.type.partition(".")[0])
        return (
            scope in self.caller.scopes
            and (not self.jobs or row.job in self.jobs)
            and (not self.incidents or row.incident_id in self.incidents)
        )

    @property
    def is_over(self) -> bool:
        """Whether its life has ended or the server stops; the client comes back by itself."""
        age_s = (self.services.clock.monotonic_ns() - self.began_ns) / 1e9
        return self.services.watch.closed or age_s >= self.services.settings.stream_life_s


async def get_subscription(
    request: Request,
    services: Shared,
    bearer: Bearer,
    cookie: Cookie,
    job: Annotated[list[JobText], Query(max_length=50)] = [],  # noqa: B006 (FastAPI copies it)
    incident: Annotated[list[JobText], Query(max_length=50)] = [],  # noqa: B006
    after: After = None,
    last_event_id: LastEventId = None,
) -> AsyncIterator[Subscription]:
    """Authenticates in a transaction of its own: none stays open while the stream lives."""
    secret = None if bearer is None else bearer.credentials
    async with services.database.transaction() as session:
        caller = await authenticate(session, services.now(), secret, cookie)
    if not caller.scopes & set(SCOPE_OF_PREFIX.values()):
        wanted = sorted({scope.value for scope in SCOPE_OF_PREFIX.values()})
        raise MissingScope(f"this needs one of the scopes {', '.join(wanted)}")
    position = after if last_event_id is None else parse_event_id(last_event_id)
    with services.streams.admit():
        yield Subscription(services, caller, secret, cookie, position, frozenset(job), frozenset(incident))


def parse_event_id(text: str) -> int:
    """InvalidRequest where it is not an id of this stream."""
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        problem = FieldProblem(field="header.Last-Event-ID", value=text, expected="id of an earlier event")
        raise InvalidRequest("Last-Event-ID is not one of ours", (problem,))
    return int(text)


Subscribed = Annotated[Subscription, Depends(get_subscription)]


@router.get(
    "",
    response_class=EventSourceResponse,
    responses=responses(Unauthenticated, MissingScope, Unavailable),
)
async def stream_events(subscription: Subscribed) -> AsyncIterator[ServerSentEvent]:
    """`ready` first, then one event for each change, named by its type; `reset` where a gap cannot
    be filled. Comes to an end after 10 minutes; resume with Last-Event-ID."""
    services = subscription.services
    yield ServerSentEvent(comment="paceline events", retry=RETRY_MS)
    async for event in _begin(subscription):
        yield event
    checked_ns = services.clock.monotonic_ns()
    while not subscription.is_over:
        mark = services.watch.mark()
        rows = await _read(subscription)
        for row in rows:
            subscription.position = row.sequence
            if subscription.wants(row):
                yield _event(row)
        if len(rows) == BATCH_COUNT:
            continue
        await services.watch.wait(mark)
        # Busy streams too: a revoked token must not go on reading because much happens.
        if (services.clock.monotonic_ns() - checked_ns) / 1e9 >= services.settings.stream_keepalive_s:
            if not await _still_valid(subscription):
                return
            checked_ns = services.clock.monotonic_ns()
            yield ServerSentEvent(comment="keepalive")


async def _begin(subscription: Subscription) -> AsyncIterator[ServerSentEvent]:
    """Fix the position: where the client was, or now. Says `reset` where that leaves a gap."""
    oldest, newest = await _bounds(subscription)
    position = subscription.position
    if position is None:
        subscription.position = newest
        yield _note("ready", "live from here", newest)
        return
    gap_max = subscription.services.settings.stream_gap_max
    reason = gap_reason(position, oldest, newest, gap_max)
    if reason is not None:
        if newest > position:
            count("paceline.api.events_dropped", newest - position, reason="reset")
        subscription.position = newest
        yield _note("reset", reason, newest)
        return
    yield ServerSentEvent(
        data=ResetRead(reason="resumed", sequence=position).model_dump(mode="json"), event="ready"
    )


def gap_reason(position: int, oldest: int, newest: int, gap_max: int) -> str | None:
    """Why a client at `position` cannot be brought up to date event by event; None if it can."""
    if position > newest:
        return "the position is ahead of us: the database was replaced"
    if position + 1 < oldest:
        return "events after the position are no longer kept"
    if newest - position > gap_max:
        return f"more than {gap_max} events were missed"
    return None


def _note(name: str, reason: str, sequence: int) -> ServerSentEvent:
    data = ResetRead(reason=reason, sequence=sequence).model_dump(mode="json")
    return ServerSentEvent(data=data, event=name, id=str(sequence))


def _event(row: OutboxEvent) -> ServerSentEvent:
    summary = row.summary
    read = EventRead(
        sequence=row.sequence,
        id=row.id,
        type=row.type,
        job=row.job,
        attempt=summary.get("attempt"),
        incident_id=row.incident_id,
        label=summary.get("label"),
        status=summary.get("status"),
        severity=summary.get("severity"),
        verdict_class=summary.get("verdict_class"),
        summary=summary.get("summary"),
        at=row.created_at,
    )
    return ServerSentEvent(data=read.model_dump(mode="json"), event=row.type, id=str(row.sequence))


async def _bounds(subscription: Subscription) -> tuple[int, int]:
    async with subscription.services.database.transaction() as session:
        return await OutboxRepository(session).bounds()


async def _read(subscription: Subscription) -> Sequence[OutboxEvent]:
    """Rows behind the position; none while the database is away, the stream outlives that."""
    try:
        async with subscription.services.database.transaction() as session:
            return await OutboxRepository(session).after(subscription.position or 0, BATCH_COUNT)
    except Exception as error:
        if not is_transient(error):
            raise
        return []


async def _still_valid(subscription: Subscription) -> bool:
    """Whether token or session still admit the reader."""
    services = subscription.services
    try:
        async with services.database.transaction() as session:
            await authenticate(session, services.now(), subscription.bearer, subscription.cookie)
    except Unauthenticated:
        return False
    except Exception as error:
        if not is_transient(error):
            raise
    return True
