"""One tiny model of every architecture that is served: random weights, sizes alike, quirks of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig

from tests.support.tiny_models import VOCAB_SIZE, WINDOW, write_tokenizer

NUM_LAYERS = 2
_SIZES: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": WINDOW,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
"""For whatever a configuration calls so."""
_LATENT_SIZES: dict[str, object] = {
    "num_key_value_heads": 6,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
FAMILIES: dict[str, dict[str, object]] = {
    "afmoe": {},
    "apertus": {},
    "apertus1p5_text": {},
    "arcee": {},
    "aria_text": {},
    "axk1": {},
    "beam": {},
    "bitnet": {},
    "cohere": {},
    "cohere2": {},
    "cohere2_moe": {},
    "ctrl": {},
    "cwm": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone": {},
    "exaone4": {},
    "exaone_moe": {},
    "flex_olmo": {},
    "flint": {},
    "gemma": {"num_key_value_heads": 1},
    "gemma2": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0, "query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "gpt-sw3": {},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gpt_oss": {},
    "granite": {},
    "granite_swa": {},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoeshared": {},
    "helium": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {},
    "hy_v3": {},
    "hyperclovax": {},
    "internlm3": {},
    "iquestcoder": {},
    "jais2": {},
    "jetmoe": {},
    "kolibri1": {},
    "laguna": {},
    "llama": {},
    "mellum": {},
    "minicpm3": {},
    "minimax_m2": {},
    "minimax_m3_vl_text": {},
    "ministral": {},
    "ministral3": {},
    "mistral": {},
    "mixtral": {},
    "modernbert-decoder": {},
    "nanochat": {},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": {},
    "opt": {},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": {},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
    "sarvam_mla": {},
    "sarvam_moe": {},
    "seed_oss": {},
    "smollm3": {},
    "solar_open": {},
    "starcoder2": {},
    "vaultgemma": {},
    "youtu": {},
}
"""By transformers' name of the architecture, with settings of its own."""


def zoo_model(name: str, folder: Path) -> Path:
    """Writes the model `name` to `folder`/`name`; returns that path."""
    path = folder / name
    module = AutoModelForCausalLM.from_config(zoo_config(name, FAMILIES.get(name, {})), dtype=torch.float32)
    generator = torch.Generator().manual_seed(11)
    for parameter_name, parameter in module.named_parameters():
        if "sinks" in parameter_name:
            parameter.data.normal_(0, 0.5, generator=generator)
        elif parameter_name.endswith("bias"):
            parameter.data.normal_(0, 0.1, generator=generator)
        elif parameter.dim() >= 2:
            parameter.data.normal_(0, 0.15, generator=generator)
    module.save_pretrained(path)
    write_tokenizer(path)
    return path


def zoo_config(name: str, special: dict[str, object]) -> PretrainedConfig:
    """The configuration of architecture `name`, small; every kind of layer that its defaults have is in it."""
    defaults = CONFIG_MAPPING[name]()
    told = {*defaults.to_dict(), *getattr(defaults, "attribute_map", {})}
    sizes = {**_SIZES}
    if getattr(defaults, "kv_lora_rank", None):
        sizes.update(_LATENT_SIZES)
        told -= {"head_dim"}
    if getattr(defaults, "sliding_window", None) is None:
        told -= {"sliding_window"}
    kinds = list(dict.fromkeys(getattr(defaults, "layer_types", None) or ()))
    if kinds:
        sizes["layer_types"] = [kinds[index % len(kinds)] for index in range(NUM_LAYERS)]
    return AutoConfig.for_model(name, **{key: value for key, value in sizes.items() if key in told} | special)
