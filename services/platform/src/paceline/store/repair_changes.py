"""What everybody is told of a change of an action: audit log, timeline of its incident, event stream.

The remediator and the API come through here, so that an action tells the same story whoever changed it.
"""

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.ids import derived_id
from paceline.store.actors import Actor
from paceline.store.base import JsonObject
from paceline.store.incident_changes import ChangeContext, add_timeline_entry, append_stream_event
from paceline.store.models.repair import RepairAction
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.incidents import IncidentRepository

WORDS = {
    "swap": "replace",
    "planned_swap": "replace at a step boundary",
    "retry": "retry in place",
    "stack_capture": "capture stacks",
    "fallback": "fall back to the checkpoint",
}


def action_words(row: RepairAction) -> str:
    """One sentence for people."""
    what = WORDS.get(row.kind, row.kind)
    ranks = f" rank {row.ranks}" if row.ranks else ""
    why = f" ({row.reason})" if row.reason not in (row.status, "") else ""
    return f"{what}{ranks}: {row.status.replace('_', ' ')}{why}. {row.message}"


async def tell_action(
    session: AsyncSession,
    row: RepairAction,
    actor: Actor,
    at: datetime,
    console_url: str,
    details: JsonObject | None = None,
) -> None:
    """Written in the transaction of the change, once for each version of the action."""
    facts: JsonObject = {
        "version": row.version, "status": row.status, "kind": row.kind, "cause": row.cause, "mode": row.mode,
        "reason": row.reason, "ranks": row.ranks, "generation": row.generation,
    }  # fmt: skip
    event_id = derived_id("evt", row.id, row.version)
    incident = None
    if row.incident_id:
        incident = await IncidentRepository(session).get(row.incident_id)
    if incident is not None:
        context = ChangeContext(actor, at, event_id, console_url)
        add_timeline_entry(
            session, incident.id, "repair", action_words(row), context, {"action": row.id} | facts
        )
        await session.flush()
    await append_stream_event(
        session,
        event_id=event_id,
        event_type="repair.changed",
        job=row.job,
        at=at,
        incident_id=None if incident is None else incident.id,
        summary={"attempt": row.attempt, "summary": action_words(row)[:500]},
    )
    await AuditRepository(session).append(
        at, actor, f"repair.{row.status}", ("action", row.id), facts | (details or {})
    )
