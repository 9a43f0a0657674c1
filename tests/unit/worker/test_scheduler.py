"""Who runs in which step: seen in the plans that reach the runner."""

from __future__ import annotations

import pytest

from tests.support.engines import ACME, GLOBEX, Bench, sampling
from worker.engine_config import EngineConfig
from worker.step_plan import Row, StepPlan


def rows_with(plan: StepPlan, token: int) -> list[Row]:
    return [row for row in plan.rows if token in row.token_ids]


def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode_in_every_step() -> None:
    bench = Bench(config=EngineConfig(num_step_tokens=16, num_max_sequences=4))
    decoding = bench.submit([7] * 4, sampling(30))
    bench.step()
    bench.submit([8] * 100, sampling(1))
    for _ in range(6):
        bench.step()
        plan = bench.runner.plans[-1]
        assert [len(row.token_ids) for row in plan.rows] == [1, 15]
        assert plan.rows[0].is_decode
    assert len(bench.answers[decoding].tokens[0]) == 7
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)


def test_no_step_exceeds_its_token_budget() -> None:
    bench = Bench(config=EngineConfig(num_step_tokens=16, num_max_sequences=16))
    for n in range(40):
        bench.submit([n] * (1 + n), sampling(1 + n % 7))
    bench.run_until_idle()
    assert max(plan.num_tokens for plan in bench.runner.plans) == 16
    bench.assert_exact(*bench.requests)


def test_no_more_samples_run_than_allowed() -> None:
    bench = Bench(config=EngineConfig(num_max_sequences=5))
    for n in range(20):
        bench.submit([n] * 3, sampling(5), num_samples=1 + n % 3)
    bench.run_until_idle()
    assert max(len(plan.rows) for plan in bench.runner.plans) <= 5
    bench.assert_exact(*bench.requests)


def test_a_small_request_does_not_overtake_a_large_one_that_waits_for_blocks() -> None:
    bench = Bench(num_blocks=10, config=EngineConfig(watermark=0.0))
    bench.submit([1] * 20, sampling(4))
    bench.step()
    large, small = bench.submit([2] * 30, sampling(1)), bench.submit([3], sampling(1))
    bench.run_until_idle()
    first_step = {n: next(i for i, plan in enumerate(bench.runner.plans) if rows_with(plan, n)) for n in (2, 3)}
    assert 1 < first_step[2] <= first_step[3]
    bench.assert_exact(large, small)


def test_an_admission_leaves_the_watermark_free_beside_running_sequences() -> None:
    bench = Bench(num_blocks=10, config=EngineConfig(watermark=0.3))
    bench.submit([1] * 16, sampling(2))
    bench.step()
    bench.submit([2] * 16, sampling(1))  # 4 + 4 blocks are held, 2 would be free
    bench.step()
    assert not rows_with(bench.runner.plans[-1], 2)
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)


def test_out_of_blocks_the_youngest_is_preempted_and_recomputed_exactly() -> None:
    bench = Bench(num_blocks=8, config=EngineConfig(watermark=0.0))
    keys = [bench.submit([n] * 8, sampling(20, temperature=0.5)) for n in range(3)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    preemptions = [answer.finished.preemptions for answer in bench.answers.values() if answer.finished]
    assert preemptions[0] == 0
    assert preemptions[2] >= 1


def test_what_a_preempted_sequence_committed_is_not_computed_again() -> None:
    bench = Bench(num_blocks=8, config=EngineConfig(watermark=0.0))
    bench.submit([1] * 8, sampling(12))
    victim = bench.submit([2] * 12, sampling(8))
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)
    finished = bench.answers[victim].finished
    assert finished is not None
    assert finished.preemptions == 1
    num_again = bench.runner.num_computed - (8 + 11) - (12 + 7)
    assert 0 < num_again < 8, "its prompt was computed again, not only what the other one took"


def test_a_preempted_sequence_finds_its_own_answer_in_the_cache() -> None:
    bench = Bench(num_blocks=8, config=EngineConfig(watermark=0.0))
    bench.submit([1] * 4, sampling(20))
    victim = bench.submit([2] * 4, sampling(20))
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)
    answer = bench.answers[victim]
    resumed = next(plan.rows[0] for plan in bench.runner.plans if plan.rows[0].start > 4 and not plan.rows[0].is_decode)
    assert resumed.token_ids[0] == answer.tokens[0][resumed.start - 4]


def test_a_preempted_sequence_comes_back_under_a_new_name() -> None:
    bench = Bench(num_blocks=6, config=EngineConfig(watermark=0.0))
    for n in range(2):
        bench.submit([n] * 8, sampling(12))
    bench.run_until_idle()
    bench.submit([5], sampling(1))
    bench.run_until_idle()
    started: set[int] = set()
    ended: list[int] = []
    for plan in bench.runner.plans:
        ended += plan.ended
        started |= {row.sequence for row in plan.rows}
        assert not {row.sequence for row in plan.rows} & set(ended), "a sequence lives on after its end"
    assert len(ended) == len(set(ended)), "an end was told twice"
    assert started - set(ended) == {max(started)}, "an end was not told"


def test_a_sequence_that_fills_the_pool_alone_finishes_without_preemption() -> None:
    bench = Bench(num_blocks=8, config=EngineConfig(watermark=0.5))
    key = bench.submit(range(20), sampling(13))
    bench.run_until_idle()
    bench.assert_exact(key)
    finished = bench.answers[key].finished
    assert finished is not None
    assert finished.preemptions == 0


@pytest.mark.parametrize("shared", range(1, 8))
def test_a_full_pool_with_a_partial_match_never_blocks(shared: int) -> None:
    bench = Bench(num_blocks=4, config=EngineConfig(watermark=0.0))
    bench.answer(range(16), sampling(1))
    key = bench.submit([*range(shared), *range(500, 516 - shared)], sampling(1))
    bench.run_until_idle(max_steps=10)
    bench.assert_exact(key)


def test_the_source_of_a_copy_is_not_given_away_in_the_same_step() -> None:
    bench = Bench(num_blocks=4, config=EngineConfig(watermark=0.0))
    bench.answer([1, 2, 3, 4], sampling(1), domain=ACME)
    copying = bench.submit([1, 2, 9], sampling(1), domain=ACME)
    greedy = bench.submit([5] * 12, sampling(1), domain=GLOBEX)  # 3 blocks: only with the copy's source
    bench.step()
    assert len(bench.runner.plans[-1].copies) == 1
    assert not rows_with(bench.runner.plans[-1], 5)
    bench.run_until_idle()
    bench.assert_exact(copying, greedy)


def test_a_decoding_row_keeps_its_table_until_the_next_block() -> None:
    bench = Bench()
    bench.submit(range(5), sampling(8))
    bench.run_until_idle()
    tables = [plan.rows[0].block_tables for plan in bench.runner.plans if plan.rows[0].is_decode]
    assert [len(table[0]) for table in tables] == [2, 2, 2, 3, 3, 3, 3]
    assert len({id(table) for table in tables}) == 2
