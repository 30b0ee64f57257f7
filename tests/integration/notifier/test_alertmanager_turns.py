"""Two notifiers at one Alertmanager, and more firing alerts than one push holds; real PostgreSQL and HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timezone

import pytest
from sqlalchemy import text

from paceline.notifier import alertmanager
from paceline.notifier.alertmanager import AlertmanagerPusher
from paceline.notifier.decisions import AttemptReason
from paceline.notifier.http import Sender
from paceline.notifier.settings import NotifierSettings
from paceline.runtime.app import Readiness
from paceline.runtime.clock import SystemClock
from paceline.store import Database
from paceline.store.models.delivery import AlertState
from paceline.store.repositories.deliveries import AlertRepository
from tests.unit.notifier.http_receiver import HttpReceiver, Request, reply

Eventually = Callable[..., Awaitable[object]]
NOW = datetime.now(tz=timezone.utc)
Pushers = Callable[[], AlertmanagerPusher]


def state(incident: str, *, firing: bool = True) -> AlertState:
    return AlertState(
        incident_id=incident, firing=firing, labels={"alertname": "X", "incident": incident},
        former_labels=None, annotations={}, generator_url="http://c", starts_at=NOW, updated_at=NOW,
    )  # fmt: skip


@pytest.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    server = HttpReceiver()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def make_pusher(receiver: HttpReceiver, database: str) -> AsyncIterator[Pushers]:
    """Each with a pool and locks of its own, as in two processes."""
    made: list[tuple[Database, Sender]] = []

    def make() -> AlertmanagerPusher:
        settings = NotifierSettings(alertmanager_urls=(receiver.url,))
        store = Database(database)
        sender = Sender(settings, SystemClock(), timeout_s=10.0, guarded=False)
        made.append((store, sender))
        return AlertmanagerPusher(settings, store, sender, SystemClock(), lambda: Readiness(False, "test"))

    yield make
    for store, sender in made:
        await sender.stop()
        await store.stop()


def incidents(receiver: HttpReceiver) -> list[str]:
    return [
        alert["labels"]["incident"] for request in receiver.requests for alert in json.loads(request.body)
    ]


async def test_a_repetition_does_not_overtake_the_resolution_of_another_notifier(
    receiver: HttpReceiver, make_pusher: Pushers, store: Database, eventually: Eventually
) -> None:
    arrived, let_go = asyncio.Event(), asyncio.Event()

    async def slowly(request: Request) -> bytes:
        arrived.set()
        await let_go.wait()
        return reply(200)

    receiver.answers = [slowly, reply(200)]
    async with store.transaction() as session:
        session.add(state("inc_1"))
    repetition = asyncio.create_task(make_pusher().repeat(receiver.url))
    await asyncio.wait_for(arrived.wait(), 30)
    async with store.transaction() as session:
        found = await AlertRepository(session).get("inc_1")
        assert found is not None
        found.firing = False
    resolution = asyncio.create_task(make_pusher().push_incident(receiver.url, "inc_1"))

    async def waits_or_is_told() -> bool:
        return len(receiver.requests) > 1 or await waits_for_a_lock(store)

    await eventually(waits_or_is_told, 30)
    assert len(receiver.requests) == 1
    let_go.set()
    await repetition
    assert (await resolution).reason is AttemptReason.DELIVERED
    assert incidents(receiver) == ["inc_1", "inc_1"]


async def waits_for_a_lock(store: Database) -> bool:
    async with store.transaction() as session:
        query = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(await session.scalar(query))


async def test_more_alerts_than_one_push_holds_are_all_repeated(
    receiver: HttpReceiver, make_pusher: Pushers, store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alertmanager, "PUSH_ALERTS_MAX", 2)
    async with store.transaction() as session:
        session.add_all([state(f"inc_{number}", firing=number != 3) for number in range(6)])
    await make_pusher().repeat(receiver.url)
    assert incidents(receiver) == ["inc_0", "inc_1", "inc_2", "inc_4", "inc_5"]


@pytest.mark.parametrize(("answer", "pushes"), [(reply(200), 4), (reply(500), 3)])
async def test_what_a_round_leaves_out_is_counted(
    receiver: HttpReceiver,
    make_pusher: Pushers,
    store: Database,
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes,
    pushes: int,
) -> None:
    """Beyond the bound of a round, and behind an Alertmanager that refuses again and again."""
    counted: list[str] = []
    monkeypatch.setattr(alertmanager, "PUSH_ALERTS_MAX", 1)
    monkeypatch.setattr(alertmanager, "PUSHES_MAX", 4)
    monkeypatch.setattr(alertmanager, "count", lambda *_, outcome, **__: counted.append(outcome))
    receiver.answers = [answer]
    async with store.transaction() as session:
        session.add_all([state(f"inc_{number}") for number in range(6)])
    await make_pusher().repeat(receiver.url)
    assert len(receiver.requests) == pushes
    assert counted[pushes:] == ["left_out"]
