"""Jobs as the console shows them: registry rows joined with the open incidents."""

from collections.abc import Iterable, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.errors import NotFound
from paceline.api.jobs.schemas import (
    AttemptRead,
    AxisRead,
    CommunicatorRead,
    CoordinateRead,
    JobRead,
    JobSummary,
    RankRead,
    VersionRead,
)
from paceline.contracts.events import Severity
from paceline.contracts.ids import parse_ranks
from paceline.contracts.registry import JobState
from paceline.contracts.verdicts import Verdict
from paceline.store.base import JsonObject
from paceline.store.incident_changes import read_verdict
from paceline.store.models.communicator import JobCommunicator
from paceline.store.models.job import Job, JobAttempt
from paceline.store.models.node import JobNode
from paceline.store.rank_states import OpenIncident, RankRole, rank_roles, rank_state, root_ranks
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository

ATTEMPTS_MAX = 50
AXIS_ORDER = ("tp", "cp", "ep", "pp", "dp")
SEVERITY_ORDER = (Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.CRITICAL)


async def load_attempt(session: AsyncSession, job_id: str, attempt: str | None) -> tuple[Job, JobAttempt]:
    """A job and the attempt asked for, else the newest; NotFound."""
    jobs = JobRepository(session)
    job = await jobs.get(job_id)
    if job is None:
        raise NotFound(f"no job {job_id[:80]!r}; GET /v1/jobs lists them")
    found = await jobs.attempt(job_id, attempt or job.attempt)
    if found is None:
        raise NotFound(f"job {job_id[:80]!r} has no attempt {(attempt or '')[:80]!r}")
    return job, found


async def build_summaries(session: AsyncSession, jobs: Sequence[Job]) -> list[JobSummary]:
    repository = JobRepository(session)
    counts = await repository.counts(jobs)
    incidents = await repository.open_incidents([job.id for job in jobs])
    return [JobSummary(**_summary_fields(job, counts[job.id], incidents[job.id])) for job in jobs]


async def build_job(session: AsyncSession, job: Job) -> JobRead:
    repository = JobRepository(session)
    counts = await repository.counts([job])
    incidents = (await repository.open_incidents([job.id]))[job.id]
    axes = await repository.axes(job.id, job.attempt)
    attempts = await repository.attempts(job.id, ATTEMPTS_MAX)
    return JobRead(
        **_summary_fields(job, counts[job.id], incidents),
        shards=job.shards,
        id_source=job.id_source,
        attempt_source=job.attempt_source,
        coordinate_source=job.coordinate_source,
        axes=[AxisRead(name=axis, size=axes[axis]) for axis in sort_axes(axes)],
        versions=[VersionRead(name=name, version=text) for name, text in sorted(job.versions.items())],
        attempts=[AttemptRead.model_validate(attempt) for attempt in attempts],
        open_incident_ids=[incident_id for incident_id, _ in incidents],
    )


def _summary_fields(
    job: Job, counts: tuple[int, int], incidents: Sequence[tuple[str, str]]
) -> dict[str, object]:
    severities = [Severity(severity) for _, severity in incidents]
    return {name: getattr(job, name) for name in JobSummary.model_fields if hasattr(job, name)} | {
        "nodes_count": counts[0],
        "communicators_count": counts[1],
        "open_incidents_count": len(incidents),
        "worst_severity": max(severities, key=SEVERITY_ORDER.index, default=None),
    }


def sort_axes(axes: Iterable[str]) -> list[str]:
    """Those of AXIS_ORDER first, the others by name."""
    found = set(axes)
    known = [axis for axis in AXIS_ORDER if axis in found]
    return known + sorted(found - set(known))


async def load_roles(session: AsyncSession, job: str, attempt: str) -> dict[int, RankRole]:
    """What the open incidents of this attempt say about its ranks."""
    incidents = await IncidentRepository(session).open_of_job(job, attempt=attempt)
    jobs = JobRepository(session)
    found = []
    for incident in incidents:
        verdict = read_verdict(incident.verdict)
        members: list[int] = []
        if verdict.operation is not None and verdict.victims_count > len(verdict.victims):
            row = await jobs.communicator(job, attempt, verdict.operation.communicator)
            members = [] if row is None else parse_ranks(row.ranks)
        found.append(OpenIncident(incident.id, verdict, members))
    return rank_roles(found)


def build_ranks(
    nodes: Sequence[JobNode], state: JobState, roles: dict[int, RankRole], window: range
) -> list[RankRead]:
    """The registered ranks of `window` in order. Where two nodes claim a rank the later one wins."""
    found: dict[int, tuple[JobNode, JsonObject]] = {}
    for node in nodes:
        for row in node.ranks:
            if row["rank"] in window:
                found[row["rank"]] = (node, row)
    return [_rank(*found[rank], state, roles.get(rank)) for rank in sorted(found)]


def _rank(node: JobNode, row: JsonObject, state: JobState, role: RankRole | None) -> RankRead:
    return RankRead(
        rank=row["rank"],
        node=node.node,
        local_rank=row["local_rank"],
        gpu=row["gpu"],
        pid=row["pid"],
        coordinates=[
            CoordinateRead(axis=axis, value=row["coordinates"][axis])
            for axis in sort_axes(row["coordinates"])
        ],
        state=rank_state(state, node.left, role),
        verdict_role=None if role is None else role.role.value,
        incident_id=None if role is None else role.incident_id,
        step=None,
    )


async def build_communicators(
    session: AsyncSession, rows: Sequence[JobCommunicator], job: str, attempt: str
) -> list[CommunicatorRead]:
    """Communicators with their part in the open incidents."""
    incidents = await IncidentRepository(session).open_of_job(job, attempt=attempt)
    verdicts = [(incident.id, read_verdict(incident.verdict)) for incident in incidents]
    return [_communicator(row, verdicts) for row in rows]


def _communicator(row: JobCommunicator, verdicts: Sequence[tuple[str, Verdict]]) -> CommunicatorRead:
    members = set(parse_ranks(row.ranks))
    waiting: set[int] = set()
    roots: set[int] = set()
    incident_id = None
    for candidate, verdict in verdicts:
        named = {rank for root in verdict.roots for rank in root_ranks(root.rank, root.peer_rank, root.ranks)}
        touched = members & (named | set(verdict.victims))
        if touched and incident_id is None:
            incident_id = candidate
        waiting |= members & set(verdict.victims)
        if verdict.operation is not None and verdict.operation.communicator == row.communicator:
            incident_id = candidate
            roots |= members & named
    return CommunicatorRead(
        communicator=row.communicator,
        name=row.name,
        kind=row.kind,
        backend=row.backend,
        ranks=row.ranks,
        size=row.size,
        instance=row.instance,
        shard=row.shard,
        closed=row.closed,
        waiting_count=len(waiting),
        roots=sorted(roots),
        incident_id=incident_id,
        updated_at=row.updated_at,
    )
