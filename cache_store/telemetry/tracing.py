"""Opens what spans are sent through. What makes and sends spans is loaded only where there are to be some."""

from __future__ import annotations

from importlib.metadata import version

from cache_store.telemetry.spans import SpanSink, TracingSettings


def open_spans(settings: TracingSettings | None, service: str, instance: str) -> SpanSink | None:
    """None where nothing is traced; `service` and `instance` name the process."""
    if settings is None:
        return None
    from cache_store.telemetry.otel import OtlpSpans  # a tenth of a second, and memory, of whoever traces only

    return OtlpSpans(settings.endpoint, service, instance, version("stemcache"))
