"""Architectures that cannot be served exactly are refused with the reason; lengths end where keys would change."""

from __future__ import annotations

import pytest

from cache_store.errors import InvalidRequestError
from worker.model_files.support import check_supported, max_model_len

REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "indexed attention": ({"model_type": "deepseek_v32", "index_topk": 64}, r"'deepseek_v32'.* keys of an indexer"),
    "linear attention": ({"layer_types": ["linear_attention", "full_attention"]}, "linear attention keeps"),
    "chunked attention": ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked attention reads"),
    "another kind of layer": ({"layer_types": ["full_attention", "mlp"]}, "layers of type 'mlp'"),
    "convolution": ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, "convolution layers keep"),
    "text and images": ({"model_type": "llava", "vision_config": {"depth": 2}}, "more than text"),
    "position bias": ({"model_type": "falcon", "alibi": True}, "ALiBi"),
    "shared keys": ({"num_kv_shared_layers": 4}, "keys and values of other layers"),
    "encoder and decoder": ({"is_encoder_decoder": True}, "two sequences"),
    "looks ahead": ({"use_bidirectional_attention": True}, "looks ahead"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
}


@pytest.mark.parametrize(("config", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_an_architecture_is_refused_with_its_reason(config: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_supported(config)


def test_full_and_sliding_layers_are_served() -> None:
    check_supported({"model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"]})
    check_supported({"model_type": "llama"})


def test_the_length_is_that_of_the_positions() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert max_model_len({"max_position_embeddings": 512, "rope_parameters": rope}) == 512


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rope_that_depends_on_the_length_ends_at_the_original_length(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "factor": 4.0, "original_max_position_embeddings": 128}
    assert max_model_len({"max_position_embeddings": 512, "rope_parameters": rope}) == 128
    assert max_model_len({"max_position_embeddings": 512, "rope_parameters": {"full_attention": rope}}) == 128
    beside = {"max_position_embeddings": 512, "rope_parameters": {"rope_type": rope_type}}
    assert max_model_len({**beside, "original_max_position_embeddings": 64}) == 64


def test_a_configuration_without_a_length_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max_position_embeddings"):
        max_model_len({})
