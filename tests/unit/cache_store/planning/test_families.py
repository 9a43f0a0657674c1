"""Each known architecture against its own code: number of weights, layers that slide, heads and widths."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cache_store.planning.families import FAMILIES
from cache_store.planning.layers import attention_shape, layer_windows
from cache_store.planning.model_config import parse_config
from cache_store.planning.weight_count import count_weights

_USUAL: dict[str, object] = {
    "vocab_size": 384,
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_ROUTED: dict[str, object] = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 30}
_LATENT: dict[str, object] = {
    **_ROUTED,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 28,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 14,
    "n_group": 1,
    "topk_group": 1,
}
_LOCAL: dict[str, object] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_OWN: dict[str, dict[str, object]] = {
    "mixtral": _LOCAL,
    "granitemoe": _LOCAL,
    "gpt_oss": _LOCAL,
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 30,
        "shared_expert_intermediate_size": 50,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 30},
    "glm4_moe": {**_ROUTED, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "deepseek_v2": {**_LATENT, "topk_method": "greedy"},
    "deepseek_v3": _LATENT,
}
_GPT2: dict[str, object] = {"vocab_size": 384, "n_embd": 96, "n_layer": 4, "n_head": 6, "n_positions": 128}
_SWITCHED: dict[str, object] = {
    "attention_bias": True,
    "mlp_bias": True,
    "use_qk_norm": True,
    "use_bias": False,
    "tie_word_embeddings": True,
    "sliding_window": 64,
    "use_sliding_window": True,
    "max_window_layers": 3,
}


def _content(name: str, changes: dict[str, object]) -> dict[str, object]:
    if name == "gpt2":
        return {**_GPT2, "n_inner": 100 if changes else None, "bos_token_id": 1, "eos_token_id": 2}
    more = {**changes, "q_lora_rank": None} if changes and name == "deepseek_v2" else changes
    return {**_USUAL, **_OWN.get(name, {}), **more}


@pytest.mark.parametrize("changes", [{}, _SWITCHED], ids=["usual", "switched"])
@pytest.mark.parametrize("name", FAMILIES)
def test_weights_and_layers_are_those_of_the_architecture(name: str, changes: dict[str, object]) -> None:
    content = _content(name, changes)
    config = CONFIG_MAPPING[name](**content)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    num_weights = sum(parameter.numel() for parameter in module.parameters())
    for source in ({**content, "model_type": name}, config.to_dict()):  # as a maker writes it, and as it is saved
        parsed = parse_config(source)
        assert count_weights(parsed, attention_shape(parsed)).total == num_weights
        types = getattr(config, "layer_types", None)
        if types:
            slides = [each == "sliding_attention" and bool(config.sliding_window) for each in types]
            assert [window > 0 for window in layer_windows(parsed)] == slides


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"gpt2"}))
def test_fields_that_a_file_leaves_out_are_as_in_the_architecture(name: str) -> None:
    config = CONFIG_MAPPING[name]()
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    more = [field for field in ("intermediate_size", "kv_lora_rank", "q_lora_rank") if hasattr(config, field)]
    more += [field for field in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim") if hasattr(config, field)]
    # Makers write these down; their architectures' defaults are those of one model or other.
    parsed = parse_config({"model_type": name, **{field: getattr(config, field) for field in (*needed, *more)}})
    attention = attention_shape(parsed)
    if not attention.latent_dim:
        assert attention.num_kv_heads == (config.num_key_value_heads or config.num_attention_heads)
        own = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        assert attention.query_dim == own
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or 0
    slides = [each == "sliding_attention" for each in types] if types else [window > 0] * config.num_hidden_layers
    assert layer_windows(parsed) == tuple(window if each else 0 for each in slides)
