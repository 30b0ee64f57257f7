"""Webhook endpoints, the delivery log, and what each Alertmanager was last told.

Written by the notifier; the API creates and edits endpoints, reads the log and asks for replays,
through `paceline.store.repositories.deliveries`. Migration 0002.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, Text, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from paceline.store.base import Base, JsonList, JsonObject


class WebhookEndpoint(Base):
    """One receiver of signed webhooks. `secrets` is newest first; all of them sign (rotation).

    The secrets are kept readable because signing needs them.
    """

    __tablename__ = "webhook_endpoints"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    url: Mapped[str]
    event_types: Mapped[list[str]] = mapped_column(ARRAY(Text))  # short names; empty = all
    secrets: Mapped[list[str]] = mapped_column(ARRAY(Text))  # whsec_...
    enabled: Mapped[bool]
    disabled_reason: Mapped[str]
    consecutive_failures: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Delivery(Base):
    """One incident event to one receiver, over all its attempts; never one per rank.

    The id is derived from event and receiver, so that a replayed event makes no second row.
    `status`: pending, delivered, failed (attempts used up, or refused for good), cancelled
    (endpoint disabled or deleted). While an attempt is in the air `next_attempt_at` lies a lease
    ahead: after a crash the row becomes due again by itself.
    """

    __tablename__ = "deliveries"
    __table_args__ = (
        Index("ix_deliveries_due", "next_attempt_at", postgresql_where=text("status = 'pending'")),
        Index("ix_deliveries_created_at_id", "created_at", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    channel: Mapped[str]  # webhook or alertmanager
    endpoint_id: Mapped[str | None] = mapped_column(
        ForeignKey("webhook_endpoints.id", ondelete="SET NULL"), index=True
    )
    target: Mapped[str]  # URL at the time of creation, without credentials
    event_id: Mapped[str] = mapped_column(index=True)
    event_type: Mapped[str]  # short name: incident.opened
    incident_id: Mapped[str] = mapped_column(index=True)
    payload: Mapped[str]  # JSON of events.IncidentEvent
    traceparent: Mapped[str]
    status: Mapped[str]
    attempts_count: Mapped[int]
    attempts: Mapped[JsonList]  # [{at, status, error, seconds, reason}], bounded by the retry table
    response_status: Mapped[int | None]
    error: Mapped[str]
    next_attempt_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class AlertState(Base):
    """The alert of one incident as Alertmanager knows it: its labels are its identity there."""

    __tablename__ = "alert_states"
    __table_args__ = (Index("ix_alert_states_firing", "incident_id", postgresql_where=text("firing")),)

    incident_id: Mapped[str] = mapped_column(primary_key=True)
    firing: Mapped[bool]
    labels: Mapped[JsonObject]
    former_labels: Mapped[JsonObject | None]  # to be resolved: the alert was relabelled
    annotations: Mapped[JsonObject]
    generator_url: Mapped[str]
    starts_at: Mapped[datetime]
    updated_at: Mapped[datetime]
