"""How well jobs scale: one row for each judged window of iterations."""

from datetime import datetime

from sqlalchemy import JSON, Index
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonList


class ScalingWindow(Base):
    """The newest windows of an attempt; no foreign key, since windows may come before the registry."""

    __tablename__ = "scaling_windows"
    __table_args__ = (
        Index("ix_scaling_windows_job_attempt_judged_at_id", "job", "attempt", "judged_at", "id"),
        Index("ix_scaling_windows_judged_at", "judged_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job: Mapped[str]
    attempt: Mapped[str]
    first_step: Mapped[int]
    last_step: Mapped[int]
    iterations: Mapped[int]
    ranks: Mapped[int]
    ranks_expected: Mapped[int]
    step_s: Mapped[float]
    cv: Mapped[JsonList]
    findings: Mapped[JsonList] = mapped_column(JSON)  # not JSONB: keeps the order of inputs
    refused: Mapped[str]
    judged_at: Mapped[datetime]
