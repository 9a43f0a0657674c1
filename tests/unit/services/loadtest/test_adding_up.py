"""A run added up: percentiles, goodput, hits, fairness; parts sum up to the whole."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.loadtest.adding_up import RunFacts, add_up
from services.loadtest.records import RequestRow, TierTokens
from services.loadtest.result import MAIN_PERCENTILES, METRICS
from services.loadtest.statistics import jain_index, latency_summary, peak_concurrency, peak_per_second
from services.loadtest.text_block import text_block


def row(index: int, tenant: str = "a", **changed: object) -> RequestRow:
    plain: dict[str, object] = {
        "index": index,
        "tenant": tenant,
        "workload": "w",
        "intended_s": float(index),
        "sent_s": index + 0.001,
        "first_token_s": index + 0.1,
        "end_s": index + 0.5,
        "status": "OK",
        "arrivals_s": (index + 0.1, index + 0.3, index + 0.5),
        "prompt_tokens": 100,
        "completion_tokens": 3,
        "cached_tokens": 64,
        "cached_by_tier": TierTokens(device=48, host=16),
        "cacheable_tokens": 80,
        "worker": f"worker-{index % 2}",
    }
    return RequestRow(**(plain | changed))  # type: ignore[arg-type]


def facts(weights: dict[str, float], **changed: object) -> RunFacts:
    plain: dict[str, object] = {
        "date": "20260101-000000",
        "backend": "stemcache",
        "model_id": "m",
        "workload": "w",
        "num_prompts": 4,
        "request_rate": math.inf,
        "burstiness": 1.0,
        "max_concurrency": None,
        "interrupted": False,
        "duration_s": 10.0,
        "percentiles": MAIN_PERCENTILES,
        "goodput_ms": {},
        "weights": weights,
        "server_delta": {},
    }
    return RunFacts(**(plain | changed))  # type: ignore[arg-type]


ROWS = [row(0), row(1, "b"), row(2, cached_tokens=0, cached_by_tier=TierTokens()), row(3, status="UNAVAILABLE")]


def test_latencies_and_tokens_are_those_of_completed_requests() -> None:
    result = add_up(ROWS, facts({"a": 1.0, "b": 1.0}))
    assert (result.completed, result.failed, result.total_input_tokens, result.total_output_tokens) == (3, 1, 300, 9)
    assert result.latencies["ttft"].p(50) == pytest.approx(100.0)
    assert result.latencies["tpot"].mean_ms == pytest.approx(200.0)
    assert result.latencies["itl"].count == 6
    assert result.latencies["e2el"].p(99) == pytest.approx(500.0)
    assert result.schedule_lag.p(99) == pytest.approx(1.0)
    assert result.status_codes == {"OK": 3, "UNAVAILABLE": 1}
    assert result.request_throughput == pytest.approx(0.3)


def test_the_cache_is_told_with_tiers_bound_and_what_of_it_was_reached() -> None:
    cache = add_up(ROWS, facts({"a": 1.0, "b": 1.0})).prefix_cache
    assert (cache.prompt_tokens, cache.cached_tokens, cache.cached_by_tier) == (300, 128, TierTokens(96, 32))
    assert (cache.cacheable_tokens, cache.upper_bound_rate) == (240, 0.8)
    assert cache.reached_share == pytest.approx(128 / 240)
    assert {name: each.requests for name, each in cache.outcomes.items()} == {"hit": 2, "miss": 1}


def test_requests_without_a_bound_do_not_count_into_what_was_reached() -> None:
    cache = add_up([row(0), row(1, cacheable_tokens=None)], facts({"a": 1.0})).prefix_cache
    assert (cache.cacheable_tokens, cache.reached_share) == (80, 0.8)


def test_without_a_bound_none_is_told() -> None:
    result = add_up([row(0, cacheable_tokens=None)], facts({"a": 1.0}))
    assert result.prefix_cache.upper_bound_rate is None
    assert re.search(r"Upper bound of the workload \(%\): +-$", text_block(result), re.MULTILINE)


@pytest.mark.parametrize(
    ("limits", "good"), [({"ttft": 100.1}, 3), ({"ttft": 99.0}, 0), ({"tpot": 250.0, "e2el": 400.0}, 0), ({}, None)]
)
def test_goodput_counts_what_kept_all_limits(limits: dict[str, float], good: int | None) -> None:
    found = add_up(ROWS, facts({"a": 1.0, "b": 1.0}, goodput_ms=limits)).request_goodput
    assert found == (None if good is None else pytest.approx(good / 10))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 100), st.booleans()), max_size=20))
def test_tenants_and_workers_sum_up_to_the_whole(drawn: list[tuple[str, int, bool]]) -> None:
    rows = [
        row(at, tenant, cached_tokens=cached, status="OK" if ok else "INTERNAL")
        for at, (tenant, cached, ok) in enumerate(drawn)
    ]
    result = add_up(rows, facts({"a": 1.0, "b": 2.0}))
    for groups in (result.tenants.values(), result.workers.values()):
        assert sum(each.requests for each in groups) == len(rows)
        assert sum(each.completed for each in groups) == result.completed
        assert sum(each.cached_tokens for each in groups) == result.prefix_cache.cached_tokens
        assert sum(each.prompt_tokens for each in groups) == result.total_input_tokens
    assert sum(each.requests for each in result.prefix_cache.outcomes.values()) == result.completed
    assert text_block(result)


def test_fairness_is_by_weight() -> None:
    rows = [row(0, "a", cached_tokens=0, prompt_tokens=197), row(1, "b", cached_tokens=0, prompt_tokens=97)]
    assert add_up(rows, facts({"a": 2.0, "b": 1.0})).jain_index == pytest.approx(1.0)
    assert add_up(rows, facts({"a": 1.0, "b": 1.0})).jain_index == pytest.approx(0.9)
    assert add_up(rows[:1], facts({"a": 1.0})).jain_index is None


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_jains_index_lies_between_one_nth_and_one(shares: list[float]) -> None:
    found = jain_index(shares)
    assert found is None or 1 / len(shares) - 1e-9 <= found <= 1 + 1e-9


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50))
def test_percentiles_are_numpys(seconds: list[float]) -> None:
    found = latency_summary(seconds, (50, 99))
    assert found.p(99) == pytest.approx(float(np.percentile(seconds, 99)) * 1e3, abs=1e-5)
    assert found.median_ms == pytest.approx(found.p(50), abs=1e-5)


def test_nothing_has_a_summary_of_noughts() -> None:
    assert (latency_summary([]).count, latency_summary([]).p(99)) == (0, 0.0)


def test_peaks() -> None:
    assert peak_concurrency([(0, 2), (1, 3), (2, 4), (5, 5)]) == 2
    assert peak_per_second([(0.2, 3), (0.9, 1), (1.0, 2)]) == 4.0
    assert (peak_concurrency([]), peak_per_second([])) == (0, 0.0)


LABELS = ("Successful requests:", "Failed requests:", "Benchmark duration (s):", "Total input tokens:")
MORE = ("Request throughput (req/s):", "Output token throughput (tok/s):", "P99 TTFT (ms):", "Mean ITL (ms):")


@pytest.mark.parametrize("label", [*LABELS, *MORE, "Hit rate, client side (%):", "Schedule lag, p50 / p99 (ms):"])
def test_the_text_has_the_labels_that_tools_read(label: str) -> None:
    assert label in text_block(add_up(ROWS, facts({"a": 1.0, "b": 1.0}, warnings=("late",))))


def test_latencies_are_printed_by_choice() -> None:
    text = text_block(add_up(ROWS, facts({"a": 1.0, "b": 1.0})), ("ttft",))
    assert "TTFT" in text
    assert "Mean E2EL" not in text
    assert METRICS[0] == "ttft"
