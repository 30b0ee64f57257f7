"""The outbox: rows that commit with the change they tell of (docs/adr/0016-outbox.md)."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.models.outbox import OutboxEvent
from paceline.store.sequence import lock_sequence

OUTBOX_CHANNEL = "paceline_outbox"


class OutboxRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def append(self, event: OutboxEvent) -> OutboxEvent:
        """Number the event and wake the readers when the transaction commits."""
        await lock_sequence(self._session)
        self._session.add(event)
        await self._session.flush()
        await self._session.execute(
            text("SELECT pg_notify(:channel, :sequence)"),
            {"channel": OUTBOX_CHANNEL, "sequence": str(event.sequence)},
        )
        return event

    async def has(self, event_id: str) -> bool:
        """Whether an event of this id was ever appended."""
        query = select(OutboxEvent.sequence).where(OutboxEvent.id == event_id)
        return await self._session.scalar(query) is not None

    async def unpublished(self, limit: int) -> Sequence[OutboxEvent]:
        """Rows for Kafka that it has not acknowledged, in order."""
        query = (
            select(OutboxEvent)
            .where(OutboxEvent.published_at.is_(None))
            .order_by(OutboxEvent.sequence)
            .limit(limit)
        )
        return (await self._session.scalars(query)).all()

    async def unpublished_count(self) -> int:
        query = select(func.count()).select_from(OutboxEvent).where(OutboxEvent.published_at.is_(None))
        return await self._session.scalar(query) or 0

    async def mark_published(self, sequences: Sequence[int], at: datetime) -> None:
        statement = update(OutboxEvent).where(OutboxEvent.sequence.in_(sequences)).values(published_at=at)
        await self._session.execute(statement)

    async def after(self, sequence: int, limit: int) -> Sequence[OutboxEvent]:
        """Rows behind `sequence`, in order."""
        query = (
            select(OutboxEvent)
            .where(OutboxEvent.sequence > sequence)
            .order_by(OutboxEvent.sequence)
            .limit(limit)
        )
        return (await self._session.scalars(query)).all()

    async def bounds(self) -> tuple[int, int]:
        """Oldest and newest kept sequence, (0, 0) where there is none."""
        query = select(func.min(OutboxEvent.sequence), func.max(OutboxEvent.sequence))
        oldest, newest = (await self._session.execute(query)).one()
        return oldest or 0, newest or 0

    async def delete_published_before(self, at: datetime, limit: int) -> int:
        """Drop at most `limit` old rows. The newest row stays, so that the sequence is known."""
        newest = select(func.max(OutboxEvent.sequence)).scalar_subquery()
        rows = (
            select(OutboxEvent.sequence)
            .where(OutboxEvent.created_at < at, OutboxEvent.published_at.is_not(None))
            .where(OutboxEvent.sequence < newest)
            .order_by(OutboxEvent.sequence)
            .limit(limit)
        )
        result = await self._session.execute(
            delete(OutboxEvent).where(OutboxEvent.sequence.in_(rows)).returning(OutboxEvent.sequence)
        )
        return len(result.all())
