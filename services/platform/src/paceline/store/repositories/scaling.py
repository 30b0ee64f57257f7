"""Judged windows of iterations, bounded in number for each attempt and in age."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.base import JsonObject
from paceline.store.models.scaling import ScalingWindow


class ScalingRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, row: JsonObject, count_max: int) -> bool:
        """Store one window and keep the newest `count_max` of its attempt; False where it was there."""
        statement = insert(ScalingWindow).values(row).on_conflict_do_nothing(index_elements=["id"])
        added = await self._session.scalar(statement.returning(ScalingWindow.id))
        if added is None:
            return False
        old = (
            select(ScalingWindow.id)
            .where(ScalingWindow.job == row["job"], ScalingWindow.attempt == row["attempt"])
            .order_by(ScalingWindow.judged_at.desc(), ScalingWindow.id.desc())
            .offset(count_max)
        )
        await self._session.execute(delete(ScalingWindow).where(ScalingWindow.id.in_(old)))
        return True

    async def newest(self, job: str, attempt: str, limit: int) -> Sequence[ScalingWindow]:
        """Newest first."""
        query = (
            select(ScalingWindow)
            .where(ScalingWindow.job == job, ScalingWindow.attempt == attempt)
            .order_by(ScalingWindow.judged_at.desc(), ScalingWindow.id.desc())
            .limit(limit)
        )
        return (await self._session.scalars(query)).all()

    async def delete_before(self, at: datetime, limit: int) -> int:
        """Drop at most `limit` windows judged before `at`."""
        old = (
            select(ScalingWindow.id)
            .where(ScalingWindow.judged_at < at)
            .order_by(ScalingWindow.judged_at)
            .limit(limit)
        )
        gone = await self._session.execute(
            delete(ScalingWindow).where(ScalingWindow.id.in_(old)).returning(ScalingWindow.id)
        )
        return len(gone.all())
