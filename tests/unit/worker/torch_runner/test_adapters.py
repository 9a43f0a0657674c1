"""Adapters in the runners, against `generate` of a model into whose weights they were merged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from cache_store.adapter_files import read_adapter
from cache_store.clock import SystemClock
from cache_store.domain import NO_ADAPTER, AdapterDigest, Domain
from cache_store.errors import InvalidRequestError
from cache_store.tokens import pack
from tests.support.adapter_folders import ATTENTION, merged, plain_tensors, write_adapter, write_folder
from tests.support.domains import make_domain
from tests.support.reference import generate
from tests.support.runner_drivers import contiguous_driver, paged_driver, tokens
from tests.support.step_driver import Driver, Track
from worker.engine import Engine
from worker.engine_config import EngineConfig
from worker.requests import CacheMode, EngineRequest, Generated, RequestKey, Started
from worker.sampling import SamplingParams
from worker.torch_runner.adapters import AdapterSet
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner

NUM_NEW = 24
TOLERANCE = 2e-4
FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gemma3_text")


def attach(runner: object, folder: Path) -> AdapterDigest:
    assert isinstance(runner, PagedRunner) or hasattr(runner, "attach_adapter")
    adapter = runner.prepare_adapter(read_adapter(folder))
    runner.attach_adapter(adapter)
    return adapter.digest


def assert_same(track: Track, model: LoadedModel, prompt: list[int]) -> None:
    reference = generate(model, prompt, NUM_NEW)
    assert len(track.answer) == NUM_NEW
    assert torch.allclose(torch.stack(track.logits), reference.logits, atol=TOLERANCE, rtol=0)
    assert track.answer == reference.tokens


def run_mixed(driver: Driver, adapters: list[AdapterDigest], prompts: list[list[int]]) -> list[Track]:
    """Prompts in one batch, prefilled in parts beside each other, each under its adapter."""
    tracks = [driver.start(prompt) for prompt in prompts]
    of = dict(zip((track.id for track in tracks), adapters, strict=True))
    inner = driver.runner
    run = inner.run

    def with_adapters(plan):  # type: ignore[no-untyped-def]
        return run(replace(plan, rows=tuple(replace(row, adapter=of[row.sequence]) for row in plan.rows)))

    driver.runner.run = with_adapters  # type: ignore[method-assign]
    driver.step(*((track, 7) for track in tracks))
    driver.step(*((track, len(track.tokens) - 7) for track in tracks))
    driver.decode(tracks, NUM_NEW - 1)
    return tracks


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_two_adapters_and_none_in_one_batch_are_exact(
    tiny: Callable[[str], LoadedModel], name: str, tmp_path: Path
) -> None:
    model = tiny(name)
    folders = [write_adapter(tmp_path / "a", model, 1), write_adapter(tmp_path / "b", model, 2, ATTENTION, rank=2)]
    driver = paged_driver(model, "fastest")
    a, b = (attach(driver.runner, folder) for folder in folders)
    models = [model, merged(model, folders[0]), merged(model, folders[1]), merged(model, folders[0])]
    prompts = [tokens(40, 1), tokens(40, 1), tokens(40, 1), tokens(23, 2)]
    tracks = run_mixed(driver, [NO_ADAPTER, a, b, a], prompts)
    for track, reference, prompt in zip(tracks, models, prompts, strict=True):
        assert_same(track, reference, prompt)
    assert len({tuple(track.answer) for track in tracks[:3]}) == 3, "the adapters change nothing"


def test_the_contiguous_runner_is_exact_with_adapters(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    model = tiny("llama")
    folder = write_adapter(tmp_path / "a", model, 1)
    driver = contiguous_driver(model)
    adapter = attach(driver.runner, folder)
    prompt = tokens(40, 1)
    under, plain = run_mixed(driver, [adapter, NO_ADAPTER], [prompt, prompt])
    assert_same(under, merged(model, folder), prompt)
    assert_same(plain, model, prompt)


def test_a_step_without_adapters_finds_the_model_untouched(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    model = tiny("llama")
    driver = paged_driver(model, "fastest")
    adapter = attach(driver.runner, write_adapter(tmp_path / "a", model, 1))
    prompt = tokens(20, 1)
    run_mixed(driver, [adapter], [prompt])
    linears = [each for each in model.module.modules() if isinstance(each, nn.Linear)]
    assert not any("forward" in each.__dict__ for each in linears)
    assert driver.runner._adapters.of_step(()) is None


class Served:
    """An engine over a paged runner whose unwritten slots hold NaN."""

    def __init__(self, model: LoadedModel, num_blocks: int = 64) -> None:
        attention = fastest_attention(model)
        self.runner = PagedRunner(model, num_blocks, attention, fill=math.nan)
        self.engine = Engine(self.runner, SystemClock(), EngineConfig(num_step_tokens=32, num_max_sequences=8))
        self._next = 0
        self.tokens: dict[RequestKey, list[int]] = {}
        self.cached: dict[RequestKey, int] = {}

    def load(self, folder: Path) -> AdapterDigest:
        adapter = self.runner.prepare_adapter(read_adapter(folder))
        self.engine.attach_adapter(adapter)
        return adapter.digest

    def retire(self, adapter: AdapterDigest) -> None:
        self.engine.retire_adapter(adapter, self.runner.info.format_with(adapter))

    def domain(self, adapter: AdapterDigest, tenant: str = "acme") -> Domain:
        return make_domain(tenant, kv_format=self.runner.info.format_with(adapter))

    def submit(self, prompt: list[int], adapter: AdapterDigest, num_new: int = NUM_NEW) -> RequestKey:
        self._next += 1
        key = RequestKey(self._next)
        params = SamplingParams(0.0, 1.0, 0, 1, num_new, 0, ())
        request = EngineRequest(
            key, self.domain(adapter), pack(prompt), params, 1, CacheMode.READ_WRITE, adapter=adapter
        )
        self.tokens[key] = []
        self.engine.submit(request)
        return key

    def step(self) -> None:
        for output in self.engine.step():
            if isinstance(output, Started):
                self.cached[output.key] = output.cached.total
            elif isinstance(output, Generated):
                self.tokens[output.key] += output.token_ids
        self.engine.check_invariants()

    def run(self) -> None:
        while self.engine.has_work:
            self.step()

    def answer(self, prompt: list[int], adapter: AdapterDigest) -> tuple[list[int], int]:
        key = self.submit(prompt, adapter)
        self.run()
        return self.tokens[key], self.cached[key]


def test_adapters_share_no_blocks_and_each_finds_its_own(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    model = tiny("llama")
    folders = [write_adapter(tmp_path / name, model, seed) for seed, name in enumerate("ab")]
    served = Served(model)
    adapters = [NO_ADAPTER, *(served.load(folder) for folder in folders)]
    models = [model, *(merged(model, folder) for folder in folders)]
    prompt = tokens(50, 1)
    expected = [generate(each, prompt, NUM_NEW).tokens for each in models]
    assert [served.answer(prompt, each) for each in adapters] == [(each, 0) for each in expected]
    assert [served.answer(prompt, each) for each in adapters] == [(each, 49) for each in expected]


def test_preempted_requests_of_several_adapters_stay_exact(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    model = tiny("llama")
    folders = [write_adapter(tmp_path / name, model, seed) for seed, name in enumerate("ab")]
    served = Served(model, num_blocks=9)
    adapters = [NO_ADAPTER, *(served.load(folder) for folder in folders)]
    models = [model, *(merged(model, folder) for folder in folders)]
    prompts = [tokens(40, seed) for seed in range(3)]
    keys = [served.submit(prompt, each, 60) for prompt, each in zip(prompts, adapters, strict=True)]
    served.run()
    assert served.engine.load().pressure.preemptions > 0
    for key, each, prompt in zip(keys, models, prompts, strict=True):
        assert served.tokens[key] == generate(each, prompt, 60).tokens


def test_a_retired_adapter_ends_what_it_began_and_then_goes(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    model = tiny("llama")
    folder = write_adapter(tmp_path / "a", model, 1)
    served = Served(model)
    adapter = served.load(folder)
    prompt = tokens(50, 1)
    served.answer(prompt, adapter)
    key = served.submit(prompt, adapter)
    served.step()
    served.step()
    served.retire(adapter)
    assert served.runner._adapters._attached.keys() == {adapter}
    served.run()
    assert served.tokens[key] == generate(merged(model, folder), prompt, NUM_NEW).tokens
    served.engine.tick()
    assert not served.runner._adapters._attached
    assert served.load(folder) == adapter
    assert served.answer(prompt, adapter)[1] == 0, "what it had cached was dropped"
    assert served.answer(prompt, adapter)[1] == 49


def test_an_adapter_for_another_model_is_refused_by_shape_or_name(
    tiny: Callable[[str], LoadedModel], tmp_path: Path
) -> None:
    adapters = AdapterSet(tiny("llama").module)
    with pytest.raises(InvalidRequestError, match=r"is of 6 inputs and 10 outputs, the model's has 96 and 96"):
        adapters.prepare(read_adapter(write_folder(tmp_path / "shape", plain_tensors())))
    strange = write_folder(tmp_path / "name", plain_tensors(path="model.decoder.q_proj"))
    with pytest.raises(InvalidRequestError, match=r"targets model.decoder.q_proj, which the model does not have"):
        adapters.prepare(read_adapter(strange))


def test_what_is_no_plain_linear_layer_is_refused(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    adapters = AdapterSet(tiny("llama").module)
    for path, reason in (("lm_head", "the model's head"), ("model.norm", "a LlamaRMSNorm; served are linear layers")):
        folder = write_folder(tmp_path / path, plain_tensors(path=path), target_modules=[path.split(".")[-1]])
        with pytest.raises(InvalidRequestError, match=reason):
            adapters.prepare(read_adapter(folder))


def test_weights_that_are_not_finite_are_refused(tiny: Callable[[str], LoadedModel], tmp_path: Path) -> None:
    model = tiny("llama")
    path = "model.layers.0.self_attn.q_proj"
    tensors = {f"{path}.lora_A": torch.full((4, 96), math.nan), f"{path}.lora_B": torch.zeros(96, 4)}
    with pytest.raises(InvalidRequestError, match="not all finite"):
        AdapterSet(model.module).prepare(read_adapter(write_folder(tmp_path, tensors)))
