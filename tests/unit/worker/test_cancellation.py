"""A request may be cancelled at any point: nothing stays held, nobody else notices."""

from __future__ import annotations

import pytest

from tests.support.engines import Bench, sampling
from worker.engine_config import EngineConfig
from worker.requests import RequestKey


def crowd(bench: Bench) -> list[RequestKey]:
    """Twins, samples and strangers in a pool that is too small for all."""
    twins = [bench.submit(range(18), sampling(6)) for _ in range(2)]
    samples = bench.submit(range(10, 17), sampling(8, temperature=0.5), num_samples=3)
    strangers = [bench.submit([n] * 5, sampling(9)) for n in (100, 101)]
    return [*twins, samples, *strangers]


def small_bench() -> Bench:
    return Bench(num_blocks=16, config=EngineConfig(num_step_tokens=12, num_max_sequences=6, watermark=0.0))


@pytest.mark.parametrize("victim", range(5))
@pytest.mark.parametrize("after_steps", range(12))
def test_one_request_cancelled_at_any_step(victim: int, after_steps: int) -> None:
    bench = small_bench()
    keys = crowd(bench)
    for _ in range(after_steps):
        bench.step()
    bench.cancel(keys[victim])
    bench.engine.check_invariants()
    bench.run_until_idle()  # `check_invariants` there compares holds with living sequences: in the end none
    bench.assert_exact(*(key for key in keys if key in bench.answers))


@pytest.mark.parametrize("after_steps", range(12))
def test_all_requests_cancelled_at_once(after_steps: int) -> None:
    bench = small_bench()
    keys = crowd(bench)
    for _ in range(after_steps):
        bench.step()
    for key in keys:
        bench.cancel(key)
        bench.engine.check_invariants()
    assert not bench.engine.has_work
    again = bench.submit(range(18), sampling(6))
    bench.run_until_idle()
    bench.assert_exact(again)


def test_cancelling_twice_or_something_unknown_does_nothing() -> None:
    bench = Bench()
    key = bench.submit(range(5))
    bench.cancel(key)
    bench.cancel(key)
    bench.cancel(RequestKey(99))
    assert not bench.engine.has_work
    assert bench.step() == ()


def test_a_request_cancelled_after_its_end_stays_answered() -> None:
    bench = Bench()
    key = bench.submit(range(5))
    bench.run_until_idle()
    bench.cancel(key)
    bench.assert_exact(key)


def test_the_runner_learns_that_a_cancelled_sequence_ended() -> None:
    bench = Bench()
    key = bench.submit(range(5))
    bench.step()
    name = bench.runner.plans[0].rows[0].sequence
    bench.cancel(key)
    bench.submit(range(3))
    bench.step()
    assert bench.runner.plans[1].ended == (name,)
