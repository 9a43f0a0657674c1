"""What an engine measures and tells about itself; time is a manual clock."""

from __future__ import annotations

import math

import pytest

from cache_store.clock import ManualClock
from tests.support.engines import Bench, sampling
from worker.digest_runner import Durations
from worker.engine_config import EngineConfig
from worker.rate import RECENT_S, RateMeter


def test_times_of_a_request() -> None:
    bench = Bench(durations=Durations(step_s=1.0, token_s=0.5), config=EngineConfig(num_max_sequences=1))
    first = bench.submit(range(10), sampling(3))
    bench.clock.advance(2.0)
    second = bench.submit(range(50, 60), sampling(3))
    bench.run_until_idle()
    finished = bench.answers[first].finished
    assert finished is not None
    assert (finished.queue_s, finished.prefill_s, finished.decode_s) == (2.0, 6.0, 2.0)
    finished = bench.answers[second].finished
    assert finished is not None
    assert (finished.queue_s, finished.prefill_s, finished.decode_s) == (8.0, 6.0, 2.0)


def test_load_counts_requests_tokens_and_blocks() -> None:
    bench = Bench(config=EngineConfig(num_max_sequences=2, num_step_tokens=8))
    bench.submit(range(20), num_samples=2)
    bench.submit(range(100, 130))
    load = bench.engine.load()
    assert (load.running_requests, load.waiting_requests, load.queued_prefill_tokens) == (0, 2, 50)
    assert load.prefill_tokens_per_s == 0
    bench.step()
    load = bench.engine.load()
    assert (load.running_requests, load.waiting_requests, load.queued_prefill_tokens) == (1, 1, 42)
    assert load.used_blocks == 5
    bench.run_until_idle()
    load = bench.engine.load()
    assert (load.running_requests, load.waiting_requests, load.queued_prefill_tokens) == (0, 0, 0)


def test_tokens_that_will_be_reused_are_not_queued_work() -> None:
    bench = Bench()
    bench.answer(range(20))
    bench.submit(range(20))
    assert bench.engine.load().queued_prefill_tokens == 1


def test_the_prefill_rate_is_that_of_the_clock_and_decoding_does_not_change_it() -> None:
    bench = Bench(durations=Durations(step_s=1.0, token_s=0.01))
    bench.answer(range(100), sampling(50))
    assert bench.engine.load().prefill_tokens_per_s == pytest.approx(50.0)


def test_the_rate_follows_a_change_and_weighs_by_tokens() -> None:
    meter = RateMeter(ManualClock())
    assert meter.tokens_per_s == 0
    meter.add(4_000, 4.0)
    meter.add(1, 1.0)
    assert 700 < meter.tokens_per_s < 1_000
    for _ in range(40):
        meter.add(1_000, 10.0)
    assert meter.tokens_per_s == pytest.approx(100.0, rel=0.01)


@pytest.mark.parametrize(("num_tokens", "seconds"), [(0, 1.0), (5, 0.0)])
def test_what_says_nothing_about_the_rate_is_left_out(num_tokens: int, seconds: float) -> None:
    meter = RateMeter(ManualClock())
    meter.add(10, 1.0)
    meter.add(num_tokens, seconds)
    assert meter.tokens_per_s == 10.0


def test_what_was_computed_counts_less_the_older_it_is() -> None:
    clock = ManualClock()
    meter = RateMeter(clock)
    assert meter.recent_tokens == 0
    meter.add(10_000, 1.0)
    clock.advance(RECENT_S)
    assert meter.recent_tokens == round(10_000 / math.e)
    meter.add(5_000, 1.0)
    clock.advance(RECENT_S)
    assert meter.recent_tokens == pytest.approx((10_000 / math.e + 5_000) / math.e, abs=1)


def test_an_engine_tells_what_it_computed_lately() -> None:
    bench = Bench(durations=Durations(step_s=1.0, token_s=0.01))
    bench.answer(range(100), sampling(1))
    assert bench.engine.load().recent_prefill_tokens == 100
