"""Routes of repair. Decisions are resources that are created; what follows from them is done by the
remediator."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.auth import Caller, IncidentsReader, RepairWriter
from paceline.api.errors import (
    ActionNotOpen,
    BodyTooLarge,
    CrossSite,
    IdempotencyKeyReused,
    MissingScope,
    NoSupervisors,
    NotFound,
    ObservedOnly,
    StaleVersion,
    SwitchOrdered,
    Unauthenticated,
    VersionRequired,
    responses,
)
from paceline.api.idempotency import Idempotency, Idempotent
from paceline.api.pagination import (
    CursorText,
    Limit,
    decode_text_cursor,
    decode_time_cursor,
    next_cursor,
)
from paceline.api.repair.schemas import (
    DecisionCreate,
    PolicyRead,
    PolicyWrite,
    ProposalCreate,
    RecoveryRead,
    RepairActionDetail,
    RepairActionRead,
    RepairMemberRead,
    RepairStateRead,
    StopWrite,
)
from paceline.api.repair.service import (
    build_detail,
    build_member,
    build_policy,
    build_recoveries,
    cancel,
    check_version,
    decide,
    load_action,
    load_state,
    propose,
    put_policy,
    put_stop,
)
from paceline.api.schemas import Page
from paceline.api.services import Services, Session, Shared
from paceline.api.text import JobText
from paceline.contracts.recovery import Role
from paceline.contracts.repair import ActionStatus
from paceline.store.models.repair import RepairAction, RepairPolicy
from paceline.store.repositories.repair import ActionFilter, RepairRepository

router = APIRouter(prefix="/v1/repair", tags=["repair"])
READ = (Unauthenticated, MissingScope)
WRITE = (*READ, CrossSite, BodyTooLarge, IdempotencyKeyReused)
ActionId = Annotated[str, Path(max_length=80, pattern=r"^[\x21-\x7e]+$")]
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=200, description="The version you saw")]
Jobs = Annotated[list[JobText], Query(alias="job", max_length=50)]
Work = Callable[[AsyncSession, Services, Caller, RepairAction, str], Awaitable[None]]


@router.get("/actions", responses=responses(*READ))
async def list_repair_actions(
    session: Session,
    caller: IncidentsReader,
    job: Jobs = [],  # noqa: B006 (FastAPI copies it)
    incident: Annotated[list[JobText], Query(max_length=50)] = [],  # noqa: B006
    status: Annotated[list[ActionStatus], Query(max_length=9)] = [],  # noqa: B006
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[RepairActionRead]:
    """Newest first. Filters may be repeated."""
    wanted = ActionFilter(job, incident, [item.value for item in status], decode_time_cursor(cursor))
    found = await RepairRepository(session).actions(wanted, limit + 1)
    shown = found[:limit]
    following = next_cursor(found, limit, shown[-1].created_at, shown[-1].id) if shown else None
    return Page(items=[RepairActionRead.model_validate(row) for row in shown], next_cursor=following)


@router.get("/actions/{action_id}", responses=responses(*READ, NotFound))
async def get_repair_action(
    action_id: ActionId, session: Session, caller: IncidentsReader, response: Response
) -> RepairActionDetail:
    """One proposal with its preconditions, blast radius and expected cost."""
    return await _answer(session, await load_action(session, action_id), response)


@router.post("/proposals", status_code=201, responses=responses(*WRITE, NoSupervisors, ActionNotOpen))
async def create_proposal(
    body: ProposalCreate,
    session: Session,
    services: Shared,
    caller: RepairWriter,
    idempotency: Idempotent,
    response: Response,
) -> RepairActionDetail:
    """Ask for a planned replacement: the standby gets ready while training goes on."""
    if idempotency.resource_id is not None:
        row = await load_action(session, idempotency.resource_id)
    else:
        row = await propose(session, services, caller, body)
        await idempotency.remember(row.id)
    return await _answer(session, row, response)


@dataclass(frozen=True)
class Decision:
    """One request that decides about an action: locks, checks the version, carries out, answers."""

    session: AsyncSession
    services: Services
    caller: Caller
    action_id: str
    if_match: str | None
    idempotency: Idempotency
    response: Response

    async def make(self, work: Work, note: str, *, required: bool) -> RepairActionDetail:
        row = await load_action(self.session, self.action_id, for_update=True)
        if self.idempotency.resource_id is None:
            check_version(row, self.if_match, required=required)
            await work(self.session, self.services, self.caller, row, note)
            await self.idempotency.remember(row.id)
        return await _answer(self.session, row, self.response)


async def get_decision(
    action_id: ActionId,
    session: Session,
    services: Shared,
    caller: RepairWriter,
    idempotency: Idempotent,
    response: Response,
    if_match: IfMatch = None,
) -> Decision:
    return Decision(session, services, caller, action_id, if_match, idempotency, response)


Deciding = Annotated[Decision, Depends(get_decision)]


@router.post(
    "/actions/{action_id}/approvals",
    status_code=201,
    responses=responses(*WRITE, NotFound, ActionNotOpen, ObservedOnly, StaleVersion, VersionRequired),
)
async def create_approval(body: DecisionCreate, decision: Deciding) -> RepairActionDetail:
    """Let the proposal be carried out as it was read: If-Match is required."""

    async def approve(
        session: AsyncSession, services: Services, caller: Caller, row: RepairAction, note: str
    ) -> None:
        await decide(session, services, caller, row, ActionStatus.APPROVED, note)

    return await decision.make(approve, body.note, required=True)


@router.post(
    "/actions/{action_id}/rejections",
    status_code=201,
    responses=responses(*WRITE, NotFound, ActionNotOpen, StaleVersion),
)
async def create_rejection(body: DecisionCreate, decision: Deciding) -> RepairActionDetail:
    """Say no: nothing is done about this fault by itself."""

    async def reject(
        session: AsyncSession, services: Services, caller: Caller, row: RepairAction, note: str
    ) -> None:
        await decide(session, services, caller, row, ActionStatus.REJECTED, note)

    return await decision.make(reject, body.note, required=False)


@router.post(
    "/actions/{action_id}/cancellations",
    status_code=201,
    responses=responses(*WRITE, NotFound, ActionNotOpen, SwitchOrdered, StaleVersion),
)
async def create_cancellation(body: DecisionCreate, decision: Deciding) -> RepairActionDetail:
    """Drop a proposal, or roll a planned replacement back until its ranks are ordered to switch."""
    return await decision.make(cancel, body.note, required=False)


@router.get("/recoveries", responses=responses(*READ))
async def list_recoveries(
    session: Session,
    caller: IncidentsReader,
    job: Jobs = [],  # noqa: B006
    action: Annotated[list[JobText], Query(max_length=50)] = [],  # noqa: B006
    cursor: CursorText = None,
    limit: Annotated[int, Query(ge=1, le=50)] = 20,
) -> Page[RecoveryRead]:
    """Generations that were opened, newest first, with the phases that their members measured."""
    found = await RepairRepository(session).recoveries(job, action, decode_time_cursor(cursor), limit + 1)
    shown = found[:limit]
    following = next_cursor(found, limit, shown[-1].started_at, shown[-1].id) if shown else None
    return Page(items=await build_recoveries(session, shown), next_cursor=following)


@router.get("/members", responses=responses(*READ))
async def list_repair_members(
    session: Session,
    caller: IncidentsReader,
    job: Jobs = [],  # noqa: B006
    role: Annotated[list[Role], Query(max_length=2)] = [],  # noqa: B006
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[RepairMemberRead]:
    """Supervisors by job and name; `role=standby` is the standby registry."""
    roles = [item.value for item in role]
    found = await RepairRepository(session).members_page(job, roles, decode_text_cursor(cursor), limit + 1)
    shown = found[:limit]
    following = next_cursor(found, limit, shown[-1].job, shown[-1].member) if shown else None
    return Page(items=[build_member(row) for row in shown], next_cursor=following)


@router.get("/state", responses=responses(*READ, NotFound))
async def get_repair_state(
    session: Session, caller: IncidentsReader, job: Annotated[JobText, Query()]
) -> RepairStateRead:
    """Where the newest attempt of a job stands: healthy where it has supervisors and nothing happened yet."""
    return await load_state(session, job)


@router.get("/policies", responses=responses(*READ))
async def list_policies(session: Session, caller: IncidentsReader) -> list[PolicyRead]:
    """All of them; where none fits, everything is observed."""
    return [build_policy(row) for row in await RepairRepository(session).policies()]


@router.put("/policies", responses=responses(*READ, CrossSite, BodyTooLarge, StaleVersion))
async def update_policy(
    body: PolicyWrite,
    session: Session,
    services: Shared,
    caller: RepairWriter,
    response: Response,
    if_match: IfMatch = None,
) -> PolicyRead:
    """Write the policy for a job and a cause, each or both left out for all. With If-Match only over the
    version that was read."""
    return _tagged(await put_policy(session, services, caller, body, if_match), response)


@router.put("/stop", responses=responses(*READ, CrossSite, BodyTooLarge, StaleVersion))
async def update_stop(
    body: StopWrite,
    session: Session,
    services: Shared,
    caller: RepairWriter,
    response: Response,
    if_match: IfMatch = None,
) -> PolicyRead:
    """The stop switch. What is under way runs to its end; nothing new is dispatched."""
    return _tagged(await put_stop(session, services, caller, body, if_match), response)


def _tagged(row: RepairPolicy, response: Response) -> PolicyRead:
    response.headers["ETag"] = f'"{row.version}"'
    return build_policy(row)


async def _answer(session: AsyncSession, row: RepairAction, response: Response) -> RepairActionDetail:
    response.headers["ETag"] = f'"{row.version}"'
    return await build_detail(session, row)
