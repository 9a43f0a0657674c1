"""The tables of a run: latencies, cache, tenants, workers, conditions. The same figures as the text block has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from services.loadtest.conditions import Conditions, MachineLoad, StatedConditions
from services.loadtest.json_codec import to_json
from services.loadtest.reporting.html_text import share, table
from services.loadtest.result import METRICS, GroupSection, LatencySummary, Result

NAMES: Mapping[str, str] = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between tokens",
    "e2el": "end to end",
}
_PERCENTILES = ("50", "95", "99")


def latencies(result: Result) -> str:
    """All latencies, and what hits and misses waited for their first token."""
    rows = [_latency(NAMES[metric], result.latencies[metric]) for metric in METRICS if metric in result.latencies]
    for outcome, section in result.prefix_cache.outcomes.items():
        rows.append(_latency(f"time to first token, {outcome}", section.ttft))
    rows.append(_latency("sent later than intended", result.schedule_lag))
    return table(("latency, ms", "requests", "mean", *(f"p{each}" for each in _PERCENTILES), "σ"), rows)


def _latency(name: str, summary: LatencySummary) -> tuple[str, ...]:
    percentiles = (f"{summary.percentiles_ms[each]:,.1f}" for each in _PERCENTILES)
    return (name, f"{summary.count:,}", f"{summary.mean_ms:,.1f}", *percentiles, f"{summary.std_ms:,.1f}")


def throughput(result: Result) -> str:
    """How much in which time."""
    rows = [
        ("requests that came to their end", f"{result.completed:,} of {result.num_prompts:,}"),
        ("failed", f"{result.failed:,}"),
        ("duration, s", f"{result.duration:,.2f}"),
        ("requests per second", f"{result.request_throughput:,.2f}"),
        ("of them within all limits", _optional(result.request_goodput)),
        ("output tokens per second", f"{result.output_throughput:,.1f}"),
        ("all tokens per second", f"{result.total_token_throughput:,.1f}"),
        ("most at once", f"{result.max_concurrent_requests:,}"),
        ("Jain's index over tenants", _optional(result.jain_index)),
        ("status codes", ", ".join(f"{code} {count:,}" for code, count in result.status_codes.items())),
    ]
    return table(("throughput", ""), rows)


def prefix_cache(result: Result) -> str:
    """What the cache brought."""
    cache = result.prefix_cache
    tiers = ", ".join(f"{tier} {tokens:,}" for tier, tokens in to_json(cache.cached_by_tier).items() if tokens)
    rows = [
        ("prompt tokens", f"{cache.prompt_tokens:,}"),
        ("of them cached", f"{cache.cached_tokens:,}"),
        ("by tier", tiers or "–"),
        ("hit rate", share(cache.hit_rate)),
        ("the workload's upper bound", share(cache.upper_bound_rate)),
        ("reached of it", share(cache.reached_share)),
    ]
    counters = [(name, f"{value:,.10g}") for name, value in sorted(cache.server_delta.items()) if value]
    return table(("prefix cache", ""), rows) + table(("the server's own counters grew by", ""), counters)


def groups(title: str, found: Mapping[str, GroupSection]) -> str:
    """Tenants, or workers."""
    headings = (
        title,
        "requests",
        "failed",
        "req/s",
        "tok/s",
        "hit rate",
        "of bound",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99",
    )
    rows = [
        (
            name,
            f"{group.requests:,}",
            f"{group.requests - group.completed:,}",
            f"{group.request_throughput:,.2f}",
            f"{group.output_throughput:,.1f}",
            share(group.hit_rate),
            share(group.reached_share),
            *(_percentile(group, metric, each) for metric in ("ttft", "tpot") for each in ("50", "99")),
        )
        for name, group in found.items()
    ]
    return table(headings, rows)


def _percentile(group: GroupSection, metric: str, percentile: str) -> str:
    summary = group.latencies.get(metric)
    return f"{summary.percentiles_ms[percentile]:,.1f}" if summary and summary.count else "–"


def _stated(stated: StatedConditions | None) -> list[tuple[str, str]]:
    """Of the server, by whoever ran the load test."""
    if stated is None:
        return []
    return [
        ("server, as stated", stated.version or "–"),
        ("its hardware, as stated", stated.hardware or "–"),
        ("its batch limit, as stated", f"{stated.max_num_sequences:,}" if stated.max_num_sequences else "–"),
    ]


def conditions(found: Conditions) -> str:
    """Under what the run was made."""
    machine, model = found.machine, found.model
    general = [
        ("started", datetime.fromtimestamp(found.start_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("target", found.backend),
        ("model", model.name),
        ("model digest", model.digest or "–"),
        ("block size, longest request", f"{model.block_size} / {model.max_model_len:,} tokens"),
        ("KV per token", f"{model.kv_bytes_per_token:,} B"),
        ("arrival", _arrival(found)),
        ("cache at the start", str(found.cache_state)),
        ("seed", str(found.seed)),
        ("client's machine", f"{machine.cpu}, {machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB"),
        ("GPUs", ", ".join(machine.gpus) or "none"),
        ("system", f"{machine.kernel}, Python {machine.python}"),
        ("machine before / after", f"{_load(found.load_before)} / {_load(found.load_after)}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
        ("commit", found.commit or "–"),
        *_stated(found.stated),
    ]
    workers = [
        (
            each.worker,
            each.model,
            f"{each.total_blocks:,}",
            f"{each.host_blocks:,}",
            f"{each.disk_blocks:,}",
            f"{each.max_num_sequences:,}",
        )
        for each in found.workers
    ]
    tenants = [
        (each.tenant, f"{each.weight:g}", each.workload, _settings(each.parameters), _settings(each.quota))
        for each in found.tenants
    ]
    return (
        table(("run", ""), general, numbers_from=2)
        + table(("worker", "model", "device blocks", "host", "disk", "most sequences"), workers, numbers_from=2)
        + table(("tenant", "weight", "workload", "parameters", "quota"), tenants, numbers_from=5)
        + table(("flag", "value"), sorted(found.settings.items()), numbers_from=2)
    )


def _arrival(found: Conditions) -> str:
    parts = [found.arrival]
    if found.request_rate is not None:
        parts.append(f"{found.request_rate:g} requests/s")
    if found.burstiness is not None and found.arrival == "gamma":
        parts.append(f"burstiness {found.burstiness:g}")
    if found.max_concurrency is not None:
        parts.append(f"at most {found.max_concurrency} at once")
    return ", ".join(parts)


def _load(load: MachineLoad) -> str:
    return f"{load.cpu_share:.0%} of all cores busy, load {load.load_1min:.2f}"


def _settings(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None) or "–"


def _optional(value: float | None) -> str:
    return "–" if value is None else f"{value:,.3f}"
