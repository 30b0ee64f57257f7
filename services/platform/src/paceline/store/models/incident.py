"""Incidents, and the stall episodes that belong to each."""

from datetime import datetime

from sqlalchemy import JSON, ForeignKey, Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonObject


class Incident(Base):
    """One cause in one job attempt. `version` grows with every change (If-Match)."""

    __tablename__ = "incidents"
    __table_args__ = (
        Index("ix_incidents_opened_at_id", "opened_at", "id"),
        Index("ix_incidents_job_attempt_status", "job", "attempt", "status"),
        Index("ix_incidents_symptom_opened_at", "symptom", "opened_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(Identity(always=True), unique=True)
    job: Mapped[str]
    attempt: Mapped[str]
    episode: Mapped[str]  # the newest one
    status: Mapped[str]
    severity: Mapped[str]
    verdict_class: Mapped[str] = mapped_column(index=True)
    sub_reason: Mapped[str]
    summary: Mapped[str]
    verdict: Mapped[JsonObject] = mapped_column(JSON)  # not JSONB: keeps the order of inputs
    verdict_id: Mapped[str]
    revision: Mapped[int]
    root_key: Mapped[str]  # equal for equal first causes
    program: Mapped[str] = mapped_column(default="")  # user/name of the job: outlives its registry rows
    symptom: Mapped[str] = mapped_column(default="")  # class, sub-reason and function; empty = hardware
    versions: Mapped[str] = mapped_column(default="")  # of the frameworks; empty = not known
    stalled_at: Mapped[datetime]
    opened_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    acknowledged_at: Mapped[datetime | None]
    acknowledged_by: Mapped[str | None]
    resolved_at: Mapped[datetime | None]
    resolved_by: Mapped[str | None]
    resolution: Mapped[str]
    evidence: Mapped[str] = mapped_column(default="none")  # contracts.events.EvidenceState, of what was asked
    reopened_count: Mapped[int]
    version: Mapped[int]


class IncidentEpisode(Base):
    """The key (job, attempt, episode): whatever is judged about it belongs to one incident."""

    __tablename__ = "incident_episodes"

    job: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[str] = mapped_column(primary_key=True)
    episode: Mapped[str] = mapped_column(primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"), index=True)
    revision: Mapped[int]
    cleared_at: Mapped[datetime | None]
