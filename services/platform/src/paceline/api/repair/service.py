"""What people decide about repair. The remediator acts on what is written here: they meet in the tables."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.auth import Caller
from paceline.api.errors import (
    ActionNotOpen,
    NoSupervisors,
    NotFound,
    ObservedOnly,
    StaleVersion,
    SwitchOrdered,
    VersionRequired,
)
from paceline.api.repair.checks import OPEN, Facts, build_checks, build_places
from paceline.api.repair.schemas import (
    LimitsRead,
    PhaseRead,
    PolicyRead,
    PolicyWrite,
    Preconditions,
    ProposalCreate,
    RecoveryRead,
    RepairActionDetail,
    RepairActionRead,
    RepairMemberRead,
    RepairStateRead,
    SeatRead,
    StopWrite,
)
from paceline.api.services import Services
from paceline.contracts.ids import parse_ranks
from paceline.contracts.recovery import OrderOutcome, RecoveryPhase, Role, Support
from paceline.contracts.repair import (
    ActionStatus,
    RepairCause,
    RepairKind,
    RepairLimits,
    RepairMode,
    RepairState,
    ReportKind,
)
from paceline.store.models.repair import (
    Recovery,
    RecoveryPhaseRow,
    RepairAction,
    RepairMember,
    RepairPolicy,
)
from paceline.store.repair_changes import tell_action
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.repair import MEMBERS_MAX, ActionFilter, RepairRepository
from paceline.store.sequence import lock_name

PROPOSAL_S = 900.0
PREPARED = "prepared"  # the remediator's name for a replacement that gets ready in the background
EARLIER_MAX = 20  # recoveries that the expected pause is the median of
SUPPORT_ORDER = (Support.REFUSED, Support.EXPERIMENTAL, Support.VERIFIED)


async def load_action(session: AsyncSession, action_id: str, *, for_update: bool = False) -> RepairAction:
    """NotFound where there is none."""
    row = await RepairRepository(session).action(action_id, for_update=for_update)
    if row is None:
        raise NotFound(f"no repair action {action_id[:80]!r}; GET /v1/repair/actions lists them")
    return row


async def build_detail(session: AsyncSession, row: RepairAction) -> RepairActionDetail:
    """The action with what holds now."""
    repairs = RepairRepository(session)
    known = await repairs.members(row.job, row.attempt)
    members = [each for each in known if not each.left]
    standing = [each for each in members if each.role == Role.MEMBER.value]
    support = min((Support(each.support) for each in standing), key=SUPPORT_ORDER.index, default=None)
    earlier = [
        (each.ended_at - each.started_at).total_seconds()
        for each in await repairs.recoveries([row.job], [], None, EARLIER_MAX)
        if each.ended_at is not None and each.state == "resumed"
    ]
    swaps = row.kind in (RepairKind.SWAP.value, RepairKind.RETRY.value)
    conditions = Preconditions(
        standbys_ready=sum(m.role == Role.STANDBY.value and m.ready and m.child_pid > 0 for m in members),
        members_known=len(standing),
        least_support=support,
        blast_ranks=len(parse_ranks(row.ranks)),
        replayed_steps_at_most=1 if swaps else 0,
        expected_pause_s=median(earlier) if earlier else None,
    )
    facts = Facts(conditions, known, await repairs.policies_of(row.job))
    fields = RepairActionRead.model_validate(row).model_dump()
    return RepairActionDetail(
        **fields, preconditions=conditions, checks=build_checks(row, facts), places=build_places(row, facts)
    )


async def decide(
    session: AsyncSession,
    services: Services,
    caller: Caller,
    row: RepairAction,
    status: ActionStatus,
    note: str,
) -> None:
    """Approve or reject a proposal; ActionNotOpen or ObservedOnly where nobody may."""
    now = services.now()
    if row.status != ActionStatus.PROPOSED.value or row.expires_at <= now:
        raise ActionNotOpen(f"the action is {row.status}: only a proposal can be decided")
    if status is ActionStatus.APPROVED and row.mode == RepairMode.OBSERVE.value:
        raise ObservedOnly(
            f"the policy for {row.cause} of {row.job!r} is observe; PUT /v1/repair/policies with mode approve"
        )
    row.status, row.decided_by, row.decided_at, row.note = status.value, caller.name, now, note
    await _changed(session, services, caller, row, {"note": note})


async def cancel(
    session: AsyncSession, services: Services, caller: Caller, row: RepairAction, note: str
) -> None:
    """Ask that a proposal is dropped, or that a planned replacement is rolled back while it is prepared.

    SwitchOrdered where the ranks were told to switch at their next step: some may have done it, and half a
    job that has switched is worse than either. ActionNotOpen for everything else that has begun or is over.
    """
    is_open = row.status in OPEN
    is_under_way = ActionStatus(row.status).is_under_way
    is_planned = row.kind == RepairKind.PLANNED_SWAP.value and is_under_way
    if is_planned and row.reason != PREPARED:
        raise SwitchOrdered(
            f"the action is {row.status} ({row.reason}): its ranks were ordered to switch to generation "
            f"{row.generation}; what fails in it is repaired as a loss"
        )
    if not (is_open or is_planned):
        raise ActionNotOpen(
            f"the action is {row.status}: what has begun to replace a lost rank runs to its end"
        )
    row.cancel_requested, row.note = True, note
    await _changed(session, services, caller, row, {"cancel_requested": True, "note": note})


async def _changed(
    session: AsyncSession, services: Services, caller: Caller, row: RepairAction, details: dict[str, Any]
) -> None:
    now = services.now()
    row.version += 1
    row.updated_at = now
    await session.flush()
    await tell_action(session, row, caller.actor, now, services.console_url, details)
    await RepairRepository(session).look_at(row.job, row.attempt, now)


def check_version(row: RepairAction, if_match: str | None, *, required: bool) -> None:
    """StaleVersion for a decision on an older state, and for an approval of whatever there is;
    VersionRequired where none was named."""
    if if_match is None:
        if required:
            raise VersionRequired("send If-Match with the ETag of the action that you decided on")
        return
    if not _matches(row.version, if_match) or (required and if_match.strip() == "*"):
        raise StaleVersion(
            f"If-Match is {if_match[:80]}, the action is at version {row.version}: read it again"
        )


def _matches(version: int, if_match: str) -> bool:
    wanted = {part.strip().removeprefix("W/").strip('"') for part in if_match.split(",")}
    return str(version) in wanted or if_match.strip() == "*"


async def propose(
    session: AsyncSession, services: Services, caller: Caller, body: ProposalCreate
) -> RepairAction:
    """A planned replacement that the remediator takes up; NoSupervisors where nothing could carry it out."""
    repairs = RepairRepository(session)
    await lock_name(session, f"propose:{body.job}")
    attempt = await _attempt_of(repairs, body)
    now = services.now()
    wanted = ActionFilter(jobs=[body.job], statuses=[*OPEN, "dispatched", "observing"])
    for open_one in await repairs.actions(wanted, 10):
        if open_one.attempt == attempt and open_one.kind != RepairKind.STACK_CAPTURE.value:
            raise ActionNotOpen(f"{open_one.id} of this job is {open_one.status}: one at a time")
    row = RepairAction(
        id=services.new_id("act"), job=body.job, attempt=attempt, incident_id=None,
        kind=RepairKind.PLANNED_SWAP.value, cause=RepairCause.REQUESTED.value,
        status=ActionStatus.PROPOSED.value, mode=RepairMode.APPROVE.value, reason="proposed",
        message=body.note or f"asked for by {caller.name}", ranks=str(body.rank), leavers=[], joiners=[],
        generation=0, step=-1, replayed=0, requested_by=caller.name, decided_by="", note="",
        cancel_requested=False, created_at=now, expires_at=now + timedelta(seconds=PROPOSAL_S),
        decided_at=None, dispatched_at=None, ended_at=None, updated_at=now, version=0,
    )  # fmt: skip
    repairs.add(row)
    await _changed(session, services, caller, row, {"note": body.note})
    return row


async def _attempt_of(repairs: RepairRepository, body: ProposalCreate) -> str:
    """The newest attempt with a supervisor of the rank."""
    found = [
        member
        for member in await repairs.members_page([body.job], [Role.MEMBER.value], None, MEMBERS_MAX)
        if member.rank == body.rank and member.child_pid > 0
    ]
    if not found:
        raise NoSupervisors(
            f"rank {body.rank} of job {body.job[:80]!r} has no living supervisor; "
            "start the job with `paceline run --repair`"
        )
    return max(found, key=lambda member: member.told_at).attempt


async def load_state(session: AsyncSession, job: str) -> RepairStateRead:
    """NotFound for a job without supervisors of which nothing is known."""
    repairs = RepairRepository(session)
    row = await repairs.newest_job(job)
    if row is not None:
        return RepairStateRead(
            job=row.job, attempt=row.attempt, state=RepairState(row.state), generation=row.generation,
            action_id=row.action_id, updated_at=row.updated_at,
            standbys_ready=await repairs.standbys_ready(row.job, row.attempt),
        )  # fmt: skip
    newest = max(
        await repairs.members_page([job], [], None, MEMBERS_MAX), key=lambda each: each.told_at, default=None
    )
    if newest is None:
        raise NotFound(f"nothing is known of repair of job {job[:80]!r}")
    return RepairStateRead(
        job=job, attempt=newest.attempt, state=RepairState.HEALTHY, generation=newest.generation,
        action_id=None, updated_at=newest.told_at,
        standbys_ready=await repairs.standbys_ready(job, newest.attempt),
    )  # fmt: skip


# ---------------------------------------------------------------------- recoveries


async def build_recoveries(session: AsyncSession, rows: Sequence[Recovery]) -> list[RecoveryRead]:
    """With what their members reported."""
    repairs = RepairRepository(session)
    by_job: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        by_job.setdefault((row.job, row.attempt), []).append(row.generation)
    phases: dict[tuple[str, str, int], list[PhaseRead]] = {}
    for (job, attempt), generations in by_job.items():
        for phase in await repairs.phases(job, attempt, generations):
            phases.setdefault((job, attempt, phase.generation), []).append(_phase(phase))
    return [
        RecoveryRead(
            id=row.id, action_id=row.action_id, job=row.job, attempt=row.attempt, generation=row.generation,
            attempt_no=row.attempt_no, state=row.state, step=row.step, replayed=row.replayed,
            reason=row.reason, started_at=row.started_at, ended_at=row.ended_at,
            seats=[SeatRead(rank=seat["rank"], member=seat["member"]) for seat in row.seats],
            phases=phases.get((row.job, row.attempt, row.generation), []),
        )
        for row in rows
    ]  # fmt: skip


def _phase(row: RecoveryPhaseRow) -> PhaseRead:
    return PhaseRead(
        member=row.member, rank=row.rank, kind=ReportKind(row.kind),
        phase=RecoveryPhase(row.phase) if row.phase else None,
        outcome=OrderOutcome(row.outcome) if row.outcome else None, duration_ms=row.duration_ms,
        step=row.step, replayed=row.replayed, bytes_count=row.bytes_count, message=row.message, at=row.at,
    )  # fmt: skip


def build_member(row: RepairMember) -> RepairMemberRead:
    return RepairMemberRead(
        job=row.job, attempt=row.attempt, member=row.member, node=row.node, role=Role(row.role),
        rank=row.rank, generation=row.generation, step=row.step, failure_domain=row.failure_domain,
        ready=row.ready, alive=row.child_pid > 0, support=Support(row.support), lease_s=row.lease_s,
        told_at=row.told_at,
    )  # fmt: skip


# ---------------------------------------------------------------------- policies


def build_policy(row: RepairPolicy) -> PolicyRead:
    limits = {name: row.limits.get(name) for name in RepairLimits.__annotations__}
    return PolicyRead(
        job=row.job or None, cause=RepairCause(row.cause) if row.cause else None,
        mode=RepairMode(row.mode) if row.mode else None, stopped=row.stopped,
        limits=LimitsRead(**limits), version=row.version, updated_by=row.updated_by,
        updated_at=row.updated_at,
    )  # fmt: skip


async def put_policy(
    session: AsyncSession,
    services: Services,
    caller: Caller,
    body: PolicyWrite,
    if_match: str | None = None,
) -> RepairPolicy:
    """Write the policy for (job, cause); it holds from the next decision on."""
    limits = {name: value for name, value in body.limits.model_dump().items() if value is not None}
    cause = body.cause.value if body.cause else ""
    row = await _policy(session, services, caller, body.job or "", cause, if_match)
    row.mode = body.mode.value if body.mode is not None else ""
    row.limits = limits
    if body.stopped is not None:
        row.stopped = body.stopped
    await _told(session, services.now(), caller, row, "repair.policy_changed", {})
    return row


async def put_stop(
    session: AsyncSession, services: Services, caller: Caller, body: StopWrite, if_match: str | None = None
) -> RepairPolicy:
    """The stop switch; mode and limits of the policy stay."""
    row = await _policy(session, services, caller, body.job or "", "", if_match)
    row.stopped = body.stopped
    action = "repair.stopped" if body.stopped else "repair.stop_lifted"
    await _told(session, services.now(), caller, row, action, {"note": body.note})
    return row


async def _policy(
    session: AsyncSession, services: Services, caller: Caller, job: str, cause: str, if_match: str | None
) -> RepairPolicy:
    repairs = RepairRepository(session)
    await lock_name(session, f"repair-policy:{job}:{cause}")
    row = await repairs.policy(job, cause, for_update=True)
    if row is None:
        row = RepairPolicy(job=job, cause=cause, mode="", stopped=False, limits={}, version=0)
        repairs.add(row)
    if if_match is not None and not _matches(row.version, if_match):
        raise StaleVersion(
            f"If-Match is {if_match[:80]}, the policy is at version {row.version}: read it again"
        )
    row.version += 1
    row.updated_by, row.updated_at = caller.name, services.now()
    return row


async def _told(
    session: AsyncSession,
    at: datetime,
    caller: Caller,
    row: RepairPolicy,
    action: str,
    details: dict[str, Any],
) -> None:
    await session.flush()
    facts = {"mode": row.mode, "stopped": row.stopped, "limits": row.limits, "version": row.version}
    target = ("policy", f"{row.job or '*'}/{row.cause or '*'}")
    await AuditRepository(session).append(at, caller.actor, action, target, facts | details)
