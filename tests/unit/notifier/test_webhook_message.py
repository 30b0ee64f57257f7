import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from paceline.contracts.verdicts import Root, RootKind
from paceline.notifier.webhook import BODY_BYTES_MAX, webhook_body, webhook_headers
from tests.unit.notifier.notifier_factory import OPENED

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
VECTOR_BODY = b'{"type":"incident.opened","timestamp":"2026-01-02T03:04:05Z","data":{"id":"inc_01"}}'
VECTOR_SIGNATURE = "v1,CdO/Nh8JNq9dvSyQFazdhYDdxzDo/U2NDp2+L5FxIA8="
VECTOR_AT = datetime.fromtimestamp(1_767_323_045, tz=timezone.utc)


def test_signature_of_the_known_vector() -> None:
    headers = webhook_headers("msg_01JQ8Z3T5K6V7W8X9Y0Z", VECTOR_BODY, [SECRET], VECTOR_AT)
    assert headers["webhook-id"] == "msg_01JQ8Z3T5K6V7W8X9Y0Z"
    assert headers["webhook-timestamp"] == "1767323045"
    assert headers["webhook-signature"] == VECTOR_SIGNATURE
    assert headers["content-type"] == "application/json"


def test_another_time_zone_signs_the_same_instant() -> None:
    elsewhere = VECTOR_AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    headers = webhook_headers("msg_01JQ8Z3T5K6V7W8X9Y0Z", VECTOR_BODY, [SECRET], elsewhere)
    assert headers["webhook-signature"] == VECTOR_SIGNATURE


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        webhook_headers("m", b"{}", [SECRET], VECTOR_AT.replace(tzinfo=None))


def test_rotation_signs_with_every_secret() -> None:
    now = datetime.now(tz=timezone.utc)
    headers = webhook_headers("evt_1", webhook_body(OPENED), [OTHER_SECRET, SECRET], now)
    for secret in (SECRET, OTHER_SECRET):
        Webhook(secret).verify(webhook_body(OPENED), headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(webhook_body(OPENED) + b" ", headers)


def test_no_secret_is_an_error() -> None:
    with pytest.raises(ValueError, match="whsec_"):
        webhook_headers("m", b"{}", [], VECTOR_AT)


def test_body_is_thin_stable_and_says_what_a_page_needs() -> None:
    body = json.loads(webhook_body(OPENED))
    assert webhook_body(OPENED) == webhook_body(OPENED)
    assert list(body) == ["type", "timestamp", "data"]
    assert body["type"] == "incident.opened"
    assert body["timestamp"] == "2026-01-02T03:04:05.000Z"
    data = body["data"]
    assert (data["id"], data["label"], data["severity"], data["owner"]) == (
        "inc_1", "INC-1", "critical", "user_code",
    )  # fmt: skip
    assert data["verdict"]["class"] == "H1"
    assert data["verdict"]["roots"][0]["rank"] == 5
    assert data["verdict"]["operation"] == {"communicator": "tp_1", "function": "all_reduce", "round": 412}
    assert "evidence" not in data["verdict"]


def test_body_never_exceeds_its_bound_and_victims_are_not_listed() -> None:
    long = "\u4e00" * 50_000
    roots = tuple(Root(RootKind.GROUP, node=long, name=long, ranks=tuple(range(10_000))) for _ in range(20))
    verdict = replace(
        OPENED.verdict, roots=roots, summary=long, victims=tuple(range(256)), victims_count=100_000
    )
    body = webhook_body(replace(OPENED, job=long, attempt=long, url=long, actor=long, verdict=verdict))
    assert len(body) <= BODY_BYTES_MAX
    assert json.loads(body)["data"]["id"] == "inc_1"
