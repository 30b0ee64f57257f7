"""Takes due deliveries from the table, sends them, and writes down what came of it.

Bounds: `concurrency_max` attempts in the air, a few for each receiver, each attempt within its
timeout; retries by `decisions.SCHEDULE_S`. What is in the air when the process dies is due again
when its lease ends.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from paceline.contracts.events import IncidentEvent
from paceline.contracts.schemas import ContractError, load_json
from paceline.notifier.alertmanager import AlertmanagerPusher
from paceline.notifier.decisions import AttemptReason, Outcome
from paceline.notifier.http import Sender
from paceline.notifier.intake import ALERTMANAGER
from paceline.notifier.record import record_outcome
from paceline.notifier.settings import NotifierSettings
from paceline.notifier.webhook import webhook_body, webhook_headers
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, gauge, observe
from paceline.runtime.retry import Backoff
from paceline.runtime.telemetry import SpanKind, current_traceparent, span
from paceline.store import Database, is_transient
from paceline.store.models.delivery import Delivery
from paceline.store.repositories.deliveries import DeliveryRepository, EndpointRepository
from paceline.store.times import from_unix

LEASE_SPARE_S = 10.0
STOP_S_MAX = 3.0
STRANGE_FAILURES_MAX = 5  # in a row, errors that is_transient does not know
RECORD_BACKOFF = Backoff(first_s=0.2, max_s=5.0)
RECORD_TRIES_MAX = 8
log = get_logger(__name__)


@dataclass(frozen=True)
class Target:
    """Where one delivery goes, read when it was claimed."""

    url: str
    secrets: tuple[str, ...] = ()
    is_wanted: bool = True


class Dispatcher:
    def __init__(
        self,
        settings: NotifierSettings,
        database: Database,
        sender: Sender,
        pusher: AlertmanagerPusher,
        clock: Clock,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._database = database
        self._sender = sender
        self._pusher = pusher
        self._clock = clock
        self._spread = spread
        self._wake = asyncio.Event()
        self._attempts: dict[str, asyncio.Task[None]] = {}
        self._busy: Counter[str] = Counter()
        longest_s = max(settings.webhook_timeout_s, settings.alertmanager_timeout_s)
        self._lease = timedelta(seconds=longest_s + LEASE_SPARE_S)

    def wake(self) -> None:
        """Something may be due."""
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        failures = 0
        while True:
            self._wake.clear()
            try:
                claimed = await self._claim()
                failures = 0
            except Exception as error:
                # A driver whose server goes away in the middle of a call also says other things.
                if not is_transient(error) and failures >= STRANGE_FAILURES_MAX:
                    raise
                if failures in (0, 5, 50) or not is_transient(error):
                    log.warning("deliveries_waiting", error=repr(error)[:300], failures=failures)
                await self._clock.sleep(RECORD_BACKOFF.delay_s(failures))
                failures += 1
                continue
            for delivery, target in claimed:
                self._launch(delivery, target)
            if not claimed:
                await self._wait()

    async def stop(self) -> None:
        """Wait a little for what is in the air; what is cancelled is due again at once."""
        if self._attempts:
            await asyncio.wait(self._attempts.values(), timeout=STOP_S_MAX)
        left = dict(self._attempts)
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        if left:
            try:
                async with self._database.transaction() as session:
                    await DeliveryRepository(session).release(list(left), from_unix(self._clock.unix_s()))
            except Exception as error:
                log.warning("deliveries_not_released", count=len(left), error=str(error)[:300])

    async def _claim(self) -> list[tuple[Delivery, Target]]:
        free = self._settings.concurrency_max - len(self._attempts)
        if free <= 0:
            return []
        per_target = self._settings.concurrency_per_target_max
        async with self._database.transaction() as session:
            deliveries = DeliveryRepository(session)
            now = from_unix(self._clock.unix_s())
            rows = await deliveries.claim_due(now, self._lease, free, per_target, dict(self._busy))
            claimed = []
            for row in rows:
                if row.channel == ALERTMANAGER:
                    claimed.append((row, Target(row.target)))
                    continue
                endpoint = await EndpointRepository(session).get(row.endpoint_id or "")
                if endpoint is None or not endpoint.enabled:
                    claimed.append((row, Target(row.target, is_wanted=False)))
                else:
                    claimed.append((row, Target(endpoint.url, tuple(endpoint.secrets))))
            gauge("paceline.webhook.pending", await deliveries.pending_count())
        return claimed

    def _launch(self, delivery: Delivery, target: Target) -> None:
        task = asyncio.create_task(self._attempt(delivery, target), name=f"deliver-{delivery.id}")
        self._attempts[delivery.id] = task
        self._busy[delivery.target] += 1

        def settled(done: asyncio.Task[None]) -> None:
            self._attempts.pop(delivery.id, None)
            self._busy[delivery.target] -= 1
            if self._busy[delivery.target] <= 0:
                del self._busy[delivery.target]
            if not done.cancelled() and (error := done.exception()) is not None:
                log.error("delivery_not_recorded", delivery=delivery.id, error=repr(error)[:300])
            self._wake.set()

        task.add_done_callback(settled)

    async def _attempt(self, delivery: Delivery, target: Target) -> None:
        with span(
            f"deliver {delivery.channel}",
            traceparent=delivery.traceparent,
            kind=SpanKind.CLIENT,
            attributes={"paceline.incident": delivery.incident_id, "paceline.event": delivery.event_type},
        ) as active:
            outcome = await self._send(delivery, target)
            active.set_attribute("paceline.outcome", outcome.reason.value)
            if outcome.status is not None:
                active.set_attribute("http.response.status_code", outcome.status)
        await self._record(delivery, outcome)

    async def _send(self, delivery: Delivery, target: Target) -> Outcome:
        if not target.is_wanted:
            return Outcome(None, AttemptReason.NOT_WANTED, "the endpoint is disabled or was deleted")
        if delivery.channel == ALERTMANAGER:
            return await self._pusher.push_incident(target.url, delivery.incident_id)
        try:
            event = load_json(IncidentEvent, delivery.payload)
            body = webhook_body(event)
            now = from_unix(self._clock.unix_s())
            headers = webhook_headers(event.id, body, target.secrets, now, current_traceparent())
        except (ContractError, ValueError, RuntimeError) as error:
            return Outcome(None, AttemptReason.UNUSABLE, f"message or secret cannot be used: {error}"[:300])
        outcome = await self._sender.post(target.url, headers, body)
        observe("paceline.webhook.duration", outcome.seconds, integration="webhook")
        return outcome

    async def _record(self, delivery: Delivery, outcome: Outcome) -> None:
        """Write the outcome; the database may be away for a while, the lease is the bound."""
        for attempt in range(RECORD_TRIES_MAX):
            try:
                async with self._database.transaction() as session:
                    now = from_unix(self._clock.unix_s())
                    status = await record_outcome(session, delivery, outcome, now, self._spread())
                break
            except Exception as error:
                if not is_transient(error) or attempt + 1 == RECORD_TRIES_MAX:
                    raise
                await self._clock.sleep(RECORD_BACKOFF.delay_s(attempt))
        count("paceline.webhook.deliveries", integration=delivery.channel, outcome=outcome.reason.value)
        log.info(
            "delivery_attempted",
            delivery=delivery.id,
            channel=delivery.channel,
            event_type=delivery.event_type,
            incident=delivery.incident_id,
            attempt=delivery.attempts_count,
            outcome=outcome.reason.value,
            status=status,
            error=outcome.error,
        )

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._settings.poll_s):
                await self._wake.wait()
        except TimeoutError:
            pass
