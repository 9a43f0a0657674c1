"""What `stemcache plan` says of a folder, beside what loading it finds and what a worker allocates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cache_store.errors import InvalidRequestError
from cache_store.kv_layout import KvDtype
from cache_store.planning.model_shape import Choices, read_model
from cache_store.planning.pool import plan_pool
from cache_store.planning.weights import WeightSource
from cache_store.registry import WorkerId
from tests.support.tiny_models import NAMES, tiny_model
from worker.build import build_runner
from worker.config import KvBytes, WorkerConfig
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner


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


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_allocates_what_was_planned(name: str, tmp_path: Path) -> None:
    folder, size_bytes = tiny_model(name, tmp_path), 3_000_000
    planned = plan_pool(read_model(folder, Choices(dtype=KvDtype.FLOAT32)), size_bytes)
    runner = build_runner(
        WorkerConfig(
            worker_id=WorkerId("w"),
            model_name=name,
            redis_url="redis://127.0.0.1:1",
            cluster_key=bytes(32),
            pool=KvBytes(size_bytes),
            model_folder=folder,
            cache_dir=tmp_path,
        )
    )
    assert isinstance(runner, PagedRunner)
    assert runner.num_blocks == planned.num_blocks
    assert runner.pools.size_bytes == planned.size_bytes <= size_bytes


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
