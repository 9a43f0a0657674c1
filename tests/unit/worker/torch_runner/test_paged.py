"""The paged runner: what steps do to its pools, and that a failing row stays alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.support.reference import generate
from tests.support.runner_drivers import paged_driver, tokens
from tests.support.step_driver import GREEDY, Driver, Track
from tests.support.tiny_models import NAMES
from worker.step_plan import RowFailure, StepPlan, StepResult
from worker.torch_runner.gather_attention import GatherAttention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner

BACKENDS = ("gather", "fastest")


def runner_of(driver: Driver) -> PagedRunner:
    assert isinstance(driver.runner, PagedRunner)
    return driver.runner


def poison(driver: Driver, track: Track, position: int) -> None:
    """Puts NaN in place of the keys and values of one token."""
    for group, table in zip(runner_of(driver).pools.groups, track.tables, strict=True):
        for part in (group.keys, group.values):
            part[table[position // driver.block_size], :, position % driver.block_size] = math.nan


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_whose_cache_is_not_finite_fails_alone(tiny: Callable[[str], LoadedModel], backend: str) -> None:
    model = tiny("llama")
    driver = paged_driver(model, backend)
    ill, well = driver.start(tokens(20, 1)), driver.start(tokens(20, 2))
    driver.step((ill, 20), (well, 20))
    poison(driver, ill, 7)
    outcomes = driver.step((ill, 1), (well, 1))
    assert isinstance(outcomes[0], RowFailure)
    driver.decode([well], 5)
    assert well.answer == generate(model, tokens(20, 2), 7).tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_window_hides_is_never_read(tiny: Callable[[str], LoadedModel], backend: str) -> None:
    model = tiny("mistral")
    driver = paged_driver(model, backend)
    track = driver.start(tokens(60, 1))
    driver.step((track, 60))
    for position in range(60 + 1 - 24):  # the token at 60 reads 37 to 60
        poison(driver, track, position)
    driver.decode([track], 5)
    assert track.answer == generate(model, tokens(60, 1), 6).tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_first_token_inside_a_window_is_read(tiny: Callable[[str], LoadedModel], backend: str) -> None:
    driver = paged_driver(tiny("mistral"), backend)
    track = driver.start(tokens(60, 1))
    driver.step((track, 60))
    poison(driver, track, 60 + 1 - 24)
    assert isinstance(driver.step((track, 1))[0], RowFailure)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scrubbed_slot_can_no_longer_be_read(tiny: Callable[[str], LoadedModel], backend: str) -> None:
    driver = paged_driver(tiny("llama"), backend)
    track = driver.start(tokens(20, 1))
    driver.step((track, 20))
    driver.scrub(0, track.tables[0][0])
    assert isinstance(driver.step((track, 1))[0], RowFailure)


@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_is_reused_at_every_offset_in_a_block(tiny: Callable[[str], LoadedModel], name: str) -> None:
    model = tiny(name)
    prompt = tokens(50, 1)
    driver = paged_driver(model, "fastest", num_blocks=120)
    first = driver.start(prompt)
    driver.step((first, 50))
    expected = generate(model, prompt, 3)
    for num_shared in range(31, 50):
        track = driver.start(prompt, prefix_of=first, num_shared=num_shared)
        driver.step((track, 50 - num_shared))
        driver.decode([track], 2)
        assert track.answer == expected.tokens
        assert torch.allclose(torch.stack(track.logits), expected.logits, atol=1e-4, rtol=0)


def test_one_prompt_gives_several_samples(tiny: Callable[[str], LoadedModel]) -> None:
    driver = paged_driver(tiny("llama"), "fastest")
    track = driver.start(tokens(9, 1))
    (outcome,) = driver.step((track, 9), draws=(GREEDY, GREEDY, GREEDY))
    assert isinstance(outcome, tuple)
    assert len(outcome) == 3
    assert len(set(outcome)) == 1


def test_an_empty_step_still_scrubs(tiny: Callable[[str], LoadedModel]) -> None:
    driver = paged_driver(tiny("llama"), "fastest")
    track = driver.start(tokens(5, 1))
    driver.step((track, 5))
    slot = track.tables[0][0]
    driver.scrub(0, slot)
    driver.step()
    assert runner_of(driver).pools.groups[0].keys[slot].isnan().all()


def test_bytes_of_the_pools_follow_the_formula(tiny: Callable[[str], LoadedModel]) -> None:
    runner = PagedRunner(tiny("gemma3_text"), 10, GatherAttention())
    assert runner.num_blocks == 10
    assert runner.pools.size_bytes == 2 * 4 * 2 * 16 * (10 * 16) * 4
    assert runner.pools.size_bytes == 10 * runner.info.geometry.bytes_per_block


def test_key_heads_are_never_copied_for_query_heads(tiny: Callable[[str], LoadedModel]) -> None:
    driver = paged_driver(tiny("llama"), "fastest", num_blocks=3)
    before = runner_of(driver).pools.size_bytes
    driver.step((driver.start(tokens(40, 1)), 40))
    assert runner_of(driver).pools.size_bytes == before == 2 * 4 * 2 * 16 * 48 * 4


def test_threads_are_set_explicitly(tiny: Callable[[str], LoadedModel]) -> None:
    before = torch.get_num_threads()
    try:
        PagedRunner(tiny("llama"), 2, GatherAttention(), num_threads=2)
        assert torch.get_num_threads() == 2
        PagedRunner(tiny("llama"), 2, GatherAttention())
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_step_leaves_no_gradient_state(tiny: Callable[[str], LoadedModel]) -> None:
    runner = PagedRunner(tiny("llama"), 2, GatherAttention())
    assert runner.run(StepPlan((), (), (), ())) == StepResult(())
    assert not any(parameter.requires_grad for parameter in tiny("llama").module.parameters())
