"""Names of all metrics, declared once: a misspelt name is a type error.

OpenTelemetry names here; Prometheus shows dots as `_`, with the unit and `_total` appended
(`paceline.frames.received` is `paceline_frames_received_total`). Labels stay of low cardinality:
never a rank, a communicator or a job with its ranks.
"""

from functools import cache
from typing import Literal

from opentelemetry import metrics
from opentelemetry.metrics import Meter

CounterName = Literal[
    "paceline.kafka.consumed",  # topic, group
    "paceline.kafka.produced",  # topic
    "paceline.kafka.dropped",  # topic, reason
    "paceline.kafka.dead_letters",  # topic, group, outcome
    "paceline.kafka.handler_retries",  # group, reason
    "paceline.kafka.consumer_recreated",  # group, reason
    "paceline.kafka.commit_failures",  # group
    "paceline.frames.received",
    "paceline.frames.dropped",  # reason
    "paceline.signals.published",  # kind
    "paceline.verdicts.published",  # verdict
    "paceline.localizer.decisions",  # reason; why a verdict was published, or was not
    "paceline.localizer.dropped",  # reason; what a bound of the memory refused or forgot
    "paceline.incidents.opened",  # verdict
    "paceline.incidents.resolved",  # verdict
    "paceline.repair.decisions",  # reason
    "paceline.evidence.read",  # incidents whose shipped files were read
    "paceline.evidence.expired",  # nodes that did not ship in time
    "paceline.evidence.dropped",  # shipped archives that a bound took away
    "paceline.outbox.published",  # topic
    "paceline.webhook.deliveries",  # integration, outcome
    "paceline.agent.samples",
    "paceline.agent.dropped",  # reason
    "paceline.agent.bytes",
    "paceline.agent.devices",  # reason; findings that were told
    "paceline.agent.detail_changes",  # level, reason
    "paceline.api.events_dropped",  # reason; not shown to a client that was away too long
]
GaugeName = Literal[
    "paceline.kafka.lag",  # topic, group
    "paceline.kafka.buffered",  # producer, lane; bytes
    "paceline.detector.jobs",
    "paceline.detector.communicators",
    "paceline.detector.event_delay",
    "paceline.detector.snapshot_age",
    "paceline.incidents.open",
    "paceline.outbox.pending",
    "paceline.webhook.pending",
    "paceline.agent.processes",
    "paceline.agent.waiting",  # lane
    "paceline.agent.cpu",
    "paceline.agent.gpus",
    "paceline.agent.detail_jobs",  # whose probes are asked for another level than the default
    "paceline.api.streams",
    "paceline.app.ready",  # app
]
HistogramName = Literal[
    "paceline.kafka.handle",  # topic, group
    "paceline.detector.tick",
    "paceline.detection.latency",
    "paceline.verdict.confidence",
    "paceline.webhook.duration",  # integration
    "paceline.api.request",  # route, status
]
Labels = dict[str, str]

_UNITS: dict[str, str] = {
    "paceline.agent.bytes": "By",
    "paceline.agent.cpu": "s",
    "paceline.kafka.buffered": "By",
    "paceline.detector.event_delay": "s",
    "paceline.detector.snapshot_age": "s",
    "paceline.kafka.handle": "s",
    "paceline.detector.tick": "s",
    "paceline.detection.latency": "s",
    "paceline.verdict.confidence": "1",
    "paceline.webhook.duration": "s",
    "paceline.api.request": "s",
}
_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 300)
_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1)


def _meter() -> Meter:
    return metrics.get_meter("paceline")


@cache
def _counter(name: str) -> metrics.Counter:
    return _meter().create_counter(name, unit=_UNITS.get(name, ""))


@cache
def _gauge(name: str) -> "metrics._Gauge":
    return _meter().create_gauge(name, unit=_UNITS.get(name, ""))


@cache
def _histogram(name: str) -> metrics.Histogram:
    unit = _UNITS.get(name, "")
    buckets = _RATIOS if unit == "1" else _SECONDS
    return _meter().create_histogram(name, unit=unit, explicit_bucket_boundaries_advisory=list(buckets))


def count(name: CounterName, amount: int = 1, **labels: str) -> None:
    """Add to a counter."""
    _counter(name).add(amount, labels)


def gauge(name: GaugeName, value: float, **labels: str) -> None:
    """Set a gauge."""
    _gauge(name).set(value, labels)


def observe(name: HistogramName, value: float, **labels: str) -> None:
    """Record one value of a distribution."""
    _histogram(name).record(value, labels)
