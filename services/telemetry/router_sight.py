"""What of a router can be seen, as its settings say: requests counted and traced, and the port of its metrics.

Called where a router is put together. Owns nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack

from cache_store.telemetry.http_server import MetricsServer, Page
from cache_store.telemetry.text import CONTENT_TYPE, render
from cache_store.telemetry.tracing import open_spans
from services.router.generations import Generations
from services.settings import RouterSettings, Target
from services.telemetry.request_metrics import RequestMetrics
from services.telemetry.request_trace import RequestTracer
from services.telemetry.router_metrics import RouterMetrics
from services.telemetry.targets import CONTENT_TYPE as DISCOVERY_TYPE
from services.telemetry.targets import discovery
from services.tenants.directory import TenantDirectory


def watch_requests(
    generations: Generations, directory: TenantDirectory, settings: RouterSettings, stack: AsyncExitStack
) -> RequestMetrics | None:
    """Has requests counted and traced; None where nothing is counted."""
    counted = None if settings.metrics is None else RequestMetrics(directory)
    if counted is not None:
        generations.watch = counted
    spans = open_spans(settings.tracing, "stemcache-router", uuid.uuid4().hex)
    if settings.tracing is not None and spans is not None:
        stack.push_async_callback(asyncio.to_thread, spans.close)
        generations.tracer = RequestTracer(spans, settings.tracing.traces_per_s, generations.clock)
    return counted


async def show_metrics(metrics: RouterMetrics | None, settings: RouterSettings, stack: AsyncExitStack) -> None:
    """Opens the port for metrics, where there is to be one."""
    if settings.metrics is None or metrics is None:
        return
    condition = metrics.condition

    async def text() -> str:
        return render(metrics.families())

    async def targets() -> str:
        own = Target("router", condition.metrics_address)
        return discovery(own, settings.metrics_targets, metrics.view.records())

    pages = {"/metrics": Page(CONTENT_TYPE, text), "/targets": Page(DISCOVERY_TYPE, targets)}
    server = await MetricsServer.start(settings.metrics, pages)
    stack.push_async_callback(server.stop)
    condition.metrics_address = server.address
