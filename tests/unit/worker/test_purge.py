"""Purges of an engine: what is purged is found no more, what runs is unharmed, bytes go."""

from __future__ import annotations

import pytest

from cache_store.scrubs import MAX_BLOCKS_PER_PLAN, Dropped
from cache_store.tokens import pack
from tests.support.engines import Bench, sampling
from tests.support.fences import fenced_domain, make_fence
from worker.engine_config import EngineConfig
from worker.pins import PinId, PinRequest
from worker.requests import CacheMode

PROMPT = list(range(17))
OLD, NEW = make_fence("acme"), make_fence("acme", 1)
ACME, ACME_NEW = fenced_domain(OLD), fenced_domain(NEW)
ACME_PARTITION = fenced_domain(OLD, "p")
GLOBEX = fenced_domain(make_fence("globex"))


def purge(bench: Bench, fence=NEW) -> Dropped:
    dropped = bench.engine.purge({fence.tenant: fence})
    bench.engine.check_invariants()
    return dropped


def test_a_purged_tenant_misses_and_another_hits_and_so_does_the_tenant_in_its_new_epoch() -> None:
    bench = Bench()
    for domain in (ACME, GLOBEX):
        bench.answer(PROMPT, domain=domain)
    assert purge(bench) == Dropped(device_blocks=6)
    assert bench.engine.lookup(ACME, pack(PROMPT)).total == 0
    assert bench.answer(PROMPT, domain=ACME_NEW).cached_tokens == 0
    assert bench.answer(PROMPT, domain=ACME_NEW).cached_tokens == 16
    assert bench.answer(PROMPT, domain=GLOBEX).cached_tokens == 16


def test_a_purged_partition_or_model_takes_no_other_with_it() -> None:
    bench = Bench()
    for domain in (ACME, ACME_PARTITION):
        bench.answer(PROMPT, domain=domain)
    assert purge(bench, make_fence("acme", partitions={"p": 1})).device_blocks == 6
    assert bench.engine.lookup(ACME_PARTITION, pack(PROMPT)).total == 0
    assert bench.engine.lookup(ACME, pack(PROMPT)).total == 16
    assert purge(bench, make_fence("acme", partitions={"p": 1}, model=1)).device_blocks == 6
    assert bench.engine.lookup(ACME, pack(PROMPT)).total == 0


def test_a_deleted_tenant_has_nothing_left() -> None:
    bench = Bench()
    for domain in (ACME, ACME_PARTITION, GLOBEX):
        bench.answer(PROMPT, domain=domain)
    assert bench.engine.purge({ACME.tenant: None}).device_blocks == 12
    assert bench.engine.lookup(GLOBEX, pack(PROMPT)).total == 16
    assert [use.tenant for use in bench.engine.usage()] == [GLOBEX.tenant]


def test_the_same_fence_again_drops_nothing() -> None:
    bench = Bench()
    bench.answer(PROMPT, domain=ACME)
    purge(bench)
    bench.answer(PROMPT, domain=ACME_NEW)
    assert purge(bench) == Dropped()
    assert bench.engine.lookup(ACME_NEW, pack(PROMPT)).total == 16


def test_an_idle_engine_works_until_the_bytes_are_gone() -> None:
    bench = Bench(num_blocks=2 * MAX_BLOCKS_PER_PLAN + 16, max_model_len=2_048)
    for start in range(6):
        bench.answer([start, *[0] * 1_000], sampling(max_tokens=1), domain=ACME)
    bench.answer(PROMPT, domain=GLOBEX)
    before = bench.written_slots()
    num_plans = len(bench.runner.plans)
    dropped = purge(bench)
    assert dropped.device_blocks > MAX_BLOCKS_PER_PLAN
    assert bench.engine.has_work
    bench.run_until_idle()
    plans = bench.runner.plans[num_plans:]
    assert max(len(plan.scrubs) for plan in plans) == MAX_BLOCKS_PER_PLAN
    assert len(plans) == -(-len(before - bench.written_slots()) // MAX_BLOCKS_PER_PLAN)
    assert not bench.engine.has_work
    assert len(bench.written_slots()) == 6  # globex's
    bench.answer(PROMPT, domain=GLOBEX)
    assert bench.answer(PROMPT, domain=GLOBEX).cached_tokens == 16


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 2, 5, 9])
def test_a_request_that_runs_ends_as_if_nothing_had_happened_and_leaves_nothing(
    num_samples: int, num_steps: int
) -> None:
    bench = Bench(config=EngineConfig(num_step_tokens=8, num_max_sequences=8))
    key = bench.submit(PROMPT, sampling(max_tokens=12, temperature=0.8), domain=ACME, num_samples=num_samples)
    for _ in range(num_steps):
        bench.step()
    dropped = purge(bench)
    assert 0 < dropped.held_blocks == dropped.device_blocks
    late = bench.submit(PROMPT, domain=ACME_NEW)
    bench.run_until_idle()
    bench.assert_exact(key, late)
    assert bench.engine.snapshot().keys() == {ACME_NEW.tag}
    assert bench.answers[late].cached_tokens == 0
    assert len(bench.written_slots()) == 6  # of the new epoch


def test_a_request_that_reuses_purged_blocks_reads_them_to_its_end() -> None:
    bench = Bench()
    bench.answer(PROMPT, domain=ACME)
    key = bench.submit([*PROMPT, 100], domain=ACME)
    bench.step()
    assert bench.answers[key].cached_tokens == 17
    assert purge(bench).held_blocks >= 4
    bench.run_until_idle()
    bench.assert_exact(key)
    assert bench.written_slots() == set()


def test_a_request_that_waits_reuses_and_stores_nothing() -> None:
    bench = Bench(config=EngineConfig(num_max_sequences=1))
    bench.answer(PROMPT, domain=ACME)
    first = bench.submit(range(50, 60), domain=GLOBEX)
    bench.step()
    waiting = bench.submit(PROMPT, domain=ACME)
    purge(bench)
    bench.run_until_idle()
    bench.assert_exact(first, waiting)
    assert bench.answers[waiting].cached_tokens == 0
    assert bench.engine.snapshot().keys() == {GLOBEX.tag}


def test_who_waits_for_anothers_prefill_does_not_wait_for_what_is_stored_no_more() -> None:
    bench = Bench(config=EngineConfig(num_step_tokens=4, num_max_sequences=4))
    leader = bench.submit(PROMPT, sampling(max_tokens=100), domain=ACME)
    bench.step()
    follower = bench.submit([*PROMPT, 1], domain=ACME)
    bench.step()
    purge(bench)
    for _ in range(20):
        bench.step()
    assert not bench.answers[leader].has_ended
    assert bench.answers[follower].has_ended
    bench.run_until_idle()
    bench.assert_exact(leader, follower)
    assert bench.answers[follower].cached_tokens == 0


def test_a_preempted_request_is_computed_again_exactly() -> None:
    bench = Bench(num_blocks=12, config=EngineConfig(watermark=0.0))
    keys = [bench.submit(range(at, at + 13), sampling(max_tokens=14), domain=ACME) for at in (0, 100, 200)]
    for _ in range(4):
        bench.step()
    purge(bench)
    bench.run_until_idle()
    assert bench.engine.load().pressure.preemptions > 0
    bench.assert_exact(*keys)
    assert bench.written_slots() == set()


def test_pins_of_what_is_purged_end_and_others_stay() -> None:
    bench = Bench(num_blocks=128)
    for domain in (ACME, ACME_PARTITION, GLOBEX):
        bench.answer(PROMPT, domain=domain)
        bench.engine.pins.pin(PinRequest(domain, PinId(domain.partition), pack(PROMPT), 1e12, ""))
    assert purge(bench, make_fence("acme", partitions={"": 1})) == Dropped(device_blocks=6)
    assert [pin.pin_id for pin in bench.engine.pins.of(ACME)] == [ACME_PARTITION.partition]
    assert len(bench.engine.pins.of(GLOBEX)) == 1
    bench.run_until_idle()
    assert len(bench.written_slots()) == 12


def test_what_was_purged_is_scrubbed_again_after_a_step_that_failed() -> None:
    bench = Bench()
    bench.answer(PROMPT, domain=ACME)
    purge(bench)
    lost = bench.submit(PROMPT, domain=GLOBEX)
    bench.runner.error = RuntimeError("injected")
    bench.step()
    assert bench.answers[lost].error is not None
    bench.answer(PROMPT, domain=GLOBEX, mode=CacheMode.BYPASS)
    for plan in bench.runner.plans[-8:]:
        assert plan.scrubs == () or plan.rows, "they wait for the next step"
    left = bench.written_slots()
    assert len(left) == 6  # the last request's own
    assert purge(bench, make_fence("globex", 1)) == Dropped()
    bench.run_until_idle()
    assert bench.written_slots() == set()


@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_request_that_came_late_finds_and_leaves_nothing(num_samples: int) -> None:
    """Its worker had nothing of the domain when that was purged, or knew no such tenant."""
    bench = Bench()
    late = bench.submit(PROMPT, sampling(temperature=0.8), domain=ACME, num_samples=num_samples, mode=CacheMode.PURGED)
    bench.run_until_idle()
    bench.assert_exact(late)
    assert bench.answers[late].cached_tokens == 0
    assert bench.engine.snapshot() == {}
    assert bench.written_slots() == set()


def test_a_late_request_that_fails_leaves_nothing() -> None:
    bench = Bench()
    late = bench.submit(PROMPT, domain=ACME, mode=CacheMode.PURGED)
    bench.step()
    assert bench.written_slots()
    bench.runner.error = RuntimeError("injected")
    bench.run_until_idle()
    assert bench.answers[late].error is not None
    assert bench.written_slots() == set()


def test_late_requests_of_any_number_of_domains_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cache_store.scrubs.MAX_ROOTS", 2)
    bench = Bench()
    for number in range(5):
        bench.submit(PROMPT, domain=fenced_domain(OLD, f"p{number}"), mode=CacheMode.PURGED)
    bench.run_until_idle()
    assert bench.written_slots() == set()


def test_a_domain_that_turns_out_to_live_is_not_scrubbed_any_more() -> None:
    """Its worker had not read for a while, and took its requests for late ones."""
    bench = Bench()
    bench.answer(PROMPT[:16], domain=ACME, mode=CacheMode.PURGED)
    assert bench.written_slots() == set()
    bench.answer(PROMPT[:16], domain=ACME)
    assert len(bench.written_slots()) == 6, "five full blocks, and what has no use any more"


def test_a_late_request_does_not_take_with_it_what_others_keep() -> None:
    bench = Bench()
    for domain in (ACME, ACME_NEW):
        bench.answer(PROMPT, domain=domain)
    bench.answer([*PROMPT, 1], domain=ACME, mode=CacheMode.PURGED)
    for domain in (ACME, ACME_NEW):
        assert bench.answer(PROMPT, domain=domain).cached_tokens == 16
