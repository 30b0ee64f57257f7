"""Repair's tables: state machines, actions, recoveries with their phases, supervisors, policies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import case, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.store.base import JsonObject
from paceline.store.models.repair import (
    Recovery,
    RecoveryPhaseRow,
    RepairAction,
    RepairJob,
    RepairMember,
    RepairPolicy,
)

MEMBERS_MAX = 8192  # of one attempt, standbys included
PHASES_MAX = 20_000
UPSERT_ROWS_MAX = 100
NAMES_MAX = 1000
ENDED_MAX = 1000
NO_RUN = -1
After = tuple[datetime, str] | None


@dataclass(frozen=True)
class ActionFilter:
    """Empty lists filter nothing."""

    jobs: Sequence[str] = field(default_factory=tuple)
    incidents: Sequence[str] = field(default_factory=tuple)
    statuses: Sequence[str] = field(default_factory=tuple)
    after: After = None


class RepairRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    # ------------------------------------------------------------------ state machines

    async def job(self, job: str, attempt: str) -> RepairJob | None:
        return await self._session.get(RepairJob, (job, attempt), populate_existing=True)

    async def newest_job(self, job: str) -> RepairJob | None:
        query = select(RepairJob).where(RepairJob.job == job).order_by(RepairJob.updated_at.desc()).limit(1)
        return await self._session.scalar(query)

    async def put_job(self, values: JsonObject) -> None:
        statement = insert(RepairJob).values(values)
        changes = {name: statement.excluded[name] for name in values if name not in ("job", "attempt")}
        await self._session.execute(
            statement.on_conflict_do_update(index_elements=["job", "attempt"], set_=changes)
        )

    async def due(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        """(job, attempt) of those that have to be looked at, the longest overdue first."""
        query = (
            select(RepairJob.job, RepairJob.attempt)
            .where(RepairJob.due_at <= now)
            .order_by(RepairJob.due_at)
            .limit(limit)
        )
        return [(job, attempt) for job, attempt in (await self._session.execute(query)).all()]

    async def look_at(self, job: str, attempt: str, at: datetime | None) -> None:
        """Have the job looked at at `at`, None for not before something happens."""
        await self._session.execute(
            update(RepairJob).where(RepairJob.job == job, RepairJob.attempt == attempt).values(due_at=at)
        )

    # ------------------------------------------------------------------ actions

    def add(self, row: RepairAction | Recovery | RepairPolicy) -> None:
        self._session.add(row)

    async def action(self, action_id: str, *, for_update: bool = False) -> RepairAction | None:
        query = select(RepairAction).where(RepairAction.id == action_id)
        if for_update:
            query = query.with_for_update().execution_options(populate_existing=True)
        return await self._session.scalar(query)

    async def actions(self, wanted: ActionFilter, limit: int) -> Sequence[RepairAction]:
        """Newest first."""
        query = select(RepairAction).order_by(RepairAction.created_at.desc(), RepairAction.id.desc())
        if wanted.jobs:
            query = query.where(RepairAction.job.in_(wanted.jobs))
        if wanted.incidents:
            query = query.where(RepairAction.incident_id.in_(wanted.incidents))
        if wanted.statuses:
            query = query.where(RepairAction.status.in_(wanted.statuses))
        if wanted.after is not None:
            query = query.where(tuple_(RepairAction.created_at, RepairAction.id) < tuple_(*wanted.after))
        return (await self._session.scalars(query.limit(limit))).all()

    async def requested(self, job: str, attempt: str) -> RepairAction | None:
        """The oldest proposal of a person that nothing was done about yet."""
        query = (
            select(RepairAction)
            .where(RepairAction.job == job, RepairAction.attempt == attempt)
            .where(RepairAction.cause == "requested", RepairAction.status.in_(["proposed", "approved"]))
            .where(RepairAction.ended_at.is_(None))
            .order_by(RepairAction.created_at, RepairAction.id)
            .limit(1)
            .with_for_update()
            .execution_options(populate_existing=True)
        )
        return await self._session.scalar(query)

    async def with_requests(self, limit: int) -> list[tuple[str, str]]:
        """(job, attempt) of those with such a proposal that are not looked at anyway."""
        query = (
            select(RepairAction.job, RepairAction.attempt)
            .where(RepairAction.cause == "requested", RepairAction.status.in_(["proposed", "approved"]))
            .where(RepairAction.ended_at.is_(None))
            .where(
                ~select(RepairJob.job)
                .where(RepairJob.job == RepairAction.job, RepairJob.attempt == RepairAction.attempt)
                .where(RepairJob.action_id.is_not(None))
                .exists()
            )
            .distinct()
            .limit(limit)
        )
        return [(job, attempt) for job, attempt in (await self._session.execute(query)).all()]

    async def captures(self, status: str, limit: int) -> Sequence[RepairAction]:
        """Captures of stacks with that status, the oldest first, locked; what another service has locked is
        its to decide."""
        query = (
            select(RepairAction)
            .where(RepairAction.kind == "stack_capture", RepairAction.cause == "software")
            .where(RepairAction.status == status, RepairAction.ended_at.is_(None))
            .order_by(RepairAction.created_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
            .execution_options(populate_existing=True)
        )
        return (await self._session.scalars(query)).all()

    async def ended_since(
        self, at: datetime, ignored: Sequence[str]
    ) -> Sequence[tuple[str, datetime | None, str]]:
        """Job, end and status of the repairs of all jobs that were proposed since `at` and have failed or
        succeeded, the newest first, at most ENDED_MAX. Without captures, what was given up from the start,
        and the reasons `ignored`."""
        query = (
            select(RepairAction.job, RepairAction.ended_at, RepairAction.status)
            .where(RepairAction.ended_at.is_not(None))
            .where(RepairAction.created_at >= at, RepairAction.status.in_(["failed", "succeeded"]))
            .where(RepairAction.kind.not_in(["stack_capture", "fallback"]))
            .where(RepairAction.reason.not_in(ignored))
            .order_by(RepairAction.created_at.desc())
            .limit(ENDED_MAX)
        )
        return [(job, ended_at, status) for job, ended_at, status in await self._session.execute(query)]

    # ------------------------------------------------------------------ recoveries

    async def recovery(self, job: str, attempt: str, generation: int) -> Recovery | None:
        query = select(Recovery).where(
            Recovery.job == job, Recovery.attempt == attempt, Recovery.generation == generation
        )
        return await self._session.scalar(query)

    async def under_way(self, job: str, attempt: str) -> Recovery | None:
        query = select(Recovery).where(
            Recovery.job == job, Recovery.attempt == attempt, Recovery.ended_at.is_(None)
        )
        return await self._session.scalar(query)

    async def recoveries(
        self, jobs: Sequence[str], actions: Sequence[str], after: After, limit: int
    ) -> Sequence[Recovery]:
        """Newest first; empty lists filter nothing."""
        query = select(Recovery).order_by(Recovery.started_at.desc(), Recovery.id.desc()).limit(limit)
        if jobs:
            query = query.where(Recovery.job.in_(jobs))
        if actions:
            query = query.where(Recovery.action_id.in_(actions))
        if after is not None:
            query = query.where(tuple_(Recovery.started_at, Recovery.id) < tuple_(*after))
        return (await self._session.scalars(query)).all()

    async def add_phases(self, rows: Sequence[JsonObject]) -> None:
        """Keep reports, one or more; those that are there already stay as they are."""
        await self._session.execute(insert(RecoveryPhaseRow).on_conflict_do_nothing(), list(rows))

    async def phases(self, job: str, attempt: str, generations: Sequence[int]) -> Sequence[RecoveryPhaseRow]:
        """In the order in which they were told, at most PHASES_MAX."""
        query = (
            select(RecoveryPhaseRow)
            .where(RecoveryPhaseRow.job == job, RecoveryPhaseRow.attempt == attempt)
            .where(RecoveryPhaseRow.generation.in_(generations))
            .order_by(RecoveryPhaseRow.at, RecoveryPhaseRow.rank, RecoveryPhaseRow.id)
            .limit(PHASES_MAX)
        )
        return (await self._session.scalars(query)).all()

    # ------------------------------------------------------------------ supervisors

    async def put_members(self, rows: Sequence[JsonObject]) -> None:
        """Keep the newest word of each supervisor; rows have different keys. A name belongs to the uid and
        the node that told it first, until it has left: the same name from elsewhere is dropped."""
        keys = ["job", "attempt", "member"]
        rows = [row | {"registered_at": row["told_at"]} for row in rows]
        for begin in range(0, len(rows), UPSERT_ROWS_MAX):
            statement = insert(RepairMember).values(rows[begin : begin + UPSERT_ROWS_MAX])
            told = statement.excluded
            changes: JsonObject = {name: told[name] for name in rows[0] if name not in keys}
            is_same = (RepairMember.uid == told.uid) & (RepairMember.node == told.node)
            changes["registered_at"] = case((is_same, RepairMember.registered_at), else_=told.registered_at)
            await self._session.execute(
                statement.on_conflict_do_update(
                    index_elements=keys, set_=changes,
                    where=(RepairMember.told_at <= told.told_at) & (is_same | RepairMember.left),
                )
            )  # fmt: skip

    async def members(self, job: str, attempt: str, run: int | None = None) -> Sequence[RepairMember]:
        """By name, those that have left included; with `run` only those of it and those of none yet."""
        query = (
            select(RepairMember)
            .where(RepairMember.job == job, RepairMember.attempt == attempt)
            .order_by(RepairMember.member)
            .limit(MEMBERS_MAX)
        )
        if run is not None:
            query = query.where(RepairMember.run.in_([run, NO_RUN]))
        return (await self._session.scalars(query.execution_options(populate_existing=True))).all()

    async def count_in(self, job: str, attempt: str, members: Sequence[str], run: int) -> None:
        """These supervisors belong to that run from now on."""
        for begin in range(0, len(members), NAMES_MAX):
            names = members[begin : begin + NAMES_MAX]
            await self._session.execute(
                update(RepairMember)
                .where(RepairMember.job == job, RepairMember.attempt == attempt)
                .where(RepairMember.member.in_(names))
                .values(run=run)
            )

    async def supervised_attempt(self, job: str, attempt: str) -> str:
        """`attempt` where it has supervisors, else the newest name under which the job has living ones: a
        supervisor is there before the attempt has its final name."""
        query = (
            select(RepairMember.attempt)
            .where(RepairMember.job == job)
            .where((RepairMember.attempt == attempt) | RepairMember.left.is_(False))
            .order_by((RepairMember.attempt == attempt).desc(), RepairMember.told_at.desc())
            .limit(1)
        )
        return await self._session.scalar(query) or attempt

    async def members_page(
        self, jobs: Sequence[str], roles: Sequence[str], after: tuple[str, str] | None, limit: int
    ) -> Sequence[RepairMember]:
        """Those that have not left, by job and name. `after` is (job, member)."""
        query = (
            select(RepairMember)
            .where(RepairMember.left.is_(False))
            .order_by(RepairMember.job, RepairMember.member, RepairMember.attempt)
            .limit(limit)
        )
        if jobs:
            query = query.where(RepairMember.job.in_(jobs))
        if roles:
            query = query.where(RepairMember.role.in_(roles))
        if after is not None:
            query = query.where(tuple_(RepairMember.job, RepairMember.member) > tuple_(*after))
        return (await self._session.scalars(query)).all()

    async def standbys_ready(self, job: str, attempt: str) -> int:
        query = select(func.count()).where(
            RepairMember.job == job, RepairMember.attempt == attempt, RepairMember.role == "standby",
            RepairMember.ready, RepairMember.left.is_(False),
        )  # fmt: skip
        return await self._session.scalar(query) or 0

    # ------------------------------------------------------------------ policies

    async def policies_of(self, job: str) -> Sequence[RepairPolicy]:
        """Of the job and of all jobs."""
        query = select(RepairPolicy).where(RepairPolicy.job.in_(["", job]))
        return (await self._session.scalars(query.execution_options(populate_existing=True))).all()

    async def policies(self) -> Sequence[RepairPolicy]:
        query = select(RepairPolicy).order_by(RepairPolicy.job, RepairPolicy.cause).limit(1000)
        return (await self._session.scalars(query)).all()

    async def policy(self, job: str, cause: str, *, for_update: bool = False) -> RepairPolicy | None:
        query = select(RepairPolicy).where(RepairPolicy.job == job, RepairPolicy.cause == cause)
        if for_update:
            query = query.with_for_update().execution_options(populate_existing=True)
        return await self._session.scalar(query)

    # ------------------------------------------------------------------ what is kept for how long

    async def clean(self, at: datetime, limit: int) -> int:
        """Drop at most `limit` of a kind that nobody has spoken of since `at`."""
        old_actions = (
            select(RepairAction.id)
            .where(RepairAction.ended_at < at, RepairAction.ended_at.is_not(None))
            .limit(limit)
        )
        dropped = 0
        for statement in (
            delete(RecoveryPhaseRow).where(
                RecoveryPhaseRow.id.in_(
                    select(RecoveryPhaseRow.id).where(RecoveryPhaseRow.at < at).limit(limit)
                )
            ),
            delete(RepairAction).where(RepairAction.id.in_(old_actions)),
            delete(RepairMember).where(RepairMember.updated_at < at),
            delete(RepairJob).where(RepairJob.updated_at < at, RepairJob.action_id.is_(None)),
        ):
            dropped += (await self._session.execute(statement)).rowcount  # type: ignore[attr-defined]
        return dropped
