"""Incidents, their episodes, verdicts and timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, delete, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.events import IncidentStatus
from paceline.store.models.incident import Incident, IncidentEpisode
from paceline.store.models.timeline import TimelineEntry
from paceline.store.models.verdict import StoredVerdict

OPEN_STATUSES = (IncidentStatus.OPEN.value, IncidentStatus.ACKNOWLEDGED.value)
OPEN_PAGE = 100


@dataclass(frozen=True)
class IncidentFilter:
    """Empty tuples do not filter. `after` is (opened_at, id) of the last one seen."""

    statuses: Sequence[str] = ()
    jobs: Sequence[str] = ()
    verdicts: Sequence[str] = ()
    severities: Sequence[str] = ()
    after: tuple[datetime, str] | None = None


class IncidentRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, incident_id: str, *, for_update: bool = False) -> Incident | None:
        query = select(Incident).where(Incident.id == incident_id)
        return await self._one(query, for_update)

    async def get_by_number(self, number: int) -> Incident | None:
        return await self._one(select(Incident).where(Incident.number == number), False)

    async def page(self, wanted: IncidentFilter, limit: int) -> Sequence[Incident]:
        """Newest first."""
        query = select(Incident).order_by(Incident.opened_at.desc(), Incident.id.desc()).limit(limit)
        for column, values in (
            (Incident.status, wanted.statuses),
            (Incident.job, wanted.jobs),
            (Incident.verdict_class, wanted.verdicts),
            (Incident.severity, wanted.severities),
        ):
            if values:
                query = query.where(column.in_(values))
        if wanted.after is not None:
            query = query.where(tuple_(Incident.opened_at, Incident.id) < tuple_(*wanted.after))
        return (await self._session.scalars(query)).all()

    async def episode(self, job: str, attempt: str, episode: str) -> IncidentEpisode | None:
        return await self._session.get(IncidentEpisode, (job, attempt, episode), populate_existing=True)

    async def open_episodes_count(self, incident_id: str, *, besides: str) -> int:
        """Episodes of the incident that have not cleared, not counting `besides`."""
        query = (
            select(func.count())
            .select_from(IncidentEpisode)
            .where(IncidentEpisode.incident_id == incident_id)
            .where(IncidentEpisode.cleared_at.is_(None))
            .where(IncidentEpisode.episode != besides)
        )
        return await self._session.scalar(query) or 0

    async def newest_with_root(self, job: str, attempt: str, root_key: str) -> Incident | None:
        """The incident of the same cause in the same attempt that was opened last, locked."""
        query = (
            select(Incident)
            .where(Incident.job == job, Incident.attempt == attempt, Incident.root_key == root_key)
            .order_by(Incident.number.desc())
            .limit(1)
        )
        return await self._one(query, True)

    async def open_of_job(
        self, job: str, *, attempt: str | None = None, limit: int = OPEN_PAGE
    ) -> Sequence[Incident]:
        """Open incidents of a job, oldest first."""
        return (await self._session.scalars(_open_of_job(job, attempt).limit(limit))).all()

    async def lock_open_of_job(self, job: str) -> Sequence[Incident]:
        """Every open incident of a job, oldest first, locked; read in parts."""
        found: list[Incident] = []
        while True:
            query = _open_of_job(job).limit(OPEN_PAGE).with_for_update()
            if found:
                query = query.where(Incident.number > found[-1].number)
            part = (await self._session.scalars(query)).all()
            found += part
            if len(part) < OPEN_PAGE:
                return found

    async def verdicts(self, incident_id: str, limit: int) -> Sequence[StoredVerdict]:
        """Newest first."""
        query = (
            select(StoredVerdict)
            .where(StoredVerdict.incident_id == incident_id)
            .order_by(StoredVerdict.received_at.desc(), StoredVerdict.revision.desc())
            .limit(limit)
        )
        return (await self._session.scalars(query)).all()

    async def verdicts_count(self, incident_id: str) -> int:
        query = select(func.count()).where(StoredVerdict.incident_id == incident_id)
        return await self._session.scalar(query) or 0

    async def timeline(
        self, incident_id: str, limit: int, *, before: int | None = None, kinds: Sequence[str] = ()
    ) -> Sequence[TimelineEntry]:
        """Newest first."""
        query = select(TimelineEntry).where(TimelineEntry.incident_id == incident_id)
        if before is not None:
            query = query.where(TimelineEntry.id < before)
        if kinds:
            query = query.where(TimelineEntry.kind.in_(kinds))
        query = query.order_by(TimelineEntry.id.desc()).limit(limit)
        return (await self._session.scalars(query)).all()

    async def timeline_entry(self, incident_id: str, entry_id: int) -> TimelineEntry | None:
        query = select(TimelineEntry).where(
            TimelineEntry.incident_id == incident_id, TimelineEntry.id == entry_id
        )
        return await self._session.scalar(query)

    async def open_count(self) -> int:
        query = select(func.count()).select_from(Incident).where(Incident.status.in_(OPEN_STATUSES))
        return await self._session.scalar(query) or 0

    async def delete_resolved_before(self, at: datetime, limit: int) -> int:
        """Drop at most `limit` incidents that were resolved before `at`, with all that hangs on
        them, and as many old verdicts that belong to none."""
        rows = select(Incident.id).where(Incident.resolved_at < at).order_by(Incident.number).limit(limit)
        gone = await self._session.execute(
            delete(Incident).where(Incident.id.in_(rows)).returning(Incident.id)
        )
        loose = (
            select(StoredVerdict.id)
            .where(StoredVerdict.incident_id.is_(None), StoredVerdict.received_at < at)
            .limit(limit)
        )
        await self._session.execute(delete(StoredVerdict).where(StoredVerdict.id.in_(loose)))
        return len(gone.all())

    async def _one(self, query: Select[Incident], for_update: bool) -> Incident | None:
        if for_update:
            # A row read earlier in this session may be stale by the time the lock is ours.
            query = query.with_for_update().execution_options(populate_existing=True)
        return (await self._session.scalars(query)).one_or_none()


def _open_of_job(job: str, attempt: str | None = None) -> Select[Incident]:
    query = select(Incident).where(Incident.job == job, Incident.status.in_(OPEN_STATUSES))
    if attempt is not None:
        query = query.where(Incident.attempt == attempt)
    return query.order_by(Incident.number)
