"""Several samples of one prompt: one prefill, shared blocks, a copy of the last partial one."""

from __future__ import annotations

import pytest

from tests.support.engines import Bench, sampling
from worker.engine_config import EngineConfig
from worker.requests import CacheMode


@pytest.mark.parametrize("mode", list(CacheMode))
@pytest.mark.parametrize("length", [1, 3, 4, 6, 8])
@pytest.mark.parametrize("window", [None, 5])
def test_samples_are_exact_and_the_prompt_is_prefilled_once(length: int, mode: CacheMode, window: int | None) -> None:
    bench = Bench(window=window)
    bench.answer(range(length), sampling(9, temperature=0.9), num_samples=4, mode=mode)
    bench.assert_exact(*bench.requests)
    assert bench.runner.num_computed == length + 4 * 8
    assert [len(draws) for draws in [bench.runner.plans[0].rows[0].draws]] == [4]


@pytest.mark.parametrize(("length", "num_copies"), [(6, 3), (8, 0)])
def test_full_blocks_are_shared_and_the_partial_one_is_copied_for_all_but_one(length: int, num_copies: int) -> None:
    bench = Bench(window=5)
    bench.submit(range(length), num_samples=4)
    bench.step()
    assert bench.engine.load().used_blocks == 2
    bench.step()
    plan = bench.runner.plans[-1]
    assert len(plan.copies) == num_copies * 2, "one copy per group"
    assert len({row.block_tables[0][: length // 4] for row in plan.rows}) == 1
    assert len({row.block_tables[0][length // 4] for row in plan.rows}) == 4


def test_each_sample_ends_on_its_own() -> None:
    bench = Bench(vocab_size=8)
    answer = bench.answer(range(6), sampling(30, temperature=0.9, stop_token_ids=(3,)), num_samples=5)
    bench.assert_exact(*bench.requests)
    assert len({len(tokens) for tokens in answer.tokens.values()}) > 1


@pytest.mark.parametrize("ending", [{0}, {1}, {0, 1}, {0, 1, 2}])
def test_samples_that_end_with_their_first_token_are_not_forked(ending: set[int]) -> None:
    bench = Bench(vocab_size=1_000)
    first = bench.answer(range(6), sampling(1, temperature=0.9), num_samples=3)
    stops = tuple(first.tokens[i][0] for i in ending)
    bench.runner.plans.clear()
    bench.answer(range(6), sampling(3, temperature=0.9, stop_token_ids=stops), num_samples=3)
    bench.assert_exact(*bench.requests)
    num_copies = sum(len(plan.copies) for plan in bench.runner.plans[1:])
    assert num_copies == max(0, 3 - len(ending) - 1)


def test_preempted_samples_resume_alone_and_exactly() -> None:
    bench = Bench(num_blocks=14, config=EngineConfig(watermark=0.0))
    elder = bench.submit([9] * 4, sampling(20))
    bench.step()
    key = bench.submit(range(7), sampling(14, temperature=0.9), num_samples=3)
    bench.run_until_idle()
    bench.assert_exact(elder, key)
    finished = bench.answers[key].finished
    assert finished is not None
    assert finished.preemptions > 0


def test_samples_of_the_same_prompt_and_seed_differ_and_repeat() -> None:
    bench = Bench()
    once = bench.answer(range(5), sampling(6, temperature=1.0), num_samples=3)
    again = bench.answer(range(5), sampling(6, temperature=1.0), num_samples=3)
    assert once.tokens == again.tokens
    assert len({tuple(tokens) for tokens in once.tokens.values()}) == 3
