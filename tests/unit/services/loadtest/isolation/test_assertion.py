"""The whole isolation test over simulated systems: it passes, finds leaks, and says when it cannot tell."""

from __future__ import annotations

import pytest

from services.loadtest.isolation.assertion import Assertion, Listeners, Wanted, assert_isolation
from services.loadtest.isolation.samples import Kind, Variant
from services.loadtest.isolation.verdict import Outcome
from tests.support.simulated_tenants import SimulatedSystem

QUIET = (Variant.QUIET,)


async def asserted(system: SimulatedSystem, limits: tuple[float, ...] = (0.60,), within_s: float = 1e9) -> Assertion:
    lines: list[str] = []
    listeners = Listeners(lines.append, lambda variant, done, of: None)
    wanted = Wanted(limits, within_s, QUIET, seed=5)
    found = await assert_isolation(system, 32_000, 8_000, wanted, listeners)
    assert lines, "it says what it does"
    return found


async def test_a_system_without_a_leak_passes() -> None:
    found = await asserted(SimulatedSystem())
    assert found.verdict.outcome is Outcome.PASSED
    (variant,) = found.verdict.variants
    assert variant.own_by_time is not None
    assert variant.own_by_time.value >= 0.95
    assert variant.num_rounds == found.verdict.power.num_samples
    assert len(found.observations) == 4 * variant.num_rounds


async def test_drift_is_no_leak() -> None:
    """The machine is four times as slow at the end as at the beginning."""
    found = await asserted(SimulatedSystem(drift=3 / 1_200))
    assert found.verdict.outcome is Outcome.PASSED


async def test_told_cached_tokens_are_a_leak_at_once() -> None:
    system = SimulatedSystem(leak=1.0)
    found = await asserted(system)
    assert found.verdict.outcome is Outcome.LEAK
    assert "cached tokens" in found.verdict.variants[0].reason
    assert system.num_requests < 100


@pytest.mark.parametrize("leak", [1.0, 0.35])
async def test_a_leak_that_only_times_show_is_found(leak: float) -> None:
    found = await asserted(SimulatedSystem(leak=leak, tells_leaks=False))
    assert found.verdict.outcome is Outcome.LEAK
    across = found.verdict.variants[0].across_by_time
    assert across is not None
    assert across.value == pytest.approx(0.5 + leak / 2, abs=0.07)
    assert "tells what the owner has cached" in found.verdict.variants[0].reason


async def test_without_caching_it_cannot_tell() -> None:
    found = await asserted(SimulatedSystem(caches=False))
    assert found.verdict.outcome is Outcome.BLIND
    assert "caching is off" in found.reason


async def test_hits_that_take_as_long_as_misses_cannot_be_told() -> None:
    found = await asserted(SimulatedSystem(token_s=0.0))
    assert found.verdict.outcome is Outcome.BLIND


async def test_longer_prompts_are_taken_where_short_ones_drown() -> None:
    found = await asserted(SimulatedSystem(step_s=0.1, noise=0.05))
    assert found.calibration.num_tokens == 256
    assert found.verdict.outcome is Outcome.PASSED


async def test_a_request_that_fails_ends_it_without_a_verdict() -> None:
    found = await asserted(SimulatedSystem(fails_after=300))
    assert found.verdict.outcome is Outcome.BLIND
    assert "nobody is there" in found.reason


async def test_the_tightest_limit_that_is_done_in_time_is_taken() -> None:
    quick = await asserted(SimulatedSystem(token_s=1e-6, step_s=1e-6), (0.55, 0.60), within_s=60.0)
    slow = await asserted(SimulatedSystem(), (0.55, 0.60), within_s=60.0)
    assert (quick.verdict.power.limit, slow.verdict.power.limit) == (0.55, 0.60)


async def test_no_prompt_is_sent_twice_but_for_the_repeats() -> None:
    system = SimulatedSystem()
    found = await asserted(system)
    kinds = [each.kind for each in found.observations]
    assert {kind: kinds.count(kind) for kind in Kind} == dict.fromkeys(Kind, found.verdict.power.num_samples)
    shared = set.intersection(*system.held.values())
    rounds = found.verdict.power.num_samples
    assert rounds <= len(shared) <= rounds + 2, "the other tenant sends what the owner has, in each round once"


async def test_the_order_of_the_other_tenants_requests_is_drawn() -> None:
    found = await asserted(SimulatedSystem())
    firsts = [found.observations[at].kind for at in range(2, len(found.observations), 4)]
    assert 0.4 < firsts.count(Kind.FRESH) / len(firsts) < 0.6
