"""The registry topic as tables, and what the course of a job does to its incidents."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import Enum

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.events import EventType, IncidentStatus
from paceline.contracts.ids import derived_id, format_ranks, parse_communicator, rank_spans
from paceline.contracts.registry import CommunicatorRecord, CoordinateSource, JobRecord, JobState, NodeRecord
from paceline.contracts.schemas import ContractError
from paceline.store.actors import system
from paceline.store.base import JsonObject
from paceline.store.incident_changes import (
    ChangeContext,
    add_timeline_entry,
    append_stream_event,
    record_change,
)
from paceline.store.models.communicator import JobCommunicator
from paceline.store.models.incident import Incident
from paceline.store.models.job import Job, JobAttempt
from paceline.store.models.node import JobNode
from paceline.store.repositories.incidents import IncidentRepository
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.outbox import OutboxRepository
from paceline.store.sequence import lock_name
from paceline.store.times import from_unix, to_unix

SOURCE = "incidents"
RANKS_MAX = 1_000_000  # a rank map of more is refused, so that no record can claim our memory
TEXT_LENGTH_MAX = 300
PROGRESS = (JobState.STARTING, JobState.RUNNING)


class JobNews(str, Enum):
    """What a job record tells that was not known before."""

    REGISTERED = "registered"
    RENAMED = "renamed"  # a provisional attempt has its final name
    ATTEMPT_STARTED = "attempt_started"
    ENDED = "ended"
    UPDATED = "updated"
    NOTHING = "nothing"
    OLDER_ATTEMPT = "older_attempt"


@dataclass(frozen=True)
class KnownJob:
    """The newest attempt as the table has it."""

    attempt: str
    attempt_source: str
    state: JobState
    started_unix_s: float
    ended_unix_s: float | None


def job_news(known: KnownJob | None, record: JobRecord) -> JobNews:
    """Compare a record with what is known. Records of several agents arrive in any order."""
    if known is None:
        return JobNews.REGISTERED
    if known.attempt != record.attempt:
        if known.attempt_source == "provisional" and record.attempt_source != "provisional":
            return JobNews.RENAMED
        is_newer = record.started_unix_s >= known.started_unix_s
        return JobNews.ATTEMPT_STARTED if is_newer else JobNews.OLDER_ATTEMPT
    if _order(record.state) < _order(known.state):
        return JobNews.NOTHING
    if record.ended_unix_s is not None and known.ended_unix_s is None:
        return JobNews.ENDED
    return JobNews.UPDATED


def _order(state: JobState) -> int:
    return PROGRESS.index(state) if state in PROGRESS else len(PROGRESS)


def check_job(record: JobRecord) -> JobRecord:
    """The record with an end time where its state is an end; ContractError names what is wrong."""
    _check_text("JobRecord", job=record.job, attempt=record.attempt)
    if not 0 <= record.world_size <= RANKS_MAX:
        raise ContractError(f"JobRecord: world_size is {record.world_size}, expected 0 to {RANKS_MAX}")
    for name, value in (("started_unix_s", record.started_unix_s), ("ended_unix_s", record.ended_unix_s)):
        _check_time(name, value)
    if record.state not in PROGRESS and record.ended_unix_s is None:
        return replace(record, ended_unix_s=record.started_unix_s)
    return record


def check_node(record: NodeRecord) -> None:
    """ContractError for a rank that no job can have."""
    _check_text("NodeRecord", job=record.job, attempt=record.attempt, node=record.node)
    for row in record.ranks:
        if not 0 <= row.rank < RANKS_MAX:
            raise ContractError(f"NodeRecord: ranks.rank is {row.rank}, expected 0 to {RANKS_MAX - 1}")
        numbers = {"local_rank": row.local_rank, "gpu": -1 if row.gpu is None else row.gpu}
        for name, value in [*numbers.items(), *row.coordinates.items()]:
            if not -1 <= value < RANKS_MAX:
                raise ContractError(
                    f"NodeRecord: ranks.{name[:40]} of rank {row.rank} is {value}, "
                    f"expected -1 to {RANKS_MAX - 1}"
                )


def check_communicator(record: CommunicatorRecord) -> int:
    """Number of members; ContractError where id or ranks cannot be read."""
    _check_text("CommunicatorRecord", job=record.job, attempt=record.attempt, name=record.name)
    try:
        parse_communicator(record.communicator)
        spans = rank_spans(record.ranks, RANKS_MAX)
    except ValueError as error:
        raise ContractError(f"CommunicatorRecord: {error}") from None
    if len(record.communicator) != 16 or any(span[-1] >= RANKS_MAX for span in spans):
        raise ContractError(
            f"CommunicatorRecord: communicator is {record.communicator[:40]!r} with ranks "
            f"{record.ranks[:80]!r}, expected 16 hex digits and ranks below {RANKS_MAX}"
        )
    return sum(map(len, spans))


def _check_text(kind: str, **fields: str) -> None:
    for name, value in fields.items():
        if not value or len(value) > TEXT_LENGTH_MAX or "\0" in value:
            raise ContractError(
                f"{kind}: {name} is {value[:40]!r}, expected 1 to {TEXT_LENGTH_MAX} characters without NUL"
            )


def _check_time(name: str, value: float | None) -> None:
    try:
        from_unix(0.0 if value is None else value)
    except ValueError as error:
        raise ContractError(f"JobRecord: {name}: {error}") from None


async def write_nodes(
    session: AsyncSession,
    records: Sequence[NodeRecord | CommunicatorRecord],
    at: datetime,
) -> None:
    """Upsert a batch in the order of its keys, so that two writers cannot lock each other out."""
    nodes: dict[tuple[str, ...], JsonObject] = {}
    communicators: dict[tuple[str, ...], JsonObject] = {}
    for record in records:
        if isinstance(record, NodeRecord):
            check_node(record)
            nodes[record.job, record.attempt, record.node] = _node_values(record, at)
        else:
            size = check_communicator(record)
            key = (record.job, record.attempt, record.communicator)
            kept = asdict(record)
            del kept["order_sources"]  # like the orders of nodes: for those who judge
            communicators[key] = kept | {"size": size, "updated_at": at}
    jobs = JobRepository(session)
    await jobs.upsert(JobNode, [nodes[key] for key in sorted(nodes)])
    await jobs.upsert(JobCommunicator, [communicators[key] for key in sorted(communicators)])


def _node_values(record: NodeRecord, at: datetime) -> JsonObject:
    ranks = sorted({row.rank for row in record.ranks})
    kept = asdict(record)
    del kept["orders"]  # parts of orders are for those who judge; they read the record itself
    return kept | {
        "rank_ranges": format_ranks(ranks),
        "rank_min": ranks[0] if ranks else 0,
        "rank_max": ranks[-1] if ranks else -1,
        "updated_at": at,
    }


async def write_job(session: AsyncSession, record: JobRecord, at: datetime, console_url: str) -> JobNews:
    """Upsert a job and its attempt, tell the event stream, close the incidents that it ends."""
    record = check_job(record)
    await lock_name(session, f"registry:{record.job}")
    jobs = JobRepository(session)
    row = await jobs.get(record.job, for_update=True)
    news = job_news(None if row is None else _known(row), record)
    if news is JobNews.NOTHING:
        return news
    if news is JobNews.RENAMED and row is not None:
        await jobs.delete_attempts([(record.job, row.attempt)])
    if news in (JobNews.ENDED, JobNews.UPDATED) and row is not None:
        # Agents on several nodes say when they saw it first.
        record = replace(record, started_unix_s=min(record.started_unix_s, to_unix(row.started_at)))
    await jobs.upsert(JobAttempt, [_attempt_values(record)])
    if news is not JobNews.OLDER_ATTEMPT:
        await jobs.upsert(Job, [_job_values(record, at)])
    await _follow(session, record, news, at, console_url)
    return news


def _known(row: Job) -> KnownJob:
    return KnownJob(
        attempt=row.attempt,
        attempt_source=row.attempt_source,
        state=JobState(row.state),
        started_unix_s=to_unix(row.started_at),
        ended_unix_s=None if row.ended_at is None else to_unix(row.ended_at),
    )


def _attempt_values(record: JobRecord) -> JsonObject:
    return {
        "job": record.job,
        "attempt": record.attempt,
        "state": record.state.value,
        "world_size": record.world_size,
        "started_at": from_unix(record.started_unix_s),
        "ended_at": None if record.ended_unix_s is None else from_unix(record.ended_unix_s),
        "end_reason": record.end_reason,
    }


def _job_values(record: JobRecord, at: datetime) -> JsonObject:
    values = _attempt_values(record)
    return (
        {"id": values.pop("job")}
        | values
        | {
            "cluster": record.cluster,
            "tenant": record.tenant,
            "user": record.user,
            "name": record.name,
            "shards": record.shards,
            "id_source": record.id_source,
            "attempt_source": record.attempt_source,
            "versions": record.versions,
            "coordinate_source": CoordinateSource(record.coordinate_source).value,
            "updated_at": at,
        }
    )


async def _follow(
    session: AsyncSession, record: JobRecord, news: JobNews, at: datetime, console_url: str
) -> None:
    """Events and incidents that follow from the news. Rows are locked before anything is numbered."""
    if news is JobNews.OLDER_ATTEMPT:
        return
    incidents = await IncidentRepository(session).lock_open_of_job(record.job)
    event_id = derived_id("evt", f"job.{news.value}", record.job, record.attempt)
    for incident in incidents:
        resolution = None if news is JobNews.RENAMED else incident_resolution(record, incident.attempt)
        context = ChangeContext(
            actor=system(SOURCE),
            at=at,
            event_id=derived_id("evt", event_id, incident.id, incident.reopened_count),
            console_url=console_url,
        )
        if resolution is not None:
            await _resolve(session, incident, resolution, context)
        elif news is JobNews.ENDED and incident.attempt == record.attempt:
            message = f"the job ended: {record.state.value} {record.end_reason}".rstrip()
            add_timeline_entry(session, incident.id, "job", message, context)
    is_told = news in (JobNews.REGISTERED, JobNews.ATTEMPT_STARTED, JobNews.ENDED)
    if is_told and not await OutboxRepository(session).has(event_id):
        text = f"{record.state.value} {record.end_reason}".rstrip()
        await append_stream_event(
            session,
            event_id=event_id,
            event_type=f"job.{news.value}",
            job=record.job,
            at=at,
            summary={"attempt": record.attempt, "summary": text},
        )


def incident_resolution(record: JobRecord, incident_attempt: str) -> str | None:
    """Why an open incident is over now that this record of its job's newest attempt has come.

    A failed job stays with its incident: somebody has to look at it, or the next attempt starts.
    """
    if incident_attempt != record.attempt:
        return f"attempt {record.attempt} has started" if record.state in PROGRESS else None
    if record.state is JobState.FINISHED:
        return "the job finished"
    if record.state is JobState.ENDED:
        return "the job ended, its exit status is not known"
    if record.state is JobState.CANCELLED:
        return f"the job was cancelled {record.end_reason}".rstrip()
    return None


async def _resolve(
    session: AsyncSession, incident: Incident, resolution: str, context: ChangeContext
) -> None:
    incident.status = IncidentStatus.RESOLVED.value
    incident.resolved_at = context.at
    incident.resolved_by = context.actor.name
    incident.resolution = resolution
    await record_change(session, incident, EventType.INCIDENT_RESOLVED, resolution, context)
