"""What is loaded, what it is called, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from cache_store.errors import InvalidRequestError, PreconditionError
from tests.support.tiny_models import VOCAB_SIZE, WINDOW, tiny_model, write_tokenizer
from worker.torch_runner.loader import LoadedModel, ModelDtype, load_model, preferred_dtype


def test_a_loaded_model_tells_its_layers(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("gpt_oss")
    assert [layer.window for layer in model.layers] == [WINDOW, 0, WINDOW, 0]
    assert [group.layers for group in model.groups] == [(1, 3), (0, 2)]
    assert all((layer.num_query_heads, layer.num_kv_heads, layer.head_dim) == (6, 2, 16) for layer in model.layers)
    assert all(layer.num_sinks == 6 for layer in model.layers)


def test_a_window_that_only_the_configuration_tells_is_found(tiny: Callable[[str], LoadedModel]) -> None:
    assert [group.window for group in tiny("mistral").groups] == [WINDOW]


def test_info_names_everything_that_changes_keys_and_values(tiny: Callable[[str], LoadedModel]) -> None:
    model = tiny("llama")
    info = model.info(16)
    assert (info.name, info.vocab_size, info.max_model_len, info.eos_token_ids) == ("llama", VOCAB_SIZE, 512, (2,))
    assert info.kv_format.block_size == info.geometry.block_size == 16
    assert info.kv_format.weights_digest == model.weights_digest
    assert info.kv_format.model_dtype == info.kv_format.kv_dtype == "float32"
    assert json.loads(info.kv_format.attention)["model_type"] == "llama"
    assert info.kv_format.digest() != model.info(32).kv_format.digest()
    assert info.kv_format.digest() != tiny("mistral").info(16).kv_format.digest()


def test_the_same_folder_gives_the_same_format_at_every_load(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    first, second = (load_model(folder, cache_dir=tmp_path) for _ in range(2))
    assert first.info(16) == second.info(16)


def test_the_generation_config_decides_the_end_of_sequence(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 7]}))
    assert load_model(folder, cache_dir=tmp_path).eos_token_ids == (2, 7)


UNSERVED: dict[str, tuple[dict[str, object], str]] = {
    "qwen3_next": ({}, "linear attention"),
    "llama4_text": ({"intermediate_size_mlp": 96}, "chunked attention"),
    "mamba2": ({"num_heads": 24, "head_dim": 8}, "mamba2"),
    "bloom": ({}, "bloom"),
}


@pytest.mark.parametrize("name", UNSERVED)
def test_an_architecture_that_is_not_served_is_refused_by_name(tmp_path: Path, name: str) -> None:
    changes, reason = UNSERVED[name]
    base = {"vocab_size": 64, "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 6}
    config = AutoConfig.for_model(name, **base, **changes)
    config.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(InvalidRequestError, match=reason):
        load_model(tmp_path, cache_dir=tmp_path)


def test_an_architecture_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    with pytest.raises(InvalidRequestError, match="nonesuch"):
        load_model(folder, cache_dir=tmp_path)


def test_a_configuration_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_attention_heads": 7}))
    with pytest.raises(InvalidRequestError, match="not understood"):
        load_model(folder, cache_dir=tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(InvalidRequestError, match="do not load"):
        load_model(folder, cache_dir=tmp_path)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidRequestError, match=r"lacks 1 weights .* model\.layers\.2\.mlp\.up_proj\.weight"):
        load_model(folder, cache_dir=tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidRequestError, match="not finite"):
        load_model(folder, cache_dir=tmp_path)


def test_half_precision_needs_a_cpu_that_computes_it(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    if "AVX512" in torch.backends.cpu.get_cpu_capability():
        assert load_model(folder, cache_dir=tmp_path, dtype=ModelDtype.BFLOAT16).torch_dtype == torch.bfloat16
    else:
        with pytest.raises(PreconditionError, match="use float32"):
            load_model(folder, cache_dir=tmp_path, dtype=ModelDtype.BFLOAT16)


def test_a_device_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no device"):
        load_model(tmp_path, device="toaster")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="no CUDA device"):
        load_model(tmp_path, device="cuda")


def test_a_gpu_computes_in_the_type_of_the_folder_where_it_has_16_bits() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert preferred_dtype(gpu, torch.bfloat16) is ModelDtype.BFLOAT16
    assert preferred_dtype(gpu, "float16") is ModelDtype.FLOAT16
    assert preferred_dtype(gpu, torch.float32) is preferred_dtype(gpu, None) is ModelDtype.FLOAT32
    assert preferred_dtype(cpu, torch.bfloat16) is ModelDtype.FLOAT32
