"""Spans as values, and the protocol of whoever sends them. Knows no OpenTelemetry.

A process makes one root span for a request, and the parts of it after the fact, out of times that are measured anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cache_store.errors import InvalidRequestError
from cache_store.telemetry.trace_context import TraceContext

Attributes = Mapping[str, str | int | float | bool | Sequence[str]]

TRACES_PER_S = 10
"""Requests that a router traces at most in a second, unless told otherwise: what tracing costs is bounded so."""

MAX_TRACES_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a request. Times of day in seconds."""

    name: str
    begin_unix_s: float
    end_unix_s: float
    attributes: Attributes = field(default_factory=dict)


class OpenSpan(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> TraceContext:
        """For its parts, here and in other processes."""
        ...

    def end(self, end_unix_s: float, attributes: Attributes, error: str) -> None:
        """Ends it, once. `error` is a status' name; empty: none."""
        ...


class SpanSink(Protocol):
    """Takes spans and sends them, in the background and bounded: what cannot be sent is dropped."""

    def begin(self, name: str, begin_unix_s: float, parent: TraceContext | None) -> OpenSpan:
        """A root span of this process."""
        ...

    def add(self, parent: TraceContext, phases: Sequence[Phase]) -> None:
        """Parts that are over."""
        ...

    def close(self) -> None:
        """Sends what waits, for a bounded time. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Where spans go. Raises InvalidRequestError."""

    endpoint: str
    """Of a collector that takes OTLP by gRPC: http:// or https://, host and port."""
    traces_per_s: int = TRACES_PER_S

    def __post_init__(self) -> None:
        scheme, _, rest = self.endpoint.partition("://")
        if scheme not in ("http", "https") or not rest or any(sign in rest for sign in "@ \t\n"):
            raise InvalidRequestError(
                "otlp endpoint", "the OTLP endpoint is an address like http://127.0.0.1:4317, without credentials"
            )
        if not 1 <= self.traces_per_s <= MAX_TRACES_PER_S:
            raise InvalidRequestError(
                "traces per second", f"traces per second are {self.traces_per_s}; they are 1 to {MAX_TRACES_PER_S}"
            )
