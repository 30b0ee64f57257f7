"""CloudEvents 1.0, Kafka binary mode: attributes in record headers, the value is the data itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from paceline.contracts.schemas import ContractError, dump_json, load_json

Header = tuple[str, bytes]
T = TypeVar("T")

SPEC_VERSION = "1.0"
JSON = "application/json"
HEADER_BYTES_MAX = 1024


@dataclass(frozen=True)
class EventHeaders:
    """The attributes of one event. `source` and `id` together are unique."""

    id: str
    type: str
    source: str
    time: str = ""  # RFC 3339, for people
    traceparent: str = ""
    content_type: str = JSON


def encode_headers(event: EventHeaders) -> list[Header]:
    """Record headers of `event`; ContractError where a required attribute is empty."""
    for name, text in (("id", event.id), ("type", event.type), ("source", event.source)):
        if not text or len(text.encode()) > HEADER_BYTES_MAX:
            raise ContractError(f"ce_{name} is {text[:80]!r}: expected 1 to {HEADER_BYTES_MAX} bytes")
    headers = [
        ("ce_specversion", SPEC_VERSION),
        ("ce_id", event.id),
        ("ce_type", event.type),
        ("ce_source", event.source),
        ("ce_time", event.time),
        ("content-type", event.content_type),
        ("traceparent", event.traceparent),
    ]
    return [(name, text.encode()) for name, text in headers if text]


def decode_headers(headers: Iterable[Header]) -> EventHeaders:
    """The attributes in `headers`; ContractError names the header that is missing or wrong."""
    found: dict[str, str] = {}
    for name, raw in headers:
        try:
            found[name.lower()] = (raw or b"").decode()
        except UnicodeDecodeError:
            raise ContractError(f"header {name} is {raw[:40]!r}: expected UTF-8") from None
    if found.get("ce_specversion") != SPEC_VERSION:
        raise ContractError(
            f"header ce_specversion is {found.get('ce_specversion', '')[:40]!r}: expected {SPEC_VERSION!r}"
        )
    for name in ("ce_id", "ce_type", "ce_source"):
        if not found.get(name):
            raise ContractError(f"header {name} is missing: expected a CloudEvents attribute")
    content_type = found.get("content-type", JSON)
    if content_type.partition(";")[0].strip() != JSON:
        raise ContractError(f"header content-type is {content_type[:80]!r}: expected {JSON!r}")
    return EventHeaders(
        id=found["ce_id"],
        type=found["ce_type"],
        source=found["ce_source"],
        time=found.get("ce_time", ""),
        traceparent=found.get("traceparent", ""),
        content_type=content_type,
    )


def format_time(unix_s: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def decode_event(kind: type[T], headers: Iterable[Header], value: bytes) -> tuple[EventHeaders, T]:
    """Attributes and validated data of one record; ContractError for anything else."""
    return decode_headers(headers), load_json(kind, value)


def encode_event(
    value: object, *, event_type: str, source: str, event_id: str, unix_s: float, traceparent: str = ""
) -> tuple[list[Header], bytes]:
    """Headers and value of one record for `value`, a dataclass of `paceline.contracts`."""
    event = EventHeaders(
        id=event_id, type=event_type, source=source, time=format_time(unix_s), traceparent=traceparent
    )
    return encode_headers(event), dump_json(value)
