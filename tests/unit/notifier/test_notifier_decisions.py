from datetime import datetime, timedelta, timezone

import pytest

from paceline.contracts.events import Severity
from paceline.notifier.decisions import (
    ATTEMPTS_MAX,
    SCHEDULE_S,
    AttemptReason,
    NotifyReason,
    Outcome,
    next_attempt,
    parse_retry_after,
    reason_of_status,
    should_notify,
)
from paceline.runtime.clock import ManualClock

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def failure(
    reason: AttemptReason = AttemptReason.SERVER_ERROR, retry_after_s: float | None = None
) -> Outcome:
    return Outcome(500, reason, "HTTP 500", retry_after_s)


def test_the_retry_table_pages_within_the_first_minutes_and_goes_on_for_three_days() -> None:
    clock = ManualClock(unix_s=0.0)
    attempt_times = []
    for attempt in range(1, ATTEMPTS_MAX + 1):
        attempt_times.append(clock.unix_s())
        decision = next_attempt(attempt, failure(), failures_in_row=attempt, spread=0.0)
        if decision.delay_s is None:
            break
        clock.advance(decision.delay_s)
    assert attempt_times[:6] == [0, 2, 7, 17, 37, 67]
    assert attempt_times[6:9] == [367, 2_167, 9_367]
    assert len(attempt_times) == ATTEMPTS_MAX
    assert attempt_times[-1] == sum(SCHEDULE_S)
    assert decision.exhausted
    assert decision.disable_endpoint


def test_jitter_only_delays_and_stays_small() -> None:
    latest = next_attempt(1, failure(), 1, spread=1.0)
    assert latest.delay_s == pytest.approx(2.2)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (200, AttemptReason.DELIVERED),
        (204, AttemptReason.DELIVERED),
        (301, AttemptReason.REDIRECTED),
        (304, AttemptReason.REDIRECTED),
        (400, AttemptReason.CLIENT_ERROR),
        (404, AttemptReason.CLIENT_ERROR),
        (410, AttemptReason.GONE),
        (429, AttemptReason.THROTTLED),
        (500, AttemptReason.SERVER_ERROR),
        (502, AttemptReason.THROTTLED),
        (503, AttemptReason.THROTTLED),
        (504, AttemptReason.THROTTLED),
    ],
)
def test_statuses(status: int, reason: AttemptReason) -> None:
    assert reason_of_status(status) is reason


def test_success_settles() -> None:
    decision = next_attempt(3, Outcome(200, AttemptReason.DELIVERED), 1, 0.5)
    assert decision.succeeded
    assert decision.delay_s is None
    assert not decision.disable_endpoint


def test_gone_disables_at_once() -> None:
    decision = next_attempt(1, failure(AttemptReason.GONE), 1, 0.5)
    assert decision.disable_endpoint
    assert decision.delay_s is None
    assert not decision.succeeded


@pytest.mark.parametrize(
    "reason", [AttemptReason.FORBIDDEN, AttemptReason.NOT_WANTED, AttemptReason.UNUSABLE]
)
def test_what_cannot_get_better_is_not_retried(reason: AttemptReason) -> None:
    decision = next_attempt(1, Outcome(None, reason), 1, 0.5)
    assert (decision.delay_s, decision.succeeded, decision.disable_endpoint) == (None, False, False)


def test_retry_after_is_honoured_when_it_is_later_and_bounded() -> None:
    assert next_attempt(1, failure(AttemptReason.THROTTLED, 120.0), 1, 0.0).delay_s == 120.0
    assert next_attempt(6, failure(AttemptReason.THROTTLED, 1.0), 6, 0.0).delay_s == 300.0
    assert next_attempt(1, failure(AttemptReason.THROTTLED, 1e9), 1, 0.0).delay_s == 86_400


def test_one_exhausted_message_does_not_disable_an_endpoint_that_takes_others() -> None:
    decision = next_attempt(ATTEMPTS_MAX, failure(), failures_in_row=1, spread=0.0)
    assert decision.exhausted
    assert not decision.disable_endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("120", 120.0),
        (" 5 ", 5.0),
        ("0", 0.0),
        ("99999999999999", 86_400.0),
        ("Fri, 02 Jan 2026 03:05:05 GMT", 60.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
    ],
)
def test_retry_after(text: str, expected: float | None) -> None:
    assert parse_retry_after(text, NOW) == expected


def test_retry_after_far_away_is_bounded() -> None:
    later = (NOW + timedelta(days=400)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert parse_retry_after(later, NOW) == 86_400.0


def test_severity_filter_never_hides_the_end_of_what_was_told() -> None:
    error = Severity.ERROR
    assert should_notify(Severity.CRITICAL, error, is_known=False) is NotifyReason.NOTIFY
    assert should_notify(error, error, is_known=False) is NotifyReason.NOTIFY
    assert should_notify(Severity.WARNING, error, is_known=False) is NotifyReason.BELOW_SEVERITY
    assert should_notify(Severity.WARNING, error, is_known=True) is NotifyReason.ALREADY_TOLD
    assert not NotifyReason.DUPLICATE.goes_on
