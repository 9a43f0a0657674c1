"""Models with window groups that are short of slots: what is held, what hits, who loses what, and what is left."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

import pytest

from cache_store.errors import LimitExceededError
from cache_store.groups import CacheGeometry
from cache_store.pool_sizes import ABSENT, StepLimits, num_held, span
from cache_store.quota import QuotaTable, TenantQuota, TierShare
from cache_store.tier_kind import TierKind
from cache_store.tokens import pack
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from tests.support.fences import fenced_domain, make_fence
from tests.support.manual_transfers import ManualMaker
from worker.digest_runner import full_and_sliding, sliding_group
from worker.engine_config import EngineConfig
from worker.pins import PinId, PinRequest
from worker.requests import CacheMode, RequestKey

BLOCK = 4
WINDOW = 10
SPAN = span(WINDOW, BLOCK)
CONFIG = EngineConfig(num_step_tokens=16, num_max_sequences=4)
LIMITS = StepLimits(4, 16)
ONE = full_and_sliding(BLOCK, (WINDOW,))
TWO = full_and_sliding(BLOCK, (WINDOW, 5))
ALL_SLIDE = CacheGeometry((sliding_group(BLOCK, WINDOW),), BLOCK)
LONG = list(range(100, 190))
"""Nine windows."""


def make_bench(
    geometry: CacheGeometry = ONE,
    num_cached: int = 12,
    num_blocks: int = 160,
    config: EngineConfig = CONFIG,
    **more: object,
) -> Bench:
    """A bench in whose window groups running sequences have what they need, and the cache has `num_cached` slots."""
    num_slots = tuple(
        num_held(group, BLOCK, StepLimits(config.num_max_sequences, config.num_step_tokens)) + num_cached
        if group.window
        else num_blocks
        for group in geometry.groups
    )
    return Bench(num_blocks, geometry=geometry, num_slots=num_slots, config=config, **more)  # type: ignore[arg-type]


def num_used(bench: Bench) -> list[int]:
    """Slots of each window group that anybody has."""
    return [group.num_used for group in bench.engine._pool.windows.groups]


@pytest.mark.parametrize("geometry", [ONE, TWO, ALL_SLIDE], ids=["one", "two", "all slide"])
def test_a_prefix_longer_than_the_window_hits_for_another_request(geometry: CacheGeometry) -> None:
    bench = make_bench(geometry)
    first = bench.submit(LONG)
    bench.run_until_idle()
    again = bench.answer([*LONG, 7, 8, 9])
    assert again.cached_tokens == len(LONG) // BLOCK * BLOCK + len(LONG) % BLOCK
    bench.assert_exact(first, *bench.answers)


@pytest.mark.parametrize("geometry", [ONE, ALL_SLIDE], ids=["one", "all slide"])
def test_a_running_sequence_holds_its_window_and_no_more(geometry: CacheGeometry) -> None:
    bench = make_bench(geometry, num_cached=0)
    bench.submit(LONG, sampling(max_tokens=40))
    most = 0
    while bench.engine.has_work:
        bench.step()
        most = max(most, *num_used(bench))
        for row in bench.runner.plans[-1].rows:
            table = row.block_tables[-1]
            first = max(0, row.start // BLOCK - SPAN)
            assert table[:first] == (ABSENT,) * first, "what left the window is let go of"
    assert most <= SPAN + 1
    assert num_used(bench) == [0], "nothing is kept where the cache has no slots"


def test_samples_share_the_window_and_copy_what_they_write() -> None:
    bench = make_bench()
    key = bench.submit(LONG, sampling(max_tokens=20, temperature=0.9), num_samples=4)
    bench.run_until_idle()
    bench.assert_exact(key)
    assert num_used(bench) == [bench.engine._pool.windows.groups[0].num_cached]


@pytest.mark.parametrize("mode", [CacheMode.BYPASS, CacheMode.READ_ONLY])
def test_what_is_not_stored_leaves_no_slot_behind(mode: CacheMode) -> None:
    bench = make_bench()
    bench.answer(LONG, mode=mode)
    assert num_used(bench) == [0]


def test_ends_outlive_a_long_prompt() -> None:
    """The slots that a long prompt merely passes go first, those at the ends of requests last."""
    bench = make_bench(num_cached=20)
    short = [list(range(start, start + 24)) for start in (300, 400)]
    for prompt in short:
        bench.answer(prompt)
    bench.answer(list(range(500, 700)))
    for prompt in short:
        assert bench.answer([*prompt, 3]).cached_tokens == 24


def test_a_hit_on_the_common_beginning_stays_when_two_requests_branch_off() -> None:
    bench = make_bench(num_cached=40)
    bench.answer([*LONG, *range(20)], sampling(max_tokens=1))
    other = bench.answer([*LONG, *range(30, 60)], sampling(max_tokens=1))
    assert other.cached_tokens == len(LONG)


def test_a_common_beginning_is_protected_once_it_is_seen_to_be_common() -> None:
    bench = make_bench(num_cached=24, num_blocks=600)
    common = LONG[:40]
    for number in range(2):
        answer = bench.answer([*common, *range(200 + 60 * number, 260 + 60 * number)], sampling(max_tokens=1))
        assert answer.cached_tokens == 0, "nobody knew, and its window is gone"
        bench.answer(range(400 + number, 800 + number), sampling(max_tokens=1))
    assert bench.answer([*common, 7], sampling(max_tokens=1)).cached_tokens == 40


def test_requests_that_wait_for_a_common_beginning_find_its_window() -> None:
    bench = make_bench(num_cached=12)
    keys = [bench.submit([*LONG[:64], 300 + at, *range(200, 260)], sampling(max_tokens=2)) for at in range(4)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    assert [bench.answers[key].cached_tokens for key in keys] == [0, 64, 64, 64]


def quotas(acme: TierShare, globex: TierShare) -> QuotaTable:
    shares = {ACME.tenant: acme, GLOBEX.tenant: globex}
    return QuotaTable(
        1,
        MappingProxyType(
            {
                tenant: TenantQuota(MappingProxyType({TierKind.DEVICE: share}), max_pinned=0.5)
                for tenant, share in shares.items()
            }
        ),
    )


@pytest.mark.parametrize("share", [TierShare(0.5, 1.0), TierShare(0.5, 0.5)], ids=["guaranteed", "strict"])
def test_a_flood_of_another_tenant_takes_no_window_that_is_guaranteed(share: TierShare) -> None:
    cached: dict[bool, list[int | None]] = {}
    for is_flooded in (False, True):
        bench = make_bench(num_cached=24, num_blocks=400)
        bench.engine.set_quotas(quotas(share, TierShare(0.0, 1.0)))
        prompts = [list(range(start, start + 40)) for start in (200, 300)]
        for prompt in prompts:
            bench.answer(prompt)
        if is_flooded:
            for start in range(10):
                bench.answer(range(400 + 40 * start, 500 + 40 * start), domain=GLOBEX)
            assert bench.answer([*range(760, 860), 1], domain=GLOBEX).cached_tokens == 100, "the flood is cached itself"
        cached[is_flooded] = [bench.answer([*prompt, 5]).cached_tokens for prompt in prompts]
        assert bench.answer([*prompts[0], 5], domain=GLOBEX).cached_tokens == 0
    assert cached[True] == cached[False] == [40, 40]


def test_preempted_sequences_find_their_window_again() -> None:
    bench = make_bench(num_blocks=60, num_cached=30, config=EngineConfig(num_step_tokens=16, num_max_sequences=4))
    keys = [
        bench.submit(range(100 * at, 100 * at + 50), sampling(max_tokens=60), domain=domain)
        for at, domain in enumerate((ACME, ACME, GLOBEX, GLOBEX), start=1)
    ]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    assert bench.engine.load().pressure.preemptions > 0


def test_a_pin_keeps_the_window_at_its_end() -> None:
    bench = make_bench(num_cached=16)
    bench.engine.set_quotas(quotas(TierShare(), TierShare()))
    bench.answer(LONG[:40])
    pin = PinRequest(ACME, PinId("p"), pack(LONG[:40]), bench.clock.unix_s() + 60, "")
    assert bench.engine.pins.pin(pin) == 10
    for start in (200, 300, 400):
        bench.answer(range(start, start + 90), domain=GLOBEX)
        bench.answer(range(start, start + 90))
    assert bench.answer([*LONG[:40], 1]).cached_tokens == 40
    assert bench.engine.pins.unpin(ACME, PinId("p"))
    for start in (200, 300, 400):
        bench.answer(range(start, start + 90))
    assert bench.answer([*LONG[:40], 2]).cached_tokens == 0


def test_a_pin_whose_window_does_not_fit_is_refused() -> None:
    bench = make_bench(num_cached=2 * SPAN + 1)
    bench.engine.set_quotas(quotas(TierShare(), TierShare()))
    bench.answer(LONG[:40])
    pin = PinRequest(ACME, PinId("p"), pack(LONG[:40]), bench.clock.unix_s() + 60, "")
    assert bench.engine.pins.pin(pin) == 10
    bench.answer(LONG[50:90])
    other = PinRequest(ACME, PinId("q"), pack(LONG[50:90]), bench.clock.unix_s() + 60, "")
    with pytest.raises(LimitExceededError, match=r"no room for one more; unpin others"):
        bench.engine.pins.pin(other)
    bench.engine.check_invariants()


def test_slots_that_change_domain_are_overwritten_first() -> None:
    bench = make_bench()
    bench.answer(LONG)
    written = bench.written_slots()
    num_plans = len(bench.runner.plans)
    bench.answer(range(200, 290), domain=GLOBEX)
    for plan in bench.runner.plans[num_plans:]:
        scrubbed = {(scrub.group, scrub.slot) for scrub in plan.scrubs}
        targets = {(1, slot) for row in plan.rows for slot in row.written_slots(1, BLOCK)}
        assert targets & written <= scrubbed
        written -= targets
    assert any(scrub.group == 1 for plan in bench.runner.plans[num_plans:] for scrub in plan.scrubs)


def test_a_purge_overwrites_the_slots_of_windows() -> None:
    bench = make_bench()
    fence = make_fence("acme", 0, {})
    domain = fenced_domain(fence)
    bench.answer(LONG, domain=domain)
    running = bench.submit(LONG, sampling(max_tokens=30), domain=domain)
    for _ in range(3):
        bench.step()
    after = make_fence("acme", 1, {})
    bench.engine.purge({after.tenant: after})
    bench.run_until_idle()
    bench.assert_exact(running)
    assert bench.written_slots() == set()


@pytest.mark.parametrize("geometry", [ONE, TWO, ALL_SLIDE], ids=["one", "two", "all slide"])
def test_a_request_in_a_domain_that_may_be_purged_leaves_no_slot_of_it_behind(geometry: CacheGeometry) -> None:
    bench = make_bench(geometry, num_cached=12)
    bench.answer(LONG)
    key = bench.submit(LONG, mode=CacheMode.PURGED)
    bench.run_until_idle()
    bench.engine.check_invariants()
    bench.assert_exact(key)
    assert bench.answer(LONG).cached, "it was not purged after all"


@pytest.mark.parametrize("geometry", [ONE, TWO, ALL_SLIDE], ids=["one", "two", "all slide"])
@pytest.mark.parametrize("num_disk_blocks", [0, 300])
def test_a_prefix_longer_than_the_window_comes_back_from_below(geometry: CacheGeometry, num_disk_blocks: int) -> None:
    mover = ManualMaker(num_disk_blocks)
    num_host_blocks = 30 if num_disk_blocks else 300
    bench = make_bench(geometry, num_cached=24, num_blocks=48, num_host_blocks=num_host_blocks, make_mover=mover)
    _finish(bench, mover, LONG)
    for start in range(300, 900, 60):
        _finish(bench, mover, range(start, start + 60))
    key = _finish(bench, mover, [*LONG, 7])
    cached = bench.answers[key].cached
    assert cached is not None
    num_whole = len(LONG) // BLOCK * BLOCK
    assert (cached.host, cached.disk) == ((0, num_whole) if num_disk_blocks else (num_whole, 0))
    bench.assert_exact(key)


def _finish(bench: Bench, mover: ManualMaker, prompt: Iterable[int]) -> RequestKey:
    """One request to its end; all transfers end well and at once."""
    key = bench.submit(prompt)
    for _ in range(1_000):
        mover.transfers.end_all()
        bench.engine.poll()
        if not bench.engine.has_work and not bench.engine.num_loading:
            return key
        bench.step()
    raise AssertionError("it does not end")
