"""The audit log: append and read. Nothing here changes or deletes an entry."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timezone

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.actors import Actor
from paceline.store.base import JsonObject
from paceline.store.models.audit import AuditEntry
from paceline.store.sequence import lock_sequence


class AuditRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def append(
        self, at: datetime, actor: Actor, action: str, target: tuple[str, str], details: JsonObject
    ) -> AuditEntry:
        """Add an entry after the last committed one. `target` is (type, id)."""
        await lock_sequence(self._session)
        previous = await self._session.scalar(select(AuditEntry.hash).order_by(AuditEntry.id.desc()).limit(1))
        entry = AuditEntry(
            at=at,
            actor=actor.name,
            actor_type=actor.type,
            source=actor.source,
            action=action,
            target_type=target[0],
            target_id=target[1],
            details=details,
            previous_hash=previous or "",
        )
        entry.hash = entry_hash(entry)
        self._session.add(entry)
        await self._session.flush()
        return entry

    async def page(self, before: int | None, limit: int) -> Sequence[AuditEntry]:
        """Newest first."""
        query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
        if before is not None:
            query = query.where(AuditEntry.id < before)
        return (await self._session.scalars(query)).all()


def entry_hash(entry: AuditEntry) -> str:
    """SHA-256 over the previous hash and the canonical JSON of all other fields but the id."""
    fields = [
        entry.previous_hash,
        entry.at.astimezone(timezone.utc).isoformat(timespec="microseconds"),
        entry.actor,
        entry.actor_type,
        entry.source,
        entry.action,
        entry.target_type,
        entry.target_id,
        entry.details,
    ]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def find_break(entries: Sequence[AuditEntry]) -> int | None:
    """Id of the first entry, oldest first, that does not follow from the one before it."""
    previous: str | None = None
    for entry in entries:
        if entry.hash != entry_hash(entry) or (previous is not None and entry.previous_hash != previous):
            return entry.id
        previous = entry.hash
    return None
