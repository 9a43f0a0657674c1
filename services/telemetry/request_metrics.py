"""Counts requests as they end: status, tokens by tier and tenant, latencies over all tenants.

No histogram has a tenant: the series of one would be as many as its buckets for each tenant, and its times would tell
tenants' requests apart. Owned by the router's event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields

from cache_store.domain import TenantId
from cache_store.telemetry.families import Family, FamilyKind, Labels, counter, counters, family, histogram
from cache_store.telemetry.histogram import LATENCY_S, TOKEN_S, Histogram
from cache_store.telemetry.tenant_labels import TenantLabels
from cache_store.usage import CachedTokens
from services.router.outlook import Outlooks
from services.router.records import RequestRecord, Routed
from services.router.watch import EndedRequest
from services.tenants.directory import TenantDirectory

TIERS = tuple(field.name for field in fields(CachedTokens))


@dataclass(slots=True)
class TenantCounts:
    """Of one label."""

    requests: int = 0
    refused_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_s: float = 0.0


_TENANT_COUNTERS = {
    "requests": ("requests", "Requests that ended."),
    "refused_requests": ("refused_requests", "Requests that the tenant's own limits refused."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of requests that were answered."),
    "cached_tokens": ("cached_tokens", "Of the prompt tokens, those that were not computed."),
    "completion_tokens": ("completion_tokens", "Tokens made."),
    "queue_s": ("queue_seconds", "Seconds that requests waited at workers before they began."),
}


class RequestMetrics:
    """Implements `services.router.watch.RequestWatch`."""

    def __init__(self, directory: TenantDirectory) -> None:
        self.labels = TenantLabels(lambda tenant: directory.tenant_by_id(tenant) is not None)
        """Of tenants, whatever is told of them."""
        self._statuses: Counter[str] = Counter()
        self._tenants: dict[str, TenantCounts] = {}
        self._hits = dict.fromkeys(TIERS, 0)
        self._prompt_tokens = self._completion_tokens = self._retries = 0
        self._evicted_tokens = 0
        self._evicted_s = 0.0
        self._setback_s = {"preempted": 0.0, "recompute": 0.0, "swap": 0.0}
        self._preemptions = 0
        self._ttft = Histogram(LATENCY_S)
        self._tpot = Histogram(TOKEN_S)
        self._e2e = Histogram(LATENCY_S)
        self._phases = {name: Histogram(LATENCY_S) for name in ("route", "queue", "prefill", "decode")}

    def refused(self, tenant: TenantId, tenant_name: str) -> None:
        """See RequestWatch."""
        self._of(tenant, tenant_name).refused_requests += 1

    def ended(self, request: EndedRequest) -> None:
        """See RequestWatch."""
        self._statuses[request.status] += 1
        counts = self._of(request.tenant, request.record.tenant_name)
        counts.requests += 1
        counts.completion_tokens += request.completion_tokens
        self._completion_tokens += request.completion_tokens
        self._e2e.observe(request.end_s - request.receive_s)
        started, timings = request.started, request.timings
        if started is None:
            return
        cached = started.cached
        counts.prompt_tokens += started.prompt_tokens
        counts.cached_tokens += cached.total
        self._prompt_tokens += started.prompt_tokens
        self._retries += started.attempts - 1
        for tier in TIERS:
            self._hits[tier] += getattr(cached, tier)
        self._ttft.observe(started.first_token_s - request.receive_s)
        if timings is None:
            return
        counts.queue_s += timings.queue_s
        self._preemptions += timings.preemptions
        self._setback_s["preempted"] += timings.preempted_s
        self._setback_s["recompute"] += timings.recompute_s
        self._setback_s["swap"] += timings.swap_s
        self._phases["route"].observe(timings.route_s)
        self._phases["queue"].observe(timings.queue_s)
        self._phases["prefill"].observe(timings.prefill_s)
        self._phases["decode"].observe(timings.decode_s)
        num_steps = request.completion_tokens // started.num_samples - 1
        if num_steps > 0:
            self._tpot.observe((request.end_s - started.first_token_s) / num_steps)
        self._note_evicted(request.record, started.prompt_tokens - cached.total, timings.prefill_s)

    def families(self) -> Iterator[Family]:
        """As of now."""
        for label in self.labels.forget_dead():
            self._tenants.pop(label, None)
        yield counters("stemcache_requests_total", "Requests that ended, by status.", "status", self._statuses)
        yield counter("stemcache_prompt_tokens_total", "Prompt tokens of answered requests.", self._prompt_tokens)
        yield counters("stemcache_hit_tokens_total", "Of them those that a tier had.", "tier", self._hits)
        num_computed = self._prompt_tokens - sum(self._hits.values())
        yield counter("stemcache_computed_tokens_total", "Of them those that were computed.", num_computed)
        yield counter("stemcache_completion_tokens_total", "Tokens made.", self._completion_tokens)
        yield counter(
            "stemcache_eviction_recompute_tokens_total",
            "Prompt tokens that were computed since their blocks had been evicted.",
            self._evicted_tokens,
        )
        yield counter(
            "stemcache_eviction_recompute_seconds_total", "Their share of the time of prefills.", self._evicted_s
        )
        yield counters(
            "stemcache_request_setback_seconds_total",
            "Seconds that answered requests stood still after preemptions, computed again, or waited for lower tiers.",
            "kind",
            self._setback_s,
        )
        yield counter("stemcache_request_preemptions_total", "Preemptions of answered requests.", self._preemptions)
        yield counter("stemcache_request_retries_total", "Tries after the first one.", self._retries)
        yield histogram("stemcache_time_to_first_token_seconds", "From call to first token.", self._ttft)
        yield histogram(
            "stemcache_time_per_output_token_seconds", "Per token after the first, of a request.", self._tpot
        )
        yield histogram("stemcache_request_duration_seconds", "From call to end, whatever the status.", self._e2e)
        for name, counted in self._phases.items():
            yield histogram(f"stemcache_request_{name}_seconds", f"Part of answered requests: {name}.", counted)
        yield from self._tenant_families()

    def _tenant_families(self) -> Iterator[Family]:
        for attribute, (name, text) in _TENANT_COUNTERS.items():
            values = [(_tenant(label), float(getattr(counts, attribute))) for label, counts in self._tenants.items()]
            yield family(f"stemcache_tenant_{name}_total", FamilyKind.COUNTER, text, values)

    def _of(self, tenant: TenantId, name: str) -> TenantCounts:
        label = self.labels.of(tenant, name)
        counts = self._tenants.get(label)
        if counts is None:
            counts = self._tenants[label] = TenantCounts()
        return counts

    def _note_evicted(self, record: RequestRecord, num_computed: int, prefill_s: float) -> None:
        """What of the computed prompt would have been there, had it not been evicted."""
        num_evicted = min(evicted_tokens(record), num_computed)
        if num_evicted > 0:
            self._evicted_tokens += num_evicted
            self._evicted_s += prefill_s * num_evicted / num_computed


def evicted_tokens(record: RequestRecord) -> int:
    """Prompt tokens after those that somebody held that were known to have been evicted, when it was planned."""
    entries = record.entries
    routed = next((entry for entry in entries if isinstance(entry, Routed)), None)
    looked = next((entry for entry in entries if isinstance(entry, Outlooks)), None)
    if routed is None or looked is None:
        return 0
    kv_format = routed.terms[0].kv_format
    return next((each.num_evicted * each.block_size for each in looked.formats if each.kv_format == kv_format), 0)


def _tenant(label: str) -> Labels:
    return (("tenant", label),)
