"""Keys and values in 8 bits: near the model's own answers, and exact with themselves whatever was cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import KvDtype
from tests.support.reference import generate
from tests.support.runner_drivers import paged_driver, tokens
from tests.support.step_driver import Driver, Track
from worker.torch_runner.loader import LoadedModel, with_kv_dtype
from worker.torch_runner.paged import PagedRunner

QUANTISED = [KvDtype.INT8, KvDtype.FLOAT8]
MODELS = ["llama", "gemma3_text", "gpt_oss"]
BACKENDS = ["gather", "fastest"]
BOUND = {KvDtype.INT8: 0.1, KvDtype.FLOAT8: 0.45}
"""Largest RMS difference of logits, of their deviation; random weights of this size enlarge errors."""


def logits_of(track: Track) -> Tensor:
    return torch.stack(track.logits)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", QUANTISED)
@pytest.mark.parametrize("name", MODELS)
def test_logits_stay_near_those_of_transformers(
    tiny: Callable[[str], LoadedModel], name: str, kv_dtype: KvDtype, backend: str
) -> None:
    model = tiny(name)
    prompt = tokens(70, 1)
    reference = generate(model, prompt, 20)
    driver = paged_driver(with_kv_dtype(model, kv_dtype), backend)
    track = driver.start(prompt)
    driver.step((track, 30))
    driver.step((track, 40))
    for token in reference.tokens[:-1]:  # fed what the model says: one other token would change all that follow
        track.tokens[-1] = token
        driver.step((track, 1))
    difference = (logits_of(track) - reference.logits).square().mean().sqrt()
    assert 0 < difference < BOUND[kv_dtype] * reference.logits.std()


def answer(driver: Driver, prompt: list[int], prefix: Track | None, num_shared: int) -> Track:
    """The prompt in steps that end at `num_shared`, of which those before it are left out where a prefix is given."""
    track = driver.start(prompt, prefix_of=prefix, num_shared=num_shared if prefix else 0)
    if prefix is None:
        driver.step((track, num_shared))
    driver.step((track, len(prompt) - num_shared))
    driver.decode([track], 12)
    return track


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv_dtype", QUANTISED)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_shared", [32, 40])  # whole blocks; a third one that is copied in part, with its scales
def test_a_warm_answer_is_the_cold_one_bit_by_bit(
    tiny: Callable[[str], LoadedModel], name: str, kv_dtype: KvDtype, backend: str, num_shared: int
) -> None:
    model = with_kv_dtype(tiny(name), kv_dtype)
    shared = tokens(num_shared, 1)
    prompt = shared + tokens(25, 2)
    cold = answer(paged_driver(model, backend), prompt, None, num_shared)
    driver = paged_driver(model, backend)
    first = driver.start(shared + tokens(20, 3))
    driver.step((first, num_shared))
    driver.step((first, 20))
    driver.decode([first], 5)
    warm = answer(driver, prompt, first, num_shared)
    assert warm.answer == cold.answer
    assert torch.equal(logits_of(warm), logits_of(cold))


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_formats_have_domains_of_their_own_and_pools_of_their_size(
    tiny: Callable[[str], LoadedModel], kv_dtype: KvDtype
) -> None:
    plain = tiny("llama")
    quantised = with_kv_dtype(plain, kv_dtype)
    assert quantised.info(16).kv_format == replace(plain.info(16).kv_format, kv_dtype=kv_dtype.value)
    assert quantised.info(16).kv_format.digest() != plain.info(16).kv_format.digest()
    runners = [paged_driver(model, "gather").runner for model in (plain, quantised)]
    sizes = [runner.pools.size_bytes for runner in runners if isinstance(runner, PagedRunner)]
    width = plain.layers[0].head_dim
    assert sizes[0] / sizes[1] == pytest.approx(4 * width / (width + 4))


def test_formats_that_are_no_quantised_ones_of_the_model_are_refused(tiny: Callable[[str], LoadedModel]) -> None:
    assert with_kv_dtype(tiny("llama"), KvDtype.FLOAT32) is tiny("llama")
    with pytest.raises(InvalidRequestError, match="float32 model's keys and values"):
        with_kv_dtype(tiny("llama"), KvDtype.BFLOAT16)
    with pytest.raises(InvalidRequestError, match="latents are not cached as int8"):
        with_kv_dtype(tiny("deepseek_v3"), KvDtype.INT8)
