"""Whether to tell, and what follows from an attempt. Pure: a named reason for everything."""

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from enum import Enum

from paceline.contracts.events import Severity

# Seconds before attempt 1, 2, ...: a page must arrive in the first minute, so six quick tries
# stand before the table of Standard Webhooks 1.0.
SCHEDULE_S = (0, 2, 5, 10, 20, 30, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
ATTEMPTS_MAX = len(SCHEDULE_S)
JITTER_RATIO = 0.1
RETRY_AFTER_S_MAX = 86_400
SEVERITY_ORDER = (Severity.INFO, Severity.WARNING, Severity.ERROR, Severity.CRITICAL)


class NotifyReason(str, Enum):
    """What intake decided about an event."""

    NOTIFY = "notify"
    ALREADY_TOLD = "already_told"  # severity is below the limit now, but receivers know the incident
    BELOW_SEVERITY = "below_severity"
    DUPLICATE = "duplicate"

    @property
    def goes_on(self) -> bool:
        return self in (NotifyReason.NOTIFY, NotifyReason.ALREADY_TOLD)


class AttemptReason(str, Enum):
    """How an attempt ended."""

    DELIVERED = "delivered"
    GONE = "gone"  # 410: the receiver wants nothing more
    THROTTLED = "throttled"  # 429, 502, 503, 504
    SERVER_ERROR = "server_error"
    CLIENT_ERROR = "client_error"
    REDIRECTED = "redirected"  # never followed: the signature names no other receiver
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"
    FORBIDDEN = "forbidden"  # the address guard refused the receiver
    NOT_WANTED = "not_wanted"  # endpoint disabled or deleted meanwhile
    UNUSABLE = "unusable"  # the stored message or the secret cannot be used


FINAL = frozenset({AttemptReason.FORBIDDEN, AttemptReason.NOT_WANTED, AttemptReason.UNUSABLE})


@dataclass(frozen=True)
class Outcome:
    """What an attempt saw: a status, or why there is none."""

    status: int | None
    reason: AttemptReason
    error: str = ""
    retry_after_s: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class RetryDecision:
    """`delay_s` before the next attempt; None: settled, as `succeeded` says."""

    reason: AttemptReason
    succeeded: bool
    delay_s: float | None
    exhausted: bool = False
    disable_endpoint: bool = False


def should_notify(severity: Severity, severity_min: Severity, *, is_known: bool) -> NotifyReason:
    """`is_known`: receivers were told of this incident before, so they must hear its end too."""
    if SEVERITY_ORDER.index(severity) >= SEVERITY_ORDER.index(severity_min):
        return NotifyReason.NOTIFY
    return NotifyReason.ALREADY_TOLD if is_known else NotifyReason.BELOW_SEVERITY


def reason_of_status(status: int) -> AttemptReason:
    """What a response status means."""
    if 200 <= status < 300:
        return AttemptReason.DELIVERED
    if status == 410:
        return AttemptReason.GONE
    if status in (429, 502, 503, 504):
        return AttemptReason.THROTTLED
    if 300 <= status < 400:
        return AttemptReason.REDIRECTED
    return AttemptReason.CLIENT_ERROR if status < 500 else AttemptReason.SERVER_ERROR


def next_attempt(attempts_count: int, outcome: Outcome, failures_in_row: int, spread: float) -> RetryDecision:
    """What follows from attempt number `attempts_count` (from 1); `spread` 0 to 1 is the jitter.

    An endpoint is disabled once a message has used up its attempts and nothing has succeeded
    meanwhile: `failures_in_row` counts its failed attempts, this one included.
    """
    reason = outcome.reason
    if reason is AttemptReason.DELIVERED:
        return RetryDecision(reason, succeeded=True, delay_s=None)
    if reason is AttemptReason.GONE:
        return RetryDecision(reason, succeeded=False, delay_s=None, disable_endpoint=True)
    if reason in FINAL:
        return RetryDecision(reason, succeeded=False, delay_s=None)
    if attempts_count >= ATTEMPTS_MAX:
        return RetryDecision(
            reason,
            succeeded=False,
            delay_s=None,
            exhausted=True,
            disable_endpoint=failures_in_row >= ATTEMPTS_MAX,
        )
    delay_s = SCHEDULE_S[attempts_count] * (1 + JITTER_RATIO * spread)
    if outcome.retry_after_s is not None:
        delay_s = max(delay_s, min(outcome.retry_after_s, RETRY_AFTER_S_MAX))
    return RetryDecision(reason, succeeded=False, delay_s=delay_s)


def parse_retry_after(value: str, now: datetime) -> float | None:
    """Seconds from a `Retry-After` header, a number or an HTTP date; None where it is neither."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:9]), RETRY_AFTER_S_MAX))
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    wait = at - now
    return min(max(wait, timedelta(0)).total_seconds(), RETRY_AFTER_S_MAX)
