"""The AUC against counting all pairs, and its error against what repeated samples scatter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from services.loadtest.isolation.auc import auc, quantile

FEW_VALUES = st.integers(-4, 4).map(float)
"""So few that there are ties."""


def values(elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    return st.integers(2, 40).flatmap(lambda length: arrays(np.float64, length, elements=elements))


def counted(low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """AUC and DeLong's variance by their definition, pair by pair."""
    wins = np.array([[1.0 if h > x else 0.5 if h == x else 0.0 for x in low] for h in high])
    variance = wins.mean(axis=1).var(ddof=1) / len(high) + wins.mean(axis=0).var(ddof=1) / len(low)
    return float(wins.mean()), float(variance)


@given(values(FEW_VALUES | st.floats(-1e6, 1e6)), values(FEW_VALUES | st.floats(-1e6, 1e6)))
def test_it_is_what_counting_pairs_gives(low: np.ndarray, high: np.ndarray) -> None:
    value, variance = counted(low, high)
    found = auc(low, high)
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.standard_error**2 == pytest.approx(variance, abs=1e-12)


@given(values(FEW_VALUES), values(FEW_VALUES))
def test_swapped_sides_mirror_it(low: np.ndarray, high: np.ndarray) -> None:
    found, mirrored = auc(low, high), auc(high, low)
    assert found.value == pytest.approx(1.0 - mirrored.value)
    assert found.distinguishability == pytest.approx(mirrored.distinguishability)
    assert found.upper_bound(0.95) == pytest.approx(mirrored.upper_bound(0.95))


@given(values(FEW_VALUES), values(FEW_VALUES))
def test_only_the_order_of_values_counts(low: np.ndarray, high: np.ndarray) -> None:
    assert auc(np.exp(low), np.exp(high)) == auc(low, high)


def test_separate_values_are_told_and_equal_ones_are_not() -> None:
    assert auc(np.arange(5.0), np.arange(10.0, 15.0)).value == 1.0
    assert auc(np.ones(5), np.ones(9)).value == 0.5


def test_too_few_values_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        auc(np.ones(1), np.ones(5))


def test_the_bound_is_exceeded_as_often_as_it_says() -> None:
    """Two normal distributions apart by one deviation: the AUC is Phi(1 / sqrt 2)."""
    rng = np.random.default_rng(1)
    true = 0.7602499389065233
    repeats = [auc(rng.normal(0, 1, 120), rng.normal(1, 1, 150)) for _ in range(1_500)]
    assert np.mean([each.upper_bound(0.95) > true for each in repeats]) == pytest.approx(0.95, abs=0.02)
    assert np.mean([each.lower_bound(0.95) < true for each in repeats]) == pytest.approx(0.95, abs=0.02)


def test_quantiles() -> None:
    assert quantile(0.975) == pytest.approx(1.959964, abs=1e-6)
