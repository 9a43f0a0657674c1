"""Which requests are traced: a bounded number, and none whose caller does not want it."""

from __future__ import annotations

from collections.abc import Sequence

from cache_store.clock import ManualClock
from cache_store.telemetry.spans import Attributes, OpenSpan, Phase
from cache_store.telemetry.trace_context import TraceContext
from services.router.generation import CacheMode, EndTokens, GenerationSpec, Sampling, TextPrompt
from services.telemetry.request_trace import RequestTracer

SPEC = GenerationSpec(
    request_id=None,
    model="m",
    prompt=TextPrompt("zebra"),
    sampling=Sampling(0.0, 1.0, 0, None, 8, 0, (), (), EndTokens.STOP, 1),
    cache_mode=CacheMode.READ_WRITE,
    partition="",
)


class KeptSpan:
    def __init__(self, parent: TraceContext | None) -> None:
        self.context = TraceContext(7 if parent is None else parent.trace_id, 9, is_sampled=True)

    def end(self, end_unix_s: float, attributes: Attributes, error: str) -> None: ...


class KeptSpans:
    def __init__(self) -> None:
        self.names: list[str] = []

    def begin(self, name: str, begin_unix_s: float, parent: TraceContext | None) -> OpenSpan:
        self.names.append(name)
        return KeptSpan(parent)

    def add(self, parent: TraceContext, phases: Sequence[Phase]) -> None: ...

    def close(self) -> None: ...


def test_callers_cannot_have_more_traced() -> None:
    clock, spans = ManualClock(), KeptSpans()
    tracer = RequestTracer(spans, 3, clock)
    asked = TraceContext(5, 6, is_sampled=True)
    assert [tracer.begin(asked, SPEC, 0.0) is not None for _ in range(5)] == [True, True, True, False, False]
    clock.advance(1.0)
    assert tracer.begin(None, SPEC, 0.0) is not None
    assert len(spans.names) == 4


def test_who_does_not_want_it_costs_nothing() -> None:
    spans = KeptSpans()
    tracer = RequestTracer(spans, 3, ManualClock())
    assert tracer.begin(TraceContext(5, 6, is_sampled=False), SPEC, 0.0) is None
    assert spans.names == []


def test_the_worker_goes_on_with_the_callers_trace() -> None:
    trace = RequestTracer(KeptSpans(), 3, ManualClock()).begin(TraceContext(5, 6, is_sampled=True), SPEC, 0.0)
    assert trace is not None
    assert trace.header == f"00-{5:032x}-{9:016x}-01"
