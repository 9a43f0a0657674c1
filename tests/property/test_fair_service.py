"""A flood of one tenant leaves another one's time to the first token at what it is alone with its part of the worker.

On the simulated clock of the token-digest runner: alone, on a worker with the tenant's part of speed, pool and places;
and beside the flood, on the whole worker. The tenant sends the same in both.
"""

from __future__ import annotations

from types import MappingProxyType

import pytest

from cache_store.domain import TenantId
from cache_store.quota import QuotaTable, TenantQuota
from tests.support.simulation import Machine, Traffic, simulate
from worker.digest_runner import Durations
from worker.engine_config import EngineConfig

MOST = 1.2
"""Of what it is alone."""

SPEED = Durations(step_s=0.02, token_s=0.000_5)
LARGE = Machine(1_024, SPEED, EngineConfig(num_step_tokens=256, num_max_sequences=32))
SMALL = Machine(320, SPEED, EngineConfig(num_step_tokens=256, num_max_sequences=32))

VICTIM = Traffic("victim", 1.5, (100, 500), (10, 40))
WRITER = Traffic("victim", 0.7, (100, 500), (200, 400))
"""Whose answers are long."""
LONG_PROMPTS = Traffic("flood", 24.0, (1_000, 3_000), (10, 40))
MANY_SHORT = Traffic("flood", 24.0, (10, 60), (200, 600))
LONG_BOTH = Traffic("flood", 24.0, (1_000, 2_000), (200, 600))


def ratio(
    machine: Machine, victim: Traffic, flood: Traffic, weights: tuple[float, float], seconds: float, seed: int
) -> float:
    """99th percentile beside the flood, of that alone."""
    part = weights[0] / sum(weights)
    quotas = {
        TenantId(name): TenantQuota(weight=weight) for name, weight in zip(("victim", "flood"), weights, strict=True)
    }
    table = QuotaTable(1, MappingProxyType(quotas))
    alone = simulate(machine.share(part), [victim], seconds, seed)["victim"]
    beside = simulate(machine, [victim, flood], seconds, seed, table)["victim"]
    assert beside.num_refused == 0
    assert len(beside.ttft_s) == len(alone.ttft_s)
    return beside.percentile_s(99) / alone.percentile_s(99)


CASES = [
    pytest.param(LARGE, VICTIM, LONG_PROMPTS, (1.0, 1.0), id="long-prompts"),
    pytest.param(LARGE, VICTIM, LONG_PROMPTS, (4.0, 1.0), id="heavier-than-the-flood"),
    pytest.param(LARGE, VICTIM, MANY_SHORT, (1.0, 1.0), id="many-short"),
    pytest.param(LARGE, WRITER, LONG_PROMPTS, (1.0, 1.0), id="long-answers"),
    pytest.param(SMALL, VICTIM, LONG_BOTH, (1.0, 1.0), id="out-of-blocks"),
]


@pytest.mark.parametrize(("machine", "victim", "flood", "weights"), CASES)
def test_a_flood_leaves_the_time_to_the_first_token(
    machine: Machine, victim: Traffic, flood: Traffic, weights: tuple[float, float]
) -> None:
    assert ratio(machine, victim, flood, weights, seconds=20.0, seed=1) <= MOST


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("machine", "victim", "flood", "weights"), CASES)
def test_a_flood_leaves_the_time_to_the_first_token_for_many_seeds(
    machine: Machine, victim: Traffic, flood: Traffic, weights: tuple[float, float], seed: int
) -> None:
    assert ratio(machine, victim, flood, weights, seconds=90.0, seed=100 + seed) <= MOST


def test_without_fair_service_the_flood_would_show() -> None:
    """The measure can fail: beside its own flood, a tenant's requests wait their turn."""
    own = Traffic("victim", LONG_PROMPTS.requests_per_s + 1.5, (100, 3_000), (10, 40))
    alone = simulate(LARGE.share(0.5), [VICTIM], 12.0, 1)["victim"]
    flooded = simulate(LARGE, [own], 12.0, 1)["victim"]
    assert flooded.percentile_s(99) > 10 * alone.percentile_s(99)
