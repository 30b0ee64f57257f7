"""Webhook endpoints and the delivery log."""

import base64
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

from sqlalchemy import ColumnElement, any_, case, delete, exists, func, literal, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from paceline.store.models.delivery import AlertState, Delivery, WebhookEndpoint

PENDING = "pending"
DELIVERED = "delivered"
FAILED = "failed"
CANCELLED = "cancelled"
SECRET_BYTES = 32


def draw_webhook_secret() -> str:
    """A Standard Webhooks secret: `whsec_` and 32 random bytes in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


class EndpointRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, endpoint_id: str, *, for_update: bool = False) -> WebhookEndpoint | None:
        query = select(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id)
        return await self._session.scalar(query.with_for_update() if for_update else query)

    async def all(self, limit: int = 1_000) -> Sequence[WebhookEndpoint]:
        """Oldest first."""
        query = select(WebhookEndpoint).order_by(WebhookEndpoint.created_at, WebhookEndpoint.id)
        return (await self._session.scalars(query.limit(limit))).all()

    async def enabled_for(self, event_type: str, limit: int = 1_000) -> Sequence[WebhookEndpoint]:
        """Endpoints that want events of this short name."""
        wanted = (func.cardinality(WebhookEndpoint.event_types) == 0) | (
            literal(event_type) == any_(WebhookEndpoint.event_types)
        )
        query = select(WebhookEndpoint).where(WebhookEndpoint.enabled, wanted)
        return (await self._session.scalars(query.order_by(WebhookEndpoint.id).limit(limit))).all()

    async def add(self, endpoint: WebhookEndpoint) -> WebhookEndpoint:
        self._session.add(endpoint)
        await self._session.flush()
        return endpoint

    async def delete(self, endpoint_id: str) -> bool:
        """Remove it; its log stays, what was pending is cancelled."""
        await DeliveryRepository(self._session).cancel_pending(endpoint_id, "the endpoint was deleted")
        gone = await self._session.execute(
            delete(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id).returning(WebhookEndpoint.id)
        )
        return gone.first() is not None

    async def disable(self, endpoint_id: str, reason: str, at: datetime) -> bool:
        """Switch it off and cancel what is pending; False where it was off or is gone."""
        changed = await self._session.execute(
            update(WebhookEndpoint)
            .where(WebhookEndpoint.id == endpoint_id, WebhookEndpoint.enabled)
            .values(enabled=False, disabled_reason=reason, updated_at=at)
            .returning(WebhookEndpoint.id)
        )
        await DeliveryRepository(self._session).cancel_pending(endpoint_id, reason)
        return changed.first() is not None


class DeliveryRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, delivery_id: str, *, for_update: bool = False) -> Delivery | None:
        query = select(Delivery).where(Delivery.id == delivery_id)
        return await self._session.scalar(query.with_for_update() if for_update else query)

    async def page(
        self,
        before: tuple[datetime, str] | None,
        limit: int,
        *,
        incident_id: str | None = None,
        endpoint_id: str | None = None,
        statuses: Sequence[str] = (),
    ) -> Sequence[Delivery]:
        """Newest first. `before` is (created_at, id) of the last one seen."""
        query = select(Delivery).order_by(Delivery.created_at.desc(), Delivery.id.desc()).limit(limit)
        if before is not None:
            query = query.where(tuple_(Delivery.created_at, Delivery.id) < tuple_(*before))
        if incident_id is not None:
            query = query.where(Delivery.incident_id == incident_id)
        if endpoint_id is not None:
            query = query.where(Delivery.endpoint_id == endpoint_id)
        if statuses:
            query = query.where(Delivery.status.in_(statuses))
        return (await self._session.scalars(query)).all()

    async def add_new(self, rows: Sequence[Delivery]) -> list[str]:
        """Insert those that are not there yet; returns their ids."""
        if not rows:
            return []
        columns = [column.key for column in Delivery.__table__.columns]
        values = [{name: getattr(row, name) for name in columns} for row in rows]
        statement = insert(Delivery).values(values).on_conflict_do_nothing(index_elements=["id"])
        return list(await self._session.scalars(statement.returning(Delivery.id)))

    async def has_event(self, event_id: str) -> bool:
        """Whether this event was routed before."""
        return bool(await self._session.scalar(select(exists().where(Delivery.event_id == event_id))))

    async def has_incident(self, incident_id: str) -> bool:
        """Whether anybody was told of this incident."""
        return bool(await self._session.scalar(select(exists().where(Delivery.incident_id == incident_id))))

    async def claim_due(
        self,
        now: datetime,
        lease: timedelta,
        limit: int,
        per_target_max: int,
        in_air: Mapping[str, int] = MappingProxyType({}),
    ) -> Sequence[Delivery]:
        """Take due rows for one attempt each; several notifiers never take the same row.

        Events of one incident reach an endpoint in order: while an earlier one is pending, the later
        ones are not due. A taken row is due again after `lease`. At most `per_target_max` rows of one
        target together with those `in_air`, so that a slow one cannot fill all slots.
        """
        place: ColumnElement[int] = func.row_number().over(
            partition_by=Delivery.target, order_by=Delivery.next_attempt_at
        )
        if in_air:
            place += case(
                *((Delivery.target == target, number) for target, number in in_air.items()), else_=0
            )
        due = select(Delivery.id, place.label("place")).where(
            Delivery.status == PENDING, Delivery.next_attempt_at <= now, ~_waits_for_an_earlier_one()
        )
        first = due.subquery()
        query = (
            select(Delivery)
            .where(Delivery.id.in_(select(first.c.id).where(first.c.place <= per_target_max)))
            # Judged again under the lock: another notifier may have taken the row meanwhile.
            .where(Delivery.status == PENDING, Delivery.next_attempt_at <= now)
            .order_by(Delivery.next_attempt_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        rows = (await self._session.scalars(query)).all()
        for row in rows:
            row.attempts_count += 1
            row.next_attempt_at = now + lease
            row.updated_at = now
        await self._session.flush()
        return rows

    async def release(self, delivery_ids: Sequence[str], now: datetime) -> None:
        """Give claimed rows back: due at once, the attempt does not count."""
        await self._session.execute(
            update(Delivery)
            .where(Delivery.id.in_(delivery_ids), Delivery.status == PENDING)
            .values(next_attempt_at=now, attempts_count=Delivery.attempts_count - 1)
        )

    async def pending_count(self) -> int:
        query = select(func.count()).select_from(Delivery).where(Delivery.status == PENDING)
        return await self._session.scalar(query) or 0

    async def cancel_pending(self, endpoint_id: str, reason: str) -> None:
        await self._session.execute(
            update(Delivery)
            .where(Delivery.endpoint_id == endpoint_id, Delivery.status == PENDING)
            .values(status=CANCELLED, error=reason, next_attempt_at=None)
        )

    async def replay(self, delivery: Delivery, now: datetime) -> None:
        """Send a settled delivery again, from the first attempt; `delivery` is locked."""
        delivery.status = PENDING
        delivery.attempts_count = 0
        delivery.error = ""
        delivery.response_status = None
        delivery.next_attempt_at = now
        delivery.updated_at = now
        await self._session.flush()

    async def delete_settled_before(self, at: datetime, limit: int) -> int:
        """Drop at most `limit` old rows of the log."""
        old = select(Delivery.id).where(Delivery.created_at < at, Delivery.status != PENDING).limit(limit)
        gone = await self._session.execute(
            delete(Delivery).where(Delivery.id.in_(old)).returning(Delivery.id)
        )
        return len(gone.all())


def _waits_for_an_earlier_one() -> ColumnElement[bool]:
    """An alert tells the present state whatever the event was, so only webhooks have an order. The wait
    is bounded by the retry table, after which the earlier one is given up."""
    earlier = aliased(Delivery)
    return exists().where(
        earlier.incident_id == Delivery.incident_id,
        earlier.endpoint_id == Delivery.endpoint_id,
        earlier.status == PENDING,
        tuple_(earlier.created_at, earlier.id) < tuple_(Delivery.created_at, Delivery.id),
    )


class AlertRepository:
    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, incident_id: str, *, for_update: bool = False) -> AlertState | None:
        query = select(AlertState).where(AlertState.incident_id == incident_id)
        return await self._session.scalar(query.with_for_update() if for_update else query)

    async def save(self, state: AlertState) -> None:
        self._session.add(state)
        await self._session.flush()

    async def firing(self, after: str, limit: int) -> Sequence[AlertState]:
        """A part of the alerts that must be sent again before they end by themselves: those of incidents
        whose id comes after `after`, in order of ids."""
        query = select(AlertState).where(AlertState.firing, AlertState.incident_id > after)
        return (await self._session.scalars(query.order_by(AlertState.incident_id).limit(limit))).all()

    async def delete_resolved_before(self, at: datetime, limit: int) -> int:
        old = (
            select(AlertState.incident_id).where(~AlertState.firing, AlertState.updated_at < at).limit(limit)
        )
        gone = await self._session.execute(
            delete(AlertState).where(AlertState.incident_id.in_(old)).returning(AlertState.incident_id)
        )
        return len(gone.all())
