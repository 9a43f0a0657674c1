"""The forward by our own kernels against the model's modules: families, odd sizes, batches, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.compilers import needs_compiler
from tests.support.tiny_models import load_tiny
from worker.torch_runner.forward import forward
from worker.torch_runner.fused_forward import FusedForward
from worker.torch_runner.hook import attention_context
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.recording import RecordingAttention

pytestmark = needs_compiler
TOLERANCE = 2e-5
ODD = {"hidden_size": 90, "intermediate_size": 101, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 22}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied head": ("llama", {"tie_word_embeddings": True}),
    "one KV head, odd sizes": ("llama", ODD),
    "as many KV heads as heads": ("llama", {"num_key_value_heads": 6}),
    "wide heads": ("llama", {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256}),
    "scaled rotation": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": 24}),
    "phi3": ("phi3", {"sliding_window": None}),
}


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    """The loaded model of one of FAMILIES."""
    folder, loaded = tmp_path_factory.mktemp("families"), {}

    def get(name: str) -> LoadedModel:
        if name not in loaded:
            model, changes = FAMILIES[name]
            loaded[name] = load_tiny(model, folder, **changes)
        return loaded[name]

    return get


def fused(model: LoadedModel) -> FusedForward:
    assert model.fused is not None
    return model.fused


def flat(lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    generator = np.random.default_rng(sum(lengths))
    return generator.integers(0, 384, sum(lengths)), np.concatenate([np.arange(length) for length in lengths])


@torch.inference_mode()
def by_kernels(model: LoadedModel, lengths: tuple[int, ...]) -> Tensor:
    tokens, positions = flat(lengths)
    return fused(model)(RecordingAttention(lengths), tokens, positions, np.arange(sum(lengths))).clone()


@torch.inference_mode()
def by_modules(model: LoadedModel, lengths: tuple[int, ...]) -> Tensor:
    tokens, positions = (torch.from_numpy(each).unsqueeze(0) for each in flat(lengths))
    with attention_context(RecordingAttention(lengths)):
        output = model.module(input_ids=tokens, position_ids=positions, attention_mask=None, use_cache=False)
    logits: Tensor = output.logits[0]
    return logits


def assert_close(a: Tensor, b: Tensor) -> None:
    assert float((a - b).abs().max()) <= TOLERANCE * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_the_logits_of_its_modules(family: Callable[[str], LoadedModel], name: str) -> None:
    for lengths in ((1,), (37,), (5, 40, 1)):
        assert_close(by_kernels(family(name), lengths), by_modules(family(name), lengths))


def test_any_number_of_rows_gives_the_logits_of_the_modules(family: Callable[[str], LoadedModel]) -> None:
    model = family("one KV head, odd sizes")
    for num_rows in (*range(1, 71), 96, 97, 200):
        assert_close(by_kernels(model, (1,) * num_rows), by_modules(model, (1,) * num_rows))


@pytest.mark.parametrize("name", ["llama", "one KV head, odd sizes", "qwen3"])
def test_a_row_has_the_same_bits_in_any_batch(family: Callable[[str], LoadedModel], name: str) -> None:
    model = family(name)
    tokens, positions = np.arange(140) % 384, np.arange(140) % 7
    num_threads = torch.get_num_threads()

    @torch.inference_mode()
    def first_row(num_rows: int) -> Tensor:
        attention = RecordingAttention((1,) * num_rows)
        return fused(model)(attention, tokens[:num_rows], positions[:num_rows], np.array([0])).clone()

    alone = first_row(1)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert all(torch.equal(first_row(num_rows), alone) for num_rows in (*range(2, 30), 97, 140))
    finally:
        torch.set_num_threads(num_threads)


def test_only_drawing_rows_are_finished(family: Callable[[str], LoadedModel]) -> None:
    model, lengths = family("llama"), (9, 4, 1)
    tokens, positions = flat(lengths)
    everything = by_kernels(model, lengths)
    with torch.inference_mode():
        for drawing in ([13], [8, 12, 13], []):
            some = forward(model, RecordingAttention(lengths), tokens, positions, np.array(drawing, dtype=np.int64))
            assert torch.equal(some, everything[drawing])


def test_joined_weights_are_kept_once(family: Callable[[str], LoadedModel]) -> None:
    model = family("llama with biases")
    storages = {each.data_ptr(): each.nbytes() for each in map(Tensor.untyped_storage, model.module.parameters())}
    assert sum(storages.values()) == sum(each.numel() * 4 for each in model.module.parameters())
    attention = model.module.get_submodule("model.layers.0.self_attn")
    starts = {attention.get_parameter(f"{name}_proj.weight").untyped_storage().data_ptr() for name in "qkv"}
    assert len(starts) == 1


def test_positions_beyond_the_first_table_are_rotated(family: Callable[[str], LoadedModel]) -> None:
    model = family("qwen2")
    tokens, positions = np.array([5, 6]), np.array([3000, 3000])
    with torch.inference_mode():
        ours = fused(model)(RecordingAttention((1, 1)), tokens, positions, np.arange(2)).clone()
        with attention_context(RecordingAttention((1, 1))):
            theirs = model.module(
                input_ids=torch.from_numpy(tokens)[None],
                position_ids=torch.from_numpy(positions)[None],
                attention_mask=None,
                use_cache=False,
            ).logits[0]
    assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "gpt_oss"])
def test_models_that_are_built_otherwise_keep_their_modules(tiny: Callable[[str], LoadedModel], name: str) -> None:
    assert tiny(name).fused is None


LOOKS_ALIKE: dict[str, tuple[str, dict[str, object]]] = {
    "a factor on the residual": ("granite", {"residual_multiplier": 0.5}),
    "interleaved rotation": ("helium", {}),
    "rotation that depends on the batch": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "a factor on queries far into the context": (
        "ministral3",
        {
            "sliding_window": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 16.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
    "another activation": ("llama", {"hidden_act": "gelu"}),
}


@pytest.mark.parametrize("name", LOOKS_ALIKE)
def test_what_only_looks_alike_keeps_its_modules(tmp_path: Path, name: str) -> None:
    model, changes = LOOKS_ALIKE[name]
    assert load_tiny(model, tmp_path, **changes).fused is None


def test_without_a_compiler_modules_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    model = load_tiny("llama", tmp_path)
    assert model.fused is None
    with torch.inference_mode():
        logits = forward(model, RecordingAttention((3,)), np.arange(3), np.arange(3), np.array([2]))
    assert torch.equal(logits, by_modules_at(model))


@torch.inference_mode()
def by_modules_at(model: LoadedModel) -> Tensor:
    with attention_context(RecordingAttention((3,))):
        output = model.module(
            input_ids=torch.arange(3)[None],
            position_ids=torch.arange(3)[None],
            attention_mask=None,
            use_cache=False,
            logits_to_keep=torch.tensor([2]),
        )
    logits: Tensor = output.logits[0]
    return logits
