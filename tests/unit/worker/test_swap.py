"""Swap-ins: what comes back from lower tiers, what is reported of it, and who waits for whom meanwhile."""

from __future__ import annotations

import pytest

from cache_store.domain import Domain
from cache_store.quota import TierShare
from cache_store.tier_kind import TierKind
from cache_store.tokens import pack
from cache_store.usage import CachedTokens
from tests.support.engines import ACME, GLOBEX, Answer, Bench, sampling
from tests.support.fences import fenced_domain, make_fence
from tests.support.manual_transfers import Fate, ManualMaker, ManualTransfers, always
from tests.support.quotas import make_table
from worker.digest_runner import Durations
from worker.pins import PinId, PinRequest
from worker.requests import CacheMode, RequestKey

PROMPT = range(33)
"""Eight full blocks of four tokens, and the token that is always computed."""


def squeeze(bench: Bench, first: int = 1_000, num_blocks: int = 16) -> None:
    """Has another request of the tenant take the whole device."""
    bench.answer(range(first, first + 4 * num_blocks), sampling(max_tokens=1))


def two_tiers(num_blocks: int = 16, num_host_blocks: int = 32, **options: object) -> tuple[Bench, ManualTransfers]:
    """A bench with a host tier whose loads are ended by hand."""
    maker = ManualMaker()
    bench = Bench(num_blocks, num_host_blocks=num_host_blocks, make_mover=maker, vocab_size=4_000, **options)
    return bench, maker.transfers


def with_demoted_prompt(**options: object) -> tuple[Bench, ManualTransfers]:
    """A bench whose host tier holds PROMPT, and the device nothing of it."""
    bench, transfers = two_tiers(**options)
    bench.answer(PROMPT, sampling(max_tokens=1))
    squeeze(bench)
    assert bench.engine.lookup(ACME, pack(PROMPT)) == CachedTokens(0, 32, 0)
    return bench, transfers


def run(bench: Bench, transfers: ManualTransfers, *keys: RequestKey) -> list[Answer]:
    """Runs to the end, with every transfer ended well as soon as it is there."""
    transfers.decide = always
    bench.run_until_idle()
    bench.assert_exact(*keys)
    return [bench.answers[key] for key in keys]


def num_prefilled(bench: Bench) -> int:
    """Prompt tokens computed so far."""
    return sum(len(row.token_ids) for plan in bench.runner.plans for row in plan.rows if not row.is_decode)


def test_what_was_evicted_comes_back_and_is_told_by_tier() -> None:
    bench, transfers = with_demoted_prompt()
    before = bench.runner.num_computed
    key = bench.submit(PROMPT)
    (answer,) = run(bench, transfers, key)
    assert answer.cached == CachedTokens(0, 32, 0)
    assert bench.runner.num_computed - before == 1 + 7, "the last prompt token, and what is decoded"
    assert bench.engine.lookup(ACME, pack(PROMPT)) == CachedTokens(32, 0, 0)


def test_part_on_the_device_and_part_below() -> None:
    bench, transfers = with_demoted_prompt()
    run(bench, transfers, bench.submit(range(13), sampling(max_tokens=1)))
    key = bench.submit(PROMPT)
    (answer,) = run(bench, transfers, key)
    assert answer.cached == CachedTokens(12, 20, 0)


def test_another_tenant_finds_nothing_and_the_same_one_does() -> None:
    bench, transfers = with_demoted_prompt()
    other = bench.submit(PROMPT, domain=GLOBEX)
    (answer,) = run(bench, transfers, other)
    assert answer.cached == CachedTokens()
    assert bench.engine.lookup(GLOBEX, pack(range(34))).total == 33
    same = bench.submit(PROMPT)
    (answer,) = run(bench, transfers, same)
    assert answer.cached == CachedTokens(0, 32, 0)


def test_nobody_waits_for_another_ones_blocks() -> None:
    bench, transfers = with_demoted_prompt()
    slow, quick = bench.submit(PROMPT), bench.submit(range(500, 520))
    for _ in range(12):
        bench.step()
    assert bench.answers[quick].has_ended
    assert bench.answers[slow].cached_tokens is None
    assert not bench.engine.has_work, "the engine may sleep until the blocks have come"
    assert bench.engine.num_loading == 8
    run(bench, transfers, slow, quick)


def test_two_that_want_the_same_blocks_load_them_once() -> None:
    bench, transfers = with_demoted_prompt()
    keys = [bench.submit(PROMPT) for _ in range(3)]
    bench.step()
    assert len(transfers.pending_loads) == 8
    answers = run(bench, transfers, *keys)
    assert [answer.cached_tokens for answer in answers] == [32] * 3
    tiers = {load.tier: load for load in bench.engine.load().tiers}
    assert tiers[TierKind.HOST].loaded_blocks == 8


@pytest.mark.parametrize(("failing", "kept"), [(0, 0), (3, 3), (7, 7)])
def test_what_comes_before_a_block_that_failed_is_used(failing: int, kept: int) -> None:
    bench, transfers = with_demoted_prompt()
    key = bench.submit(PROMPT)
    bench.step()
    loads = transfers.pending
    for number in reversed(range(8)):  # also in reverse order
        transfers.end(loads[number], Fate.TEAR if number == failing else Fate.OK)
    (answer,) = run(bench, transfers, key)
    assert answer.cached == CachedTokens(0, 4 * kept, 0)
    assert {load.tier: load for load in bench.engine.load().tiers}[TierKind.HOST].failed_blocks == 1


def test_a_cancelled_request_leaves_nothing_held() -> None:
    bench, transfers = with_demoted_prompt()
    key = bench.submit(PROMPT)
    bench.step()
    bench.cancel(key)
    assert bench.engine.num_held_blocks > 0, "they are being written"
    transfers.end_all()
    bench.engine.poll()
    bench.engine.check_invariants()
    assert bench.engine.num_held_blocks == 0
    assert bench.engine.lookup(ACME, pack(PROMPT)).total == 32


def test_a_request_that_bypasses_the_cache_loads_nothing() -> None:
    bench, transfers = with_demoted_prompt()
    key = bench.submit(PROMPT, mode=CacheMode.BYPASS)
    (answer,) = run(bench, transfers, key)
    assert answer.cached_tokens == 0
    assert not any(plan.loads for plan in bench.runner.plans)


def test_the_time_of_waiting_has_a_name() -> None:
    bench, transfers = with_demoted_prompt()
    key = bench.submit(PROMPT)
    bench.step()
    bench.clock.advance(0.25)
    (answer,) = run(bench, transfers, key)
    assert answer.finished is not None
    assert answer.finished.swap_s == pytest.approx(0.25)
    assert answer.finished.queue_s >= 0.25, "its blocks come before its first step"


def test_slow_loads_are_not_waited_for() -> None:
    maker = ManualMaker(decide=always, seconds=lambda _: 10.0)
    bench = Bench(16, durations=Durations(0.01, 0.001), num_host_blocks=32, make_mover=maker, vocab_size=4_000)
    for first in (0, 100, 0):  # the third time it is loaded, and that is measured
        bench.answer(range(first, first + 60), sampling(max_tokens=1))
    loaded = sum(len(plan.loads) for plan in bench.runner.plans)
    assert loaded > 0
    bench.answer(range(100, 160), sampling(max_tokens=1))
    assert sum(len(plan.loads) for plan in bench.runner.plans) == loaded, "to compute is faster"


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_preempted_request_goes_on_from_its_blocks(temperature: float) -> None:
    bench, transfers = two_tiers(num_blocks=14)
    transfers.decide = always
    params = sampling(max_tokens=24, temperature=temperature)
    keys = [bench.submit(range(first, first + 12), params) for first in (0, 100, 200)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    finished = [bench.answers[key].finished for key in keys]
    assert sum(end.preemptions for end in finished if end is not None) > 0, "the pool is too small for all"
    assert any(plan.loads for plan in bench.runner.plans), "and what was demoted came back"


def test_what_is_purged_on_its_way_is_not_used_and_its_bytes_go() -> None:
    fence = make_fence("acme")
    bench, transfers = two_tiers()
    for prompt in (PROMPT, range(1_000, 1_064)):
        bench.answer(prompt, sampling(max_tokens=1), domain=fenced_domain(fence))
    key = bench.submit(PROMPT, domain=fenced_domain(fence))
    bench.step()
    assert bench.engine.num_loading == 8
    bench.engine.purge({fence.tenant: make_fence("acme", epoch_number=1)})
    (answer,) = run(bench, transfers, key)
    assert answer.cached_tokens == 0
    assert bench.engine.snapshot() == {}
    assert bench.written_slots() == set()
    assert transfers.written_slots() == set()


def test_a_step_that_failed_loses_what_it_stored_and_nothing_else() -> None:
    bench, transfers = two_tiers()
    transfers.decide = always
    bench.answer(PROMPT, sampling(max_tokens=1))
    bench.runner.error = RuntimeError("injected")
    failed = bench.submit(range(1_000, 1_060), sampling(max_tokens=1))
    bench.run_until_idle()
    assert bench.answers[failed].error is not None
    found = bench.engine.lookup(ACME, pack(PROMPT))
    assert found.host == 0, "nobody knows whether it was written"
    key = bench.submit(PROMPT)
    run(bench, transfers, key)


def test_what_a_failed_step_had_begun_to_load_is_not_used() -> None:
    bench, transfers = two_tiers(num_blocks=32, num_host_blocks=64)
    bench.answer(PROMPT, sampling(max_tokens=1))
    bench.answer(range(1_000, 1_128), sampling(max_tokens=1), domain=GLOBEX)
    assert bench.engine.lookup(ACME, pack(PROMPT)).host == 32
    failed, key = bench.submit(range(2_000, 2_010), domain=GLOBEX), bench.submit(PROMPT)
    bench.runner.error = RuntimeError("injected")
    bench.step()
    plan = bench.runner.plans[-1]
    assert {scrub.slot for scrub in plan.scrubs} & {load.slots[0] for load in plan.loads}, "both in one step"
    assert bench.answers[failed].error is not None
    transfers.end_all()
    (answer,) = run(bench, transfers, key)
    assert answer.cached_tokens == 32
    run(bench, transfers, bench.submit(PROMPT))


def test_loads_take_no_blocks_that_another_one_is_guaranteed() -> None:
    bench, transfers = two_tiers(num_blocks=16, num_host_blocks=64)
    bench.engine.set_quotas(make_table(acme=TierShare(0.5, 1.0)))
    for first in (0, 1_000, 2_000, 3_000):
        bench.answer(range(first, first + 29), sampling(max_tokens=1), domain=GLOBEX)
    bench.answer(range(3_500, 3_563), sampling(max_tokens=1), domain=GLOBEX)
    slow = [bench.submit(range(first, first + 29), domain=GLOBEX) for first in (0, 1_000)]
    bench.step()
    assert 0 < bench.engine.num_loading <= 8
    key = bench.submit(range(300, 329), sampling(max_tokens=2))
    for _ in range(20):
        bench.step()
    assert bench.answers[key].finished is not None, "its guarantee waits for nobody's disk"
    run(bench, transfers, key, *slow)


def with_a_load_that_takes_its_time(
    pinning: Domain = GLOBEX,
) -> tuple[Bench, ManualTransfers, RequestKey, RequestKey]:
    """A bench with a pin, and a request that waits for the blocks that another one's load holds."""
    bench, transfers = with_demoted_prompt()
    bench.answer(range(2_000, 2_009), sampling(max_tokens=1), domain=pinning)
    bench.engine.pins.pin(PinRequest(pinning, PinId("p"), pack(range(2_000, 2_005)), 1e12, ""))
    loading = bench.submit(PROMPT)
    bench.step()
    short = bench.submit(range(3_000, 3_030), sampling(max_tokens=4))
    bench.step()
    assert bench.engine.num_loading == 8
    return bench, transfers, loading, short


@pytest.mark.parametrize("pinning", [ACME, GLOBEX])
def test_no_pin_ends_for_what_a_load_is_about_to_give_back(pinning: Domain) -> None:
    bench, transfers, loading, short = with_a_load_that_takes_its_time(pinning)
    assert len(bench.engine.pins.of(pinning)) == 1
    run(bench, transfers, loading, short)
    assert len(bench.engine.pins.of(pinning)) == 1


def test_an_engine_that_can_only_wait_for_a_load_has_no_work() -> None:
    bench, transfers, loading, short = with_a_load_that_takes_its_time()
    assert not bench.engine.has_work
    later = bench.submit(range(3), sampling(max_tokens=1), domain=GLOBEX)
    assert bench.engine.has_work, "somebody new may fit"
    bench.step()
    assert bench.answers[later].has_ended
    transfers.end_all()
    bench.engine.poll()
    assert bench.engine.has_work, "its blocks have come free"
    run(bench, transfers, loading, short)


def test_time_alone_gives_an_engine_that_waits_for_a_load_work_again() -> None:
    bench, *_ = with_a_load_that_takes_its_time()
    bench.engine.tick()
    assert bench.engine.has_work
    bench.step()
    assert not bench.engine.has_work
