"""What happened to an incident, in order, by machines and by people."""

from datetime import datetime

from sqlalchemy import ForeignKey, Identity
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonObject


class TimelineEntry(Base):
    """One line of the timeline; append-only."""

    __tablename__ = "timeline_entries"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"), index=True)
    at: Mapped[datetime]
    kind: Mapped[str]  # opened, revised, acknowledged, resolved, reopened, note, job, ...
    actor: Mapped[str]
    actor_type: Mapped[str]  # system or token
    source: Mapped[str]  # the service, or api or console
    message: Mapped[str]
    details: Mapped[JsonObject]
