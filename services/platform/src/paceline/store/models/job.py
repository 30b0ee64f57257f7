"""Jobs as the registry topic describes them."""

from datetime import datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonObject


class Job(Base):
    """The newest attempt of a job; older ones stay in `job_attempts`."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_started_at_id", "started_at", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[str]
    cluster: Mapped[str]
    tenant: Mapped[str]
    user: Mapped[str]
    name: Mapped[str]
    world_size: Mapped[int]
    shards: Mapped[int]
    state: Mapped[str]
    id_source: Mapped[str]
    attempt_source: Mapped[str]
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str]
    versions: Mapped[JsonObject]
    coordinate_source: Mapped[str]
    updated_at: Mapped[datetime]


class JobAttempt(Base):
    """One attempt of a job, kept after the next one has started."""

    __tablename__ = "job_attempts"

    job: Mapped[str] = mapped_column(primary_key=True)
    attempt: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    world_size: Mapped[int]
    started_at: Mapped[datetime] = mapped_column(index=True)
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str]
