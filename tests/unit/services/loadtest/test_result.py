"""result.json has the keys of `vllm bench serve` and is read back as it was."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from cache_store.errors import InvalidRequestError
from services.loadtest.records import TierTokens
from services.loadtest.result import SCHEMA_VERSION, LatencySummary, OutcomeSection, PrefixCacheSection, Result

LATENCY = LatencySummary(2, 10.0, 11.0, 1.0, {"50": 10.5, "99": 12.0, "99.9": 12.5})
SECTION = PrefixCacheSection(
    prompt_tokens=10,
    cached_tokens=5,
    cached_by_tier=TierTokens(device=5),
    hit_rate=0.5,
    cacheable_tokens=8,
    upper_bound_rate=0.8,
    reached_share=0.625,
    server_delta={"evicted_blocks": 3.0},
    outcomes={"hit": OutcomeSection(1, 10, 5, LATENCY)},
)
RESULT = Result(
    schema_version=SCHEMA_VERSION,
    date="20260101-000000",
    backend="stemcache",
    model_id="m",
    workload="prefix-repetition",
    num_prompts=2,
    request_rate=math.inf,
    burstiness=1.0,
    max_concurrency=None,
    interrupted=False,
    duration=2.0,
    completed=2,
    failed=0,
    total_input_tokens=10,
    total_output_tokens=4,
    request_throughput=1.0,
    request_goodput=None,
    output_throughput=2.0,
    total_token_throughput=7.0,
    max_output_tokens_per_s=4.0,
    max_concurrent_requests=2,
    latencies={"ttft": LATENCY, "e2el": LATENCY},
    schedule_lag=LATENCY,
    prefix_cache=SECTION,
    tenants={},
    workers={},
    jain_index=None,
    status_codes={"OK": 2},
    warnings=("late",),
)


@pytest.mark.parametrize("result", [RESULT, replace(RESULT, request_rate=4.0, max_concurrency=3, jain_index=0.5)])
def test_it_is_read_back_as_it_was(result: Result) -> None:
    assert Result.from_json(json.loads(json.dumps(result.to_json())), "result.json") == result


COUNTS = ("num_prompts", "max_concurrency", "duration", "completed", "failed", "max_concurrent_requests")
TOKENS = ("total_input_tokens", "total_output_tokens", "max_output_tokens_per_s")
RATES = ("request_rate", "burstiness", "request_throughput", "request_goodput")
THROUGHPUTS = ("output_throughput", "total_token_throughput")
LATENCIES = ("mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p50_ttft_ms", "p99.9_ttft_ms", "p99_e2el_ms")


@pytest.mark.parametrize("key", ["date", "backend", "model_id", *COUNTS, *TOKENS, *RATES, *THROUGHPUTS, *LATENCIES])
def test_keys_are_those_that_tools_know(key: str) -> None:
    assert key in RESULT.to_json()


def test_a_rate_without_bound_is_text() -> None:
    assert RESULT.to_json()["request_rate"] == "inf"


@pytest.mark.parametrize(
    ("document", "told"),
    [([], "no schema_version"), ({"schema_version": 99}, "schema_version 99"), ({"schema_version": 1}, "lacks date")],
)
def test_another_kind_of_file_is_refused(document: object, told: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        Result.from_json(document, "result.json")
    assert told in str(raised.value)


def test_a_percentile_is_asked_for_by_number() -> None:
    assert LATENCY.p(99) == 12.0
    assert LATENCY.p(99.9) == 12.5
