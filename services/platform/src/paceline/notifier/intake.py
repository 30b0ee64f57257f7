"""From one incident event to its deliveries: the pipeline, as a list of stages.

All stages run in one transaction; a stage that answers False ends the pipeline. New behaviour is a
new stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.events import IncidentEvent, Severity
from paceline.contracts.ids import derived_id
from paceline.contracts.schemas import dump_json
from paceline.notifier.alerts import AlertReason, KnownAlert, alert_annotations, plan_alert
from paceline.notifier.decisions import NotifyReason, should_notify
from paceline.store.models.delivery import AlertState, Delivery
from paceline.store.repositories.deliveries import (
    PENDING,
    AlertRepository,
    DeliveryRepository,
    EndpointRepository,
)
from paceline.store.repositories.jobs import JobRepository
from paceline.store.times import from_unix

WEBHOOK = "webhook"
ALERTMANAGER = "alertmanager"


@dataclass
class Notice:
    """One event on its way through the stages, and what they decided."""

    event: IncidentEvent
    traceparent: str
    at: datetime
    reason: NotifyReason = NotifyReason.NOTIFY
    alert: AlertReason | None = None
    deliveries: list[Delivery] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


class Stage(Protocol):
    async def __call__(self, session: AsyncSession, notice: Notice) -> bool: ...


@dataclass(frozen=True)
class DedupStage:
    """An event that has deliveries is not told again, not even to receivers added since."""

    async def __call__(self, session: AsyncSession, notice: Notice) -> bool:
        if await DeliveryRepository(session).has_event(notice.event.id):
            notice.reason = NotifyReason.DUPLICATE
        return notice.reason.goes_on


@dataclass(frozen=True)
class SeverityStage:
    severity_min: Severity

    async def __call__(self, session: AsyncSession, notice: Notice) -> bool:
        known = await DeliveryRepository(session).has_incident(notice.event.incident)
        notice.reason = should_notify(notice.event.severity, self.severity_min, is_known=known)
        return notice.reason.goes_on


@dataclass(frozen=True)
class AlertStage:
    """Keeps the state of the incident's alert, and one delivery for each Alertmanager."""

    urls: Sequence[str]
    cluster: str

    async def __call__(self, session: AsyncSession, notice: Notice) -> bool:
        event = notice.event
        alerts = AlertRepository(session)
        state = await alerts.get(event.incident, for_update=True)
        known = None if state is None else KnownAlert(state.firing, dict(state.labels), state.starts_at)
        job = await JobRepository(session).get(event.job)
        cluster = (job.cluster if job is not None else "") or self.cluster
        plan = plan_alert(known, event, cluster, from_unix(event.at_unix_s))
        notice.alert = plan.reason
        if plan.reason is AlertReason.NOTHING_TO_RESOLVE:
            return True
        state = state or AlertState(incident_id=event.incident)
        state.firing = plan.firing
        state.labels = dict(plan.labels)
        state.former_labels = dict(plan.former_labels) if plan.former_labels else None
        state.annotations = dict(alert_annotations(event))
        state.generator_url = event.url
        state.starts_at = plan.starts_at
        state.updated_at = notice.at
        await alerts.save(state)
        for url in self.urls:
            notice.deliveries.append(make_delivery(notice, ALERTMANAGER, url, None))
        return True


@dataclass(frozen=True)
class WebhookStage:
    """One delivery for each enabled endpoint whose filter wants this event."""

    async def __call__(self, session: AsyncSession, notice: Notice) -> bool:
        for endpoint in await EndpointRepository(session).enabled_for(notice.event.type.short):
            notice.deliveries.append(make_delivery(notice, WEBHOOK, endpoint.url, endpoint.id))
        return True


@dataclass(frozen=True)
class RecordStage:
    """Writes the rows that are not there yet; the dispatcher takes them from the table."""

    async def __call__(self, session: AsyncSession, notice: Notice) -> bool:
        notice.added = await DeliveryRepository(session).add_new(notice.deliveries)
        return True


async def run_stages(stages: Sequence[Stage], session: AsyncSession, notice: Notice) -> Notice:
    for stage in stages:
        if not await stage(session, notice):
            break
    return notice


def make_delivery(notice: Notice, channel: str, target: str, endpoint_id: str | None) -> Delivery:
    """The pending row; its id is derived, so that the same event makes the same row."""
    event = notice.event
    return Delivery(
        id=derived_id("dlv", event.id, channel, endpoint_id or target),
        channel=channel,
        endpoint_id=endpoint_id,
        target=target,
        event_id=event.id,
        event_type=event.type.short,
        incident_id=event.incident,
        payload=dump_json(event).decode(),
        traceparent=notice.traceparent,
        status=PENDING,
        attempts_count=0,
        attempts=[],
        response_status=None,
        error="",
        next_attempt_at=notice.at,
        created_at=notice.at,
        updated_at=notice.at,
    )
