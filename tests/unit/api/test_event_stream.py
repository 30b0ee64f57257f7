"""The event stream's loop with a clock of its own, without a server and without a database."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import cast

import pytest
from fastapi.sse import ServerSentEvent

from paceline.api.auth import Caller
from paceline.api.events import endpoints
from paceline.api.events.endpoints import Subscription, stream_events
from paceline.api.services import Services
from paceline.runtime.clock import ManualClock
from paceline.store.models.outbox import OutboxEvent
from paceline.store.scopes import Scope
from paceline.store.times import from_unix

EVENTS_MAX = 100
READER = Caller("tok_1", "ops", frozenset({Scope.JOBS_READ}), "token", None)


class Watch:
    """Something new every second."""

    closed = False

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def mark(self) -> int:
        return 0

    async def wait(self, mark: int) -> None:
        self._clock.advance(1.0)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Subscription:
    clock = ManualClock()
    settings = SimpleNamespace(stream_keepalive_s=15.0, stream_life_s=600.0, stream_gap_max=1000)
    services = SimpleNamespace(clock=clock, watch=Watch(clock), settings=settings)

    async def bounds(subscription: Subscription) -> tuple[int, int]:
        return 0, 0

    async def read(subscription: Subscription) -> list[OutboxEvent]:
        sequence = (subscription.position or 0) + 1
        at = from_unix(clock.unix_s())
        return [OutboxEvent(sequence=sequence, id="e", type="job.ended", job="j", summary={}, created_at=at)]

    monkeypatch.setattr(endpoints, "_bounds", bounds)
    monkeypatch.setattr(endpoints, "_read", read)
    return Subscription(
        cast(Services, services), READER, "plt_x", None, None, jobs=frozenset(), incidents=frozenset()
    )


async def test_a_revoked_token_ends_a_stream_that_is_never_quiet(
    busy: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def still_valid(subscription: Subscription) -> bool:
        return False

    monkeypatch.setattr(endpoints, "_still_valid", still_valid)
    seen = 0
    async for event in stream_events(busy):
        seen += event.event == "job.ended"
        assert seen <= EVENTS_MAX, "the stream goes on without asking who reads"
    assert seen == 15


async def test_a_stream_goes_on_while_the_token_is_valid(
    busy: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    async def still_valid(subscription: Subscription) -> bool:
        nonlocal checks
        checks += 1
        return True

    monkeypatch.setattr(endpoints, "_still_valid", still_valid)
    events = [event async for event in stream_events(busy)]
    assert checks == 600 // 15
    assert sum(event.comment == "keepalive" for event in events) == checks


@pytest.mark.parametrize(("position", "skipped"), [(10, [90]), (200, []), (60, [])])
async def test_what_a_reset_skips_is_counted(
    busy: Subscription, monkeypatch: pytest.MonkeyPatch, position: int, skipped: list[int]
) -> None:
    async def bounds(subscription: Subscription) -> tuple[int, int]:
        return 50, 100

    def count(name: str, amount: int, *, reason: str) -> None:
        counted.append((name, amount, reason))

    counted: list[tuple[str, int, str]] = []
    monkeypatch.setattr(endpoints, "_bounds", bounds)
    monkeypatch.setattr(endpoints, "count", count)
    busy.position = position
    stream = cast(AsyncGenerator[ServerSentEvent, None], stream_events(busy))
    names = [(await anext(stream)).event for _ in range(2)]
    await stream.aclose()
    assert names[1] == ("ready" if position == 60 else "reset")
    assert counted == [("paceline.api.events_dropped", amount, "reset") for amount in skipped]
