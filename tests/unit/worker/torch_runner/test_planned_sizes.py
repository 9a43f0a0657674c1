"""What `stemcache plan` says of a folder, beside what loading it finds and what a worker allocates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import KvDtype
from cache_store.planning.kv_cost import kv_cost
from cache_store.planning.model_shape import Choices, read_model
from cache_store.planning.pool import USUAL_LIMITS, Load, PoolPlan, plan_pool
from cache_store.planning.weights import WeightSource
from cache_store.pool_sizes import StepLimits
from cache_store.registry import WorkerId
from tests.support.tiny_models import NAMES, kernel_cache, tiny_model
from worker.build import build_runner
from worker.config import KvBytes, KvChoice, WorkerConfig
from worker.model_files.digests import default_cache_dir
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner
from worker.torch_runner.prepare import prepare_smollm2

ONE_REQUEST = Load(1, 512, 512, 0)


@pytest.mark.parametrize("name", NAMES)
def test_groups_and_weights_are_those_that_loading_finds(name: str, tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny(name)
    planned = read_model(model.folder.path, Choices(dtype=KvDtype.FLOAT32))
    assert planned.groups == model.groups
    assert planned.geometry == model.geometry(16)
    assert planned.max_tokens == model.max_model_len or name == "gpt_oss"  # there RoPE ends before the model does
    saved = model.module.state_dict()
    parameter_bytes, buffer_bytes = (
        sum(each.numel() * each.element_size() for each in tensors)
        for tensors in (
            model.module.parameters(),
            (each for path, each in model.module.named_buffers() if path in saved),  # corrections of expert scores
        )
    )
    assert planned.weights.source is WeightSource.HEADERS
    assert planned.weights.total_bytes == parameter_bytes + buffer_bytes
    counted = read_model(model.folder.path / "config.json", Choices(dtype=KvDtype.FLOAT32)).weights
    assert counted.source is WeightSource.COUNTED
    assert counted.total_bytes == parameter_bytes
    assert counted.lookup_bytes == planned.weights.lookup_bytes
    assert counted.expert_bytes == planned.weights.expert_bytes


def worker_config(folder: Path, size_bytes: int, kv_dtype: KvChoice = KvChoice.AUTO) -> WorkerConfig:
    """As `stemcache up` makes one."""
    return WorkerConfig(
        worker_id=WorkerId("w"),
        model_name="tiny",
        redis_url="redis://127.0.0.1:1",
        cluster_key=bytes(32),
        pool=KvBytes(size_bytes),
        model_folder=folder,
        cache_dir=kernel_cache(folder.parent),
        kv_dtype=kv_dtype,
    )


def check_pool(folder: Path, size_bytes: int, kv_dtype: KvChoice = KvChoice.AUTO) -> PoolPlan:
    """The plan of a pool, which is what a worker allocates."""
    quantised = None if kv_dtype is KvChoice.AUTO else KvDtype(kv_dtype.value)
    planned = plan_pool(read_model(folder, Choices(KvDtype.FLOAT32, quantised)), size_bytes, ONE_REQUEST)
    runner = build_runner(worker_config(folder, size_bytes, kv_dtype))
    assert isinstance(runner, PagedRunner)
    assert (runner.num_blocks, runner.num_slots) == (planned.num_blocks, planned.num_slots)
    assert runner.pools.size_bytes == planned.size_bytes <= size_bytes
    return planned


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_allocates_what_was_planned(name: str, tmp_path: Path) -> None:
    check_pool(tiny_model(name, tmp_path), 3_000_000)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_a_large_pool_has_fewer_slots_for_windows(name: str, tmp_path: Path) -> None:
    planned = check_pool(tiny_model(name, tmp_path), 60_000_000)
    assert planned.num_slots[1] < planned.num_slots[0] == planned.num_blocks


@pytest.mark.parametrize("kv_dtype", [KvChoice.INT8, KvChoice.FLOAT8])
def test_quantised_pools_are_planned_too(kv_dtype: KvChoice, tmp_path: Path) -> None:
    planned = check_pool(tiny_model("llama", tmp_path), 3_000_000, kv_dtype)
    assert planned.num_blocks > 3 * check_pool(tmp_path / "llama", 3_000_000).num_blocks


@pytest.mark.slow
def test_smollm2_has_the_pool_that_was_planned(tmp_path: Path) -> None:
    folder = prepare_smollm2(default_cache_dir(), lambda _: None)
    planned = read_model(folder, Choices(KvDtype.FLOAT32))
    assert kv_cost(planned).bytes_per_token == 2 * 30 * 3 * 64 * 4
    check_pool(folder, 64 << 20)


def test_a_worker_that_is_told_nothing_else_has_the_usual_limits(tmp_path: Path) -> None:
    config = worker_config(tmp_path, 1 << 20)
    assert StepLimits(config.max_num_sequences, config.token_budget) == USUAL_LIMITS


def test_half_a_file_of_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    with pytest.raises(InvalidRequestError, match="is no safetensors file"):
        read_model(folder, Choices())


def test_sizes_need_no_weights(tmp_path: Path) -> None:
    whole = tiny_model("gemma2", tmp_path)
    alone = tmp_path / "alone.json"
    alone.write_text((whole / "config.json").read_text())
    assert read_model(alone, Choices()).groups == read_model(whole, Choices()).groups
    assert json.loads(alone.read_text())["model_type"] == "gemma2"
