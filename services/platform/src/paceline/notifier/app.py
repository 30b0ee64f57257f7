"""The service: one consumer, the dispatcher, the Alertmanager repeater and a cleaner."""

from datetime import timedelta

from paceline.contracts.events import IncidentEvent
from paceline.contracts.topics import INCIDENTS
from paceline.notifier.alertmanager import AlertmanagerPusher
from paceline.notifier.dispatcher import Dispatcher
from paceline.notifier.guard import Resolve, resolve
from paceline.notifier.http import Sender
from paceline.notifier.intake import (
    AlertStage,
    DedupStage,
    Notice,
    RecordStage,
    SeverityStage,
    Stage,
    WebhookStage,
    run_stages,
)
from paceline.notifier.settings import NotifierSettings
from paceline.runtime.app import BackgroundTasks, Readiness, first_crash
from paceline.runtime.clock import Clock, SystemClock
from paceline.runtime.cloud_events import EventHeaders
from paceline.runtime.consumer import Consumer
from paceline.runtime.handling import RetryPolicy, each_event
from paceline.runtime.logging import get_logger
from paceline.runtime.options import ConsumerOptions
from paceline.runtime.producer import Producer
from paceline.runtime.retry import is_transient as is_transient_kafka
from paceline.runtime.telemetry import current_traceparent
from paceline.store import is_transient
from paceline.store.repositories.deliveries import AlertRepository, DeliveryRepository
from paceline.store.times import from_unix

GROUP = "notifier"
CLEAN_INTERVAL_S = 300.0
CLEAN_ROWS_MAX = 1_000
log = get_logger(__name__)


class NotifierApp:
    """Start as many as you like: they share partitions and due deliveries."""

    name = "notifier"

    def __init__(
        self, settings: NotifierSettings, clock: Clock | None = None, *, resolve: Resolve = resolve
    ) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._database = settings.database.open()
        self._tasks = BackgroundTasks()
        self._producer = Producer(settings.kafka, self.name, clock=self._clock)
        self._webhooks = Sender(
            settings, self._clock, timeout_s=settings.webhook_timeout_s, guarded=True, resolve=resolve
        )
        self._alerts = Sender(settings, self._clock, timeout_s=settings.alertmanager_timeout_s, guarded=False)
        self._pusher = AlertmanagerPusher(settings, self._database, self._alerts, self._clock, self.readiness)
        self._dispatcher = Dispatcher(settings, self._database, self._webhooks, self._pusher, self._clock)
        self._stages: tuple[Stage, ...] = (
            DedupStage(),
            SeverityStage(settings.severity_min),
            AlertStage(settings.alertmanager_urls, settings.cluster),
            WebhookStage(),
            RecordStage(),
        )
        self._consumer = Consumer(
            settings.kafka,
            [INCIDENTS],
            GROUP,
            each_event(IncidentEvent, "incident", self._handle),
            producer=self._producer,
            options=ConsumerOptions(retry=RetryPolicy(transient=_is_transient)),
            clock=self._clock,
        )

    async def start(self) -> None:
        """Begin in the background; never fails, never waits for Kafka or PostgreSQL."""
        await self._producer.start()
        await self._consumer.start()
        self._tasks.spawn("notifier-dispatch", self._dispatcher.run())
        self._tasks.spawn("notifier-clean", self._clean())
        if self._settings.alertmanager_urls:
            self._tasks.spawn("notifier-repeat", self._pusher.run())

    async def stop(self) -> None:
        """Events not yet handled come again; deliveries in the air are finished or due at once."""
        await self._consumer.stop()
        await self._tasks.cancel()
        await self._dispatcher.stop()
        await self._webhooks.stop()
        await self._alerts.stop()
        await self._producer.stop()
        await self._database.stop()

    async def crashed(self) -> BaseException:
        return await first_crash(self._tasks, self._consumer)

    def readiness(self) -> Readiness:
        return self._consumer.readiness()

    async def _handle(self, headers: EventHeaders, event: IncidentEvent) -> None:
        notice = Notice(event, current_traceparent() or headers.traceparent, from_unix(self._clock.unix_s()))
        async with self._database.transaction() as session:
            await run_stages(self._stages, session, notice)
        self._dispatcher.wake()
        log.info(
            "event_routed", incident=event.incident, event_type=event.type.short, reason=notice.reason.value,
            alert=notice.alert.value if notice.alert else "", deliveries=len(notice.added),
        )  # fmt: skip

    async def _clean(self) -> None:
        while True:
            before = from_unix(self._clock.unix_s()) - timedelta(days=self._settings.log_days_max)
            try:
                async with self._database.transaction() as session:
                    await DeliveryRepository(session).delete_settled_before(before, CLEAN_ROWS_MAX)
                    await AlertRepository(session).delete_resolved_before(before, CLEAN_ROWS_MAX)
            except Exception as error:
                if not is_transient(error):
                    raise
            await self._clock.sleep(CLEAN_INTERVAL_S)


def _is_transient(error: BaseException) -> bool:
    return is_transient(error) or is_transient_kafka(error)
