"""Evidence bundles, bounded in number per incident, in total size and in age."""

import hashlib
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from paceline.store.models.evidence import EvidenceBundle


class EvidenceRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(
        self, bundle_id: str, incident_id: str, verdict_id: str, revision: int, data: bytes, at: datetime
    ) -> EvidenceBundle:
        """Store one bundle; the same id again changes nothing."""
        found = await self._session.get(EvidenceBundle, bundle_id)
        if found is not None:
            return found
        bundle = EvidenceBundle(
            id=bundle_id,
            incident_id=incident_id,
            verdict_id=verdict_id,
            revision=revision,
            bytes_count=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            data=data,
            created_at=at,
        )
        self._session.add(bundle)
        await self._session.flush()
        return bundle

    async def of_incident(self, incident_id: str) -> Sequence[EvidenceBundle]:
        """Newest first, without their bytes."""
        query = (
            select(EvidenceBundle)
            .where(EvidenceBundle.incident_id == incident_id)
            .order_by(
                EvidenceBundle.created_at.desc(), EvidenceBundle.revision.desc(), EvidenceBundle.id.desc()
            )
        )
        return (await self._session.scalars(query)).all()

    async def get(self, incident_id: str, bundle_id: str) -> EvidenceBundle | None:
        """One bundle with its bytes."""
        query = (
            select(EvidenceBundle)
            .where(EvidenceBundle.incident_id == incident_id, EvidenceBundle.id == bundle_id)
            .options(undefer(EvidenceBundle.data))
        )
        return await self._session.scalar(query)

    async def keep_ends(self, incident_id: str, count_max: int) -> int:
        """Keep the first and the newest bundles of an incident, drop what lies between."""
        kept = await self.of_incident(incident_id)
        dropped = [bundle.id for bundle in kept[count_max - 1 : -1]]
        if dropped:
            await self._session.execute(delete(EvidenceBundle).where(EvidenceBundle.id.in_(dropped)))
        return len(dropped)

    async def delete_before(self, at: datetime, limit: int) -> int:
        """Drop at most `limit` bundles older than `at`."""
        rows = (
            select(EvidenceBundle.id)
            .where(EvidenceBundle.created_at < at)
            .order_by(EvidenceBundle.created_at)
            .limit(limit)
        )
        return await self._delete(rows)

    async def delete_over(self, bytes_max: int, limit: int) -> int:
        """Drop at most `limit` of the oldest bundles while all together exceed `bytes_max`."""
        running = (
            func.sum(EvidenceBundle.bytes_count)
            .over(order_by=(EvidenceBundle.created_at.desc(), EvidenceBundle.id.desc()))
            .label("running")
        )
        sized = select(EvidenceBundle.id, EvidenceBundle.created_at, running).subquery()
        rows = select(sized.c.id).where(sized.c.running > bytes_max).order_by(sized.c.created_at).limit(limit)
        return await self._delete(rows)

    async def _delete(self, rows: object) -> int:
        result = await self._session.execute(
            delete(EvidenceBundle)
            .where(EvidenceBundle.id.in_(rows))  # type: ignore[arg-type]
            .returning(EvidenceBundle.id)
        )
        return len(result.all())
