"""A whole step in one call of the kernels, against the same step stage by stage: the same bits, whatever is in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cache_store.kv_layout import KvDtype
from tests.support.compilers import compiler, needs_compiler
from tests.support.runner_drivers import tokens
from tests.support.step_driver import Driver
from tests.support.tiny_models import kernel_cache, tiny_model
from worker.step_plan import StepPlan
from worker.torch_runner.attention_backend import Order
from worker.torch_runner.fused_forward import TeamAttention
from worker.torch_runner.hook import LayerAttention
from worker.torch_runner.loader import LoadedModel, load_model, with_kv_dtype
from worker.torch_runner.native_attention import NativeAttention
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.pools import KvPools
from worker.torch_runner.step_batch import StepBatch

pytestmark = needs_compiler
Load = Callable[[str, KvDtype], LoadedModel]


class StageByStage:
    """A back end whose steps offer nothing but the attention of one layer at a time."""

    name = "stage by stage"

    def __init__(self, native: NativeAttention) -> None:
        self._native = native

    def begin(self, pools: KvPools, batch: StepBatch) -> LayerAttention:
        return _Stages(self._native.begin(pools, batch))


class _Stages:
    def __init__(self, attention: LayerAttention) -> None:
        assert isinstance(attention, TeamAttention)
        self.attend = attention.attend


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    folder = tmp_path_factory.mktemp("models")

    def get(name: str, kv_dtype: KvDtype) -> LoadedModel:
        path = folder / name
        made = path if path.exists() else tiny_model(name, folder)
        return with_kv_dtype(load_model(made, cache_dir=kernel_cache(folder)), kv_dtype)

    return get


def logits_of(model: LoadedModel, attention: NativeAttention | StageByStage, num_threads: int) -> list[Tensor]:
    """Of every step of a short history: prompts in pieces, decoding beside them, a shared prefix, a step that grows."""
    seen: list[Tensor] = []

    def observe(_: StepPlan, logits: Tensor) -> None:
        seen.append(logits.clone())

    bench = Driver(PagedRunner(model, 200, attention, fill=math.nan, num_threads=num_threads, observer=observe))
    first, second = bench.start(tokens(70, seed=1)), bench.start(tokens(9, seed=2))
    bench.step((first, 33))
    bench.step((second, 9), (first, 37))
    third = bench.start(first.tokens[:64] + tokens(5, seed=3), prefix_of=first, num_shared=64)
    bench.step((first, 1), (second, 1), (third, 3))
    bench.step((first, 1), (third, 2))
    fourth = bench.start(tokens(300, seed=4))
    bench.step((first, 1), (third, 1), (fourth, 250))
    bench.decode([first, third], 20)
    return seen


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("kv_dtype", [KvDtype.FLOAT32, KvDtype.INT8, KvDtype.FLOAT8])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_all_layers_in_one_call_give_the_same_bits(
    load: Load, name: str, kv_dtype: KvDtype, num_threads: int, tmp_path: Path
) -> None:
    model = load(name, kv_dtype)
    assert model.fused is not None
    native = NativeAttention(compiler(), kernel_cache(tmp_path), num_threads, Order.FIXED)
    calls, stages = (logits_of(model, each, num_threads) for each in (native, StageByStage(native)))
    assert len(calls) == len(stages) > 20
    assert all(torch.equal(a, b) for a, b in zip(calls, stages, strict=True))


def test_an_attention_of_fewer_threads_than_torch_has_is_not_called_by_more(load: Load, tmp_path: Path) -> None:
    model = load("llama", KvDtype.FLOAT32)
    alone = NativeAttention(compiler(), kernel_cache(tmp_path), 1, Order.FIXED)
    both = NativeAttention(compiler(), kernel_cache(tmp_path), 3, Order.FIXED)
    assert all(torch.equal(a, b) for a, b in zip(logits_of(model, alone, 3), logits_of(model, both, 3), strict=True))
