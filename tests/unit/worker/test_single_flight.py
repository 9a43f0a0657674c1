"""A prefix that is just being computed is waited for, inside one domain only."""

from __future__ import annotations

import pytest

from tests.support.engines import ACME, GLOBEX, Bench, sampling
from worker.engine_config import EngineConfig
from worker.requests import CacheMode

SMALL_STEPS = EngineConfig(num_step_tokens=16, num_max_sequences=16)
PROMPT = range(64)


def num_prefilled(bench: Bench) -> int:
    """Tokens computed by rows that do not decode."""
    return sum(len(row.token_ids) for plan in bench.runner.plans for row in plan.rows if not row.is_decode)


@pytest.mark.parametrize("length", [61, 64])
def test_identical_cold_prompts_at_once_are_prefilled_once(length: int) -> None:
    bench = Bench(num_blocks=128, config=SMALL_STEPS)
    keys = [bench.submit(range(length)) for _ in range(8)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    assert num_prefilled(bench) == length
    assert [bench.answers[key].cached_tokens for key in keys] == [0] + [length // 4 * 4 - (length % 4 == 0)] * 7


def test_when_the_first_is_cancelled_the_next_takes_over_from_what_was_done() -> None:
    bench = Bench(num_blocks=128, config=SMALL_STEPS)
    first, *others = [bench.submit(PROMPT) for _ in range(4)]
    bench.step()
    bench.step()
    bench.cancel(first)
    bench.run_until_idle()
    bench.assert_exact(*others)
    assert num_prefilled(bench) == 64
    assert [bench.answers[key].cached_tokens for key in others] == [32, 63, 63]


@pytest.mark.parametrize("failure", ["row", "step"])
@pytest.mark.parametrize(("num_step_tokens", "num_steps_before", "cached"), [(16, 1, 16), (512, 0, 0)])
def test_when_the_first_fails_the_next_takes_over(
    failure: str, num_step_tokens: int, num_steps_before: int, cached: int
) -> None:
    bench = Bench(num_blocks=128, config=EngineConfig(num_step_tokens=num_step_tokens, num_max_sequences=16))
    first, *others = [bench.submit(PROMPT) for _ in range(4)]
    for _ in range(num_steps_before):
        bench.step()
    if failure == "row":
        bench.runner.failing_row = 0
    else:
        bench.runner.error = RuntimeError("injected")
    bench.run_until_idle(max_steps=100)
    assert bench.answers[first].error is not None
    bench.assert_exact(*others)
    assert [bench.answers[key].cached_tokens for key in others] == [cached, 63, 63]


def test_when_the_first_is_preempted_the_others_do_not_wait_for_it() -> None:
    bench = Bench(num_blocks=20, config=EngineConfig(num_step_tokens=8, num_max_sequences=8, watermark=0.0))
    elder = bench.submit([7] * 8, sampling(40))
    for _ in range(3):
        bench.step()
    twins = [bench.submit(range(64), sampling(2)) for _ in range(2)]
    bench.run_until_idle()
    bench.assert_exact(elder, *twins)
    finished = bench.answers[twins[0]].finished
    assert finished is not None
    assert finished.preemptions > 0


def test_the_wait_ends_with_the_shared_blocks_not_with_the_whole_prompt() -> None:
    bench = Bench(num_blocks=128, config=SMALL_STEPS)
    bench.submit(range(100))
    follower = bench.submit([*range(16), 500, 501])
    bench.step()
    assert bench.answers[follower].cached_tokens is None
    while bench.answers[follower].cached_tokens is None:
        bench.step()
    assert bench.answers[follower].cached_tokens == 16
    last_chunk, joined = bench.runner.plans[-1].rows  # the first step whose budget the leader leaves something of
    assert (last_chunk.kv_length, joined.start) == (100, 16)
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)


def test_what_brings_less_than_a_block_is_not_waited_for() -> None:
    bench = Bench(num_blocks=128)
    bench.submit(PROMPT)
    bench.submit([0, 1, 2, 500, 501])
    bench.step()
    assert len(bench.runner.plans[0].rows) == 2


def test_another_domain_neither_waits_nor_profits() -> None:
    bench = Bench(num_blocks=128)
    bench.submit(PROMPT, domain=ACME)
    foreign = bench.submit(PROMPT, domain=GLOBEX)
    own = bench.submit(PROMPT, domain=ACME)
    bench.step()
    assert [len(row.token_ids) for row in bench.runner.plans[0].rows] == [64, 64]
    bench.run_until_idle()
    assert bench.answers[foreign].cached_tokens == 0
    assert bench.answers[own].cached_tokens == 63


@pytest.mark.parametrize(
    ("leader", "follower", "cached", "num_first_rows"),
    [
        (CacheMode.READ_WRITE, CacheMode.READ_ONLY, 63, 1),
        (CacheMode.READ_WRITE, CacheMode.BYPASS, 0, 2),
        (CacheMode.READ_ONLY, CacheMode.READ_WRITE, 0, 2),
        (CacheMode.BYPASS, CacheMode.READ_WRITE, 0, 2),
    ],
)
def test_only_who_may_share_is_waited_for_by_who_may_match(
    leader: CacheMode, follower: CacheMode, cached: int, num_first_rows: int
) -> None:
    bench = Bench(num_blocks=128)
    bench.submit(PROMPT, mode=leader)
    key = bench.submit(PROMPT, mode=follower)
    bench.run_until_idle()
    assert bench.answers[key].cached_tokens == cached
    assert len(bench.runner.plans[0].rows) == num_first_rows
    bench.assert_exact(*bench.requests)


def test_who_waits_for_a_flight_does_not_hold_up_those_behind() -> None:
    bench = Bench(num_blocks=128, config=SMALL_STEPS)
    bench.submit(range(15))
    bench.submit(range(15))
    behind = bench.submit([600])
    bench.step()
    assert bench.answers[behind].cached_tokens == 0


def test_followers_wait_for_their_leader_beside_another_tenant() -> None:
    bench = Bench(num_blocks=128, config=SMALL_STEPS)
    bench.submit(range(100, 164), domain=GLOBEX)
    keys = [bench.submit(PROMPT, domain=ACME) for _ in range(4)]
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)
    assert num_prefilled(bench) <= 2 * 64
    assert [bench.answers[key].cached_tokens for key in keys] == [0, 63, 63, 63]


def test_levels_of_prefixes_are_each_computed_once() -> None:
    bench = Bench(num_blocks=128, config=SMALL_STEPS)
    system, tools = range(32), range(32, 64)
    keys = [bench.submit([*system, *tools, 100 + n, 101 + n]) for n in range(3)]
    keys += [bench.submit([*system, 200 + n, 201 + n]) for n in range(3)]
    bench.run_until_idle()
    bench.assert_exact(*keys)
    assert num_prefilled(bench) <= 64 + 6 * 2
    assert sorted(bench.answers[key].cached_tokens or 0 for key in keys) == [0, 32, 32, 32, 64, 64]


def test_a_leader_that_is_preempted_for_another_tenant_is_followed_by_the_next() -> None:
    config = EngineConfig(num_step_tokens=8, num_max_sequences=2, watermark=0.0)
    bench = Bench(num_blocks=64, config=config)
    leader, follower = (bench.submit(PROMPT, sampling(2)) for _ in range(2))
    other = bench.submit([900, 901], sampling(30))
    bench.step()
    bench.step()
    foreign = bench.submit([700] * 4, sampling(2), domain=GLOBEX)  # its part is one of two places
    bench.run_until_idle()
    bench.assert_exact(leader, follower, other, foreign)
    assert num_prefilled(bench) <= 64 + 2 + 4 + 8 * 4


def test_a_leader_that_stores_nothing_is_not_waited_for_and_the_next_one_is() -> None:
    bench = Bench(num_blocks=128, config=SMALL_STEPS)
    bench.submit(PROMPT, mode=CacheMode.READ_ONLY)
    keys = [bench.submit(PROMPT) for _ in range(3)]
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)
    assert num_prefilled(bench) == 2 * 64
    assert [bench.answers[key].cached_tokens for key in keys] == [0, 63, 63]
