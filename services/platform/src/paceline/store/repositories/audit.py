"""The audit log: append and read. Nothing here changes or deletes an entry."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.actors import Actor
from paceline.store.base import JsonObject
from paceline.store.models.audit import AuditEntry
from paceline.store.sequence import lock_sequence

CHECK_CHUNK = 1000  # entries read and hashed at a time: about 10 ms, in a thread


@dataclass(frozen=True)
class ChainCheck:
    """What reading a part of the chain has shown. `last_id` is the last entry read, 0 for none;
    `complete` says that nothing follows it."""

    checked: int
    first_broken_id: int | None
    last_id: int
    complete: bool


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

    async def following(self, after: int, limit: int) -> Sequence[AuditEntry]:
        """Oldest first."""
        query = select(AuditEntry).where(AuditEntry.id > after).order_by(AuditEntry.id).limit(limit)
        return (await self._session.scalars(query)).all()

    async def check_chain(self, after: int, entries_max: int) -> ChainCheck:
        """Follow the chain from the entry behind `after` (0: from its beginning) to the first break, the
        end, or `entries_max`. Entries cut off at the end leave no trace in the chain."""
        query = select(AuditEntry.hash).where(AuditEntry.id <= after).order_by(AuditEntry.id.desc()).limit(1)
        previous = await self._session.scalar(query) or ""
        checked, last_id = 0, after
        while checked < entries_max:
            entries = await self.following(last_id, min(CHECK_CHUNK, entries_max - checked))
            if not entries:
                return ChainCheck(checked, None, last_id, complete=True)
            broken = await asyncio.to_thread(find_break, entries, previous)
            if broken is not None:
                read = sum(entry.id <= broken for entry in entries)
                return ChainCheck(checked + read, broken, broken, complete=False)
            checked += len(entries)
            last_id, previous = entries[-1].id, entries[-1].hash
        return ChainCheck(checked, None, last_id, complete=not await self.following(last_id, 1))


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


def find_break(entries: Sequence[AuditEntry], previous: str | None = None) -> int | None:
    """Id of the first entry, oldest first, that does not follow from the one before it. `previous` is the
    hash before the first of them: "" at the beginning of the log, None where it is not known."""
    for entry in entries:
        if entry.hash != entry_hash(entry) or (previous is not None and entry.previous_hash != previous):
            return entry.id
        previous = entry.hash
    return None
