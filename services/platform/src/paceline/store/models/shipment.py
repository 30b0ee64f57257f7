"""What nodes were asked for when an incident opened, and what they shipped."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base


class Shipment(Base):
    """One request to one node; its id is that of the command. `round` counts the openings of the incident."""

    __tablename__ = "shipments"
    __table_args__ = (
        Index("ix_shipments_state_deadline_at", "state", "deadline_at"),
        Index("ix_shipments_received_at_id", "received_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    incident_id: Mapped[str] = mapped_column(ForeignKey("incidents.id", ondelete="CASCADE"), index=True)
    round: Mapped[int]
    node: Mapped[str]
    reason: Mapped[str]  # root or witness
    state: Mapped[str]  # contracts.events.ShipmentState
    message: Mapped[str]  # what the node said of it
    asked_at: Mapped[datetime]
    deadline_at: Mapped[datetime]
    collected_at: Mapped[datetime | None]
    received_at: Mapped[datetime | None]  # when the last part was there
    parts: Mapped[int]  # 0: none has come
    bytes_count: Mapped[int]  # of the archive
    sha256: Mapped[str]


class ShipmentPart(Base):
    """One part of a shipped archive."""

    __tablename__ = "shipment_parts"

    shipment_id: Mapped[str] = mapped_column(ForeignKey("shipments.id", ondelete="CASCADE"), primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]
