"""What is told to whoever watches requests: one call when a request has ended. Values and the protocol only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cache_store.domain import TenantId
from cache_store.telemetry.trace_context import TraceContext
from services.router.generation import GenerationSpec, Started, Timings
from services.router.records import RequestRecord


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that is over. Times in seconds, by the monotonic clock where nothing else is said."""

    tenant: TenantId
    record: RequestRecord
    status: str
    """Name of the gRPC status."""
    receive_unix_s: float
    receive_s: float
    end_s: float
    started: Started | None
    """None where no token came."""
    timings: Timings | None
    """None where it failed."""
    completion_tokens: int


class RequestWatch(Protocol):
    """Watches requests. Called on the event loop, so it takes microseconds, and raises nothing."""

    def ended(self, request: EndedRequest) -> None:
        """A request is over."""
        ...

    def refused(self, tenant: TenantId, tenant_name: str) -> None:
        """A request was refused by its tenant's limits before anything was done for it."""
        ...


class RequestTrace(Protocol):
    """A request that is traced. Implemented in services/telemetry/request_trace.py."""

    @property
    def header(self) -> str:
        """`traceparent` for the worker."""
        ...

    def planned(self) -> None:
        """Its prompt was encoded and looked up."""
        ...

    def end(self, request: EndedRequest) -> None:
        """It is over."""
        ...


class RequestTracer(Protocol):
    """Chooses the requests that are traced."""

    def begin(self, parent: TraceContext | None, spec: GenerationSpec, receive_unix_s: float) -> RequestTrace | None:
        """A request was admitted, just now; None: it is not traced."""
        ...


class NobodyWatches:
    """Implements RequestWatch."""

    def ended(self, request: EndedRequest) -> None:
        pass

    def refused(self, tenant: TenantId, tenant_name: str) -> None:
        pass
