"""Routes of incidents. Verb-like things are resources that are created."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.auth import IncidentsReader, IncidentsWriter
from paceline.api.errors import (
    AlreadyAcknowledged,
    AlreadyResolved,
    BodyTooLarge,
    CrossSite,
    IdempotencyKeyReused,
    MissingScope,
    NotFound,
    StaleVersion,
    Unauthenticated,
    responses,
)
from paceline.api.idempotency import Idempotent
from paceline.api.incidents.bundle import read_parts, write_bundle
from paceline.api.incidents.page import build_entry, build_page, build_summary
from paceline.api.incidents.schemas import (
    AcknowledgementCreate,
    IncidentRead,
    IncidentSummary,
    NoteCreate,
    ResolutionCreate,
    TimelineEntryRead,
)
from paceline.api.incidents.service import (
    acknowledge,
    add_note,
    change_context,
    check_version,
    load_incident,
    resolve,
)
from paceline.api.nodes.endpoints import history_policy
from paceline.api.pagination import (
    CursorText,
    Limit,
    decode_number_cursor,
    decode_time_cursor,
    next_cursor,
)
from paceline.api.schemas import Page
from paceline.api.services import Session, Shared
from paceline.api.text import JobText, KindText
from paceline.contracts.events import IncidentStatus, Severity
from paceline.contracts.verdicts import VerdictClass
from paceline.store.incident_changes import ChangeContext
from paceline.store.models.incident import Incident
from paceline.store.repositories.evidence import EvidenceRepository
from paceline.store.repositories.incidents import IncidentFilter, IncidentRepository

router = APIRouter(prefix="/v1/incidents", tags=["incidents"])
BUNDLE_MEMORY_BYTES_MAX = 4 << 20  # of an archive that is being written; beyond that it lies on disk
READ = (Unauthenticated, MissingScope)
WRITE = (*READ, CrossSite, BodyTooLarge, NotFound, IdempotencyKeyReused)
IncidentId = Annotated[
    str, Path(max_length=80, pattern=r"^[\x21-\x7e]+$", description="inc_... or its label INC-<number>")
]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=200, description="The version you saw")]


@router.get("", responses=responses(*READ))
async def list_incidents(
    session: Session,
    caller: IncidentsReader,
    status: Annotated[list[IncidentStatus], Query(max_length=3)] = [],  # noqa: B006 (FastAPI copies it)
    job: Annotated[list[JobText], Query(max_length=50)] = [],  # noqa: B006
    verdict: Annotated[list[VerdictClass], Query(max_length=20)] = [],  # noqa: B006
    severity: Annotated[list[Severity], Query(max_length=4)] = [],  # noqa: B006
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[IncidentSummary]:
    """Newest first. Filters may be repeated."""
    wanted = IncidentFilter(
        statuses=[item.value for item in status],
        jobs=job,
        verdicts=[item.value for item in verdict],
        severities=[item.value for item in severity],
        after=decode_time_cursor(cursor),
    )
    found = await IncidentRepository(session).page(wanted, limit + 1)
    items = [build_summary(incident) for incident in found[:limit]]
    last = found[:limit][-1] if found else None
    following = None if last is None else next_cursor(found, limit, last.opened_at, last.id)
    return Page(items=items, next_cursor=following)


@router.get("/{incident_id}", responses=responses(*READ, NotFound))
async def get_incident(
    incident_id: IncidentId, session: Session, services: Shared, caller: IncidentsReader, response: Response
) -> IncidentRead:
    """The whole page: what happened, why, what next, did it happen, and what it costs."""
    incident = await load_incident(session, incident_id)
    return await _answer(session, services, incident, response)


@router.get("/{incident_id}/timeline", responses=responses(*READ, NotFound))
async def list_timeline(
    incident_id: IncidentId,
    session: Session,
    caller: IncidentsReader,
    kind: Annotated[list[KindText], Query(max_length=10)] = [],  # noqa: B006
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[TimelineEntryRead]:
    """Newest first. `kind` filters: opened, updated, acknowledged, resolved, reopened, note."""
    incident = await load_incident(session, incident_id)
    entries = await IncidentRepository(session).timeline(
        incident.id, limit + 1, before=decode_number_cursor(cursor), kinds=kind
    )
    items = [build_entry(entry) for entry in entries[:limit]]
    following = next_cursor(entries, limit, items[-1].id) if items else None
    return Page(items=items, next_cursor=following)


@router.get(
    "/{incident_id}/evidence",
    responses=responses(*READ, NotFound)
    | {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
    response_class=Response,
)
async def get_evidence(
    incident_id: IncidentId,
    session: Session,
    caller: IncidentsReader,
    bundle: Annotated[str | None, Query(max_length=80, pattern=r"^[\x21-\x7e]+$")] = None,
) -> Response:
    """The evidence bundle of the newest verdict that has one, or the one named by `bundle`;
    `paceline diagnose` judges it again."""
    incident = await load_incident(session, incident_id)
    evidence = EvidenceRepository(session)
    if bundle is None:
        kept = await evidence.of_incident(incident.id)
        if not kept:
            raise NotFound(f"INC-{incident.number} has no evidence bundle; it was too large or has expired")
        bundle = kept[0].id
    found = await evidence.get(incident.id, bundle)
    if found is None:
        raise NotFound(f"INC-{incident.number} has no evidence bundle {bundle[:80]!r}")
    name = f"INC-{incident.number}-r{found.revision}.evidence.gz"
    return Response(
        found.data,
        media_type="application/octet-stream",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "ETag": f'"{found.sha256}"',
            "X-Verdict-Id": found.verdict_id,
        },
    )


@router.get(
    "/{incident_id}/bundle",
    responses=responses(*READ, NotFound)
    | {200: {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}},
    response_class=Response,
)
async def get_bundle(
    incident_id: IncidentId, session: Session, services: Shared, caller: IncidentsReader
) -> Response:
    """Everything that is kept of the incident in one archive, for `paceline diagnose INC-1.bundle`: verdicts,
    evidence, registry, health and timeline. `manifest.json` comes first and lists the files."""
    incident = await load_incident(session, incident_id)
    archive = services.downloads.open(BUNDLE_MEMORY_BYTES_MAX)
    try:
        await write_bundle(session, incident, archive)
        size = archive.tell()
    except BaseException:
        archive.close()
        raise
    return StreamingResponse(
        read_parts(archive),
        media_type="application/gzip",
        headers={
            "Content-Disposition": f'attachment; filename="INC-{incident.number}.bundle"',
            "Content-Length": str(size),
        },
    )


@dataclass(frozen=True)
class StateChange:
    """A request to change the state of one incident, and where its answer goes."""

    session: Session
    services: Shared
    caller: IncidentsWriter
    incident_id: str
    if_match: str | None
    idempotency: Idempotent
    response: Response

    async def make(
        self, act: Callable[[AsyncSession, Incident, str, ChangeContext], Awaitable[None]], note: str
    ) -> IncidentRead:
        """Carry it out, unless it repeats one; the incident as it is now."""
        incident = await load_incident(self.session, self.incident_id, for_update=True)
        if self.idempotency.resource_id is None:
            check_version(incident, self.if_match)
            await act(self.session, incident, note, change_context(self.services, self.caller))
            await self.idempotency.remember(incident.id)
        return await _answer(self.session, self.services, incident, self.response)


async def get_change(
    incident_id: IncidentId,
    session: Session,
    services: Shared,
    caller: IncidentsWriter,
    idempotency: Idempotent,
    response: Response,
    if_match: IfMatch = None,
) -> StateChange:
    return StateChange(session, services, caller, incident_id, if_match, idempotency, response)


Change = Annotated[StateChange, Depends(get_change)]


@router.post(
    "/{incident_id}/acknowledgements",
    status_code=201,
    responses=responses(*WRITE, AlreadyAcknowledged, AlreadyResolved, StaleVersion),
)
async def create_acknowledgement(body: AcknowledgementCreate, change: Change) -> IncidentRead:
    """Say that somebody is on it. Answers with the incident as it is now."""
    return await change.make(acknowledge, body.note)


@router.post(
    "/{incident_id}/resolutions",
    status_code=201,
    responses=responses(*WRITE, AlreadyResolved, StaleVersion),
)
async def create_resolution(body: ResolutionCreate, change: Change) -> IncidentRead:
    """Close the incident by hand. It resolves by itself when the job makes progress again."""
    return await change.make(resolve, body.note)


@router.post("/{incident_id}/notes", status_code=201, responses=responses(*WRITE))
async def create_note(
    incident_id: IncidentId,
    body: NoteCreate,
    session: Session,
    services: Shared,
    caller: IncidentsWriter,
    idempotency: Idempotent,
) -> TimelineEntryRead:
    """Write a note into the timeline. It pages nobody."""
    incident = await load_incident(session, incident_id)
    if idempotency.resource_id is not None:
        return await _noted(session, incident, int(idempotency.resource_id))
    entry = await add_note(session, incident, body.text, change_context(services, caller))
    await idempotency.remember(str(entry.id))
    return build_entry(entry)


async def _noted(session: Session, incident: Incident, entry_id: int) -> TimelineEntryRead:
    entry = await IncidentRepository(session).timeline_entry(incident.id, entry_id)
    if entry is None:
        raise NotFound(f"INC-{incident.number} has no timeline entry {entry_id}")
    return build_entry(entry)


async def _answer(session: Session, services: Shared, incident: Incident, response: Response) -> IncidentRead:
    response.headers["ETag"] = f'"{incident.version}"'
    return await build_page(session, incident, services.now(), history_policy(services))
