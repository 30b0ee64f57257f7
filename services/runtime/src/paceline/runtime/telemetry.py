"""OpenTelemetry set-up: Prometheus always, OTLP where an endpoint is named, W3C trace context.

Record headers carry `traceparent` from the verdict on, so that one trace spans detect, notify,
approve and swap. Frames carry none: a span for each record would cost more than the record.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

from opentelemetry import metrics, propagate, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, generate_latest

from paceline.runtime.settings import TelemetrySettings

__all__ = ["SpanKind", "Telemetry", "configure_telemetry", "current_traceparent", "span"]

SHUTDOWN_MS_MAX = 3_000
_PROPAGATOR = TraceContextTextMapPropagator()


@dataclass
class Telemetry:
    """The providers of this process. `scrape` is the body of /metrics."""

    meters: MeterProvider
    traces: TracerProvider
    registry: CollectorRegistry

    def scrape(self) -> bytes:
        return generate_latest(self.registry)

    def shutdown(self) -> None:
        """Flush what OTLP holds; bounded, for a collector may be away."""
        self.traces.force_flush(SHUTDOWN_MS_MAX)
        self.traces.shutdown()
        self.meters.shutdown(SHUTDOWN_MS_MAX)


_current: Telemetry | None = None


def configure_telemetry(settings: TelemetrySettings, service: str, instance: str = "") -> Telemetry:
    """Install the providers once for the process; a second call returns the first ones."""
    global _current
    if _current is not None:
        return _current
    attributes = {
        "service.name": service,
        "service.namespace": settings.service_namespace,
        "service.version": version("paceline-runtime"),
    }
    if instance:
        attributes["service.instance.id"] = instance
    resource = Resource.create(attributes)
    registry = CollectorRegistry()
    readers: list[MetricReader] = [PrometheusMetricReader(registry=registry, scope_info_enabled=False)]
    traces = TracerProvider(
        resource=resource,
        sampler=ParentBased(TraceIdRatioBased(settings.trace_ratio)),
        shutdown_on_exit=False,
    )
    if settings.otlp_endpoint:
        readers.append(_export(settings.otlp_endpoint.rstrip("/"), settings.otlp_interval_s, traces))
    meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    trace.set_tracer_provider(traces)
    propagate.set_global_textmap(_PROPAGATOR)
    _current = Telemetry(meters, traces, registry)
    return _current


def _export(base: str, interval_s: float, traces: TracerProvider) -> MetricReader:
    # Here, for with protobuf and an HTTP client they are a sixth of what an agent imports, and seldom used.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{base}/v1/traces")))
    exporter = OTLPMetricExporter(endpoint=f"{base}/v1/metrics")
    return PeriodicExportingMetricReader(exporter, interval_s * 1000)


def current_traceparent() -> str:
    """W3C `traceparent` of the span that is active here, empty where none is."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent", "")


@contextmanager
def span(
    name: str,
    *,
    traceparent: str = "",
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, str | int | float | bool] | None = None,
) -> Iterator[Span]:
    """One span, a child of `traceparent` where it is a valid one; errors are recorded on it."""
    context = _PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None
    tracer = trace.get_tracer("paceline")
    with tracer.start_as_current_span(name, context, kind, dict(attributes or {})) as active:
        try:
            yield active
        except Exception as error:
            active.set_status(Status(StatusCode.ERROR, str(error)[:200]))
            active.set_attribute("error.type", type(error).__name__)
            raise
