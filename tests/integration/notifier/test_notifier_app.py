"""The notifier with a real Kafka, a real PostgreSQL and real receivers on loopback."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from aiokafka.errors import KafkaError
from standardwebhooks.webhooks import Webhook

from paceline.contracts.events import EventType, IncidentEvent, IncidentStatus, Severity
from paceline.contracts.topics import INCIDENTS, Topic
from paceline.contracts.verdicts import VerdictClass
from paceline.lab.kafka import LocalKafka
from paceline.lab.postgres import LocalPostgres
from paceline.notifier.app import NotifierApp
from paceline.notifier.settings import NotifierSettings
from paceline.runtime.kafka import create_topics
from paceline.runtime.producer import Producer
from paceline.runtime.settings import KafkaSettings
from paceline.store import Database
from paceline.store.models.delivery import Delivery, WebhookEndpoint
from paceline.store.repositories.deliveries import (
    DeliveryRepository,
    EndpointRepository,
    draw_webhook_secret,
)
from paceline.store.settings import StoreSettings
from tests.unit.notifier.http_receiver import HttpReceiver, Request, reply
from tests.unit.notifier.notifier_factory import OPENED, resolved, with_class

Eventually = Callable[..., Awaitable[object]]
NOW = datetime.now(tz=timezone.utc)


@dataclass
class World:
    """What a test needs to drive one notifier."""

    settings: NotifierSettings
    database: Database
    producer: Producer

    async def publish(self, event: IncidentEvent) -> None:
        await self.producer.send_event(INCIDENTS, event.job, event.type, event, event_id=event.id)

    async def add_endpoint(self, url: str, event_types: tuple[str, ...] = ()) -> WebhookEndpoint:
        endpoint = WebhookEndpoint(
            id=f"whe_{uuid.uuid4().hex}",
            name="test",
            url=url,
            event_types=list(event_types),
            secrets=[draw_webhook_secret()],
            enabled=True,
            disabled_reason="",
            consecutive_failures=0,
            created_at=NOW,
            updated_at=NOW,
        )
        async with self.database.transaction() as session:
            return await EndpointRepository(session).add(endpoint)

    async def deliveries(self) -> list[Delivery]:
        async with self.database.transaction() as session:
            return list(await DeliveryRepository(session).page(None, 1_000))

    async def endpoint(self, endpoint_id: str) -> WebhookEndpoint:
        async with self.database.transaction() as session:
            found = await EndpointRepository(session).get(endpoint_id)
        assert found is not None
        return found

    @asynccontextmanager
    async def notifier(self, **changes: object) -> AsyncIterator[NotifierApp]:
        app = NotifierApp(self.settings.model_copy(update=changes))
        await app.start()
        try:
            yield app
        finally:
            await app.stop()


@pytest.fixture
async def world(kafka_bootstrap: str, database: str, eventually: Eventually) -> AsyncIterator[World]:
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, group_prefix=uuid.uuid4().hex[:8])
    settings = NotifierSettings(
        kafka=kafka,
        database=StoreSettings(url=database),
        allow_private_addresses=True,
        webhook_timeout_s=2.0,
        poll_s=0.1,
    )
    await create_topics(kafka, [INCIDENTS], timeout_s=30.0)
    await eventually(lambda: empty(kafka, INCIDENTS))
    store, producer = settings.database.open(), Producer(kafka, "test")
    await producer.start()
    yield World(settings, store, producer)
    await producer.stop()
    await store.stop()


async def empty(kafka: KafkaSettings, topic: Topic) -> bool:
    """Drop what earlier tests have left in the topic: a new group reads it from the beginning.

    False while the partitions of a new topic have no leader yet.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        everything = {
            TopicPartition(topic.name, number): RecordsToDelete(before_offset=-1)
            for number in range(topic.partitions)
        }
        await admin.delete_records(everything)
    except KafkaError:
        return False
    finally:
        await admin.close()
    return True


@pytest.fixture
async def receivers() -> AsyncIterator[tuple[HttpReceiver, HttpReceiver]]:
    pair = (HttpReceiver(), HttpReceiver())
    for receiver in pair:
        await receiver.start()
    yield pair
    for receiver in pair:
        await receiver.stop()


def fresh(event: IncidentEvent = OPENED) -> IncidentEvent:
    """An event of an incident of this test's own: the topic is shared."""
    tag = uuid.uuid4().hex
    return replace(event, id=f"evt_{tag}", incident=f"inc_{tag}", job=f"job-{tag}")


async def test_one_signed_webhook_for_each_event_and_none_for_a_repeated_one(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    receiver, event = receivers[0], fresh()
    endpoint = await world.add_endpoint(receiver.url + "/hook")
    async with world.notifier():
        await world.publish(event)
        await world.publish(event)
        await world.publish(resolved(event, event.id + "r"))
        await eventually(lambda: len(receiver.requests) == 2, 30)

        async def settled() -> bool:
            rows = await world.deliveries()
            return len(rows) == 2 and all(row.status == "delivered" for row in rows)

        await eventually(settled)
    by_id = {request.headers["webhook-id"]: request for request in receiver.requests}
    assert set(by_id) == {event.id, event.id + "r"}
    for request in receiver.requests:
        body = Webhook(endpoint.secrets[0]).verify(request.body, request.headers)
        assert body["data"]["verdict"]["class"] == "H1"
        assert body["data"]["severity"] == "critical"
        assert body["data"]["owner"] == "user_code"
    assert json.loads(by_id[event.id].body)["type"] == "incident.opened"
    row = next(row for row in await world.deliveries() if row.event_id == event.id)
    assert (row.channel, row.response_status, row.attempts_count, len(row.attempts)) == ("webhook", 204, 1, 1)


async def test_a_filtered_endpoint_gets_only_what_it_wants(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    everything, ends = receivers
    event = fresh()
    await world.add_endpoint(everything.url)
    await world.add_endpoint(ends.url, ("incident.resolved",))
    async with world.notifier():
        await world.publish(event)
        await world.publish(resolved(event, event.id + "r"))
        await eventually(lambda: len(everything.requests) == 2 and len(ends.requests) == 1, 30)
    assert json.loads(ends.requests[0].body)["type"] == "incident.resolved"


async def test_a_failing_endpoint_is_tried_again_with_the_same_id(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    receiver, event = receivers[0], fresh()
    receiver.answers = [reply(500, body=b"broken"), reply(204)]
    endpoint = await world.add_endpoint(receiver.url)
    async with world.notifier():
        await world.publish(event)
        await eventually(lambda: len(receiver.requests) == 2, 30)

        async def delivered() -> bool:
            return (await world.deliveries())[0].status == "delivered"

        await eventually(delivered)
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    row = (await world.deliveries())[0]
    assert [attempt["status"] for attempt in row.attempts] == [500, 204]
    assert row.attempts[0]["error"] == "HTTP 500: broken"
    assert (await world.endpoint(endpoint.id)).consecutive_failures == 0


async def test_gone_disables_the_endpoint_and_nothing_more_is_sent(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    (receiver, other), event = receivers, fresh()
    receiver.answers = [reply(410)]
    endpoint = await world.add_endpoint(receiver.url)
    async with world.notifier():
        await world.publish(event)

        async def disabled() -> bool:
            return not (await world.endpoint(endpoint.id)).enabled

        await eventually(disabled, 30)
        await world.add_endpoint(other.url)
        await world.publish(resolved(event, event.id + "r"))
        await eventually(lambda: other.requests, 30)
    assert len(receiver.requests) == 1
    assert "410" in (await world.endpoint(endpoint.id)).disabled_reason
    assert {row.target: row.status for row in await world.deliveries()}[receiver.url] == "failed"


async def test_a_slow_endpoint_does_not_hold_up_the_others(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    slow, quick = receivers
    release = asyncio.Event()

    async def wait(request: Request) -> bytes:
        await release.wait()
        return reply(204)

    slow.answers = [wait]
    await world.add_endpoint(slow.url)
    await world.add_endpoint(quick.url)
    async with world.notifier(concurrency_max=4, webhook_timeout_s=60.0):
        for _ in range(10):
            await world.publish(fresh())
        await eventually(lambda: len(quick.requests) == 10, 30)
        assert len(slow.requests) <= 4
        release.set()
        await eventually(lambda: len(slow.requests) == 10, 30)


async def test_due_deliveries_survive_a_restart(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    receiver, event = receivers[0], fresh()

    async def never(request: Request) -> bytes:
        await asyncio.Event().wait()
        return b""

    receiver.answers = [never, reply(204)]
    await world.add_endpoint(receiver.url)
    async with world.notifier(webhook_timeout_s=60.0):
        await world.publish(event)
        await eventually(lambda: len(receiver.requests) == 1, 30)
    row = (await world.deliveries())[0]
    assert (row.status, row.attempts_count) == ("pending", 0)
    async with world.notifier():
        await eventually(lambda: len(receiver.requests) == 2, 30)
    assert receiver.requests[1].headers["webhook-id"] == event.id


async def test_an_incident_is_told_in_order_while_an_endpoint_fails(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    receiver, first, other = receivers[0], fresh(), fresh()
    receiver.answers = [reply(500), reply(204)]
    await world.add_endpoint(receiver.url)
    async with world.notifier():
        await world.publish(first)
        await world.publish(resolved(first, first.id + "r"))
        await eventually(lambda: receiver.requests, 30)
        await world.publish(other)
        await eventually(lambda: len(receiver.requests) == 4, 30)
    told = [request.headers["webhook-id"] for request in receiver.requests]
    assert [name for name in told if name != other.id] == [first.id, first.id, first.id + "r"]


async def test_a_later_event_waits_for_the_earlier_one_of_its_endpoint_and_incident(world: World) -> None:
    endpoint = (await world.add_endpoint("http://x")).id
    another = (await world.add_endpoint("http://y")).id
    second_s = timedelta(seconds=1)
    rows = [
        pending("b_first", NOW, endpoint=endpoint, due=NOW + 60 * second_s),
        pending("a_second", NOW + second_s, endpoint=endpoint),
        pending("same_moment", NOW + second_s, endpoint=endpoint),
        pending("elsewhere", NOW + second_s, endpoint=another),
        pending("alert", NOW + second_s),
        pending("other_incident", NOW + second_s, endpoint=endpoint, incident="j"),
    ]

    async def claim(at: datetime) -> set[str]:
        async with world.database.transaction() as session:
            return {row.id for row in await DeliveryRepository(session).claim_due(at, 600 * second_s, 10, 5)}

    async def settle(delivery: str, status: str) -> None:
        async with world.database.transaction() as session:
            row = await DeliveryRepository(session).get(delivery)
            assert row is not None
            row.status = status

    async with world.database.transaction() as session:
        await DeliveryRepository(session).add_new(rows)
    assert await claim(NOW + second_s) == {"elsewhere", "alert", "other_incident"}
    assert await claim(NOW + 60 * second_s) == {"b_first"}
    await settle("b_first", "failed")
    assert await claim(NOW + 60 * second_s) == {"a_second"}
    await settle("a_second", "delivered")
    assert await claim(NOW + 60 * second_s) == {"same_moment"}


def pending(
    name: str,
    created: datetime,
    *,
    endpoint: str | None = None,
    incident: str = "i",
    due: datetime | None = None,
) -> Delivery:
    return Delivery(
        id=name, channel="webhook", endpoint_id=endpoint, target="http://x", event_id="e", event_type="t",
        incident_id=incident, payload="{}", traceparent="", status="pending", attempts_count=0, attempts=[],
        response_status=None, error="", next_attempt_at=due or created, created_at=created,
        updated_at=created,
    )  # fmt: skip


async def test_a_killed_notifier_leaves_a_lease_that_another_takes_over(world: World) -> None:
    row = pending("dlv_1", NOW)
    lease = timedelta(seconds=30)
    async with world.database.transaction() as session:
        assert await DeliveryRepository(session).add_new([row]) == ["dlv_1"]
    async with world.database.transaction() as first, world.database.transaction() as second:
        claimed = await DeliveryRepository(first).claim_due(NOW, lease, 10, 5)
        assert [one.id for one in claimed] == ["dlv_1"]
        assert await DeliveryRepository(second).claim_due(NOW, lease, 10, 5) == []
    async with world.database.transaction() as session:
        deliveries = DeliveryRepository(session)
        assert await deliveries.claim_due(NOW + lease / 2, lease, 10, 5) == []
        again = await deliveries.claim_due(NOW + lease, lease, 10, 5)
        assert [(one.id, one.attempts_count) for one in again] == [("dlv_1", 2)]


async def test_deliveries_in_the_air_count_against_the_bound_of_their_target(world: World) -> None:
    lease = timedelta(seconds=30)
    rows = [pending(f"dlv_{number}", NOW, incident=str(number)) for number in range(4)]
    async with world.database.transaction() as session:
        await DeliveryRepository(session).add_new(rows)
    for in_air, expected in (({"http://x": 2}, 0), ({"http://x": 1, "http://y": 2}, 1), ({}, 2)):
        async with world.database.transaction() as session:
            claimed = await DeliveryRepository(session).claim_due(NOW, lease, 10, 2, in_air)
        assert len(claimed) == expected


async def test_unreadable_events_become_dead_letters_and_the_next_is_told(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    receiver, event = receivers[0], fresh()
    await world.add_endpoint(receiver.url)
    async with world.notifier() as app:
        await world.producer.send(INCIDENTS, event.job, b"\xff\x00 garbage")
        await world.producer.send(INCIDENTS, event.job, b"{}", [("ce_specversion", b"1.0")])
        await world.publish(event)
        await eventually(lambda: receiver.requests, 30)
        assert app.readiness().ready
    assert json.loads(receiver.requests[0].body)["data"]["id"] == event.incident


async def test_alertmanager_hears_the_alert_its_better_verdict_its_end_and_the_watchdog(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    alertmanager, event = receivers[0], fresh()
    better = replace(
        with_class(VerdictClass.H3, event), id=event.id + "u", type=EventType.INCIDENT_UPDATED, revision=2
    )

    def alerts() -> list[dict[str, dict[str, str]]]:
        return [alert for request in alertmanager.requests for alert in json.loads(request.body)]

    def of(verdict: str) -> list[dict[str, dict[str, str]]]:
        return [
            alert
            for alert in alerts()
            if alert["labels"].get("verdict") == verdict and alert["labels"]["job"] == event.job
        ]

    async with world.notifier(
        alertmanager_urls=(alertmanager.url,),
        cluster="c1",
        alertmanager_resend_s=0.2,
        alertmanager_hold_s=60.0,
    ):
        await world.publish(event)
        await eventually(lambda: len(of("H1")) >= 2, 30)  # the push and at least one repetition
        await world.publish(better)
        await eventually(lambda: of("H3"), 30)
        await eventually(lambda: any(is_over(alert) for alert in of("H1")), 30)
        await world.publish(resolved(better, event.id + "r"))
        await eventually(lambda: any(is_over(alert) for alert in of("H3")), 30)
        await eventually(
            lambda: any(alert["labels"]["alertname"] == "PacelineWatchdog" for alert in alerts()), 30
        )
        repeated = len(alertmanager.requests)
        await eventually(lambda: len(alertmanager.requests) > repeated + 1, 30)
        assert all(alert["labels"].get("job") != event.job for alert in alerts_of(alertmanager.requests[-1]))
    assert {request.path for request in alertmanager.requests} == {"/api/v2/alerts"}
    first = of("H1")[0]
    assert first["labels"]["alertname"] == "PacelineTrainingHang"
    assert first["labels"]["cluster"] == "c1"
    assert "rank" not in first["labels"]
    assert first["annotations"]["ranks"] == "5"


def is_over(alert: dict[str, dict[str, str]]) -> bool:
    """Whether `endsAt` was already past when it was sent, give or take a second."""
    return datetime.fromisoformat(str(alert["endsAt"])) <= datetime.now(tz=timezone.utc) + timedelta(
        seconds=1
    )


def alerts_of(request: Request) -> list[dict[str, dict[str, str]]]:
    found: list[dict[str, dict[str, str]]] = json.loads(request.body)
    return found


async def test_quiet_incidents_are_not_told_but_the_end_of_told_ones_is(
    world: World, receivers: tuple[HttpReceiver, HttpReceiver], eventually: Eventually
) -> None:
    receiver, loud = receivers[0], fresh()
    quiet = replace(fresh(), severity=Severity.INFO)
    calm_end = replace(resolved(loud, loud.id + "r"), severity=Severity.INFO, status=IncidentStatus.RESOLVED)
    await world.add_endpoint(receiver.url)
    async with world.notifier(severity_min=Severity.ERROR):
        for event in (quiet, loud, calm_end):
            await world.publish(event)
        await eventually(lambda: len(receiver.requests) == 2, 30)
    assert {request.headers["webhook-id"] for request in receiver.requests} == {loud.id, calm_end.id}


async def test_an_event_published_around_a_kafka_restart_is_delivered_once_kafka_is_back(
    world: World,
    receivers: tuple[HttpReceiver, HttpReceiver],
    kafka_server: LocalKafka,
    eventually: Eventually,
) -> None:
    receiver, before, after = receivers[0], fresh(), fresh()
    await world.add_endpoint(receiver.url)
    async with world.notifier():
        await world.publish(before)
        await eventually(lambda: len(receiver.requests) == 1, 30)
        kafka_server.stop()
        kafka_server.start()

        async def published() -> bool:
            try:
                await world.publish(after)
            except ConnectionError:
                return False
            return True

        await eventually(published, 60)
        await eventually(lambda: after.id in {r.headers["webhook-id"] for r in receiver.requests}, 60)
    assert sum(r.headers["webhook-id"] == after.id for r in receiver.requests) == 1


async def test_an_event_that_comes_while_postgresql_is_down_is_told_when_it_is_back(
    world: World,
    receivers: tuple[HttpReceiver, HttpReceiver],
    postgres_server: LocalPostgres,
    eventually: Eventually,
) -> None:
    receiver, event = receivers[0], fresh()
    await world.add_endpoint(receiver.url)
    async with world.notifier() as app:
        await eventually(lambda: app.readiness().ready, 30)
        postgres_server.stop()
        await world.publish(event)
        await eventually(lambda: "retrying" in app.readiness().detail, 30)
        postgres_server.start()
        await eventually(lambda: receiver.requests, 60)
        await eventually(lambda: app.readiness().ready, 30)
    assert [request.headers["webhook-id"] for request in receiver.requests] == [event.id]
