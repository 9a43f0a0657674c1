"""What an engine refuses, and what it does when a step goes wrong."""

from __future__ import annotations

import pytest

from cache_store.errors import ComputationError, InvalidRequestError, UnavailableError
from tests.support.engines import ACME, GLOBEX, Bench, sampling
from worker.engine_config import EngineConfig
from worker.step_plan import StepPlan, StepResult


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "num_samples", "field", "words"),
    [
        ([], 1, 1, "prompt", "empty"),
        ([5, 1000], 1, 1, "prompt", "token id 1000 .* 0 to 999"),
        ([1], 0, 1, "sampling.max_tokens", "at least 1"),
        ([1], 1, 0, "sampling.n", "1 to 8"),
        ([1], 1, 9, "sampling.n", "1 to 8"),
        ([1] * 60, 10, 1, "sampling.max_tokens", "60 tokens and max_tokens 10 .* 64 tokens; max_tokens up to 4 "),
        ([1] * 64, 1, 1, "prompt", "at most 63 tokens"),
        ([1] * 33, 10, 1, "sampling.max_tokens", "needs 11 blocks of 4 tokens, the worker has 10; max_tokens up to 8 "),
        ([1] * 10, 8, 5, "sampling.max_tokens", "needs 17 blocks .* max_tokens up to 3 "),
        ([1] * 42, 1, 1, "prompt", "needs 11 blocks .* shorter prompt"),
    ],
)
def test_what_can_never_be_served_is_refused_with_numbers(
    prompt: list[int], max_tokens: int, num_samples: int, field: str, words: str
) -> None:
    bench = Bench(num_blocks=10, max_model_len=64, config=EngineConfig(num_max_sequences=8))
    with pytest.raises(InvalidRequestError, match=words) as caught:
        bench.submit(prompt, sampling(max_tokens), num_samples=num_samples)
    assert caught.value.field == field
    assert not bench.engine.has_work


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "num_samples"), [([1] * 33, 8, 1), ([1] * 10, 3, 5), ([1] * 40, 1, 1)]
)
def test_what_the_refusal_says_would_fit_does_fit(prompt: list[int], max_tokens: int, num_samples: int) -> None:
    bench = Bench(num_blocks=10, max_model_len=64, config=EngineConfig(num_max_sequences=8))
    bench.answer(prompt, sampling(max_tokens), num_samples=num_samples)
    bench.assert_exact(*bench.requests)


def test_a_full_queue_refuses_until_there_is_room() -> None:
    bench = Bench(config=EngineConfig(num_max_waiting=2))
    bench.submit([1])
    bench.submit([2])
    with pytest.raises(UnavailableError) as caught:
        bench.submit([3])
    assert caught.value.retry_after_s > 0
    bench.step()
    bench.submit([3])
    bench.run_until_idle()
    bench.assert_exact(*bench.requests)


@pytest.mark.parametrize(
    ("setting", "arguments"),
    [
        ("num_max_sequences", {"num_max_sequences": 0}),
        ("num_step_tokens", {"num_step_tokens": 3, "num_max_sequences": 4}),
        ("num_max_waiting", {"num_max_waiting": 0}),
        ("watermark", {"watermark": 1.0}),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(setting: str, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=setting):
        EngineConfig(**arguments)


def test_a_failed_row_fails_only_its_request_and_commits_nothing_of_it() -> None:
    bench = Bench()
    keys = [bench.submit([n] * 9) for n in range(3)]
    bench.runner.failing_row = 1
    bench.run_until_idle()
    assert isinstance(bench.answers[keys[1]].error, ComputationError)
    bench.assert_exact(keys[0], keys[2])
    assert bench.answer([1] * 9).cached_tokens == 0
    assert bench.answer([2] * 9).cached_tokens == 8


def test_a_failed_row_ends_all_samples_of_its_request() -> None:
    bench = Bench()
    lost, kept = bench.submit([1] * 9, num_samples=3), bench.submit([2] * 9, num_samples=2)
    bench.step()
    bench.runner.failing_row = 1
    bench.run_until_idle()
    assert isinstance(bench.answers[lost].error, ComputationError)
    bench.assert_exact(kept)


def test_a_failed_step_fails_its_requests_and_the_engine_goes_on() -> None:
    bench = Bench(config=EngineConfig(num_max_sequences=2))
    lost = [bench.submit([n] * 9) for n in range(2)]
    waiting = bench.submit([2] * 9)
    bench.runner.error = RuntimeError("secret of another request")
    bench.step()
    for key in lost:
        error = bench.answers[key].error
        assert isinstance(error, ComputationError)
        assert "secret" not in str(error)
    bench.run_until_idle()
    bench.assert_exact(waiting)
    assert bench.answer([0] * 9).cached_tokens == 0


def test_scrubs_of_a_failed_step_are_asked_for_again() -> None:
    bench = Bench(num_blocks=4)
    bench.answer(range(16), sampling(1), domain=ACME)
    bench.submit(range(16), sampling(1), domain=GLOBEX)
    bench.runner.error = RuntimeError("before anything ran")
    bench.step()
    bench.answer(range(16), sampling(1), domain=GLOBEX)
    assert {scrub.slot for scrub in bench.runner.plans[-1].scrubs} == {0, 1, 2, 3}


@pytest.mark.parametrize("outcomes", [(), ((1, 2),), ((),)])
def test_a_result_that_does_not_fit_its_plan_fails_the_step(outcomes: tuple[tuple[int, ...], ...]) -> None:
    bench = Bench()

    def run(plan: StepPlan) -> StepResult:
        return StepResult(outcomes)

    bench.runner.run = run  # type: ignore[method-assign]
    key = bench.submit([1, 2, 3])
    bench.run_until_idle()
    assert isinstance(bench.answers[key].error, ComputationError)
