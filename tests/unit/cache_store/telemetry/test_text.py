"""Prometheus' own parser reads back what was rendered, whatever stands in labels and help."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from cache_store.telemetry.families import counter, counters, gauge, histogram
from cache_store.telemetry.histogram import Histogram
from cache_store.telemetry.text import render


def read_back(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")))
def test_a_label_may_hold_any_text(name: str) -> None:
    found = read_back(render([counters("a_total", "A.", "tenant", {name: 3.0})]))
    assert found == {("a_total", (("tenant", name),)): 3.0}


def test_a_label_that_looks_like_another_series_is_one_label() -> None:
    hostile = 'x"} 1\nstemcache_audit_mismatches_total 7\na{b="\\'
    found = read_back(render([counters("a_total", "A.", "tenant", {hostile: 3.0})]))
    assert found == {("a_total", (("tenant", hostile),)): 3.0}


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (0.1, "0.1"), (math.inf, "+Inf"), (-math.inf, "-Inf")])
def test_numbers_are_exact(value: float, text: str) -> None:
    assert render([gauge("a", "A.", value)]).splitlines()[-1] == f"a {text}"


def test_help_stays_on_its_line() -> None:
    assert render([counter("a_total", "one\ntwo", 1)]).splitlines()[0] == "# HELP a_total one\\ntwo"


def test_buckets_are_added_up_and_a_bound_is_inside_its_bucket() -> None:
    counted = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        counted.observe(value)
    counted.observe(1.0, times=2)
    found = read_back(render([histogram("a_seconds", "A.", counted, (("worker", "w"),))]))
    worker = ("worker", "w")
    assert found["a_seconds_bucket", (("le", "0.1"), worker)] == 2
    assert found["a_seconds_bucket", (("le", "1"), worker)] == 5
    assert found["a_seconds_bucket", (("le", "+Inf"), worker)] == 6
    assert found["a_seconds_count", (worker,)] == 6
    assert found["a_seconds_sum", (worker,)] == pytest.approx(9.65)
