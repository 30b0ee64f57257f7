"""Webhook endpoints and the delivery log."""

from datetime import datetime
from enum import Enum

from pydantic import Field, HttpUrl

from paceline.api.schemas import ReadModel, WriteModel


class WebhookEventType(str, Enum):
    """What an endpoint can subscribe to; the short names of `contracts.events.EventType`."""

    INCIDENT_OPENED = "incident.opened"
    INCIDENT_UPDATED = "incident.updated"
    INCIDENT_ACKNOWLEDGED = "incident.acknowledged"
    INCIDENT_RESOLVED = "incident.resolved"
    INCIDENT_REOPENED = "incident.reopened"


class WebhookEndpointRead(ReadModel):
    """`event_types` empty means all of them."""

    id: str
    name: str
    url: str
    event_types: list[WebhookEventType]
    enabled: bool
    disabled_reason: str
    consecutive_failures: int
    created_at: datetime
    updated_at: datetime


class WebhookEndpointCreated(WebhookEndpointRead):
    """`secret` (whsec_...) verifies the signatures; it is shown here once."""

    secret: str


class WebhookEndpointCreate(WriteModel):
    name: str = Field(min_length=1, max_length=120)
    url: HttpUrl
    event_types: list[WebhookEventType] = Field(default_factory=list, max_length=32)


class WebhookEndpointUpdate(WriteModel):
    """Fields left out stay as they are. Enabling clears the failure count."""

    name: str | None = Field(default=None, min_length=1, max_length=120)
    url: HttpUrl | None = None
    event_types: list[WebhookEventType] | None = Field(default=None, max_length=32)
    enabled: bool | None = None


class DeliveryStatus(str, Enum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DeliveryRead(ReadModel):
    """One message to one receiver, over all its attempts. `channel` is webhook or alertmanager."""

    id: str
    channel: str
    target: str
    endpoint_id: str | None
    event_id: str
    event_type: str
    incident_id: str
    status: DeliveryStatus
    attempts_count: int
    response_status: int | None
    error: str
    next_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime
