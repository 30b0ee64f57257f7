"""What Alertmanager is told: one alert for each incident, and one that always fires. Pure.

Labels are the identity of an alert there, so they are few: ranks, nodes and evidence stand in the
annotations. Where a better verdict changes a label, the former alert is resolved in the same push;
grouping by `alertname, incident` keeps that one notification (docs/adr/0014-notifications.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from paceline.contracts.events import IncidentEvent, IncidentStatus
from paceline.contracts.verdicts import Root, VerdictClass
from paceline.runtime.cloud_events import format_time

WATCHDOG = "PacelineWatchdog"
WATCHDOG_SEVERITY = "none"  # as Prometheus' own Watchdog alert: it never pages by itself
ANNOTATION_LENGTH_MAX = 1_000
LABEL_LENGTH_MAX = 200
ROOTS_MAX = 8
EVIDENCE_MAX = 3
ALERT_NAMES: Mapping[VerdictClass, str] = {
    VerdictClass.S1: "PacelineTrainingSlow",
    VerdictClass.S2: "PacelineTrainingSlow",
    VerdictClass.S3: "PacelineTrainingSlow",
    VerdictClass.DEAD_PROCESS: "PacelineProcessDied",
    VerdictClass.INCONCLUSIVE: "PacelineTrainingSuspect",
}
HANG_NAME = "PacelineTrainingHang"

Texts = dict[str, str]


class AlertReason(str, Enum):
    """What an event means for the alert of its incident."""

    FIRST = "first"
    REFIRED = "refired"
    UPDATED = "updated"
    RELABELLED = "relabelled"
    RESOLVED = "resolved"
    NOTHING_TO_RESOLVE = "nothing_to_resolve"


@dataclass(frozen=True)
class KnownAlert:
    """The alert as Alertmanager knows it."""

    firing: bool
    labels: Texts
    starts_at: datetime


@dataclass(frozen=True)
class AlertPlan:
    reason: AlertReason
    firing: bool
    labels: Texts
    former_labels: Texts | None
    starts_at: datetime


def plan_alert(known: KnownAlert | None, event: IncidentEvent, cluster: str, at: datetime) -> AlertPlan:
    """The next state of the alert of `event.incident`; `at` is when the event happened."""
    labels = alert_labels(event, cluster)
    if event.status is IncidentStatus.RESOLVED:
        if known is None or not known.firing:
            return AlertPlan(AlertReason.NOTHING_TO_RESOLVE, False, labels, None, at)
        return AlertPlan(AlertReason.RESOLVED, False, known.labels, None, known.starts_at)
    if known is None:
        return AlertPlan(AlertReason.FIRST, True, labels, None, at)
    if not known.firing:
        return AlertPlan(AlertReason.REFIRED, True, labels, None, at)
    if known.labels != labels:
        return AlertPlan(AlertReason.RELABELLED, True, labels, known.labels, known.starts_at)
    return AlertPlan(AlertReason.UPDATED, True, labels, None, known.starts_at)


def alert_labels(event: IncidentEvent, cluster: str) -> Texts:
    """Low-cardinality labels; empty ones are left out, for Alertmanager does the same."""
    verdict = event.verdict
    labels = {
        "alertname": ALERT_NAMES.get(verdict.verdict_class, HANG_NAME),
        "severity": event.severity.value,
        "job": event.job,
        "cluster": cluster,
        "verdict": verdict.verdict_class.value,
        "incident": f"INC-{event.number}",
        "owner": verdict.owner.value,
    }
    return {name: text[:LABEL_LENGTH_MAX] for name, text in labels.items() if text}


def alert_annotations(event: IncidentEvent) -> Texts:
    """Everything a person reads first."""
    verdict = event.verdict
    operation = verdict.operation
    evidence = [one.statement for one in verdict.evidence if one.supports][:EVIDENCE_MAX]
    texts = {
        "summary": f"[{verdict.verdict_class.value}] {verdict.summary}",
        "status": event.status.value,
        "attempt": event.attempt,
        "ranks": ", ".join(str(root.rank) for root in verdict.roots[:ROOTS_MAX] if root.rank is not None),
        "nodes": ", ".join(dict.fromkeys(root.node for root in verdict.roots[:ROOTS_MAX] if root.node)),
        "roots": "; ".join(describe_root(root) for root in verdict.roots[:ROOTS_MAX]),
        "waiting_ranks": str(verdict.victims_count),
        "operation": ""
        if operation is None
        else f"{operation.function} round {operation.round} of {operation.communicator_name}",
        "confidence": f"{verdict.confidence:.2f}",
        "evidence": "; ".join(evidence),
        "action": f"{verdict.action.kind.value} {verdict.action.target}".strip(),
        "would_decide": verdict.would_decide,
        "incident_id": event.incident,
        "incident_url": event.url,
    }
    return {name: text[:ANNOTATION_LENGTH_MAX] for name, text in texts.items() if text}


def describe_root(root: Root) -> str:
    """`rank 5 on node-1` and the like."""
    named = {
        "rank": root.rank,
        "gpu": root.gpu,
        "peer rank": root.peer_rank,
        "name": root.name,
    }
    parts = [f"{name} {value}" for name, value in named.items() if value is not None]
    text = f"{root.kind.value} ({', '.join(parts)})" if parts else root.kind.value
    return f"{text} on {root.node}" if root.node else text


def alert_json(
    labels: Texts, annotations: Texts, starts_at: datetime, ends_at: datetime, url: str
) -> dict[str, object]:
    """One element of `POST /api/v2/alerts`."""
    alert: dict[str, object] = {
        "labels": labels,
        "annotations": annotations,
        "startsAt": format_time(starts_at.timestamp()),
        "endsAt": format_time(ends_at.timestamp()),
    }
    return alert | ({"generatorURL": url} if url else {})


def watchdog_json(cluster: str, started_at: datetime, now: datetime, hold: timedelta) -> dict[str, object]:
    """Always firing: route it to something that cries when it stops."""
    labels = {"alertname": WATCHDOG, "severity": WATCHDOG_SEVERITY} | (
        {"cluster": cluster} if cluster else {}
    )
    annotations = {"summary": "Paceline watches and can reach you. When this alert ends, it cannot."}
    return alert_json(labels, annotations, started_at, now + hold, "")
