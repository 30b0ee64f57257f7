"""What people do to an incident: acknowledge, resolve, write a note."""

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.auth import Caller
from paceline.api.errors import AlreadyAcknowledged, AlreadyResolved, NotFound, StaleVersion
from paceline.api.services import Services
from paceline.contracts.events import EventType, IncidentStatus
from paceline.store.incident_changes import (
    ChangeContext,
    add_timeline_entry,
    append_stream_event,
    event_summary,
    record_change,
)
from paceline.store.models.incident import Incident
from paceline.store.models.timeline import TimelineEntry
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.incidents import IncidentRepository


async def load_incident(session: AsyncSession, incident_id: str, *, for_update: bool = False) -> Incident:
    """By id, or by its label INC-<number>; NotFound."""
    incidents = IncidentRepository(session)
    prefix, _, number = incident_id.partition("-")
    if prefix.upper() == "INC" and number.isascii() and number.isdigit() and len(number) <= 18:
        found = await incidents.get_by_number(int(number))
        incident_id = incident_id if found is None else found.id
    incident = await incidents.get(incident_id, for_update=for_update)
    if incident is None:
        raise NotFound(f"no incident {incident_id[:80]!r}; GET /v1/incidents lists them")
    return incident


def check_version(incident: Incident, if_match: str | None) -> None:
    """StaleVersion where the caller decided on an older state than the present one."""
    if if_match is None or if_match.strip() == "*":
        return
    wanted = {part.strip().removeprefix("W/").strip('"') for part in if_match.split(",")}
    if str(incident.version) not in wanted:
        raise StaleVersion(
            f"If-Match is {if_match[:80]}, the incident is at version {incident.version}: read it again"
        )


def change_context(services: Services, caller: Caller) -> ChangeContext:
    return ChangeContext(
        actor=caller.actor,
        at=services.now(),
        event_id=services.new_id("evt"),
        console_url=services.console_url,
    )


async def acknowledge(session: AsyncSession, incident: Incident, note: str, context: ChangeContext) -> None:
    """AlreadyAcknowledged or AlreadyResolved where there is nothing to acknowledge."""
    if incident.status == IncidentStatus.RESOLVED.value:
        raise AlreadyResolved(f"INC-{incident.number} was resolved by {incident.resolved_by}")
    if incident.status == IncidentStatus.ACKNOWLEDGED.value:
        raise AlreadyAcknowledged(f"INC-{incident.number} was acknowledged by {incident.acknowledged_by}")
    incident.status = IncidentStatus.ACKNOWLEDGED.value
    incident.acknowledged_at = context.at
    incident.acknowledged_by = context.actor.name
    message = note or f"acknowledged by {context.actor.name}"
    await record_change(session, incident, EventType.INCIDENT_ACKNOWLEDGED, message, context)


async def resolve(session: AsyncSession, incident: Incident, note: str, context: ChangeContext) -> None:
    """AlreadyResolved where it is."""
    if incident.status == IncidentStatus.RESOLVED.value:
        raise AlreadyResolved(f"INC-{incident.number} was resolved by {incident.resolved_by}")
    incident.status = IncidentStatus.RESOLVED.value
    incident.resolved_at = context.at
    incident.resolved_by = context.actor.name
    incident.resolution = note or f"resolved by {context.actor.name}"
    await record_change(session, incident, EventType.INCIDENT_RESOLVED, incident.resolution, context)


async def add_note(
    session: AsyncSession, incident: Incident, text: str, context: ChangeContext
) -> TimelineEntry:
    """A note changes no state and pages nobody: it goes to the event stream only."""
    entry = add_timeline_entry(session, incident.id, "note", text, context)
    await session.flush()
    await append_stream_event(
        session,
        event_id=context.event_id,
        event_type="incident.noted",
        job=incident.job,
        at=context.at,
        incident_id=incident.id,
        summary=event_summary(incident),
    )
    await AuditRepository(session).append(
        context.at, context.actor, "incident.noted", ("incident", incident.id), {"entry": entry.id}
    )
    return entry
