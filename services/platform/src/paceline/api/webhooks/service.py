"""Changes of webhook endpoints, each with its audit entry."""

from urllib.parse import urlsplit

from pydantic import HttpUrl
from sqlalchemy.ext.asyncio import AsyncSession

from paceline.api.auth import Caller
from paceline.api.errors import FieldProblem, InvalidRequest, NotFound, TooManyEndpoints
from paceline.api.services import Services
from paceline.api.webhooks.schemas import WebhookEndpointCreate, WebhookEndpointUpdate
from paceline.store.models.delivery import Delivery, WebhookEndpoint
from paceline.store.repositories.audit import AuditRepository
from paceline.store.repositories.deliveries import (
    DeliveryRepository,
    EndpointRepository,
    draw_webhook_secret,
)

ENDPOINTS_MAX = 100  # every event is sent to each of them
DISABLED_BY_HAND = "disabled by hand"


def check_url(url: HttpUrl) -> str:
    """The URL as text; InvalidRequest where it carries credentials, which the log would show."""
    text = str(url)
    if urlsplit(text).username or urlsplit(text).password:
        problem = FieldProblem(field="body.url", value="", expected="no user or password in the URL")
        raise InvalidRequest("the URL carries credentials; the signature authenticates us", (problem,))
    return text


async def load_endpoint(
    session: AsyncSession, endpoint_id: str, *, for_update: bool = False
) -> WebhookEndpoint:
    endpoint = await EndpointRepository(session).get(endpoint_id, for_update=for_update)
    if endpoint is None:
        raise NotFound(f"no webhook endpoint {endpoint_id[:80]!r}; GET /v1/webhook-endpoints lists them")
    return endpoint


async def load_delivery(session: AsyncSession, delivery_id: str, *, for_update: bool = False) -> Delivery:
    delivery = await DeliveryRepository(session).get(delivery_id, for_update=for_update)
    if delivery is None:
        raise NotFound(f"no delivery {delivery_id[:80]!r}; GET /v1/deliveries lists them")
    return delivery


async def create_endpoint(
    session: AsyncSession, services: Services, caller: Caller, body: WebhookEndpointCreate
) -> WebhookEndpoint:
    """TooManyEndpoints beyond ENDPOINTS_MAX."""
    endpoints = EndpointRepository(session)
    if len(await endpoints.all(ENDPOINTS_MAX)) >= ENDPOINTS_MAX:
        raise TooManyEndpoints(f"there are {ENDPOINTS_MAX} endpoints, the most; delete one first")
    now = services.now()
    endpoint = await endpoints.add(
        WebhookEndpoint(
            id=services.new_id("whe"),
            name=body.name,
            url=check_url(body.url),
            event_types=[item.value for item in body.event_types],
            secrets=[draw_webhook_secret()],
            enabled=True,
            disabled_reason="",
            consecutive_failures=0,
            created_at=now,
            updated_at=now,
        )
    )
    await audit(session, services, caller, "created", endpoint)
    return endpoint


async def update_endpoint(
    session: AsyncSession,
    services: Services,
    caller: Caller,
    endpoint: WebhookEndpoint,
    body: WebhookEndpointUpdate,
) -> None:
    """Only the fields that were sent."""
    if body.name is not None:
        endpoint.name = body.name
    if body.url is not None:
        endpoint.url = check_url(body.url)
    if body.event_types is not None:
        endpoint.event_types = [item.value for item in body.event_types]
    endpoint.updated_at = services.now()
    if body.enabled is True:
        endpoint.enabled = True
        endpoint.disabled_reason = ""
        endpoint.consecutive_failures = 0
    await session.flush()
    if body.enabled is False:
        await EndpointRepository(session).disable(endpoint.id, DISABLED_BY_HAND, endpoint.updated_at)
        await session.refresh(endpoint)
    await audit(session, services, caller, "updated", endpoint)


async def audit(
    session: AsyncSession, services: Services, caller: Caller, verb: str, endpoint: WebhookEndpoint
) -> None:
    """One entry with the endpoint as it is now; never its secret."""
    await AuditRepository(session).append(
        services.now(),
        caller.actor,
        f"webhook_endpoint.{verb}",
        ("webhook_endpoint", endpoint.id),
        {
            "name": endpoint.name,
            "url": endpoint.url,
            "event_types": list(endpoint.event_types),
            "enabled": endpoint.enabled,
        },
    )
