"""Spans of real requests through a router and a worker, as a collector gets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cache_store.telemetry.spans import TracingSettings
from cache_store.tokens import pack
from services.cluster.valkey import EmbeddedValkey
from tests.support.otlp_collector import Collector, collecting
from tests.support.redis_servers import server_named
from tests.support.router_host import Cluster, eventually, running_cluster, tokens_request
from worker.config import NumBlocks

ROUTER_PARTS = {"admit", "lookup", "route"}
WORKER_PARTS = {"queue", "prefill", "decode"}
ROOT = "text_completion token-digest"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROMPT = [31_337, 27_182] * 32


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


@pytest.fixture
async def cluster(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path, collector: Collector
) -> AsyncIterator[Cluster]:
    urls = server_named(request, "valkey").urls
    tracing = TracingSettings(collector.endpoint, traces_per_s=1_000)
    worker: dict[str, Any] = {"tracing": tracing, "pool": NumBlocks(24), "host_pool": NumBlocks(64)}
    async with running_cluster(urls, tmp_path, (worker,), tracing=tracing) as cluster:
        yield cluster


async def call(cluster: Cluster, request: Any, **headers: str) -> None:
    metadata = (*cluster.acme.metadata, *headers.items())
    await cluster.acme.stub.Generate(request, timeout=30, metadata=metadata)


async def test_a_request_is_one_trace_through_router_and_worker(cluster: Cluster, collector: Collector) -> None:
    await call(cluster, tokens_request(PROMPT), traceparent=f"00-{TRACE}-{SPAN}-01")
    await eventually(lambda: {span.name for span in collector.spans} >= {ROOT} | ROUTER_PARTS | WORKER_PARTS)
    (root,) = collector.named(ROOT)
    assert root.parent_id == SPAN
    assert {span.trace_id for span in collector.spans} == {TRACE}
    parts = [span for span in collector.spans if span is not root]
    assert {span.parent_id for span in parts} == {root.span_id}
    assert {span.service for span in parts if span.name in ROUTER_PARTS} == {"stemcache-router"}
    assert {span.service for span in parts if span.name in WORKER_PARTS} == {"stemcache-worker"}
    for span in parts:
        assert (
            root.begin_ns <= span.begin_ns + 50_000_000
        )  # clocks of both are one; the worker's times are measured anew
        assert span.begin_ns <= span.end_ns <= root.end_ns + 50_000_000


async def test_attributes_are_those_of_the_conventions(cluster: Cluster, collector: Collector) -> None:
    for _ in range(2):
        await call(cluster, tokens_request(PROMPT, temperature=0.5))
    await eventually(lambda: len(collector.named(ROOT)) == 2 and len(collector.named("prefill")) == 2)
    cold, warm = (span.attributes for span in sorted(collector.named(ROOT), key=lambda span: span.begin_ns))
    assert warm["gen_ai.operation.name"] == "text_completion"
    assert warm["gen_ai.provider.name"] == "stemcache"
    assert warm["gen_ai.request.model"] == "token-digest"
    assert warm["gen_ai.request.max_tokens"] == 8
    assert warm["gen_ai.request.temperature"] == 0.5
    assert warm["gen_ai.usage.input_tokens"] == 64
    assert warm["gen_ai.usage.output_tokens"] == 8
    assert (cold["gen_ai.usage.cache_read.input_tokens"], warm["gen_ai.usage.cache_read.input_tokens"]) == (0, 63)
    assert warm["stemcache.cached_tokens.device"] == 63
    assert {span.attributes["gen_ai.usage.cache_read.input_tokens"] for span in collector.named("prefill")} == {0, 63}


async def test_what_comes_from_a_lower_tier_shows_as_load(cluster: Cluster, collector: Collector) -> None:
    for at in range(8):
        await call(cluster, tokens_request([at * 100 + token for token in range(1, 81)]))
    await call(cluster, tokens_request(list(range(1, 81))))
    await eventually(lambda: bool(collector.named("load")))
    assert collector.named("load")[0].attributes["stemcache.cached_tokens.host"] > 0


async def test_a_failed_request_ends_as_an_error(cluster: Cluster, collector: Collector) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await call(cluster, tokens_request(list(range(1, 1_200)), max_tokens=64))
    await eventually(lambda: bool(collector.named(ROOT)))
    (root,) = collector.named(ROOT)
    assert root.is_error
    assert root.attributes["error.type"] == "INVALID_ARGUMENT"


async def test_who_asks_for_no_trace_gets_none(cluster: Cluster, collector: Collector) -> None:
    await call(cluster, tokens_request(PROMPT), traceparent=f"00-{TRACE}-{SPAN}-00")
    await call(cluster, tokens_request(PROMPT))
    await eventually(lambda: bool(collector.named(ROOT)) and bool(collector.named("decode")))
    assert TRACE not in {span.trace_id for span in collector.spans}


async def test_no_span_tells_what_was_said(cluster: Cluster, collector: Collector) -> None:
    headers = {"tracestate": "zebra=zebra", "baggage": "zebra=zebra"}
    request = tokens_request(PROMPT, session_id="zebra")
    await call(cluster, request, **headers)
    await eventually(lambda: bool(collector.named(ROOT)) and bool(collector.named("decode")))
    raw = b"".join(collector.raw)
    snapshot = await cluster.workers[0].thread.call(lambda engine: engine.snapshot(), 5)
    assert snapshot
    for tag, packed in snapshot.items():
        assert tag not in raw
        assert tag.hex().encode() not in raw
        assert packed[:16] not in raw
        assert packed[:16].hex().encode() not in raw
    for secret in (b"31337", b"27182", b"zebra", pack(PROMPT[:2]), cluster.acme.key.encode()):
        assert secret not in raw


def test_without_an_endpoint_nothing_that_makes_spans_is_loaded() -> None:
    """Redis' client loads OpenTelemetry's part for metrics; what makes and sends spans is another one."""
    program = (
        "import sys, services.router.app, services.telemetry.request_trace, worker.host, worker.build\n"
        "from cache_store.telemetry.tracing import open_spans\n"
        "assert open_spans(None, 'a', 'b') is None\n"
        "sys.exit(any(name.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter')) for name in sys.modules))"
    )
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'proto'}"}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


async def test_without_an_endpoint_no_request_makes_a_span(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.sdk.trace import Tracer  # the only maker of spans that the product uses

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a span was made")

    monkeypatch.setattr(Tracer, "start_span", refuse)
    urls = server_named(request, "valkey").urls
    async with running_cluster(urls, tmp_path) as cluster:
        await call(cluster, tokens_request(PROMPT), traceparent=f"00-{TRACE}-{SPAN}-01")


async def test_a_collector_that_is_away_costs_no_request(
    request: pytest.FixtureRequest, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    urls = server_named(request, "valkey").urls
    tracing = TracingSettings("http://127.0.0.1:1", traces_per_s=1_000)
    async with running_cluster(urls, tmp_path, ({"tracing": tracing},), tracing=tracing) as cluster:
        for _ in range(3):
            await call(cluster, tokens_request(PROMPT))
