"""Routes of webhook endpoints and of the delivery log."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from paceline.api.auth import WebhooksReader, WebhooksWriter
from paceline.api.errors import (
    BodyTooLarge,
    CrossSite,
    IdempotencyKeyReused,
    MissingScope,
    NotFound,
    NotReplayable,
    SecretShownOnce,
    TooManyEndpoints,
    Unauthenticated,
    responses,
)
from paceline.api.idempotency import Idempotent
from paceline.api.pagination import CursorText, Limit, decode_time_cursor, next_cursor
from paceline.api.schemas import Page
from paceline.api.services import Session, Shared
from paceline.api.webhooks.schemas import (
    DeliveryRead,
    DeliveryStatus,
    WebhookEndpointCreate,
    WebhookEndpointCreated,
    WebhookEndpointRead,
    WebhookEndpointUpdate,
)
from paceline.api.webhooks.service import (
    ENDPOINTS_MAX,
    audit,
    create_endpoint,
    load_delivery,
    load_endpoint,
    update_endpoint,
)
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.deliveries import PENDING, DeliveryRepository, EndpointRepository

router = APIRouter(prefix="/v1", tags=["webhooks"])
READ = (Unauthenticated, MissingScope)
WRITE = (*READ, CrossSite, BodyTooLarge)
TextId = Annotated[str, Path(max_length=80, pattern=r"^[\x21-\x7e]+$")]
TextFilter = Annotated[str | None, Query(max_length=80, pattern=r"^[\x21-\x7e]+$")]


@router.get("/webhook-endpoints", responses=responses(*READ))
async def list_webhook_endpoints(
    session: Session, caller: WebhooksReader, cursor: CursorText = None, limit: Limit = 50
) -> Page[WebhookEndpointRead]:
    """Newest first."""
    before = decode_time_cursor(cursor)
    rows = sorted(
        await EndpointRepository(session).all(ENDPOINTS_MAX),
        key=lambda row: (row.created_at, row.id),
        reverse=True,
    )
    rest = [row for row in rows if before is None or (row.created_at, row.id) < before]
    shown = rest[:limit]
    following = next_cursor(rest, limit, shown[-1].created_at, shown[-1].id) if shown else None
    return Page(items=[WebhookEndpointRead.model_validate(row) for row in shown], next_cursor=following)


@router.post(
    "/webhook-endpoints",
    status_code=201,
    responses=responses(*WRITE, IdempotencyKeyReused, SecretShownOnce, TooManyEndpoints),
)
async def create_webhook_endpoint(
    body: WebhookEndpointCreate,
    session: Session,
    services: Shared,
    caller: WebhooksWriter,
    idempotency: Idempotent,
) -> WebhookEndpointCreated:
    """The answer is the only place where the signing secret is shown."""
    if idempotency.resource_id is not None:
        raise SecretShownOnce(
            f"endpoint {idempotency.resource_id} was created by the first request; delete it, create another"
        )
    endpoint = await create_endpoint(session, services, caller, body)
    await idempotency.remember(endpoint.id)
    read = WebhookEndpointRead.model_validate(endpoint)
    return WebhookEndpointCreated(**read.model_dump(), secret=endpoint.secrets[0])


@router.get("/webhook-endpoints/{endpoint_id}", responses=responses(*READ, NotFound))
async def get_webhook_endpoint(
    endpoint_id: TextId, session: Session, caller: WebhooksReader
) -> WebhookEndpointRead:
    """One endpoint."""
    return WebhookEndpointRead.model_validate(await load_endpoint(session, endpoint_id))


@router.patch("/webhook-endpoints/{endpoint_id}", responses=responses(*WRITE, NotFound))
async def update_webhook_endpoint(
    endpoint_id: TextId,
    body: WebhookEndpointUpdate,
    session: Session,
    services: Shared,
    caller: WebhooksWriter,
) -> WebhookEndpointRead:
    """Fields left out stay as they are."""
    endpoint = await load_endpoint(session, endpoint_id, for_update=True)
    await update_endpoint(session, services, caller, endpoint, body)
    return WebhookEndpointRead.model_validate(endpoint)


@router.delete("/webhook-endpoints/{endpoint_id}", status_code=204, responses=responses(*WRITE, NotFound))
async def delete_webhook_endpoint(
    endpoint_id: TextId, session: Session, services: Shared, caller: WebhooksWriter
) -> None:
    """What is pending for it is cancelled; its log stays."""
    endpoint = await load_endpoint(session, endpoint_id, for_update=True)
    await audit(session, services, caller, "deleted", endpoint)
    await EndpointRepository(session).delete(endpoint_id)


@router.get("/deliveries", responses=responses(*READ))
async def list_deliveries(
    session: Session,
    caller: WebhooksReader,
    status: Annotated[list[DeliveryStatus], Query(max_length=4)] = [],  # noqa: B006 (FastAPI copies it)
    endpoint: TextFilter = None,
    incident: TextFilter = None,
    cursor: CursorText = None,
    limit: Limit = 50,
) -> Page[DeliveryRead]:
    """Newest first."""
    rows = await DeliveryRepository(session).page(
        decode_time_cursor(cursor),
        limit + 1,
        incident_id=incident,
        endpoint_id=endpoint,
        statuses=[item.value for item in status],
    )
    shown = rows[:limit]
    following = next_cursor(rows, limit, shown[-1].created_at, shown[-1].id) if shown else None
    return Page(items=[DeliveryRead.model_validate(row) for row in shown], next_cursor=following)


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
    """Send a settled delivery again, under the same webhook-id."""
    delivery = await load_delivery(session, delivery_id, for_update=True)
    if idempotency.resource_id is None:
        if delivery.status == PENDING:
            raise NotReplayable(f"delivery {delivery_id} is pending; its next attempt comes by itself")
        now = services.now()
        await DeliveryRepository(session).replay(delivery, now)
        await AuditRepository(session).append(
            now, caller.actor, "delivery.replayed", ("delivery", delivery.id), {"event": delivery.event_id}
        )
        await idempotency.remember(delivery.id)
    return DeliveryRead.model_validate(delivery)
