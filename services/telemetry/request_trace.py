"""One request of a router as a span with its parts: admit, lookup, route. The other ones are the worker's.

Made only where tracing is on, of at most so many requests a second. Attributes are the GenAI conventions' where there
are some; none holds a prompt, an answer, token ids, digests or keys. Owned by the event loop of the router.
"""

from __future__ import annotations

from collections.abc import Iterator

from cache_store.clock import Clock
from cache_store.telemetry.spans import Attributes, OpenSpan, Phase, SpanSink
from cache_store.telemetry.trace_context import TraceContext
from services.router.generation import ChatPrompt, GenerationSpec
from services.router.records import Routed
from services.router.watch import EndedRequest

PROVIDER = "stemcache"
MAX_TEXT = 128
"""Of a request id: the client's choice, so it is cut."""


class RequestTracer:
    """Chooses the requests that are traced: the first ones of each second, whatever their callers ask for."""

    def __init__(self, sink: SpanSink, traces_per_s: int, clock: Clock) -> None:
        self._sink = sink
        self._traces_per_s = traces_per_s
        self._clock = clock
        self._second_s = -1.0
        self._num_left = 0

    def begin(self, parent: TraceContext | None, spec: GenerationSpec, receive_unix_s: float) -> RequestTrace | None:
        """See `services.router.watch.RequestTracer`. Where the caller says that it is not to be traced, it is not."""
        if parent is not None and not parent.is_sampled:
            return None
        now_s = self._clock.monotonic_s()
        if now_s - self._second_s >= 1.0:
            self._second_s, self._num_left = now_s, self._traces_per_s
        if self._num_left == 0:
            return None
        self._num_left -= 1
        operation = "chat" if isinstance(spec.prompt, ChatPrompt) else "text_completion"
        span = self._sink.begin(f"{operation} {spec.model}", receive_unix_s, parent)
        return RequestTrace(self._sink, span, operation, spec, self._clock)


class RequestTrace:
    """Implements `services.router.watch.RequestTrace`."""

    def __init__(self, sink: SpanSink, span: OpenSpan, operation: str, spec: GenerationSpec, clock: Clock) -> None:
        self._sink = sink
        self._span = span
        self._operation = operation
        self._spec = spec
        self._clock = clock
        self._admitted_s = clock.monotonic_s()
        self._planned_s: float | None = None
        self.header = span.context.header()
        """For the worker."""

    def planned(self) -> None:
        """Its prompt was encoded and looked up."""
        self._planned_s = self._clock.monotonic_s()

    def end(self, request: EndedRequest) -> None:
        """The request is over."""
        self._sink.add(self._span.context, list(self._phases(request)))
        error = "" if request.status == "OK" else request.status
        self._span.end(_unix_s(request, request.end_s), self._attributes(request), error)

    def _phases(self, request: EndedRequest) -> Iterator[Phase]:
        admitted_s = _unix_s(request, self._admitted_s)
        yield Phase("admit", request.receive_unix_s, admitted_s)
        if self._planned_s is None:
            return
        planned_s = _unix_s(request, self._planned_s)
        yield Phase("lookup", admitted_s, planned_s)
        routed = [entry for entry in request.record.entries if isinstance(entry, Routed)]
        begun_s = planned_s
        for number, entry in enumerate(routed, start=1):
            routed_s = request.receive_unix_s + entry.route_s
            attributes: Attributes = {
                "stemcache.worker": entry.terms[0].worker_id,
                "stemcache.route.rule": entry.rule,
                "stemcache.route.attempt": number,
                "stemcache.expected_tokens": entry.terms[0].matched_tokens,
                "stemcache.degraded": entry.degraded,
            }
            yield Phase("route", min(begun_s, routed_s), routed_s, attributes)
            begun_s = routed_s

    def _attributes(self, request: EndedRequest) -> Attributes:
        sampling = self._spec.sampling
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._spec.model,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.choice.count": sampling.n,
            "gen_ai.response.id": request.record.request_id[:MAX_TEXT],
            "gen_ai.usage.output_tokens": request.completion_tokens,
            "stemcache.tenant": request.record.tenant_name,
            "rpc.response.status_code": request.status,
        }
        if sampling.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
        if request.status != "OK":
            attributes["error.type"] = request.status
        if (started := request.started) is not None:
            attributes |= {
                "gen_ai.usage.input_tokens": started.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": started.cached.total,
                "gen_ai.response.model": self._spec.model,
                "gen_ai.response.time_to_first_chunk": started.first_token_s - request.receive_s,
            }
            for tier in ("device", "host", "disk", "peer"):
                attributes[f"stemcache.cached_tokens.{tier}"] = getattr(started.cached, tier)
        return attributes


def _unix_s(request: EndedRequest, monotonic_s: float) -> float:
    return request.receive_unix_s + (monotonic_s - request.receive_s)
