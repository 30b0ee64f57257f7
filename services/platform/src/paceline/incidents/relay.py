"""Publishes the outbox to Kafka, in order (docs/adr/0016-outbox.md).

One relay at a time holds an advisory lock for the length of a batch; others wait their turn. A row
is marked only after Kafka has acknowledged it, so a crash in between publishes it once more, with
the same id. While Kafka or PostgreSQL is away the rows wait in the table.
"""

import asyncio

from paceline.contracts.commands import Command
from paceline.contracts.events import EventType, IncidentEvent
from paceline.contracts.schemas import ContractError, load_json
from paceline.contracts.topics import COMMANDS, TOPICS
from paceline.incidents.settings import IncidentsSettings
from paceline.runtime.app import BackgroundTasks, Readiness
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.kafka import KafkaUnavailable
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge
from paceline.runtime.producer import Producer
from paceline.runtime.retry import Backoff
from paceline.store import is_transient
from paceline.store.models.outbox import OutboxEvent
from paceline.store.outbox_watch import OutboxWatch
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.sequence import RELAY_LOCK, try_lock
from paceline.store.times import from_unix

SOURCE = "paceline/incidents"
TOPIC_BY_NAME = {topic.name: topic for topic in TOPICS}
log = get_logger(__name__)


class OutboxRelay:
    """An app. Start as many as there are instances of the service; one works at a time."""

    name = "outbox-relay"

    def __init__(self, settings: IncidentsSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._database = settings.database.open()
        self._watch = OutboxWatch(settings.database.url, poll_s=settings.outbox_poll_s)
        self._producer = Producer(settings.kafka, self.name, clock=self._clock)
        self._backoff = Backoff(first_s=0.1, max_s=5.0)
        self._tasks = BackgroundTasks()
        self._failing = ""
        self.published = 0
        self.refused = 0

    async def start(self) -> None:
        """Begin in the background; never fails."""
        await self._producer.start()
        await self._watch.start()
        self._tasks.spawn(self.name, self._run())

    async def stop(self) -> None:
        """What is not published by now is published by the next one."""
        await self._watch.stop()
        await self._tasks.cancel()
        await self._producer.stop()
        await self._database.stop()

    async def crashed(self) -> BaseException:
        return await self._tasks.crashed()

    def readiness(self) -> Readiness:
        return Readiness(not self._failing, self._failing)

    async def _run(self) -> None:
        failures = 0
        while True:
            mark = self._watch.mark()
            try:
                done = await self.publish_batch()
            except Exception as error:  # KafkaUnavailable is a ConnectionError, so transient too
                if not is_transient(error):
                    raise
                self._failing = f"outbox relay: {error}"[:300]
                if failures in (0, 5, 50):
                    log.warning("outbox_waiting", error=self._failing, failures=failures)
                await asyncio.sleep(self._backoff.delay_s(failures))
                failures += 1
                continue
            failures, self._failing = 0, ""
            if done == 0:
                await self._watch.wait(mark)

    async def publish_batch(self) -> int:
        """Publish the oldest unpublished rows; returns how many. KafkaUnavailable only after those
        that Kafka took are marked."""
        error: KafkaUnavailable | None = None
        async with self._database.transaction() as session:
            if not await try_lock(session, RELAY_LOCK):
                return 0
            outbox = OutboxRepository(session)
            rows = await outbox.unpublished(self._settings.relay_batch_max)
            sent: list[int] = []
            began_ns = self._clock.monotonic_ns()
            for row in rows:
                try:
                    await self._send(row)
                except KafkaUnavailable as unavailable:
                    error = unavailable
                    break
                sent.append(row.sequence)
                if (self._clock.monotonic_ns() - began_ns) / 1e9 > self._settings.relay_batch_s_max:
                    break
            if sent:
                await outbox.mark_published(sent, from_unix(self._clock.unix_s()))
            pending = await outbox.unpublished_count()
        self.published += len(sent)
        gauge("paceline.outbox.pending", pending)
        if error is not None:
            raise error
        return len(sent)

    async def _send(self, row: OutboxEvent) -> None:
        try:
            event_type, event = read_payload(row)
            await self._producer.send_event(
                TOPIC_BY_NAME[row.topic],
                row.key,
                event_type.value,
                event,
                event_id=row.id,
                source=SOURCE,
                traceparent=row.traceparent,
                timeout_s=self._settings.relay_send_timeout_s,
            )
        except (ContractError, ValueError, KeyError) as error:
            # Kafka will never take it. Waiting would keep every later event from everybody.
            self.refused += 1
            count("paceline.kafka.dropped", topic=row.topic, reason="refused")
            log.error("outbox_event_refused", event_id=row.id, sequence=row.sequence, error=str(error)[:300])
        else:
            count("paceline.outbox.published", topic=row.topic)


def read_payload(row: OutboxEvent) -> tuple[EventType, IncidentEvent | Command]:
    """What a row carries to Kafka; ContractError where it is not of its topic's type."""
    if row.topic == COMMANDS.name:
        return EventType.COMMAND, load_json(Command, row.payload)
    event = load_json(IncidentEvent, row.payload)
    return event.type, event
