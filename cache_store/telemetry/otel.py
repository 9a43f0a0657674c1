"""Sends spans by OTLP. The only module that imports OpenTelemetry, and imported only where tracing is on.

Spans wait in a bounded queue for a thread of the SDK's; where the collector is away they are dropped. Thread-safe.
They are made as the SDK reads them, once they are over: its own spans, which can be changed while they are open from
any thread and check each attribute, take several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from cache_store.telemetry.spans import Attributes, OpenSpan, Phase
from cache_store.telemetry.trace_context import TraceContext

QUEUE_SPANS = 4_096
SEND_EVERY_MS = 1_000
SEND_TIMEOUT_S = 5.0
CLOSE_MS = 2_000


_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_FINE, _ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class OtlpSpans:
    """Implements `cache_store.telemetry.spans.SpanSink`."""

    def __init__(self, endpoint: str, service: str, instance: str, version: str) -> None:
        """`service` and `instance` name the process."""
        self._resource = Resource(
            {"service.name": service, "service.instance.id": instance, "service.version": version}
        )
        self._scope = InstrumentationScope("stemcache", version)
        self._ids = RandomIdGenerator()
        exporter = OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"), timeout=SEND_TIMEOUT_S)
        self._processor = BatchSpanProcessor(
            exporter, max_queue_size=QUEUE_SPANS, schedule_delay_millis=SEND_EVERY_MS, max_export_batch_size=512
        )

    def begin(self, name: str, begin_unix_s: float, parent: TraceContext | None) -> OpenSpan:
        """See SpanSink."""
        trace_id = self._ids.generate_trace_id() if parent is None else parent.trace_id
        context = TraceContext(trace_id, self._ids.generate_span_id(), is_sampled=True)
        return _Open(self, name, begin_unix_s, context, parent)

    def add(self, parent: TraceContext, phases: Sequence[Phase]) -> None:
        """See SpanSink."""
        for phase in phases:
            own = TraceContext(parent.trace_id, self._ids.generate_span_id(), is_sampled=True)
            self.send(phase, own, parent, SpanKind.INTERNAL, _FINE)

    def close(self) -> None:
        """See SpanSink."""
        self._processor.force_flush(CLOSE_MS)
        self._processor.shutdown()  # type: ignore[no-untyped-call]  # the SDK gives it no types

    def send(
        self, phase: Phase, own: TraceContext, parent: TraceContext | None, kind: SpanKind, status: Status
    ) -> None:
        """Puts a span that is over where it waits to be sent."""
        self._processor.on_end(
            ReadableSpan(
                phase.name,
                _context(own, is_remote=False),
                None if parent is None else _context(parent, is_remote=True),
                self._resource,
                phase.attributes,
                kind=kind,
                status=status,
                start_time=_ns(phase.begin_unix_s),
                end_time=_ns(max(phase.begin_unix_s, phase.end_unix_s)),
                instrumentation_scope=self._scope,
            )
        )


class _Open:
    """Implements `cache_store.telemetry.spans.OpenSpan`."""

    def __init__(
        self, sink: OtlpSpans, name: str, begin_unix_s: float, context: TraceContext, parent: TraceContext | None
    ) -> None:
        self._sink = sink
        self._name = name
        self._begin_unix_s = begin_unix_s
        self._parent = parent
        self.context = context

    def end(self, end_unix_s: float, attributes: Attributes, error: str) -> None:
        """See OpenSpan."""
        whole = Phase(self._name, self._begin_unix_s, end_unix_s, attributes)
        status = _ERROR if error else _FINE
        self._sink.send(whole, self.context, self._parent, SpanKind.SERVER, status)


def _context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote=is_remote, trace_flags=_SAMPLED)


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
