"""Verdicts as they were received, newest and superseded ones."""

from datetime import datetime

from sqlalchemy import JSON, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonObject


class StoredVerdict(Base):
    """One accepted verdict record; `incident_id` is null where it opened none."""

    __tablename__ = "verdicts"

    id: Mapped[str] = mapped_column(primary_key=True)
    incident_id: Mapped[str | None] = mapped_column(
        ForeignKey("incidents.id", ondelete="CASCADE"), index=True
    )
    job: Mapped[str]
    attempt: Mapped[str]
    episode: Mapped[str]
    revision: Mapped[int]
    resolved: Mapped[bool]
    decision: Mapped[str]  # the named reason of incidents.decide
    verdict: Mapped[JsonObject] = mapped_column(JSON)  # not JSONB: keeps the order of inputs
    stalled_at: Mapped[datetime]
    judged_at: Mapped[datetime]
    received_at: Mapped[datetime] = mapped_column(index=True)
