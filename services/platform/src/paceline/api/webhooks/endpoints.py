"""Routes of webhook endpoints and of the delivery log."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from paceline.api.auth import WebhooksReader, WebhooksWriter
from paceline.api.errors import (
    CrossSite,
    IdempotencyKeyReused,
    MissingScope,
    NotFound,
    NotReplayable,
    SecretShownOnce,
    Unauthenticated,
    responses,
)
from paceline.api.idempotency import Idempotent
from paceline.api.pagination import CursorText, Limit
from paceline.api.schemas import Page
from paceline.api.services import Session, Shared
from paceline.api.webhooks.schemas import (
    DeliveryRead,
    WebhookEndpointCreate,
    WebhookEndpointCreated,
    WebhookEndpointRead,
    WebhookEndpointUpdate,
)

router = APIRouter(prefix="/v1", tags=["webhooks"])
READ = (Unauthenticated, MissingScope)
WRITE = (*READ, CrossSite)
TextId = Annotated[str, Path(max_length=80, pattern=r"^[\x21-\x7e]+$")]
TextFilter = Annotated[str | None, Query(max_length=80, pattern=r"^[\x21-\x7e]+$")]


@router.get("/webhook-endpoints", responses=responses(*READ))
async def list_webhook_endpoints(
    session: Session, caller: WebhooksReader, cursor: CursorText = None, limit: Limit = 50
) -> Page[WebhookEndpointRead]:
    """Newest first."""
    raise NotImplementedError


@router.post(
    "/webhook-endpoints",
    status_code=201,
    responses=responses(*WRITE, IdempotencyKeyReused, SecretShownOnce),
)
async def create_webhook_endpoint(
    body: WebhookEndpointCreate,
    session: Session,
    services: Shared,
    caller: WebhooksWriter,
    idempotency: Idempotent,
) -> WebhookEndpointCreated:
    """The answer is the only place where the signing secret is shown."""
    raise NotImplementedError


@router.get("/webhook-endpoints/{endpoint_id}", responses=responses(*READ, NotFound))
async def get_webhook_endpoint(
    endpoint_id: TextId, session: Session, caller: WebhooksReader
) -> WebhookEndpointRead:
    raise NotImplementedError


@router.patch("/webhook-endpoints/{endpoint_id}", responses=responses(*WRITE, NotFound))
async def update_webhook_endpoint(
    endpoint_id: TextId,
    body: WebhookEndpointUpdate,
    session: Session,
    services: Shared,
    caller: WebhooksWriter,
) -> WebhookEndpointRead:
    """Fields left out stay as they are."""
    raise NotImplementedError


@router.delete("/webhook-endpoints/{endpoint_id}", status_code=204, responses=responses(*WRITE, NotFound))
async def delete_webhook_endpoint(
    endpoint_id: TextId, session: Session, services: Shared, caller: WebhooksWriter
) -> None:
    raise NotImplementedError


@router.get("/deliveries", responses=responses(*READ))
async def list_deliveries(
    session: Session,
    caller: WebhooksReader,
    status: TextFilter = None,
    endpoint: TextFilter = None,
    incident: TextFilter = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[DeliveryRead]:
    """Newest first."""
    raise NotImplementedError


@router.post(
    "/deliveries/{delivery_id}/replays",
    status_code=202,
    responses=responses(*WRITE, NotFound, NotReplayable, IdempotencyKeyReused),
)
async def replay_delivery(
    delivery_id: TextId,
    session: Session,
    services: Shared,
    caller: WebhooksWriter,
    idempotency: Idempotent,
) -> DeliveryRead:
    """Send a finished delivery again, under the same webhook-id."""
    raise NotImplementedError
