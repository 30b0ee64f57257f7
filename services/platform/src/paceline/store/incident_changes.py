"""Changing an incident: row, timeline entry, audit entry and outbox row in one transaction.

Both the incidents service (verdicts, ends of jobs) and the API (people) come through here, so that
an event tells the same story whoever caused it.
"""

from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.events import EventType, IncidentEvent, IncidentStatus, Severity
from paceline.contracts.schemas import dump_json
from paceline.contracts.topics import INCIDENTS
from paceline.contracts.verdicts import Verdict
from paceline.store.actors import Actor
from paceline.store.base import JsonObject
from paceline.store.models.incident import Incident
from paceline.store.models.outbox import OutboxEvent
from paceline.store.models.timeline import TimelineEntry
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.times import to_unix

_VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)
MESSAGE_LENGTH_MAX = 4000


@dataclass(frozen=True)
class ChangeContext:
    """Who, when, and how the event is called. `event_id` is the same for the same cause."""

    actor: Actor
    at: datetime
    event_id: str
    console_url: str
    traceparent: str = ""


def dump_verdict(verdict: Verdict) -> JsonObject:
    """As the `verdict` columns hold it."""
    value: JsonObject = _VERDICT.dump_python(verdict, mode="json")
    return value


def read_verdict(value: JsonObject) -> Verdict:
    """Inverse of `dump_verdict`."""
    return _VERDICT.validate_python(value)


def incident_url(console_url: str, incident_id: str) -> str:
    return f"{console_url.rstrip('/')}/incidents/{incident_id}"


async def record_change(
    session: AsyncSession,
    incident: Incident,
    event_type: EventType,
    message: str,
    context: ChangeContext,
    details: JsonObject | None = None,
) -> None:
    """Write down a change already made to `incident`, and tell everybody about it."""
    incident.version += 1
    incident.updated_at = context.at
    await session.flush()
    kind = event_type.short.partition(".")[2]
    add_timeline_entry(session, incident.id, kind, message, context, details)
    await append_incident_event(session, incident, event_type, context)
    await AuditRepository(session).append(
        context.at,
        context.actor,
        event_type.short,
        ("incident", incident.id),
        {"version": incident.version, "status": incident.status, "revision": incident.revision}
        | (details or {}),
    )


def add_timeline_entry(
    session: AsyncSession,
    incident_id: str,
    kind: str,
    message: str,
    context: ChangeContext,
    details: JsonObject | None = None,
) -> TimelineEntry:
    """One line of the timeline; the message is cut at MESSAGE_LENGTH_MAX characters."""
    entry = TimelineEntry(
        incident_id=incident_id,
        at=context.at,
        kind=kind,
        actor=context.actor.name,
        actor_type=context.actor.type,
        source=context.actor.source,
        message=message[:MESSAGE_LENGTH_MAX],
        details=details or {},
    )
    session.add(entry)
    return entry


async def append_incident_event(
    session: AsyncSession, incident: Incident, event_type: EventType, context: ChangeContext
) -> None:
    """The outbox row for Kafka and the event stream."""
    event = build_event(incident, event_type, context)
    await OutboxRepository(session).append(
        OutboxEvent(
            id=event.id,
            type=event_type.short,
            topic=INCIDENTS.name,
            key=incident.job,
            job=incident.job,
            incident_id=incident.id,
            summary=event_summary(incident),
            payload=dump_json(event).decode(),
            traceparent=context.traceparent,
            created_at=context.at,
        )
    )


def build_event(incident: Incident, event_type: EventType, context: ChangeContext) -> IncidentEvent:
    """The lifecycle event as the contract has it."""
    return IncidentEvent(
        id=context.event_id,
        type=event_type,
        incident=incident.id,
        number=incident.number,
        job=incident.job,
        attempt=incident.attempt,
        status=IncidentStatus(incident.status),
        severity=Severity(incident.severity),
        revision=incident.revision,
        verdict=read_verdict(incident.verdict),
        opened_unix_s=to_unix(incident.opened_at),
        at_unix_s=to_unix(context.at),
        actor=context.actor.name,
        url=incident_url(context.console_url, incident.id),
    )


def event_summary(incident: Incident) -> JsonObject:
    """What the event stream shows of an incident."""
    return {
        "attempt": incident.attempt,
        "label": f"INC-{incident.number}",
        "status": incident.status,
        "severity": incident.severity,
        "verdict_class": incident.verdict_class,
        "summary": incident.summary,
    }


async def append_stream_event(
    session: AsyncSession,
    *,
    event_id: str,
    event_type: str,
    job: str,
    at: datetime,
    incident_id: str | None = None,
    summary: JsonObject | None = None,
) -> None:
    """An event that only the stream of the API carries, such as job.registered."""
    await OutboxRepository(session).append(
        OutboxEvent(
            id=event_id,
            type=event_type,
            topic="",
            key=job,
            job=job,
            incident_id=incident_id,
            summary=summary or {},
            payload="",
            traceparent="",
            created_at=at,
            published_at=at,
        )
    )
