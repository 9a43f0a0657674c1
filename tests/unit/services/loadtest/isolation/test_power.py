"""The planned size keeps its promises: simulated systems without a leak pass, those with a leak fail."""

from __future__ import annotations

import numpy as np
import pytest

from services.loadtest.isolation.auc import auc
from services.loadtest.isolation.power import CONFIDENCE, PASS_PROBABILITY, Power, null_error, plan_power
from services.loadtest.isolation.samples import CONTROL_AUC

RUNS = 1_000


def passes(power: Power, leak: float, rng: np.random.Generator) -> bool:
    """One test of a system whose times are skewed, and which answers a part `leak` of the requests at once."""
    fresh = rng.lognormal(0.0, 0.4, power.num_samples)
    crossed = rng.lognormal(0.0, 0.4, power.num_samples)
    crossed[rng.random(power.num_samples) < leak] = 0.0
    return auc(crossed, fresh).upper_bound(CONFIDENCE) < power.limit


@pytest.mark.parametrize("limit", [0.55, 0.60])
@pytest.mark.parametrize("num_variants", [1, 2])
def test_a_system_without_a_leak_passes_in_98_of_100_runs(limit: float, num_variants: int) -> None:
    power = plan_power(limit, num_variants)
    rng = np.random.default_rng(7)
    passed = np.mean([all(passes(power, 0.0, rng) for _ in range(num_variants)) for _ in range(RUNS)])
    assert passed >= PASS_PROBABILITY


@pytest.mark.parametrize("limit", [0.55, 0.60])
def test_a_leak_of_the_printed_size_fails_in_95_of_100_runs(limit: float) -> None:
    power = plan_power(limit, 1)
    rng = np.random.default_rng(8)
    failed = np.mean([not passes(power, power.certain_leak, rng) for _ in range(RUNS)])
    assert failed >= CONFIDENCE - 0.015


def test_the_error_of_equal_distributions_is_that_of_the_rank_statistic() -> None:
    rng = np.random.default_rng(9)
    found = [auc(rng.normal(size=200), rng.normal(size=200)).value for _ in range(2_000)]
    assert null_error(200) == pytest.approx(float(np.std(found)), rel=0.06)


def test_a_tighter_limit_and_more_variants_need_more_samples() -> None:
    sizes = [plan_power(limit, 1).num_samples for limit in (0.60, 0.55, 0.525)]
    assert sizes == sorted(sizes)
    assert plan_power(0.55, 2).num_samples > plan_power(0.55, 1).num_samples


def test_it_is_printed() -> None:
    text = plan_power(0.55, 2).text()
    assert "2 variants" in text
    assert "98%" in text


@pytest.mark.parametrize("limit", [0.5, 0.3, 1.0])
def test_a_limit_without_room_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match=r"is above 0\.5"):
        plan_power(limit, 1)


def test_so_many_controls_suffice_for_prompts_that_are_long_enough() -> None:
    """A true AUC of 0.98: exponential times, first requests 49 times as long as repeats."""
    power = plan_power(0.60, 2)
    rng = np.random.default_rng(10)
    found = [
        auc(rng.exponential(1.0, power.num_controls), rng.exponential(49.0, power.num_samples)) for _ in range(RUNS)
    ]
    assert np.mean([each.value for each in found]) == pytest.approx(0.98, abs=0.002)
    assert np.mean([each.value >= CONTROL_AUC for each in found]) >= 0.99
