"""Pushes alerts to Alertmanager's v2 API and repeats them before they end by themselves."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.notifier.alerts import alert_json, watchdog_json
from paceline.notifier.decisions import AttemptReason, Outcome
from paceline.notifier.http import Sender
from paceline.notifier.settings import NotifierSettings
from paceline.runtime.app import Readiness
from paceline.runtime.clock import Clock
from paceline.runtime.logging import get_logger
from paceline.runtime.metrics import count, observe
from paceline.store import Database, is_transient
from paceline.store.models.delivery import AlertState
from paceline.store.repositories.deliveries import AlertRepository
from paceline.store.sequence import lock_name
from paceline.store.times import from_unix

PATH = "/api/v2/alerts"
PUSH_ALERTS_MAX = 200
PUSHES_MAX = 100  # of one round: so many alerts are repeated, the rest is counted and logged
FAILURES_MAX = 3  # in a row end a round: the next one begins soon
HEADERS = {"content-type": "application/json", "user-agent": "paceline-notifier/1"}
log = get_logger(__name__)


class AlertmanagerPusher:
    """One lock for each Alertmanager, in PostgreSQL, held over reading and pushing: no repetition
    overtakes a resolution, of this notifier or of another one."""

    def __init__(
        self,
        settings: NotifierSettings,
        database: Database,
        sender: Sender,
        clock: Clock,
        healthy: Callable[[], Readiness],
    ) -> None:
        self._settings = settings
        self._database = database
        self._sender = sender
        self._clock = clock
        self._healthy = healthy
        self._hold = timedelta(seconds=settings.alertmanager_hold_s)
        self._locks = {url: asyncio.Lock() for url in settings.alertmanager_urls}
        self._started_at = from_unix(clock.unix_s())

    async def push_incident(self, url: str, incident_id: str) -> Outcome:
        """Tell `url` the present state of one incident's alert, whatever the event was."""
        if url not in self._locks:
            return Outcome(
                None, AttemptReason.NOT_WANTED, "no longer among PACELINE_NOTIFIER_ALERTMANAGER_URLS"
            )
        async with self._turn(url) as session:
            state = await AlertRepository(session).get(incident_id)
            if state is None:
                return Outcome(None, AttemptReason.NOT_WANTED, "the alert is no longer known")
            return await self._push(url, self._alerts(state))

    async def run(self) -> None:
        """Repeat what fires, and the watchdog, until cancelled."""
        while True:
            for url in self._settings.alertmanager_urls:
                try:
                    await self.repeat(url)
                except Exception as error:
                    if not is_transient(error):
                        raise
                    log.warning("alerts_not_repeated", url=url, error=str(error)[:300])
            await self._clock.sleep(self._settings.alertmanager_resend_s)

    async def repeat(self, url: str) -> list[Outcome]:
        """One round: the watchdog while we are healthy, then every firing alert, in parts."""
        outcomes: list[Outcome] = []
        after, failures = "", 0
        for number in range(PUSHES_MAX):
            async with self._turn(url) as session:
                firing = await AlertRepository(session).firing(after, PUSH_ALERTS_MAX)
                alerts = [alert for state in firing for alert in self._alerts(state)]
                if number == 0 and self._healthy().ready:
                    now = from_unix(self._clock.unix_s())
                    alerts.insert(0, watchdog_json(self._settings.cluster, self._started_at, now, self._hold))
                if alerts:
                    outcomes.append(await self._push(url, alerts))
                    _count_repeated(outcomes[-1].reason.value)
                    failures = 0 if outcomes[-1].reason is AttemptReason.DELIVERED else failures + 1
            if len(firing) < PUSH_ALERTS_MAX:
                return outcomes
            after = firing[-1].incident_id
            if failures >= FAILURES_MAX:
                break
        _count_repeated("left_out")
        log.warning("alerts_left_out", url=url, pushes=len(outcomes), failures=failures)
        return outcomes

    @asynccontextmanager
    async def _turn(self, url: str) -> AsyncIterator[AsyncSession]:
        """Nobody else reads states to push them to `url` meanwhile. Waiting here takes no connection."""
        async with self._locks[url], self._database.transaction() as session:
            await lock_name(session, f"alertmanager:{url}")
            yield session

    def _alerts(self, state: AlertState) -> list[dict[str, object]]:
        now = from_unix(self._clock.unix_s())
        ends_at = now + self._hold if state.firing else max(now, state.starts_at)
        alerts = [alert_json(state.labels, state.annotations, state.starts_at, ends_at, state.generator_url)]
        if state.former_labels:
            ended = max(now, state.starts_at)
            alerts.append(
                alert_json(
                    state.former_labels, state.annotations, state.starts_at, ended, state.generator_url
                )
            )
        return alerts

    async def _push(self, url: str, alerts: Sequence[dict[str, object]]) -> Outcome:
        outcome = await self._sender.post(url + PATH, HEADERS, json.dumps(alerts).encode())
        observe("paceline.webhook.duration", outcome.seconds, integration="alertmanager")
        if outcome.reason is not AttemptReason.DELIVERED:
            log.warning("alertmanager_push_failed", url=url, reason=outcome.reason.value, error=outcome.error)
        return outcome


def _count_repeated(outcome: str) -> None:
    count("paceline.webhook.deliveries", integration="alertmanager-repeat", outcome=outcome)
