"""Sends spans by OTLP. The only module that imports OpenTelemetry, and imported only where tracing is on.

Spans wait in a bounded queue for a thread of the SDK's; where the collector is away they are dropped. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from cache_store.telemetry.spans import Attributes, OpenSpan, Phase
from cache_store.telemetry.trace_context import TraceContext

QUEUE_SPANS = 4_096
SEND_EVERY_MS = 1_000
SEND_TIMEOUT_S = 5.0
CLOSE_MS = 2_000


class OtlpSpans:
    """Implements `cache_store.telemetry.spans.SpanSink`."""

    def __init__(self, endpoint: str, service: str, instance: str, version: str) -> None:
        """`service` and `instance` name the process."""
        resource = Resource({"service.name": service, "service.instance.id": instance, "service.version": version})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"), timeout=SEND_TIMEOUT_S)
        self._processor = BatchSpanProcessor(
            exporter, max_queue_size=QUEUE_SPANS, schedule_delay_millis=SEND_EVERY_MS, max_export_batch_size=512
        )
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("stemcache", version)

    def begin(self, name: str, begin_unix_s: float, parent: TraceContext | None) -> OpenSpan:
        """See SpanSink."""
        context = Context() if parent is None else _remote(parent)
        span = self._tracer.start_span(name, context, SpanKind.SERVER, start_time=_ns(begin_unix_s))
        return _Open(span)

    def add(self, parent: TraceContext, phases: Sequence[Phase]) -> None:
        """See SpanSink."""
        context = _remote(parent)
        for phase in phases:
            span = self._tracer.start_span(
                phase.name, context, attributes=phase.attributes, start_time=_ns(phase.begin_unix_s)
            )
            span.end(_ns(max(phase.begin_unix_s, phase.end_unix_s)))

    def close(self) -> None:
        """See SpanSink."""
        self._processor.force_flush(CLOSE_MS)
        self._provider.shutdown()


class _Open:
    """Implements `cache_store.telemetry.spans.OpenSpan`."""

    def __init__(self, span: Span) -> None:
        self._span = span
        known = span.get_span_context()
        self.context = TraceContext(known.trace_id, known.span_id, is_sampled=True)

    def end(self, end_unix_s: float, attributes: Attributes, error: str) -> None:
        """See OpenSpan."""
        self._span.set_attributes(attributes)
        if error:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(_ns(end_unix_s))


def _remote(parent: TraceContext) -> Context:
    context = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(context), Context())


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
