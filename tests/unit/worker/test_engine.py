"""The engine's answers and its use of the cache."""

from __future__ import annotations

import pytest

from cache_store.digest import Hasher, xxh3_128
from cache_store.domain import Domain
from cache_store.tokens import unpack
from tests.support.domains import make_domain
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from worker.requests import CacheMode, Finish, Generated


def one_hash_for_all(data: bytes) -> bytes:
    return bytes(16)


def test_answers_equal_the_oracle() -> None:
    bench = Bench()
    keys = [bench.submit(range(n), sampling(12), num_samples=1 + n % 3) for n in range(1, 30)]
    bench.run_until_idle()
    bench.assert_exact(*keys)


@pytest.mark.parametrize(
    "other", [GLOBEX, make_domain("acme", partition="p"), make_domain("acme", epoch="e2")], ids=lambda d: d.tenant
)
def test_the_same_domain_hits_and_another_does_not(other: Domain) -> None:
    bench = Bench()
    cached = [bench.answer(range(16), domain=domain).cached_tokens for domain in (ACME, other, ACME, other)]
    assert cached == [0, 0, 15, 15]
    bench.assert_exact(*bench.requests)


@pytest.mark.parametrize("hasher", [xxh3_128, one_hash_for_all])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("shared", range(13))
def test_a_reuse_boundary_at_every_offset_is_exact(shared: int, window: int | None, hasher: Hasher) -> None:
    bench = Bench(window=window, hasher=hasher)
    bench.answer(range(12))
    answer = bench.answer([*range(shared), *range(500, 520 - shared)])
    assert answer.cached_tokens == shared
    bench.assert_exact(*bench.requests)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 16])
def test_of_a_prompt_that_is_cached_as_a_whole_the_last_token_is_computed(length: int) -> None:
    bench = Bench()
    prompt = [*range(length)]
    bench.answer([*prompt, 99, 99, 99, 99])
    bench.runner.plans.clear()
    assert bench.answer(prompt).cached_tokens == length - 1
    assert bench.runner.plans[0].rows[0].token_ids == (length - 1,)
    bench.assert_exact(*bench.requests)


def test_a_follow_up_reuses_the_answer_too() -> None:
    bench = Bench()
    answer = bench.answer(range(10), sampling(9))
    history = [*range(10), *answer.tokens[0]]
    follow_up = bench.answer([*history, 1, 2, 3])
    assert follow_up.cached_tokens == (len(history) - 1) // 4 * 4  # the last drawn token was never computed
    bench.assert_exact(*bench.requests)


@pytest.mark.parametrize(
    ("mode", "cached", "cached_after"),
    [(CacheMode.READ_WRITE, 8, 15), (CacheMode.READ_ONLY, 8, 8), (CacheMode.BYPASS, 0, 8)],
)
def test_cache_modes(mode: CacheMode, cached: int, cached_after: int) -> None:
    bench = Bench()
    bench.answer(range(8))
    assert bench.answer(range(16), sampling(1), mode=mode).cached_tokens == cached
    assert bench.answer(range(16), mode=CacheMode.READ_ONLY).cached_tokens == cached_after
    bench.assert_exact(*bench.requests)


def test_an_identical_sampled_request_with_a_new_seed_is_drawn_again() -> None:
    bench = Bench()
    first = bench.answer(range(12), sampling(10, temperature=0.7, seed=1))
    again = bench.answer(range(12), sampling(10, temperature=0.7, seed=1))
    other = bench.answer(range(12), sampling(10, temperature=0.7, seed=2))
    assert first.tokens == again.tokens != other.tokens
    assert other.cached_tokens == 11


def test_a_stop_token_ends_the_answer_and_is_part_of_it() -> None:
    bench = Bench()
    unstopped = bench.answer(range(5), sampling(8)).tokens[0]
    stopped = bench.answer(range(5), sampling(8, stop_token_ids=(unstopped[3],)))
    assert stopped.tokens[0] == unstopped[: unstopped.index(unstopped[3]) + 1]
    assert stopped.finishes == {0: Finish.STOP}


def test_max_tokens_end_the_answer() -> None:
    answer = Bench().answer(range(5), sampling(1))
    assert len(answer.tokens[0]) == 1
    assert answer.finishes == {0: Finish.LENGTH}


def test_stop_tokens_are_not_drawn_before_min_tokens() -> None:
    bench = Bench(vocab_size=4)
    for length in range(1, 20):
        answer = bench.answer([1] * length, sampling(40, min_tokens=5, stop_token_ids=(0, 1)))
        assert not {0, 1} & set(answer.tokens[0][:5])
    assert 6 in {len(answer.tokens[0]) for answer in bench.answers.values()}
    bench.assert_exact(*bench.requests)


def test_tokens_come_step_by_step() -> None:
    bench = Bench()
    bench.submit(range(3), sampling(4))
    steps = [[output for output in bench.step() if isinstance(output, Generated)] for _ in range(4)]
    assert [len(outputs) for outputs in steps] == [1, 1, 1, 1]
    assert not bench.engine.has_work


def test_an_idle_engine_steps_without_the_runner() -> None:
    bench = Bench()
    assert bench.step() == ()
    assert bench.runner.plans == []


def test_no_token_is_computed_twice_without_memory_pressure() -> None:
    bench = Bench()
    key = bench.submit(range(30), sampling(10))
    bench.run_until_idle()
    assert bench.runner.num_computed == 30 + 10 - 1
    assert len(unpack(bench.requests[key].prompt)) == 30


def test_a_block_that_changes_domain_is_scrubbed_and_others_are_not() -> None:
    bench = Bench(num_blocks=4)
    bench.answer(range(16), sampling(1), domain=ACME)
    bench.answer(range(100, 116), sampling(1), domain=ACME)
    assert all(plan.scrubs == () for plan in bench.runner.plans)
    bench.answer(range(16), sampling(1), domain=GLOBEX)
    assert sorted(scrub.slot for scrub in bench.runner.plans[-1].scrubs) == [0, 1, 2, 3]


def test_events_and_snapshot_tell_of_the_same_blocks() -> None:
    bench = Bench()
    bench.answer(range(8), sampling(1))
    events = bench.engine.drain_events()
    assert b"".join(event.digests for event in events) == bench.engine.snapshot()[ACME.tag]
    assert bench.engine.drain_events() == ()
