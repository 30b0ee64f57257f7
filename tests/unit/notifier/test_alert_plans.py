from dataclasses import replace
from datetime import datetime, timedelta, timezone

from paceline.contracts.events import IncidentStatus
from paceline.contracts.verdicts import VerdictClass
from paceline.notifier.alerts import (
    ANNOTATION_LENGTH_MAX,
    WATCHDOG,
    AlertReason,
    KnownAlert,
    alert_annotations,
    alert_json,
    alert_labels,
    plan_alert,
    watchdog_json,
)
from tests.unit.notifier.notifier_factory import OPENED, resolved, with_class

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
KNOWN = KnownAlert(True, alert_labels(OPENED, "c1"), AT)


def test_labels_are_few_and_ranks_stand_in_the_annotations() -> None:
    labels = alert_labels(OPENED, "c1")
    assert labels == {
        "alertname": "PacelineTrainingHang",
        "severity": "critical",
        "job": "llama",
        "cluster": "c1",
        "verdict": "H1",
        "incident": "INC-1",
        "owner": "user_code",
    }
    annotations = alert_annotations(OPENED)
    assert annotations["ranks"] == "5"
    assert annotations["nodes"] == "node-1"
    assert annotations["summary"] == "[H1] rank 5 never entered all_reduce round 412 of tp_1"
    assert annotations["evidence"] == "rank 5 is at round 411, its peers at 412"


def test_empty_labels_are_left_out() -> None:
    assert "cluster" not in alert_labels(OPENED, "")


def test_alert_names_by_class() -> None:
    names = {kind: alert_labels(with_class(kind), "")["alertname"] for kind in VerdictClass}
    assert names[VerdictClass.S2] == "PacelineTrainingSlow"
    assert names[VerdictClass.DEAD_PROCESS] == "PacelineProcessDied"
    assert names[VerdictClass.DEADLOCK] == "PacelineTrainingHang"
    assert names[VerdictClass.INCONCLUSIVE] == "PacelineTrainingSuspect"


def test_first_then_updated_then_resolved_with_the_labels_of_the_first() -> None:
    assert plan_alert(None, OPENED, "c1", AT).reason is AlertReason.FIRST
    same = plan_alert(KNOWN, OPENED, "c1", AT + timedelta(seconds=9))
    assert (same.reason, same.starts_at, same.former_labels) == (AlertReason.UPDATED, AT, None)
    end = plan_alert(KNOWN, with_class(VerdictClass.H3, resolved()), "c1", AT + timedelta(seconds=60))
    assert (end.reason, end.firing, end.labels) == (AlertReason.RESOLVED, False, KNOWN.labels)


def test_a_better_verdict_resolves_the_former_labels_and_keeps_the_start() -> None:
    plan = plan_alert(KNOWN, with_class(VerdictClass.H3), "c1", AT + timedelta(seconds=5))
    assert plan.reason is AlertReason.RELABELLED
    assert plan.former_labels == KNOWN.labels
    assert plan.labels["verdict"] == "H3"
    assert plan.starts_at == AT


def test_resolving_the_unknown_tells_nobody() -> None:
    assert plan_alert(None, resolved(), "", AT).reason is AlertReason.NOTHING_TO_RESOLVE
    over = replace(KNOWN, firing=False)
    assert plan_alert(over, resolved(), "", AT).reason is AlertReason.NOTHING_TO_RESOLVE


def test_reopening_fires_again_from_now() -> None:
    again = replace(OPENED, status=IncidentStatus.OPEN)
    plan = plan_alert(replace(KNOWN, firing=False), again, "c1", AT + timedelta(minutes=5))
    assert (plan.reason, plan.starts_at) == (AlertReason.REFIRED, AT + timedelta(minutes=5))


def test_long_texts_are_cut() -> None:
    event = replace(OPENED, job="j" * 5_000, verdict=replace(OPENED.verdict, summary="s" * 50_000))
    assert len(alert_labels(event, "")["job"]) == 200
    assert len(alert_annotations(event)["summary"]) == ANNOTATION_LENGTH_MAX


def test_alert_json_has_what_the_v2_api_wants() -> None:
    alert = alert_json({"alertname": "A"}, {"summary": "s"}, AT, AT + timedelta(minutes=4), "http://c/1")
    assert alert == {
        "labels": {"alertname": "A"},
        "annotations": {"summary": "s"},
        "startsAt": "2026-01-02T03:04:05.000Z",
        "endsAt": "2026-01-02T03:08:05.000Z",
        "generatorURL": "http://c/1",
    }


def test_the_watchdog_ends_by_itself() -> None:
    alert = watchdog_json("c1", AT, AT + timedelta(minutes=10), timedelta(minutes=4))
    assert alert["labels"] == {"alertname": WATCHDOG, "severity": "none", "cluster": "c1"}
    assert alert["startsAt"] == "2026-01-02T03:04:05.000Z"
    assert alert["endsAt"] == "2026-01-02T03:18:05.000Z"
