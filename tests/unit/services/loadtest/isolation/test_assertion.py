"""The whole isolation test over simulated systems: it passes, finds leaks, and says when it cannot tell."""

from __future__ import annotations

import pytest

from services.loadtest.isolation.assertion import Assertion, Listeners, Wanted, assert_isolation
from services.loadtest.isolation.course import CoursePlan
from services.loadtest.isolation.samples import Kind, Party, Variant
from services.loadtest.isolation.verdict import Outcome
from tests.support.simulated_tenants import SimulatedSystem

QUIET = (Variant.QUIET,)


async def asserted(
    system: SimulatedSystem, limits: tuple[float, ...] = (0.60,), within_s: float = 1e9, seed: int = 5
) -> Assertion:
    lines: list[str] = []
    listeners = Listeners(lines.append, lambda variant, done, of: None)
    wanted = Wanted(limits, within_s, QUIET, seed)
    found = await assert_isolation(system, system.vocab_size, 8_000, wanted, listeners)
    assert lines, "it says what it does"
    return found


async def test_a_system_without_a_leak_passes() -> None:
    found = await asserted(SimulatedSystem())
    assert found.verdict.outcome is Outcome.PASSED
    (variant,) = found.verdict.variants
    assert variant.own_by_time is not None
    assert variant.own_by_time.value >= 0.95
    assert variant.num_samples == found.verdict.power.num_samples


async def test_drift_is_no_leak() -> None:
    """The machine is three times as slow at the end as at the beginning."""
    found = await asserted(SimulatedSystem(drift=3 / 1_200))
    assert found.verdict.outcome is Outcome.PASSED


async def test_places_in_a_round_are_no_leak() -> None:
    """Every other request takes five times as long."""
    found = [await asserted(SimulatedSystem(first_of_pair=5.0, seed=seed), seed=seed) for seed in range(4)]
    assert {each.verdict.outcome for each in found} == {Outcome.PASSED}


async def test_prompts_of_one_tenant_that_begin_alike_by_chance_are_no_leak() -> None:
    found = await asserted(SimulatedSystem(reuses_beginnings=True, vocab_size=200))
    assert any(each.answer.cached_tokens for each in found.observations if each.kind is not Kind.REPEAT)
    assert found.verdict.outcome is Outcome.PASSED


async def test_told_cached_tokens_are_a_leak_at_once() -> None:
    system = SimulatedSystem(leak=1.0)
    found = await asserted(system)
    assert found.verdict.outcome is Outcome.LEAK
    assert "cached tokens" in found.verdict.variants[0].reason
    assert system.num_requests < 200


@pytest.mark.parametrize("leak", [1.0, 0.35])
async def test_a_leak_that_only_times_show_is_found(leak: float) -> None:
    found = await asserted(SimulatedSystem(leak=leak, tells_leaks=False))
    assert found.verdict.outcome is Outcome.LEAK
    across = found.verdict.variants[0].across_by_time
    assert across is not None
    assert across.value == pytest.approx(0.5 + leak / 2, abs=0.07)
    assert "tells what the other one has cached" in found.verdict.variants[0].reason


async def test_without_caching_it_cannot_tell() -> None:
    found = await asserted(SimulatedSystem(caches=False))
    assert found.verdict.outcome is Outcome.BLIND
    assert "caching is off" in found.reason


async def test_hits_that_take_as_long_as_misses_cannot_be_told() -> None:
    found = await asserted(SimulatedSystem(token_s=0.0))
    assert found.verdict.outcome is Outcome.BLIND


async def test_longer_prompts_are_taken_where_short_ones_drown() -> None:
    found = await asserted(SimulatedSystem(seed=2, step_s=0.1, noise=0.05))
    assert found.calibration.num_tokens == 384
    assert found.verdict.outcome is Outcome.PASSED


async def test_a_machine_that_becomes_restless_is_asked_with_longer_prompts() -> None:
    found = await asserted(SimulatedSystem(restless_after=200))
    assert found.calibration.num_tokens == 64
    assert {each.answer.prompt_tokens for each in found.observations} == {128}
    assert found.verdict.outcome is Outcome.PASSED


async def test_a_request_that_fails_ends_it_without_a_verdict() -> None:
    found = await asserted(SimulatedSystem(fails_after=300))
    assert found.verdict.outcome is Outcome.BLIND
    assert "nobody is there" in found.reason


async def test_the_tightest_limit_that_is_done_in_time_is_taken() -> None:
    quick = await asserted(SimulatedSystem(token_s=1e-6, step_s=1e-6), (0.55, 0.60), within_s=60.0)
    slow = await asserted(SimulatedSystem(), (0.55, 0.60), within_s=60.0)
    assert (quick.verdict.power.limit, slow.verdict.power.limit) == (0.55, 0.60)


async def test_a_leak_to_one_tenant_only_counts_half() -> None:
    found = await asserted(SimulatedSystem(leak=1.0, leaks_to=(Party.RIGHT,), tells_leaks=False))
    assert found.verdict.outcome is Outcome.LEAK
    across = found.verdict.variants[0].across_by_time
    assert across is not None
    assert across.value == pytest.approx(0.75, abs=0.07)


async def test_all_that_is_planned_is_sent() -> None:
    found = await asserted(SimulatedSystem())
    power = found.verdict.power
    kinds = [each.kind for each in found.observations]
    assert kinds.count(Kind.FIRST) == kinds.count(Kind.CROSSED) == power.num_samples
    assert power.num_controls <= kinds.count(Kind.REPEAT) <= power.num_samples / 2
    assert len(kinds) == CoursePlan.of(power, 64).num_requests


async def test_either_tenant_sends_what_the_other_has_and_nothing_else_twice() -> None:
    system = SimulatedSystem()
    found = await asserted(system)
    assert all(each.leaked_tokens == 0 for each in found.observations)
    repeats = [each.answer for each in found.observations if each.kind is Kind.REPEAT]
    assert all(each.cached_tokens == each.prompt_tokens - 1 for each in repeats)
    crossed = [each.party for each in found.observations if each.kind is Kind.CROSSED]
    assert crossed.count(Party.LEFT) == crossed.count(Party.RIGHT)
    shared = set.intersection(*system.held.values())
    assert len(crossed) <= len(shared) <= len(crossed) + 4, "each of them once, and those of the warm-up"


async def test_a_coin_decides_which_tenant_begins_with_which_kind() -> None:
    found = await asserted(SimulatedSystem())
    asked = [each for each in found.observations if each.kind is not Kind.REPEAT]
    begins = [asked[at].kind for at in range(0, len(asked), 4)]
    others = [asked[at].kind for at in range(2, len(asked), 4)]
    assert 0.35 < begins.count(Kind.FIRST) / len(begins) < 0.65
    assert all(one is not other for one, other in zip(begins, others, strict=True))
