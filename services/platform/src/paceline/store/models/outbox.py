"""Events that wait for Kafka, and the sequence that the event stream resumes from."""

from datetime import datetime

from sqlalchemy import Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonObject


class OutboxEvent(Base):
    """One event. `topic` is empty where only the event stream of the API carries it."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index("ix_outbox_unpublished", "sequence", postgresql_where=text("published_at IS NULL")),
    )

    sequence: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    id: Mapped[str] = mapped_column(unique=True)
    type: Mapped[str]  # short name: incident.opened
    topic: Mapped[str]
    key: Mapped[str]
    job: Mapped[str]
    incident_id: Mapped[str | None]
    summary: Mapped[JsonObject]  # small; what the event stream sends
    payload: Mapped[str]  # JSON of the contract type; empty where topic is
    traceparent: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(index=True)
    published_at: Mapped[datetime | None]
