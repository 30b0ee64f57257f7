"""Jobs, attempts, nodes and communicators: upserts from the registry topic, reads for the API."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import and_, delete, exists, func, or_, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.ids import rank_spans
from paceline.store.base import Base, JsonObject
from paceline.store.models.communicator import JobCommunicator
from paceline.store.models.incident import Incident
from paceline.store.models.job import Job, JobAttempt
from paceline.store.models.node import JobNode
from paceline.store.models.scaling import ScalingWindow
from paceline.store.repositories.incidents import OPEN_STATUSES

PLACES_MAX = 512
PLACE_ROWS_MAX = 5000
UPSERT_ROWS_MAX = 100  # PostgreSQL takes 32,767 parameters; larger statements are not faster


class CommunicatorRow(NamedTuple):
    """What a page says of a communicator; a job has tens of thousands, and whole models cost more."""

    communicator: str
    name: str
    kind: str
    backend: str
    size: int
    ranks: str  # ids.format_ranks text
    closed: bool


class JobRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, job: str, *, for_update: bool = False) -> Job | None:
        query = select(Job).where(Job.id == job)
        if for_update:
            query = query.with_for_update()
        return await self._session.scalar(query)

    async def attempt(self, job: str, attempt: str) -> JobAttempt | None:
        return await self._session.get(JobAttempt, (job, attempt))

    async def attempts(self, job: str, limit: int) -> Sequence[JobAttempt]:
        """Newest first."""
        query = (
            select(JobAttempt)
            .where(JobAttempt.job == job)
            .order_by(JobAttempt.started_at.desc(), JobAttempt.attempt)
            .limit(limit)
        )
        return (await self._session.scalars(query)).all()

    async def page(
        self, states: Sequence[str], after: tuple[datetime, str] | None, limit: int
    ) -> Sequence[Job]:
        """Newest first. `after` is (started_at, id) of the last one seen."""
        query = select(Job).order_by(Job.started_at.desc(), Job.id.desc()).limit(limit)
        if states:
            query = query.where(Job.state.in_(states))
        if after is not None:
            query = query.where(tuple_(Job.started_at, Job.id) < tuple_(*after))
        return (await self._session.scalars(query)).all()

    async def nodes(self, job: str, attempt: str, first: int, last: int) -> Sequence[JobNode]:
        """Nodes with ranks between `first` and `last`; those that have left first, newest last."""
        query = (
            select(JobNode)
            .where(JobNode.job == job, JobNode.attempt == attempt)
            .where(JobNode.rank_min <= last, JobNode.rank_max >= first)
            .order_by(JobNode.left.desc(), JobNode.updated_at, JobNode.node)
        )
        return (await self._session.scalars(query)).all()

    async def places_of(self, job: str, attempt: str, ranks: Sequence[int]) -> list[tuple[int, str]]:
        """(rank, node) of those of `ranks` that are registered, in their order; of two nodes that claim a
        rank the later one. Of PLACES_MAX ranks at most."""
        wanted = list(dict.fromkeys(ranks))[:PLACES_MAX]
        if not wanted:
            return []
        around = [and_(JobNode.rank_min <= rank, JobNode.rank_max >= rank) for rank in wanted]
        query = (
            select(JobNode.node, JobNode.rank_ranges)
            .where(JobNode.job == job, JobNode.attempt == attempt, or_(*around))
            .order_by(JobNode.left.desc(), JobNode.updated_at, JobNode.node)
            .limit(PLACE_ROWS_MAX)
        )
        found: dict[int, str] = {}
        for node, ranges in (await self._session.execute(query)).all():
            spans = rank_spans(ranges)
            found.update((rank, node) for rank in wanted if any(rank in span for span in spans))
        return [(rank, found[rank]) for rank in wanted if rank in found]

    async def rank_ranges(self, job: str, attempt: str) -> Sequence[tuple[str, bool]]:
        """Ranks as text and whether the node has left, in the order of `nodes`."""
        query = (
            select(JobNode.rank_ranges, JobNode.left)
            .where(JobNode.job == job, JobNode.attempt == attempt)
            .order_by(JobNode.left.desc(), JobNode.updated_at, JobNode.node)
        )
        return [(ranges, left) for ranges, left in (await self._session.execute(query)).all()]

    async def axes(self, job: str, attempt: str) -> dict[str, int]:
        """Each coordinate with its number of distinct values."""
        query = text(
            "SELECT axis.key, count(DISTINCT axis.value) FROM job_nodes, jsonb_array_elements(ranks) AS item,"
            " jsonb_each(item -> 'coordinates') AS axis WHERE job = :job AND attempt = :attempt GROUP BY 1"
        )
        rows = (await self._session.execute(query, {"job": job, "attempt": attempt})).all()
        return {axis: count for axis, count in rows}

    async def communicators(
        self, job: str, attempt: str, *, after: tuple[str, str] | None = None, limit: int = 10_000
    ) -> Sequence[JobCommunicator]:
        """By name, then id. `after` is (name, communicator) of the last one seen."""
        query = select(JobCommunicator).where(JobCommunicator.job == job, JobCommunicator.attempt == attempt)
        if after is not None:
            query = query.where(tuple_(JobCommunicator.name, JobCommunicator.communicator) > tuple_(*after))
        query = query.order_by(JobCommunicator.name, JobCommunicator.communicator).limit(limit)
        return (await self._session.scalars(query)).all()

    async def communicator_rows(
        self, job: str, attempt: str, after: str, limit: int
    ) -> Sequence[CommunicatorRow]:
        """By id, those behind the id `after`."""
        columns = [getattr(JobCommunicator, name) for name in CommunicatorRow._fields]
        query = (
            select(*columns)
            .where(JobCommunicator.job == job, JobCommunicator.attempt == attempt)
            .where(JobCommunicator.communicator > after)
            .order_by(JobCommunicator.communicator)
            .limit(limit)
        )
        return [CommunicatorRow._make(row) for row in await self._session.execute(query)]

    async def communicator(self, job: str, attempt: str, communicator: str) -> JobCommunicator | None:
        return await self._session.get(JobCommunicator, (job, attempt, communicator))

    async def counts(self, jobs: Sequence[Job]) -> dict[str, tuple[int, int]]:
        """Nodes and communicators of the newest attempt, by job."""
        keys = [(job.id, job.attempt) for job in jobs]
        counts = {job.id: [0, 0] for job in jobs}
        models: tuple[type[JobNode] | type[JobCommunicator], ...] = (JobNode, JobCommunicator)
        for position, model in enumerate(models):
            query = (
                select(model.job, func.count())
                .where(tuple_(model.job, model.attempt).in_(keys))
                .group_by(model.job)
            )
            for job, count in (await self._session.execute(query)).all():
                counts[job][position] = count
        return {job: (nodes, communicators) for job, (nodes, communicators) in counts.items()}

    async def open_incidents(self, jobs: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
        """(incident id, severity) of the open incidents, by job."""
        query = (
            select(Incident.job, Incident.id, Incident.severity)
            .where(Incident.job.in_(jobs), Incident.status.in_(OPEN_STATUSES))
            .order_by(Incident.number)
        )
        found: dict[str, list[tuple[str, str]]] = {job: [] for job in jobs}
        for job, incident_id, severity in (await self._session.execute(query)).all():
            found[job].append((incident_id, severity))
        return found

    async def upsert(self, model: type[Base], rows: Sequence[JsonObject]) -> None:
        """Insert registry rows with different keys, or replace all but their keys."""
        keys = [column.name for column in model.__table__.primary_key]
        for begin in range(0, len(rows), UPSERT_ROWS_MAX):
            statement = insert(model).values(rows[begin : begin + UPSERT_ROWS_MAX])
            changes = {name: statement.excluded[name] for name in rows[0] if name not in keys}
            await self._session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes))

    async def delete_attempts(self, attempts: Sequence[tuple[str, str]]) -> int:
        """Forget attempts with their nodes, communicators and windows; returns how many rows that were."""
        dropped = 0
        for model in (JobNode, JobCommunicator, ScalingWindow, JobAttempt):
            result = await self._session.execute(
                delete(model).where(tuple_(model.job, model.attempt).in_(attempts)).returning(model.job)
            )
            dropped += len(result.all())
        return dropped

    async def attempts_over_before(self, at: datetime, limit: int) -> list[tuple[str, str]]:
        """At most `limit` attempts (job, attempt) that ended before `at`, or that no agent has spoken of
        since: the end of some is never told."""
        spoken_of = exists().where(
            JobNode.job == JobAttempt.job, JobNode.attempt == JobAttempt.attempt, JobNode.updated_at >= at
        )
        is_over = (JobAttempt.ended_at < at) | (JobAttempt.ended_at.is_(None) & ~spoken_of)
        query = (
            select(JobAttempt.job, JobAttempt.attempt)
            .where(JobAttempt.started_at < at, is_over)
            .order_by(JobAttempt.started_at)
            .limit(limit)
        )
        return [(job, attempt) for job, attempt in (await self._session.execute(query)).all()]

    async def registry_keys(self, job: str, attempt: str) -> list[str]:
        """Keys of the registry topic that only this attempt of `job` uses."""
        keys = []
        for name in (JobNode.node, JobCommunicator.communicator):
            model = name.class_
            others = select(name).where(model.job == job, model.attempt != attempt)
            query = select(name).where(model.job == job, model.attempt == attempt, name.not_in(others))
            keys += [f"{job}:{part}" for part in await self._session.scalars(query.order_by(name))]
        other_attempt = exists().where(JobAttempt.job == job, JobAttempt.attempt != attempt)
        return keys if await self._session.scalar(select(other_attempt)) else [job, *keys]

    async def delete_registry_of(self, job: str, attempt: str) -> int:
        """Drop an attempt, and the job where it was the newest one; returns how many rows that were."""
        dropped = await self.delete_attempts([(job, attempt)])
        gone = await self._session.execute(
            delete(Job).where(Job.id == job, Job.attempt == attempt).returning(Job.id)
        )
        return dropped + len(gone.all())
