"""The fleet's memory: what happened on the same nodes, and the same symptom, in other jobs."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.base import JsonObject
from paceline.store.models.incident import Incident
from paceline.store.models.job import Job
from paceline.store.models.node import JobNode
from paceline.store.models.place import IncidentPlace

PAST_MAX = 500  # incidents of all nodes asked for; the newest
NODES_OF_RANK_MAX = 64  # whose range contains a rank: ranges of nodes may interleave
POPULATION_MAX = 200  # combinations of versions in the fleet, the most frequent


class Suspicion(NamedTuple):
    """Which incidents count against a machine: of these classes, save for these sub-reasons."""

    classes: tuple[str, ...]
    exempt: tuple[str, ...]

    def condition(self) -> ColumnElement[bool]:
        return Incident.verdict_class.in_(self.classes) & Incident.sub_reason.not_in(self.exempt)


class PastIncident(NamedTuple):
    """An incident on a node, whatever became of it."""

    node: str
    gpu: int  # -1 where none is named
    kind: str
    incident_id: str
    number: int
    job: str
    program: str
    verdict_class: str
    sub_reason: str
    opened_at: datetime


class NodeTotals(NamedTuple):
    """One node over a window. Offences are incidents that count against a machine."""

    node: str
    incidents_count: int
    offences_count: int
    jobs_count: int  # with an offence
    programs_count: int  # with an offence
    last_opened_at: datetime


class FleetTotals(NamedTuple):
    """Offences as pairs of node and job, and on how many nodes."""

    offences: int
    nodes: int


class SymptomHits(NamedTuple):
    """Where a symptom was seen with one combination of versions."""

    versions: str
    jobs: int
    programs: int
    nodes: int


class FleetFacts(NamedTuple):
    """All that memory knows about one incident; what it means is decided elsewhere."""

    places: list[tuple[str, int, str]]  # (node, gpu, kind)
    program: str
    past: list[PastIncident]  # on these nodes, of other jobs
    offences: int  # pairs of node and other job, of all nodes
    nodes: int  # at least so many has the fleet
    versions: str
    hits: list[SymptomHits]  # this job included
    jobs_of_versions: dict[str, int]


class FleetRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def facts(
        self,
        incident: Incident,
        nodes_since: datetime,
        versions_since: datetime,
        suspicion: Suspicion,
        render_versions: Callable[[JsonObject], str],
    ) -> FleetFacts:
        """What is known of the places, the symptom and the versions of `incident`."""
        places = await self.places(incident.id)
        nodes = sorted({node for node, _, _ in places})
        totals = await self.totals(nodes_since, suspicion, besides_job=incident.job)
        hits: list[SymptomHits] = []
        jobs_of_versions: dict[str, int] = {}
        if incident.symptom and incident.versions:
            hits = await self.symptom_hits(incident.symptom, versions_since)
            for versions, jobs in await self.population(versions_since):
                text = render_versions(versions)
                jobs_of_versions[text] = jobs_of_versions.get(text, 0) + jobs
        return FleetFacts(
            places=places,
            program=incident.program,
            past=await self.past(nodes, nodes_since, besides_job=incident.job) if nodes else [],
            offences=totals.offences,
            nodes=max(totals.nodes, await self.attempt_nodes(incident.job, incident.attempt)),
            versions=incident.versions,
            hits=hits,
            jobs_of_versions=jobs_of_versions,
        )

    async def replace_places(self, incident_id: str, places: Sequence[tuple[str, int, str]]) -> None:
        """(node, gpu, kind) of an incident's first causes; those of an earlier verdict go."""
        await self._session.execute(delete(IncidentPlace).where(IncidentPlace.incident_id == incident_id))
        if places:
            names = ("node", "gpu", "kind")
            rows = [{"incident_id": incident_id} | dict(zip(names, place, strict=True)) for place in places]
            await self._session.execute(insert(IncidentPlace).values(rows).on_conflict_do_nothing())

    async def past(self, nodes: Sequence[str], since: datetime, *, besides_job: str) -> list[PastIncident]:
        """Incidents of other jobs on these nodes, newest first, at most PAST_MAX."""
        query = (
            select(
                IncidentPlace.node,
                IncidentPlace.gpu,
                IncidentPlace.kind,
                Incident.id,
                Incident.number,
                Incident.job,
                Incident.program,
                Incident.verdict_class,
                Incident.sub_reason,
                Incident.opened_at,
            )
            .join(Incident, Incident.id == IncidentPlace.incident_id)
            .where(IncidentPlace.node.in_(nodes), Incident.opened_at >= since, Incident.job != besides_job)
            .order_by(Incident.opened_at.desc(), Incident.id, IncidentPlace.gpu)
            .limit(PAST_MAX)
        )
        return [PastIncident._make(row) for row in await self._session.execute(query)]

    async def totals(self, since: datetime, suspicion: Suspicion, *, besides_job: str) -> FleetTotals:
        """Offences of all nodes in other jobs."""
        pairs = (
            select(IncidentPlace.node, Incident.job)
            .join(Incident, Incident.id == IncidentPlace.incident_id)
            .where(Incident.opened_at >= since, Incident.job != besides_job, suspicion.condition())
            .distinct()
            .subquery()
        )
        query = select(func.count(), func.count(pairs.c.node.distinct())).select_from(pairs)
        return FleetTotals._make((await self._session.execute(query)).one())

    async def node_totals(self, since: datetime, suspicion: Suspicion, limit: int) -> list[NodeTotals]:
        """Nodes with an incident, those with offences in most jobs first."""
        offence = suspicion.condition()
        jobs = func.count(Incident.job.distinct()).filter(offence)
        query = (
            select(
                IncidentPlace.node,
                func.count(Incident.id.distinct()),
                func.count(Incident.id.distinct()).filter(offence),
                jobs,
                func.count(Incident.program.distinct()).filter(offence),
                func.max(Incident.opened_at),
            )
            .join(Incident, Incident.id == IncidentPlace.incident_id)
            .where(Incident.opened_at >= since)
            .group_by(IncidentPlace.node)
            .order_by(jobs.desc(), func.count(Incident.id.distinct()).desc(), IncidentPlace.node)
            .limit(limit)
        )
        return [NodeTotals._make(row) for row in await self._session.execute(query)]

    async def places(self, incident_id: str) -> list[tuple[str, int, str]]:
        """As `replace_places` wrote them."""
        query = (
            select(IncidentPlace.node, IncidentPlace.gpu, IncidentPlace.kind)
            .where(IncidentPlace.incident_id == incident_id)
            .order_by(IncidentPlace.node, IncidentPlace.gpu)
        )
        return [(node, gpu, kind) for node, gpu, kind in await self._session.execute(query)]

    async def rank_place(self, job: str, attempt: str, rank: int) -> tuple[str, int | None] | None:
        """Node and GPU of a rank, the newest registration."""
        query = (
            select(JobNode.node, JobNode.ranks)
            .where(JobNode.job == job, JobNode.attempt == attempt)
            .where(JobNode.rank_min <= rank, JobNode.rank_max >= rank)
            .order_by(JobNode.left, JobNode.updated_at.desc())
            .limit(NODES_OF_RANK_MAX)
        )
        for node, ranks in await self._session.execute(query):
            for row in ranks:
                if row["rank"] == rank:
                    return node, row["gpu"]
        return None

    async def attempt_nodes(self, job: str, attempt: str) -> int:
        """How many nodes an attempt has, those that left included."""
        query = select(func.count()).where(JobNode.job == job, JobNode.attempt == attempt)
        return await self._session.scalar(query) or 0

    async def symptom_hits(self, symptom: str, since: datetime) -> list[SymptomHits]:
        """By versions, how many jobs, programs and nodes showed `symptom`."""
        query = (
            select(
                Incident.versions,
                func.count(Incident.job.distinct()),
                func.count(Incident.program.distinct()),
                func.count(IncidentPlace.node.distinct()),
            )
            .outerjoin(IncidentPlace, IncidentPlace.incident_id == Incident.id)
            .where(Incident.symptom == symptom, Incident.opened_at >= since)
            .group_by(Incident.versions)
        )
        return [SymptomHits._make(row) for row in await self._session.execute(query)]

    async def population(self, since: datetime) -> list[tuple[JsonObject, int]]:
        """Versions as registered, and how many jobs that were alive since then have them."""
        count = func.count()
        query = (
            select(Job.versions, count)
            .where(Job.updated_at >= since)
            .group_by(Job.versions)
            .order_by(count.desc())
            .limit(POPULATION_MAX)
        )
        return [(versions, jobs) for versions, jobs in await self._session.execute(query)]
