"""Made-up results of load tests: rows as a system would answer, added up, in folders as a run writes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.loadtest.conditions import (
    CONDITIONS_VERSION,
    CacheState,
    Conditions,
    Machine,
    MachineLoad,
    ModelConditions,
    TenantConditions,
    WorkerConditions,
)
from services.loadtest.json_codec import to_json
from services.loadtest.records import (
    CacheOutcome,
    RequestRow,
    ServerSample,
    ServerTimes,
    TenantSample,
    TierSample,
    TierTokens,
    WorkerSample,
)
from services.loadtest.result import (
    METRICS,
    SCHEMA_VERSION,
    GroupSection,
    LatencySummary,
    OutcomeSection,
    PrefixCacheSection,
    Result,
)
from services.loadtest.results_folder import (
    CONDITIONS,
    REQUESTS,
    RESULT,
    SERVER_METRICS,
    write_document,
    write_rows,
)

TENANTS = ("acme", "globex")


def row(index: int, **changes: Any) -> RequestRow:
    """A hit of 960 of 1,024 tokens: 10 ms routing and queue, 30 ms computing, 7 tokens 25 ms apart."""
    intended_s = changes.pop("intended_s", index * 0.1)
    late_s = changes.pop("late_s", 0.0)
    server = changes.pop("server", ServerTimes(1e9, 0.002, 0.008, 0.030, 0.150))
    away_s = changes.pop("away_s", 0.001)
    first_s = changes.pop("first_token_s", None)
    if first_s is None:
        first_s = (
            intended_s + late_s + away_s + (server.route_s + server.queue_s + server.prefill_s if server else 0.04)
        )
    arrivals = changes.pop("arrivals_s", tuple(first_s + 0.025 * step for step in range(7)))
    values: dict[str, Any] = {
        "tenant": TENANTS[index % 2],
        "workload": "shared-prefix",
        "sent_s": intended_s + late_s,
        "end_s": arrivals[-1] if arrivals else first_s,
        "status": "OK",
        "prompt_tokens": 1_024,
        "completion_tokens": 7,
        "max_tokens": 7,
        "cached_tokens": 960,
        "cached_by_tier": TierTokens(device=960),
        "cacheable_tokens": 976,
        "worker": f"worker-{index % 2}",
        "server": server,
        "arrivals_s": arrivals,
    }
    return RequestRow(index=index, intended_s=intended_s, first_token_s=first_s, **(values | changes))


def busy_rows(count: int = 400, seed: int = 1) -> list[RequestRow]:
    """Hits and misses of many lengths that scatter as a system under load does."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        prompt = int(rng.integers(200, 3_000))
        hit = rng.random() < 0.35 + 0.5 * index / count
        cached = int(prompt * rng.uniform(0.6, 0.97)) // 16 * 16 if hit else int(rng.integers(0, 2)) * 64
        prefill_s = 0.012 + (prompt - cached) * 0.00025 * rng.lognormal(0, 0.1)
        queue_s = float(rng.exponential(0.015))
        server = ServerTimes(1e9 + index, 0.002, queue_s, prefill_s, 0.15)
        rows.append(row(index, prompt_tokens=prompt, cached_tokens=cached, server=server, cacheable_tokens=prompt))
    return rows


def summary(values: Sequence[float]) -> LatencySummary:
    """In milliseconds."""
    found = np.array(values) if len(values) else np.zeros(1)
    percentiles = {f"{each:g}": float(np.percentile(found, each)) for each in (50, 95, 99)}
    return LatencySummary(len(values), float(found.mean()), float(np.median(found)), float(found.std()), percentiles)


def latencies(rows: Sequence[RequestRow]) -> dict[str, LatencySummary]:
    """By METRICS."""
    done = [each for each in rows if each.completed]
    values = {
        "ttft": [(each.ttft_s or 0.0) * 1e3 for each in done],
        "tpot": [(each.tpot_s or 0.0) * 1e3 for each in done],
        "itl": [gap * 1e3 for each in done for gap in each.itls_s],
        "e2el": [each.e2el_s * 1e3 for each in done],
    }
    return {metric: summary(values[metric]) for metric in METRICS}


def result(rows: Sequence[RequestRow], **changes: Any) -> Result:
    """Added up, near enough."""
    done = [each for each in rows if each.completed]
    duration = max(each.end_s for each in rows)
    prompt, cached = sum(each.prompt_tokens for each in done), sum(each.cached_tokens for each in done)
    outcomes = {
        str(outcome): OutcomeSection(len(of), 1, 1, summary([(each.ttft_s or 0.0) * 1e3 for each in of]))
        for outcome in CacheOutcome
        if (of := [each for each in done if each.outcome is outcome])
    }
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION, "date": "20260301-120000", "backend": "stemcache", "model_id": "smollm2",
        "workload": "shared-prefix", "num_prompts": len(rows), "request_rate": 10.0, "burstiness": 1.0,
        "max_concurrency": None, "interrupted": False, "duration": duration, "completed": len(done),
        "failed": len(rows) - len(done), "total_input_tokens": prompt,
        "total_output_tokens": sum(each.completion_tokens for each in done), "request_throughput": len(done) / duration,
        "request_goodput": None, "output_throughput": 70.0, "total_token_throughput": 700.0,
        "max_output_tokens_per_s": 90.0, "max_concurrent_requests": 7, "latencies": latencies(rows),
        "schedule_lag": summary([each.schedule_lag_s * 1e3 for each in rows]),
        "prefix_cache": PrefixCacheSection(
            prompt, cached, TierTokens(device=cached), cached / prompt, int(prompt * 0.9), 0.9, cached / (prompt * 0.9),
            {"planned_requests": float(len(rows)), "evicted_blocks": 17.0}, outcomes,
        ),
        "tenants": _groups(rows, [each.tenant for each in rows]),
        "workers": _groups(rows, [each.worker for each in rows]),
        "jain_index": 0.98, "status_codes": {"OK": len(done)},
    }  # fmt: skip
    return Result(**(values | changes))


def _groups(rows: Sequence[RequestRow], names: Sequence[str]) -> dict[str, GroupSection]:
    found = {}
    for name in sorted(set(names)):
        of = [each for each, its in zip(rows, names, strict=True) if its == name]
        prompt, cached = sum(each.prompt_tokens for each in of), sum(each.cached_tokens for each in of)
        done = sum(each.completed for each in of)
        found[name] = GroupSection(
            len(of), done, prompt, cached, prompt, 7 * len(of), cached / prompt, 0.9, 1.0, 5.0, 35.0,
            {"OK": done}, latencies(of), summary([0.1]),
        )  # fmt: skip
    return found


def conditions(**changes: Any) -> Conditions:
    """Of a laptop."""
    load = MachineLoad(1e9, 0.4, 0.1, 8 << 30)
    values: dict[str, Any] = {
        "conditions_version": CONDITIONS_VERSION, "versions": {"stemcache": "0.1.0"}, "commit": "abc",
        "machine": Machine("EPYC", 2, 8 << 30, (), "Linux 6", "3.11.7"),
        "model": ModelConditions("smollm2", "d1", 16, 8_192, 46_080, 49_152, "server"),
        "workers": (WorkerConditions("worker-0", "smollm2", 4_096, 16, 3 << 30, 64, 0, 0),),
        "backend": "stemcache", "arrival": "poisson", "request_rate": 10.0, "burstiness": 1.0, "max_concurrency": None,
        "tenants": tuple(
            TenantConditions(name, 1.0, "shared-prefix", {"prefix_len": 512}, 5.0, None, {}) for name in TENANTS
        ),
        "seed": 0, "cache_state": CacheState.PRIMED, "partition": "loadtest-1", "settings": {"num_prompts": 400},
        "start_unix_s": 1.77e9, "load_before": load, "load_after": load,
    }  # fmt: skip
    return Conditions(**(values | changes))


def samples(count: int = 40) -> list[ServerSample]:
    """A pool that fills, and a host tier below it."""
    found = []
    for at in range(count):
        tenants = tuple(
            TenantSample(name, 1_000, 3_000, min(40 * at * (1 + which), 1_500), 100, 0, 20 * at, 0, 0, 0)
            for which, name in enumerate(TENANTS)
        )
        tiers = (TierSample("host", 40 * at, 2_000, 0, 0, 0),)
        worker = WorkerSample("worker-0", at % 7, at % 3, 100 * at, 4_096, 0, 0, 0, 0, tiers, tenants)
        found.append(ServerSample(float(at), 1, at, 0, (), (worker,)))
    return found


def write_run_folder(
    folder: Path,
    rows: Sequence[RequestRow],
    made_result: Result | None = None,
    made_conditions: Conditions | None = None,
) -> Path:
    """A folder as a run leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_document(folder / RESULT, (made_result or result(rows)).to_json())
    write_document(folder / CONDITIONS, to_json(made_conditions or conditions()))
    write_rows(folder / REQUESTS, rows)
    write_rows(folder / SERVER_METRICS, samples())
    return folder


def slower(rows: Sequence[RequestRow], by_s: float) -> list[RequestRow]:
    """The same, every first token later."""
    return [
        dataclasses.replace(
            each,
            first_token_s=(each.first_token_s or 0.0) + by_s,
            end_s=each.end_s + by_s,
            arrivals_s=tuple(arrival + by_s for arrival in each.arrivals_s),
        )
        for each in rows
    ]
