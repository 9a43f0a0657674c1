"""result.json: a run added up. Keys as `vllm bench serve` writes them, then sections of ours.

On disk the latencies stand flat beside the counts (`mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, `p99_ttft_ms`, the
same with tpot, itl, e2el), as tools expect that read such files; in memory they are `Result.latencies`. A request rate
without bound is the text "inf" there. Latencies are those of completed requests, from the intended send.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache_store.errors import InvalidRequestError
from services.loadtest.json_codec import from_json, to_json
from services.loadtest.records import TierTokens

SCHEMA_VERSION = 1
METRICS = ("ttft", "tpot", "itl", "e2el")
"""Latencies, in the order in which they are told."""
MAIN_PERCENTILES = (50.0, 95.0, 99.0)
"""In every result, whatever else was asked for."""


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Of one latency, in milliseconds; all 0 where `count` is 0."""

    count: int
    mean_ms: float
    median_ms: float
    std_ms: float
    percentiles_ms: Mapping[str, float]
    """By percentile as text: `50`, `99`, `99.9`."""

    def p(self, percentile: float) -> float:
        """One percentile in milliseconds. Raises KeyError where it was not asked for."""
        return self.percentiles_ms[f"{percentile:g}"]


@dataclass(frozen=True, slots=True)
class OutcomeSection:
    """Completed requests by how much of their prompts was cached: `hit`, `partial`, `miss`."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    ttft: LatencySummary


@dataclass(frozen=True, slots=True)
class PrefixCacheSection:
    """What the cache brought, over completed requests."""

    prompt_tokens: int
    cached_tokens: int
    cached_by_tier: TierTokens
    hit_rate: float
    """cached_tokens / prompt_tokens, as the client was told."""
    cacheable_tokens: int
    """Upper bound by the workload's own knowledge, over requests whose bound is known."""
    upper_bound_rate: float | None
    """cacheable_tokens / prompt tokens of the same requests; None where no bound is known."""
    reached_share: float | None
    """Cached tokens of those requests / cacheable_tokens; None where nothing was cacheable."""
    server_delta: Mapping[str, float]
    """What the server's own counters grew by during the run, over all workers and tenants: `planned_requests`,
    `evicted_blocks`, `preemptions`, `host.loaded_blocks`... Empty where the operator's API was not asked."""
    outcomes: Mapping[str, OutcomeSection]
    """By CacheOutcome."""


@dataclass(frozen=True, slots=True)
class GroupSection:
    """A tenant, or a worker."""

    requests: int
    """Sent, those that failed included."""
    completed: int
    prompt_tokens: int
    cached_tokens: int
    cacheable_tokens: int
    completion_tokens: int
    hit_rate: float
    reached_share: float | None
    weight: float
    """Of a tenant; 1 for workers."""
    request_throughput: float
    output_throughput: float
    status_codes: Mapping[str, int]
    latencies: Mapping[str, LatencySummary]
    """By METRICS."""
    schedule_lag: LatencySummary


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    schema_version: int
    date: str
    """Start, YYYYMMDD-HHMMSS in UTC."""
    backend: str
    """`stemcache`, or `openai`."""
    model_id: str
    workload: str
    num_prompts: int
    """Planned; less was sent where `interrupted`."""
    request_rate: float
    """Requests per second that were asked for, over all tenants; infinite for a closed loop."""
    burstiness: float
    max_concurrency: int | None
    interrupted: bool
    duration: float
    """Seconds from the start to the last end."""
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    """Completed requests per second that kept all limits of --goodput; None without any."""
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    """In the best second."""
    max_concurrent_requests: int
    latencies: Mapping[str, LatencySummary]
    """By METRICS."""
    schedule_lag: LatencySummary
    """Send minus intended send, of all requests that were sent."""
    prefix_cache: PrefixCacheSection
    tenants: Mapping[str, GroupSection]
    workers: Mapping[str, GroupSection]
    jain_index: float | None
    """Of tenants' computed and generated tokens per weight, 1 is even; None for fewer than two tenants."""
    status_codes: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    """What makes the figures doubtful: a late client, a warm cache, tokens counted otherwise by the server."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        document: dict[str, Any] = to_json(self)
        if math.isinf(self.request_rate):
            document["request_rate"] = "inf"
        if math.isinf(self.burstiness):
            document["burstiness"] = "inf"
        document.setdefault("max_concurrency", None)
        document.setdefault("request_goodput", None)
        for metric, summary in document.pop("latencies").items():
            document[f"{metric}_count"] = summary["count"]
            for name in ("mean", "median", "std"):
                document[f"{name}_{metric}_ms"] = summary[f"{name}_ms"]
            for percentile, value in summary["percentiles_ms"].items():
                document[f"p{percentile}_{metric}_ms"] = value
        return document

    @staticmethod
    def from_json(document: object, where: str) -> Result:
        """Reads what `to_json` wrote. Raises InvalidRequestError for another kind or a newer version."""
        if not isinstance(document, dict) or "schema_version" not in document:
            raise InvalidRequestError(where, f"{where} has no schema_version: it is no result of a load test")
        if document["schema_version"] != SCHEMA_VERSION:
            raise InvalidRequestError(
                where, f"{where} has schema_version {document['schema_version']}; this version reads {SCHEMA_VERSION}"
            )
        given = dict(document)
        for name in ("request_rate", "burstiness"):
            if given.get(name) == "inf":
                given[name] = math.inf
        given["latencies"] = {metric: _summary(given, metric) for metric in METRICS if f"mean_{metric}_ms" in given}
        return from_json(Result, given, where)


def _summary(document: Mapping[str, Any], metric: str) -> dict[str, Any]:
    ending = f"_{metric}_ms"
    percentiles = {
        name[1 : -len(ending)]: value
        for name, value in document.items()
        if name.startswith("p") and name.endswith(ending) and name[1].isdigit()
    }
    return {
        "count": document.get(f"{metric}_count", 0),
        **{f"{name}_ms": document[f"{name}{ending}"] for name in ("mean", "median", "std")},
        "percentiles_ms": percentiles,
    }
