"""Who changed what: append-only, each entry carries the hash of the one before it."""

from datetime import datetime

from sqlalchemy import Identity, Index
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonObject


class AuditEntry(Base):
    """One change. A trigger refuses UPDATE and DELETE on this table."""

    __tablename__ = "audit_entries"
    __table_args__ = (Index("ix_audit_entries_target_type_target_id", "target_type", "target_id"),)

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    actor_type: Mapped[str]
    source: Mapped[str]
    action: Mapped[str]  # incident.resolved, token.created, ...
    target_type: Mapped[str]
    target_id: Mapped[str]
    details: Mapped[JsonObject]
    previous_hash: Mapped[str]
    hash: Mapped[str]
