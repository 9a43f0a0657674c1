"""Whether a process of a benchmark shows metrics and sends spans, as it is told by JSON. Neither, unless it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache_store.telemetry.listen import MetricsListen
from cache_store.telemetry.spans import TRACES_PER_S, TracingSettings


@dataclass(frozen=True, slots=True)
class Sight:
    """What can be seen of a process."""

    metrics: MetricsListen | None
    tracing: TracingSettings | None


def sight_of(told: Mapping[str, Any]) -> Sight:
    """`metrics`: true; `otlp`: an endpoint; `traces_per_s`."""
    endpoint = told.get("otlp", "")
    return Sight(
        MetricsListen() if told.get("metrics") else None,
        TracingSettings(endpoint, told.get("traces_per_s", TRACES_PER_S)) if endpoint else None,
    )
