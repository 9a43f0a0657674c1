"""A collector of spans that keeps what it is sent: OTLP over gRPC, by the published messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class SentSpan:
    """A span as it came over the wire."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any] = field(default_factory=dict)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps spans."""

    def __init__(self) -> None:
        self.spans: list[SentSpan] = []
        self.raw: list[bytes] = []
        self.endpoint = ""

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.raw.append(request.SerializeToString())
        for group in request.resource_spans:
            service = next(each.value.string_value for each in group.resource.attributes if each.key == "service.name")
            self.spans += [_sent(service, span) for scope in group.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[SentSpan]:
        """Spans of a name."""
        return [span for span in self.spans if span.name == name]


def _sent(service: str, span: Any) -> SentSpan:
    return SentSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        is_error=span.status.code == 2,
        attributes={each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes},
    )


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector on loopback."""
    collector = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await server.stop(0.5)
