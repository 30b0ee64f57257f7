"""Repair: where each job stands, proposals, recoveries, their phases, supervisors, policies. Migration 0007.

The remediator writes; the API writes decisions of people (`status`, `cancel_requested` of an action) and
policies. Nothing here refers to jobs or incidents by a foreign key: records arrive in any order.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonList, JsonObject


class RepairJob(Base):
    """The state machine of one attempt. `data` is all of it, `due_at` when it has to be looked at again."""

    __tablename__ = "repair_jobs"
    __table_args__ = (Index("ix_repair_jobs_due_at", "due_at"),)

    job: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]  # contracts.repair.RepairState
    generation: Mapped[int]
    action_id: Mapped[str | None]
    due_at: Mapped[datetime | None]
    data: Mapped[JsonObject]
    updated_at: Mapped[datetime]


class RepairAction(Base):
    """One proposal and what became of it. `version` is what If-Match compares."""

    __tablename__ = "repair_actions"
    __table_args__ = (
        Index("ix_repair_actions_created_at_id", "created_at", "id"),
        Index("ix_repair_actions_job", "job", "attempt", "created_at"),
        Index("ix_repair_actions_open", "cause", "status", postgresql_where=text("ended_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str]
    attempt: Mapped[str]
    incident_id: Mapped[str | None] = mapped_column(index=True)
    kind: Mapped[str]  # contracts.repair.RepairKind
    cause: Mapped[str]
    status: Mapped[str]  # contracts.repair.ActionStatus
    mode: Mapped[str]
    reason: Mapped[str]  # the last decision about it: remediator.model.Reason
    message: Mapped[str]
    ranks: Mapped[str]  # of those that leave, ids.format_ranks text
    leavers: Mapped[JsonList]  # members
    joiners: Mapped[JsonList]
    generation: Mapped[int]  # 0: none was opened
    step: Mapped[int]
    replayed: Mapped[int]
    requested_by: Mapped[str]  # system, or the name of a token
    decided_by: Mapped[str]
    note: Mapped[str]
    cancel_requested: Mapped[bool]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]
    dispatched_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    updated_at: Mapped[datetime]
    version: Mapped[int]


class Recovery(Base):
    """One generation that was opened. Of one attempt at most one is under way, and the database says so."""

    __tablename__ = "recoveries"
    __table_args__ = (
        Index("uq_recoveries_job_attempt_generation", "job", "attempt", "generation", unique=True),
        Index(
            "uq_recoveries_under_way",
            "job",
            "attempt",
            unique=True,
            postgresql_where=text("ended_at IS NULL"),
        ),
        Index("ix_recoveries_started_at_id", "started_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    action_id: Mapped[str] = mapped_column(ForeignKey("repair_actions.id", ondelete="CASCADE"), index=True)
    job: Mapped[str]
    attempt: Mapped[str]
    generation: Mapped[int]
    attempt_no: Mapped[int]
    state: Mapped[str]
    store: Mapped[str]
    seats: Mapped[JsonList]  # [{rank, member, child_pid, child_pid_start}]
    step: Mapped[int]
    replayed: Mapped[int]
    reason: Mapped[str]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class RecoveryPhaseRow(Base):
    """What one member said of one phase or order; the id is that of the report."""

    __tablename__ = "recovery_phases"
    __table_args__ = (Index("ix_recovery_phases_generation", "job", "attempt", "generation"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str]
    attempt: Mapped[str]
    generation: Mapped[int]
    member: Mapped[str]
    rank: Mapped[int]
    kind: Mapped[str]  # contracts.repair.ReportKind
    phase: Mapped[str]
    outcome: Mapped[str]
    duration_ms: Mapped[float]
    step: Mapped[int]
    replayed: Mapped[int]
    bytes_count: Mapped[int]
    message: Mapped[str]
    at: Mapped[datetime]


class RepairMember(Base):
    """A supervisor, member or standby, as its agent last told."""

    __tablename__ = "repair_members"

    job: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[str] = mapped_column(primary_key=True)
    member: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str]
    role: Mapped[str]
    rank: Mapped[int]
    pid: Mapped[int]
    child_pid: Mapped[int]
    child_pid_start: Mapped[int]
    generation: Mapped[int]
    step: Mapped[int]
    store: Mapped[str]
    replica: Mapped[str]
    failure_domain: Mapped[str]
    ready: Mapped[bool]
    world_size: Mapped[int]
    support: Mapped[str]
    lease_s: Mapped[float]
    left: Mapped[bool]
    uid: Mapped[int]  # -1: its agent did not say
    registered_at: Mapped[datetime]  # first told by this uid on this node
    run: Mapped[int] = mapped_column(server_default="-1")  # of the job's name that counts it; -1: none yet
    told_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class RepairPolicy(Base):
    """Mode and limits for a job and a cause; an empty text stands for all. The most exact one holds."""

    __tablename__ = "repair_policies"

    job: Mapped[str] = mapped_column(primary_key=True)
    cause: Mapped[str] = mapped_column(primary_key=True)
    mode: Mapped[str]
    stopped: Mapped[bool]  # the stop switch: nothing new is dispatched
    limits: Mapped[JsonObject]  # names of remediator.model.Limits
    version: Mapped[int]
    updated_by: Mapped[str]
    updated_at: Mapped[datetime]
