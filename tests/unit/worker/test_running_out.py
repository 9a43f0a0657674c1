"""What an engine does when blocks, places or the queue run out: in which order, for whom, and what it tells."""

from __future__ import annotations

import pytest

from cache_store.domain import Domain
from cache_store.errors import InvalidRequestError, UnavailableError
from cache_store.quota import EMPTY_QUOTAS, TierShare
from cache_store.tokens import pack
from tests.support.domains import make_domain
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from tests.support.quotas import make_table
from worker.admission import LAST_PATIENCE_S, PATIENCE_S
from worker.digest_runner import Durations
from worker.engine_config import EngineConfig
from worker.pins import PinId, PinRequest
from worker.requests import CacheMode, RequestKey

TIGHT = EngineConfig(num_step_tokens=64, num_max_sequences=16, watermark=0.0)


def preemptions(bench: Bench, key: RequestKey) -> int:
    finished = bench.answers[key].finished
    assert finished is not None
    return finished.preemptions


def pin(bench: Bench, domain: Domain, prompt: list[int]) -> int:
    """Computes a prompt and pins its full blocks; how many."""
    bench.answer(prompt, sampling(1), domain=domain)
    request = PinRequest(domain, PinId(str(prompt[0])), pack(prompt), bench.clock.unix_s() + 1_000.0, "")
    return bench.engine.pins.pin(request)


def test_a_newcomer_within_its_guarantee_takes_back_what_was_lent() -> None:
    bench = Bench(num_blocks=16, config=TIGHT)
    bench.engine.set_quotas(make_table(acme=TierShare(0.5, 1.0)))
    flood = [bench.submit([n] * 8, sampling(24), domain=GLOBEX) for n in range(4)]
    for _ in range(8):
        bench.step()
    assert bench.engine.load().used_blocks == 16
    key = bench.submit([9] * 28, sampling(4), domain=ACME)
    bench.step()
    assert bench.answers[key].cached_tokens is not None, "it waits for blocks that are its own"
    bench.run_until_idle()
    bench.assert_exact(key, *flood)
    assert preemptions(bench, key) == 0


def test_a_strict_tenant_is_never_preempted_for_another_and_preempts_nobody() -> None:
    bench = Bench(num_blocks=16, config=TIGHT)
    bench.engine.set_quotas(make_table(acme=TierShare(0.5, 0.5)))
    strict = [bench.submit([n] * 8, sampling(8), domain=ACME) for n in range(2)]
    others = [bench.submit([n] * 8, sampling(20), domain=GLOBEX) for n in range(4)]
    bench.run_until_idle()
    bench.assert_exact(*strict, *others)
    assert [preemptions(bench, key) for key in strict] == [0, 0]
    assert bench.engine.load().pressure.preemptions > 0


def test_a_newcomer_gets_its_part_of_the_places() -> None:
    bench = Bench(num_blocks=128, config=EngineConfig(num_step_tokens=64, num_max_sequences=4, watermark=0.0))
    flood = [bench.submit([n] * 4, sampling(40), domain=GLOBEX) for n in range(12)]
    bench.step()
    newcomers = [bench.submit([50 + n] * 4, sampling(4), domain=ACME) for n in range(3)]
    bench.step()
    started = [bench.answers[key].cached_tokens is not None for key in newcomers]
    assert started == [True, True, False], "its part is two of four places"
    bench.run_until_idle()
    bench.assert_exact(*newcomers, *flood)


def test_no_request_is_preempted_more_than_twice_however_small_the_pool() -> None:
    bench = Bench(num_blocks=9, config=TIGHT)
    keys = [bench.submit([n] * 4, sampling(28), domain=(ACME, GLOBEX)[n % 2]) for n in range(8)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    counts = [preemptions(bench, key) for key in keys]
    assert max(counts) == 2
    assert bench.engine.load().pressure.preemptions == sum(counts)


@pytest.mark.parametrize("mode", list(CacheMode))
def test_samples_of_a_request_that_cannot_be_preempted_any_more_have_all_their_blocks(mode: CacheMode) -> None:
    bench = Bench(num_blocks=14, config=TIGHT)
    keys = [bench.submit([n] * 6, sampling(12, temperature=0.7), num_samples=3, mode=mode) for n in range(3)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    assert max(preemptions(bench, key) for key in keys) == 2


@pytest.mark.parametrize("watermark", [0.01, 0.3])
def test_a_tenant_alone_can_use_its_whole_part_beside_others(watermark: float) -> None:
    bench = Bench(num_blocks=40, config=EngineConfig(num_step_tokens=64, num_max_sequences=16, watermark=watermark))
    bench.engine.set_quotas(make_table(acme=TierShare(0.0, 0.1)))  # 4 blocks
    bench.submit([1] * 4, sampling(30), domain=GLOBEX)
    bench.step()
    key = bench.submit([2] * 13, sampling(4), domain=ACME)
    bench.step()
    assert bench.answers[key].cached_tokens == 0
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)
    assert preemptions(bench, key) == 0


@pytest.mark.parametrize(("num_blocks", "num_samples"), [(14, 1), (15, 1), (16, 1), (12, 4), (13, 4)])
def test_what_a_strict_tenant_finds_depends_on_nobody_else(num_blocks: int, num_samples: int) -> None:
    found = []
    for has_neighbour in (False, True):
        bench = Bench(num_blocks=64)
        bench.engine.set_quotas(make_table(acme=TierShare(0.25, 0.25)))  # 16 blocks
        bench.answer([1] * 4 + [2] * 6, sampling(2), domain=ACME)
        if has_neighbour:
            bench.submit([5] * 4, sampling(100), domain=GLOBEX)
            bench.step()
        prompt = [1] * 4 + [2] * 3 + [9] * (4 * num_blocks - 7)  # ends within a block of the first
        found.append(bench.answer(prompt, sampling(1), domain=ACME, num_samples=num_samples).cached_tokens)
    assert found[0] == found[1]
    assert found[0] in (4, 7)


def test_what_exceeds_the_tenants_share_is_refused_with_its_own_numbers() -> None:
    bench = Bench(num_blocks=40, config=TIGHT)
    bench.engine.set_quotas(make_table(acme=TierShare(0.0, 0.25), globex=TierShare(0.5, 0.5)))
    with pytest.raises(InvalidRequestError, match=r"needs 12 blocks of 4 tokens, your tenant's share is 10; max_token"):
        bench.submit([1] * 30, sampling(16), domain=ACME)
    assert bench.engine.load().pressure.refused_requests == 1
    bench.answer([1] * 30, sampling(11), domain=ACME)


def test_a_quota_change_ends_what_became_impossible_and_nothing_else() -> None:
    bench = Bench(num_blocks=40, config=TIGHT)
    running = bench.submit([1] * 30, sampling(40), domain=ACME)
    short = bench.submit([2] * 8, sampling(4), domain=ACME)
    foreign = bench.submit([1] * 30, sampling(40), domain=GLOBEX)
    bench.step()
    waiting = bench.submit([3] * 30, sampling(40), domain=ACME)
    bench.engine.set_quotas(make_table(acme=TierShare(0.0, 0.25)))
    bench.step()
    for key in (running, waiting):
        error = bench.answers[key].error
        assert isinstance(error, InvalidRequestError)
        assert "your tenant's share of this worker was changed to 10 blocks" in str(error)
    bench.run_until_idle()
    bench.assert_exact(short, foreign)


def test_the_failure_of_a_request_that_was_cancelled_meanwhile_is_not_told() -> None:
    bench = Bench(num_blocks=40, config=TIGHT)
    key = bench.submit([1] * 30, sampling(40), domain=ACME)
    bench.engine.set_quotas(make_table(acme=TierShare(0.0, 0.25)))
    bench.cancel(key)
    assert not bench.engine.has_work


def test_what_others_keep_as_their_guarantee_ends_the_wait() -> None:
    bench = Bench(num_blocks=20, config=TIGHT)
    bench.engine.set_quotas(make_table(globex=TierShare(0.5, 1.0)))
    bench.answer([7] * 40, sampling(1), domain=GLOBEX)
    key = bench.submit([1] * 60, sampling(1), domain=ACME)
    bench.run_until_idle(max_steps=3)
    error = bench.answers[key].error
    assert isinstance(error, UnavailableError)
    assert "as much cannot be had now" in str(error)
    assert not any(map(str.isdigit, str(error))), "what others use is theirs to know"
    bench.engine.set_quotas(EMPTY_QUOTAS)
    assert bench.answer([1] * 60, sampling(1), domain=ACME).error is None


def test_pins_give_way_where_nothing_of_their_tenant_runs() -> None:
    bench = Bench(num_blocks=20, config=TIGHT)
    assert pin(bench, ACME, [5] * 8) == 2
    key = bench.submit([1] * 76, sampling(1), domain=ACME)
    bench.run_until_idle()
    bench.assert_exact(key)
    assert bench.engine.load().pressure.yielded_pins == 1


def test_pins_of_another_tenant_give_way_to_a_guarantee_only() -> None:
    bench = Bench(num_blocks=20, config=TIGHT)
    bench.engine.set_quotas(make_table(acme=TierShare(0.95, 1.0)))
    assert pin(bench, GLOBEX, [5] * 8) == 2
    running = bench.submit([3] * 4, sampling(4), domain=GLOBEX)
    bench.step()
    key = bench.submit([1] * 72, sampling(1), domain=ACME)
    bench.step()
    assert bench.engine.load().pressure.yielded_pins == 1
    assert bench.answers[key].cached_tokens == 0
    bench.run_until_idle()
    bench.assert_exact(key, running)


def test_pins_of_another_tenant_give_way_to_who_has_waited_long() -> None:
    bench = Bench(num_blocks=20, config=TIGHT, durations=Durations(step_s=0.5, token_s=0.0))
    bench.engine.set_quotas(make_table(acme=TierShare(0.2, 0.2)))
    assert pin(bench, GLOBEX, [5] * 8) == 2
    large: RequestKey | None = None
    for number in range(20):
        if number == 1:
            large = bench.submit([1] * 60, sampling(1), domain=make_domain("large"))
        bench.submit([number + 10] * 4, sampling(4), domain=ACME)  # the next one starts before it ends
        for _ in range(3):
            bench.step()
        assert bench.engine.load().running_requests > 0, "it could start without waiting"
    assert large is not None
    finished = bench.answers[large].finished
    assert finished is not None, "it waits for pins while others wait for it"
    assert PATIENCE_S <= finished.queue_s < 2 * PATIENCE_S
    assert bench.engine.load().pressure.yielded_pins == 1
    bench.run_until_idle()


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    bench = Bench(num_blocks=20, config=TIGHT, durations=Durations(step_s=0.5, token_s=0.0))
    large: RequestKey | None = None
    for number in range(200):
        bench.submit([number % 90 + 5] * 12, sampling(12), domain=GLOBEX)
        if number == 5:
            large = bench.submit([1] * 60, sampling(4), domain=ACME)
        for _ in range(4):
            bench.step()
        if large is not None and bench.answers[large].finished is not None:
            break
    assert large is not None
    finished = bench.answers[large].finished
    assert finished is not None, "small ones were served before it all the time"
    assert finished.queue_s < 2 * LAST_PATIENCE_S
    bench.run_until_idle()


def test_a_flood_does_not_fill_the_queue_against_others() -> None:
    config = EngineConfig(num_step_tokens=64, num_max_sequences=16, num_max_waiting=8)
    bench = Bench(num_blocks=64, config=config)
    for number in range(8):
        bench.submit([number] * 4, domain=GLOBEX)
    with pytest.raises(UnavailableError):
        bench.submit([50] * 4, domain=GLOBEX)
    admitted = [bench.submit([60 + number] * 4, domain=ACME) for number in range(4)]
    with pytest.raises(UnavailableError):
        bench.submit([70] * 4, domain=ACME)
    bench.run_until_idle()
    bench.assert_exact(*admitted)


def test_usage_tells_who_waits() -> None:
    bench = Bench(num_blocks=64, config=TIGHT)
    bench.submit([1] * 4, domain=ACME)
    bench.submit([2] * 4, domain=ACME)
    bench.submit([1] * 4, domain=GLOBEX)
    assert {use.tenant: use.waiting_requests for use in bench.engine.usage()} == {"acme": 2, "globex": 1}
    bench.run_until_idle()
    assert all(use.waiting_requests == 0 for use in bench.engine.usage())


def test_times_lost_to_preemption_have_a_name() -> None:
    bench = Bench(num_blocks=8, config=TIGHT, durations=Durations(step_s=1.0, token_s=0.5))
    keys = [bench.submit([n] * 8, sampling(20)) for n in range(2)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    finished = [bench.answers[key].finished for key in keys]
    assert finished[0] is not None
    assert finished[1] is not None
    assert (finished[0].preemptions, finished[0].preempted_s, finished[0].recomputed_tokens) == (0, 0.0, 0)
    assert finished[1].preemptions > 0
    assert finished[1].recomputed_tokens > 0
    assert 0 < finished[1].recompute_s < finished[1].prefill_s + finished[1].decode_s
    assert 0 < finished[1].preempted_s < finished[1].prefill_s + finished[1].decode_s
    assert finished[1].swap_s == 0
    total_s = sum((finished[1].queue_s, finished[1].prefill_s, finished[1].decode_s))
    assert total_s == pytest.approx(bench.clock.monotonic_s() - 1_000.0)
    computed_again = bench.runner.num_computed - 2 * (8 + 19)
    assert finished[1].recomputed_tokens == computed_again


def run_a_guest(bench: Bench) -> None:
    """Lets requests of one tenant preempt each other until one of them holds what is guaranteed to another."""
    bench.engine.set_quotas(make_table(globex=TierShare(0.5, 1.0)))
    for number in range(1, 6):
        bench.submit([number] * 4, sampling(240), domain=ACME)
    bench.step()
    rows = bench.runner.plans[-1].rows
    while bench.engine.num_held_blocks < 61 or len(rows) > 1 or rows[0].kv_length > 200:
        bench.step()  # until one runs alone and holds many more blocks than it has tokens for
        rows = bench.runner.plans[-1].rows


def test_what_cannot_be_preempted_any_more_is_ended_when_a_guarantee_is_claimed() -> None:
    bench = Bench(num_blocks=64, config=TIGHT, max_model_len=2_048)
    run_a_guest(bench)
    key = bench.submit([99] * 60, sampling(60), domain=GLOBEX)
    bench.step()
    bench.step()
    assert bench.answers[key].cached_tokens is not None, "it waits for blocks that are its own"
    failures = [answer.error for answer in bench.answers.values() if answer.error is not None]
    assert len(failures) == 1
    assert isinstance(failures[0], UnavailableError)
    assert "lent" in str(failures[0])
    bench.run_until_idle()
    bench.assert_exact(key)


def test_it_runs_to_its_end_where_nobody_claims_any() -> None:
    bench = Bench(num_blocks=64, config=TIGHT, max_model_len=2_048)
    run_a_guest(bench)
    bench.run_until_idle()
    assert all(answer.error is None for answer in bench.answers.values())
    bench.assert_exact(*bench.answers)
