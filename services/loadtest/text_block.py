"""A result for people: the block that `vllm bench serve` prints, with its labels, then what is ours. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from services.loadtest.result import METRICS, GroupSection, LatencySummary, Result

_WIDTH = 50
_HEADERS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
_HEADINGS = ("REQUESTS", "FAILED", "PROMPT TOK", "HIT %", "OF BOUND %", "TTFT P50", "P95", "P99 MS", "TOK/S", "LAG P99")


def text_block(result: Result, metrics: tuple[str, ...] = METRICS) -> str:
    """All of it; of latencies those named."""
    lines = [*_head(result)]
    for metric in (each for each in METRICS if each in metrics):
        lines += _latency(metric, result.latencies[metric])
    lines += _prefix_cache(result)
    for name, groups in (("Tenants", result.tenants), ("Workers", result.workers)):
        if groups:
            lines += [_rule(name, "-"), *_table(name[:-1].upper(), groups)]
    if result.jain_index is not None:
        lines.append(_line("Jain index (computed tokens / weight):", f"{result.jain_index:.3f}"))
    lines += _health(result)
    lines.append("=" * _WIDTH)
    lines += [f"warning: {each}" for each in result.warnings]
    return "\n".join(lines)


def _head(result: Result) -> Iterator[str]:
    yield _rule("Serving Benchmark Result", "=")
    yield _line("Successful requests:", result.completed)
    yield _line("Failed requests:", result.failed)
    if result.max_concurrency is not None:
        yield _line("Maximum request concurrency:", result.max_concurrency)
    if not math.isinf(result.request_rate):
        yield _line("Request rate configured (RPS):", result.request_rate)
    yield _line("Benchmark duration (s):", result.duration)
    yield _line("Total input tokens:", result.total_input_tokens)
    yield _line("Total generated tokens:", result.total_output_tokens)
    yield _line("Request throughput (req/s):", result.request_throughput)
    if result.request_goodput is not None:
        yield _line("Request goodput (req/s):", result.request_goodput)
    yield _line("Output token throughput (tok/s):", result.output_throughput)
    yield _line("Peak output token throughput (tok/s):", result.max_output_tokens_per_s)
    yield _line("Peak concurrent requests:", float(result.max_concurrent_requests))
    yield _line("Total token throughput (tok/s):", result.total_token_throughput)
    if result.interrupted:
        yield _line("Interrupted, planned requests:", result.num_prompts)


def _latency(metric: str, summary: LatencySummary) -> Iterator[str]:
    name, header = _HEADERS[metric]
    yield _rule(header, "-")
    yield from _figures(name, summary)


def _figures(name: str, summary: LatencySummary) -> Iterator[str]:
    yield _line(f"Mean {name} (ms):", summary.mean_ms)
    yield _line(f"Median {name} (ms):", summary.median_ms)
    for percentile, value in summary.percentiles_ms.items():
        yield _line(f"P{percentile} {name} (ms):", value)


def _prefix_cache(result: Result) -> Iterator[str]:
    cache = result.prefix_cache
    yield _rule("Prefix Cache", "-")
    yield _line("Prompt tokens:", cache.prompt_tokens)
    yield _line("Cached tokens:", cache.cached_tokens)
    tiers = cache.cached_by_tier
    for name, number in (("device", tiers.device), ("host", tiers.host), ("disk", tiers.disk), ("peer", tiers.peer)):
        if number:
            yield _line(f"  from {name}:", number)
    yield _line("Hit rate, client side (%):", cache.hit_rate * 100)
    bound = cache.upper_bound_rate
    yield _line("Upper bound of the workload (%):", "-" if bound is None else bound * 100)
    if cache.reached_share is not None:
        yield _line("Reached of the upper bound (%):", cache.reached_share * 100)
    for outcome, section in cache.outcomes.items():
        ttft = section.ttft
        told = f"{ttft.median_ms:.2f} / {ttft.p(99):.2f}, {section.requests} requests"
        yield _line(f"TTFT of {_PLURAL[outcome]}, p50 / p99 (ms):", told)
    for name, value in cache.server_delta.items():
        if value:
            yield _line(f"Server: {name.replace('_', ' ')}:", f"{value:+,.0f}")


_PLURAL = {"hit": "hits", "partial": "partial hits", "miss": "misses"}


def _table(what: str, groups: Mapping[str, GroupSection]) -> Iterator[str]:
    rows = [(what, *_HEADINGS), *((name, *_cells(group)) for name, group in groups.items())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((row[0].ljust(widths[0]), *cells))


def _cells(group: GroupSection) -> tuple[str, ...]:
    ttft = group.latencies["ttft"]
    return (
        str(group.requests),
        str(group.requests - group.completed),
        str(group.prompt_tokens),
        f"{group.hit_rate * 100:.1f}",
        "-" if group.reached_share is None else f"{group.reached_share * 100:.1f}",
        *(f"{ttft.p(each):.1f}" for each in (50, 95, 99)),
        f"{group.output_throughput:.1f}",
        f"{group.schedule_lag.p(99):.1f}",
    )


def _health(result: Result) -> Iterator[str]:
    yield _rule("Run", "-")
    for code, number in result.status_codes.items():
        yield _line(f"Status {code}:", number)
    lag = result.schedule_lag
    yield _line("Schedule lag, p50 / p99 (ms):", f"{lag.p(50):.2f} / {lag.p(99):.2f}")


def _rule(text: str, sign: str) -> str:
    return f" {text} ".center(_WIDTH, sign)


def _line(label: str, value: object) -> str:
    return f"{label:<40} {value:<10.2f}".rstrip() if isinstance(value, float) else f"{label:<40} {value!s:<10}".rstrip()
