"""Adds up a run: rows in, a Result out. Pure.

Latencies, tokens and throughput are those of completed requests, as `vllm bench serve` counts; status codes and the
schedule's lag are those of all that was sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from services.loadtest.records import CacheOutcome, RequestRow, TierTokens
from services.loadtest.result import (
    METRICS,
    SCHEMA_VERSION,
    GroupSection,
    LatencySummary,
    OutcomeSection,
    PrefixCacheSection,
    Result,
)
from services.loadtest.statistics import jain_index, latency_summary, peak_concurrency, peak_per_second


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run beside its rows."""

    date: str
    backend: str
    model_id: str
    workload: str
    num_prompts: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    interrupted: bool
    duration_s: float
    percentiles: Sequence[float]
    goodput_ms: Mapping[str, float]
    """Limits by metric (`ttft`, `tpot`, `e2el`); none: no goodput."""
    weights: Mapping[str, float]
    """Of tenants, by name: all that took part."""
    server_delta: Mapping[str, float]
    warnings: tuple[str, ...] = ()


def add_up(rows: Sequence[RequestRow], facts: RunFacts) -> Result:
    """The result of a run."""
    done = [row for row in rows if row.completed]
    prompt_tokens, output_tokens = _total(done, "prompt_tokens"), _total(done, "completion_tokens")
    duration_s = max(facts.duration_s, 1e-9)
    tenants = {name: [row for row in rows if row.tenant == name] for name in facts.weights}
    workers = sorted({row.worker for row in rows if row.worker})
    served = [_served(tenants[name]) / weight for name, weight in facts.weights.items()]
    return Result(
        schema_version=SCHEMA_VERSION,
        date=facts.date,
        backend=facts.backend,
        model_id=facts.model_id,
        workload=facts.workload,
        num_prompts=facts.num_prompts,
        request_rate=facts.request_rate,
        burstiness=facts.burstiness,
        max_concurrency=facts.max_concurrency,
        interrupted=facts.interrupted,
        duration=facts.duration_s,
        completed=len(done),
        failed=len(rows) - len(done),
        total_input_tokens=prompt_tokens,
        total_output_tokens=output_tokens,
        request_throughput=len(done) / duration_s,
        request_goodput=_goodput(done, facts.goodput_ms) / duration_s if facts.goodput_ms else None,
        output_throughput=output_tokens / duration_s,
        total_token_throughput=(prompt_tokens + output_tokens) / duration_s,
        max_output_tokens_per_s=peak_per_second(_arrivals(done)),
        max_concurrent_requests=peak_concurrency((row.sent_s, row.end_s) for row in rows),
        latencies=latencies(done, facts.percentiles),
        schedule_lag=latency_summary((row.schedule_lag_s for row in rows), facts.percentiles),
        prefix_cache=prefix_cache(done, facts.percentiles, facts.server_delta),
        tenants={name: _group(each, facts, facts.weights[name]) for name, each in tenants.items()},
        workers={name: _group([row for row in rows if row.worker == name], facts, 1.0) for name in workers},
        jain_index=jain_index(served),
        status_codes=dict(Counter(row.status for row in rows).most_common()),
        warnings=facts.warnings,
    )


def latencies(done: Sequence[RequestRow], percentiles: Sequence[float]) -> dict[str, LatencySummary]:
    """Of completed requests, by metric. Gaps between messages of all requests are one population."""
    return {metric: latency_summary(_seconds(done, metric), percentiles) for metric in METRICS}


def prefix_cache(
    done: Sequence[RequestRow], percentiles: Sequence[float], server_delta: Mapping[str, float]
) -> PrefixCacheSection:
    """What the cache brought."""
    prompt_tokens, cached_tokens = _total(done, "prompt_tokens"), _total(done, "cached_tokens")
    bounded = [row for row in done if row.cacheable_tokens is not None]
    cacheable, bounded_prompts = _cacheable(bounded), _total(bounded, "prompt_tokens")
    outcomes = {outcome: [row for row in done if row.outcome is outcome] for outcome in CacheOutcome}
    return PrefixCacheSection(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        cached_by_tier=_tiers(done),
        hit_rate=_part(cached_tokens, prompt_tokens),
        cacheable_tokens=cacheable,
        upper_bound_rate=_part(cacheable, bounded_prompts) if bounded else None,
        reached_share=_total(bounded, "cached_tokens") / cacheable if cacheable else None,
        server_delta=server_delta,
        outcomes={
            str(outcome): OutcomeSection(
                requests=len(rows),
                prompt_tokens=_total(rows, "prompt_tokens"),
                cached_tokens=_total(rows, "cached_tokens"),
                ttft=latency_summary(_seconds(rows, "ttft"), percentiles),
            )
            for outcome, rows in outcomes.items()
            if rows
        },
    )


def _group(rows: Sequence[RequestRow], facts: RunFacts, weight: float) -> GroupSection:
    done = [row for row in rows if row.completed]
    prompt_tokens, cached_tokens = _total(done, "prompt_tokens"), _total(done, "cached_tokens")
    bounded = [row for row in done if row.cacheable_tokens is not None]
    cacheable, duration_s = _cacheable(bounded), max(facts.duration_s, 1e-9)
    return GroupSection(
        requests=len(rows),
        completed=len(done),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        cacheable_tokens=cacheable,
        completion_tokens=_total(done, "completion_tokens"),
        hit_rate=_part(cached_tokens, prompt_tokens),
        reached_share=_total(bounded, "cached_tokens") / cacheable if cacheable else None,
        weight=weight,
        request_throughput=len(done) / duration_s,
        output_throughput=_total(done, "completion_tokens") / duration_s,
        status_codes=dict(Counter(row.status for row in rows).most_common()),
        latencies=latencies(done, facts.percentiles),
        schedule_lag=latency_summary((row.schedule_lag_s for row in rows), facts.percentiles),
    )


def keeps(row: RequestRow, limits_ms: Mapping[str, float]) -> bool:
    """Whether a completed request kept all limits; an answer of one token has a TPOT of 0."""
    found = {"ttft": row.ttft_s or 0.0, "tpot": row.tpot_s or 0.0, "e2el": row.e2el_s}
    return all(found[metric] * 1e3 <= limit for metric, limit in limits_ms.items())


def _goodput(done: Sequence[RequestRow], limits_ms: Mapping[str, float]) -> int:
    return sum(keeps(row, limits_ms) for row in done)


def _seconds(done: Sequence[RequestRow], metric: str) -> list[float]:
    readers: dict[str, Callable[[RequestRow], tuple[float | None, ...]]] = {
        "ttft": lambda row: (row.ttft_s,),
        "tpot": lambda row: (row.tpot_s,),
        "itl": lambda row: row.itls_s,
        "e2el": lambda row: (row.e2el_s,),
    }
    return [value for row in done for value in readers[metric](row) if value is not None]


def _arrivals(done: Sequence[RequestRow]) -> list[tuple[float, int]]:
    found = []
    for row in done:
        numbers = row.arrival_tokens or (1,) * len(row.arrivals_s)
        found += list(zip(row.arrivals_s, numbers, strict=True))
    return found


def _tiers(rows: Sequence[RequestRow]) -> TierTokens:
    return TierTokens(*(sum(getattr(row.cached_by_tier, each.name) for row in rows) for each in fields(TierTokens)))


def _served(rows: Sequence[RequestRow]) -> float:
    """What the server computed for a tenant: prompt tokens that were not cached, and tokens made."""
    return float(sum(row.prompt_tokens - row.cached_tokens + row.completion_tokens for row in rows if row.completed))


def _total(rows: Sequence[RequestRow], name: str) -> int:
    return sum(getattr(row, name) for row in rows)


def _cacheable(rows: Sequence[RequestRow]) -> int:
    return sum(row.cacheable_tokens or 0 for row in rows)


def _part(number: int, total: int) -> float:
    return number / total if total else 0.0
