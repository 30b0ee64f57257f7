"""Writes down what an attempt came to: the row, the endpoint, and the console's event stream."""

from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncSession

from paceline.contracts.ids import derived_id
from paceline.notifier.decisions import AttemptReason, Outcome, RetryDecision, next_attempt
from paceline.store.incident_changes import append_stream_event
from paceline.store.models.delivery import Delivery, WebhookEndpoint
from paceline.store.repositories.deliveries import (
    CANCELLED,
    DELIVERED,
    FAILED,
    PENDING,
    DeliveryRepository,
    EndpointRepository,
)

ATTEMPTS_KEPT_MAX = 64  # of one row, over all its replays


async def record_outcome(
    session: AsyncSession, claimed: Delivery, outcome: Outcome, now: datetime, spread: float
) -> str:
    """The row's new status. An attempt whose lease has been lost to another is not recorded."""
    row = await DeliveryRepository(session).get(claimed.id, for_update=True)
    if row is None or row.status != PENDING or row.attempts_count != claimed.attempts_count:
        return "superseded"
    endpoint = None
    if row.endpoint_id is not None:
        endpoint = await EndpointRepository(session).get(row.endpoint_id, for_update=True)
    failures_in_row = 0 if endpoint is None else endpoint.consecutive_failures + 1
    decision = next_attempt(row.attempts_count, outcome, failures_in_row, spread)
    _write(row, outcome, decision, now)
    if endpoint is not None and decision.reason is not AttemptReason.NOT_WANTED:
        endpoint.consecutive_failures = 0 if decision.succeeded else failures_in_row
    await session.flush()
    if endpoint is not None and decision.disable_endpoint:
        await _disable(session, endpoint, decision, now)
    if row.status != PENDING:
        await append_stream_event(
            session,
            event_id=derived_id("evt", row.id, row.attempts_count, now.isoformat()),
            event_type=f"delivery.{row.status}",
            job="",
            at=now,
            incident_id=row.incident_id,
            summary={"delivery": row.id, "channel": row.channel, "event_type": row.event_type},
        )
    return row.status


def _write(row: Delivery, outcome: Outcome, decision: RetryDecision, now: datetime) -> None:
    attempt = {
        "at": now.isoformat(),
        "status": outcome.status,
        "reason": outcome.reason.value,
        "error": outcome.error,
        "seconds": round(outcome.seconds, 3),
    }
    row.attempts = [*row.attempts, attempt][-ATTEMPTS_KEPT_MAX:]
    row.response_status = outcome.status
    row.error = outcome.error
    row.updated_at = now
    if decision.delay_s is not None:
        row.next_attempt_at = now + timedelta(seconds=decision.delay_s)
        return
    row.next_attempt_at = None
    if decision.succeeded:
        row.status = DELIVERED
    else:
        row.status = CANCELLED if decision.reason is AttemptReason.NOT_WANTED else FAILED


async def _disable(
    session: AsyncSession, endpoint: WebhookEndpoint, decision: RetryDecision, now: datetime
) -> None:
    if decision.reason is AttemptReason.GONE:
        reason = "the receiver answered 410 Gone"
    else:
        reason = (
            f"{endpoint.consecutive_failures} attempts failed in a row, the last was {decision.reason.value}"
        )
    if await EndpointRepository(session).disable(endpoint.id, reason, now):
        await append_stream_event(
            session,
            event_id=derived_id("evt", endpoint.id, "disabled", now.isoformat()),
            event_type="webhook.endpoint_disabled",
            job="",
            at=now,
            summary={"endpoint": endpoint.id, "name": endpoint.name, "reason": reason},
        )
