"""The signed webhook: body and headers as in Standard Webhooks 1.0."""

import json
from collections.abc import Sequence
from datetime import datetime, timezone

from standardwebhooks.webhooks import Webhook

from paceline.contracts.events import IncidentEvent
from paceline.contracts.verdicts import Root
from paceline.runtime.cloud_events import format_time

BODY_BYTES_MAX = 20_000  # standard-webhooks.md: "ideally less than 20kb"
TEXT_LENGTH_MAX = 1_000
ROOTS_MAX = 8
GROUP_RANKS_MAX = 64
USER_AGENT = "paceline-notifier/1"


def webhook_body(event: IncidentEvent) -> bytes:
    """Thin JSON `{type, timestamp, data}`, the same bytes for the same event, at most BODY_BYTES_MAX.

    `data.url` leads to everything that is not in it.
    """
    verdict = event.verdict
    operation = verdict.operation
    data: dict[str, object] = {
        "id": event.incident,
        "label": f"INC-{event.number}",
        "job": event.job[:TEXT_LENGTH_MAX],
        "attempt": event.attempt[:TEXT_LENGTH_MAX],
        "status": event.status.value,
        "severity": event.severity.value,
        "owner": verdict.owner.value,
        "actor": event.actor[:TEXT_LENGTH_MAX],
        "url": event.url[:TEXT_LENGTH_MAX],
        "opened_at": format_time(event.opened_unix_s),
        "revision": event.revision,
        "verdict": {
            "class": verdict.verdict_class.value,
            "sub_reason": verdict.sub_reason.value,
            "summary": verdict.summary[:TEXT_LENGTH_MAX],
            "confidence": verdict.confidence,
            "victims_count": verdict.victims_count,
            "roots": [_root(root) for root in verdict.roots[:ROOTS_MAX]],
            "operation": None
            if operation is None
            else {
                "communicator": operation.communicator_name[:200] or operation.communicator[:200],
                "function": operation.function[:200],
                "round": operation.round,
            },
            "action": {
                "kind": verdict.action.kind.value,
                "target": verdict.action.target[:TEXT_LENGTH_MAX],
                "reason": verdict.action.reason[:TEXT_LENGTH_MAX],
            },
        },
    }
    message = {"type": event.type.short, "timestamp": format_time(event.at_unix_s), "data": data}
    body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    if len(body) > BODY_BYTES_MAX:  # only hostile names get here; the link still says it all
        keep = ("id", "label", "status", "severity", "owner", "opened_at", "revision")
        message["data"] = {name: data[name] for name in keep}
        body = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode()
    return body


def webhook_headers(
    message_id: str, body: bytes, secrets: Sequence[str], now: datetime, traceparent: str = ""
) -> dict[str, str]:
    """Headers of one attempt; several secrets give several signatures (rotation).

    ValueError where there is no secret or `now` is not aware. `standardwebhooks` signs the wall
    clock digits of other time zones, so it is given UTC only.
    """
    if now.tzinfo is None:
        raise ValueError("now has no time zone, expected an aware datetime")
    if not secrets:
        raise ValueError("the endpoint has no secret, expected whsec_...")
    at = now.astimezone(timezone.utc)
    text = body.decode()
    signatures = " ".join(Webhook(secret).sign(message_id, at, text) for secret in secrets)
    headers = {
        "content-type": "application/json",
        "user-agent": USER_AGENT,
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": signatures,
    }
    return headers | ({"traceparent": traceparent} if traceparent else {})


def _root(root: Root) -> dict[str, object]:
    return {
        "kind": root.kind.value,
        "rank": root.rank,
        "node": root.node[:200] if root.node else None,
        "gpu": root.gpu,
        "peer_rank": root.peer_rank,
        "name": root.name[:200] if root.name else None,
        "ranks": list(root.ranks[:GROUP_RANKS_MAX]),
    }
