"""Routes of jobs. A job id may contain slashes, escaped or not: no route is shadowed unless the id
itself ends in `/ranks`, `/communicators`, `/scaling`, `/economics` or `/planes/state`."""

import asyncio
import hashlib
from enum import Enum
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response

from paceline.api.auth import JobsReader
from paceline.api.errors import MissingScope, NotFound, Unauthenticated, responses
from paceline.api.jobs.economics import build_economics, choose_scenario
from paceline.api.jobs.scaling import build_scaling
from paceline.api.jobs.schemas import (
    CommunicatorRead,
    EconomicsRead,
    JobRead,
    JobSummary,
    RanksRead,
    ScalingRead,
)
from paceline.api.jobs.service import (
    build_communicators,
    build_job,
    build_ranks,
    build_summaries,
    load_attempt,
    load_roles,
)
from paceline.api.pagination import (
    CursorText,
    Limit,
    decode_number_cursor,
    decode_text_cursor,
    decode_time_cursor,
    encode_cursor,
    next_cursor,
)
from paceline.api.schemas import Page
from paceline.api.services import Session
from paceline.api.text import JobText
from paceline.contracts.ids import parse_ranks
from paceline.contracts.registry import JobState
from paceline.store.rank_states import RankState, build_plane
from paceline.store.repositories.jobs import JobRepository
from paceline.store.repositories.scaling import ScalingRepository

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
READ = (Unauthenticated, MissingScope)
RANKS_LIMIT_MAX = 20_000
WINDOWS_LIMIT_MAX = 360
WINDOWS_OF_STEP = 10  # the newest that measured a step gives it
PLANE_LAYOUT_VERSION = "1"
JobId = Annotated[JobText, Path(description="The job's id")]
AttemptText = Annotated[JobText | None, Query(description="Else the newest attempt")]


class PlaneMetric(str, Enum):
    """What one byte of a plane means. `state` is RankState."""

    STATE = "state"


@router.get("", responses=responses(*READ))
async def list_jobs(
    session: Session,
    caller: JobsReader,
    state: Annotated[list[JobState], Query(max_length=6)] = [],  # noqa: B006 (FastAPI copies it)
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[JobSummary]:
    """Newest first."""
    states = [item.value for item in state]
    found = await JobRepository(session).page(states, decode_time_cursor(cursor), limit + 1)
    shown = found[:limit]
    items = await build_summaries(session, shown)
    following = next_cursor(found, limit, shown[-1].started_at, shown[-1].id) if shown else None
    return Page(items=items, next_cursor=following)


@router.get("/{job:path}/ranks", responses=responses(*READ, NotFound))
async def list_ranks(
    job: JobId,
    session: Session,
    caller: JobsReader,
    attempt: AttemptText = None,
    cursor: CursorText = None,
    limit: Annotated[int, Query(ge=1, le=RANKS_LIMIT_MAX)] = 5000,
) -> RanksRead:
    """Registered ranks with node, coordinates and state. A page covers `limit` ranks, registered
    or not."""
    _, found = await load_attempt(session, job, attempt)
    after = decode_number_cursor(cursor)
    first = 0 if after is None else after + 1
    window = range(first, min(first + limit, found.world_size))
    nodes = await JobRepository(session).nodes(job, found.attempt, window.start, window.stop - 1)
    roles = await load_roles(session, job, found.attempt)
    is_last = window.stop >= found.world_size
    return RanksRead(
        job=job,
        attempt=found.attempt,
        world_size=found.world_size,
        items=build_ranks(nodes, JobState(found.state), roles, window),
        next_cursor=None if is_last else encode_cursor(window.stop - 1),
    )


@router.get("/{job:path}/communicators", responses=responses(*READ, NotFound))
async def list_communicators(
    job: JobId,
    session: Session,
    caller: JobsReader,
    attempt: AttemptText = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[CommunicatorRead]:
    """By name."""
    _, found = await load_attempt(session, job, attempt)
    rows = await JobRepository(session).communicators(
        job, found.attempt, after=decode_text_cursor(cursor), limit=limit + 1
    )
    shown = rows[:limit]
    items = await build_communicators(session, shown, job, found.attempt)
    following = next_cursor(rows, limit, shown[-1].name, shown[-1].communicator) if shown else None
    return Page(items=items, next_cursor=following)


@router.get("/{job:path}/scaling", responses=responses(*READ, NotFound))
async def get_scaling(
    job: JobId,
    session: Session,
    caller: JobsReader,
    attempt: AttemptText = None,
    limit: Annotated[int, Query(ge=1, le=WINDOWS_LIMIT_MAX)] = 60,
) -> ScalingRead:
    """CV of the iteration time for each window, and why the job scales badly where it does. A finding
    explains lost throughput with nothing broken: it opens no incident and accuses nobody."""
    _, found = await load_attempt(session, job, attempt)
    rows = await ScalingRepository(session).newest(job, found.attempt, limit)
    return build_scaling(job, found.attempt, rows)


@router.get("/{job:path}/economics", responses=responses(*READ, NotFound))
async def get_economics(
    job: JobId,
    session: Session,
    caller: JobsReader,
    attempt: AttemptText = None,
    failure_every_s: Annotated[float | None, Query(gt=0, le=1e9)] = None,
) -> EconomicsRead:
    """What failures would cost 100,000 steps of this job under restart, survivors that go on, and hot swap:
    simulated from its size and measured step, every parameter with its source. `failure_every_s` replaces
    the published failure rate."""
    _, found = await load_attempt(session, job, attempt)
    jobs = JobRepository(session)
    windows = await ScalingRepository(session).newest(job, found.attempt, WINDOWS_OF_STEP)
    step_s = next((window.step_s for window in windows if window.step_s > 0), None)
    nodes = len(await jobs.rank_ranges(job, found.attempt))
    axes = await jobs.axes(job, found.attempt)
    scenario = choose_scenario(found.world_size, nodes, axes, step_s, failure_every_s)
    return await asyncio.to_thread(build_economics, job, found.attempt, scenario)


@router.get(
    "/{job:path}/planes/{metric}",
    responses=responses(*READ, NotFound)
    | {
        200: {
            "description": "One byte for each rank, rank 0 first: "
            + ", ".join(f"{state.value} {state.name.lower()}" for state in RankState),
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        304: {"description": "Unchanged"},
    },
    response_class=Response,
)
async def get_plane(
    job: JobId,
    metric: PlaneMetric,
    session: Session,
    caller: JobsReader,
    attempt: AttemptText = None,
    if_none_match: Annotated[str | None, Header(max_length=200)] = None,
) -> Response:
    """The rank map as bytes, for pages that poll it."""
    _, found = await load_attempt(session, job, attempt)
    roles = await load_roles(session, job, found.attempt)
    registered: dict[int, bool] = {}
    for ranges, left in await JobRepository(session).rank_ranges(job, found.attempt):
        registered.update(dict.fromkeys(parse_ranks(ranges), left))
    plane = build_plane(found.world_size, JobState(found.state), registered, roles)
    etag = f'"{hashlib.sha256(plane).hexdigest()[:32]}"'
    headers = {
        "ETag": etag,
        "Cache-Control": "private, no-cache",
        "X-Layout-Version": PLANE_LAYOUT_VERSION,
        "X-Min": "0",
        "X-Max": str(max(RankState)),
    }
    if if_none_match is not None and etag in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(plane, media_type="application/octet-stream", headers=headers)


@router.get("/{job:path}", responses=responses(*READ, NotFound))
async def get_job(job: JobId, session: Session, caller: JobsReader) -> JobRead:
    """One job with its attempts, axes and versions."""
    found, _ = await load_attempt(session, job, None)
    return await build_job(session, found)
