"""Tiny models with random weights and a byte-level tokenizer, one per architecture whose attention differs.

`tiny_model("llama", tmp_path)` writes a folder, `load_tiny("llama", tmp_path)` loads it. Weights are large enough, and
sinks and biases set at random, so that every mistake shows in the logits.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from worker.torch_runner.loader import LoadedModel, load_model

VOCAB_SIZE = 384
WINDOW = 24
"""Of the sliding layers."""
LEFT_OUT = object()
"""In place of a setting that a configuration must not be told."""
_BASE: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_ALTERNATING: dict[str, object] = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": WINDOW,
}
_EXPERTS: dict[str, object] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_YARN: dict[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 16,
    "truncate": False,
}
_LATENT: dict[str, object] = {
    "num_key_value_heads": 6,
    "head_dim": LEFT_OUT,
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_SPECIAL: dict[str, dict[str, object]] = {
    "llama": {},
    "qwen3": {},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {
        **_ALTERNATING,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
    },
    "gemma3_text": {**_ALTERNATING, "query_pre_attn_scalar": 16},
    "gpt_oss": {**_ALTERNATING, **_EXPERTS, "rope_parameters": _YARN},
    "deepseek_v2": {**_LATENT, "q_lora_rank": None},
    "deepseek_v3": {**_LATENT, "rope_parameters": {**_YARN, "mscale_all_dim": 1.0, "truncate": True}},
}
NAMES = tuple(_SPECIAL)
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_model(name: str, folder: Path, **changes: object) -> Path:
    """Writes the model `name` with `changes` of its configuration to `folder`/`name`; returns that path."""
    path = folder / name
    settings = {**_BASE, **_SPECIAL.get(name, {}), **changes}
    config = AutoConfig.for_model(name, **{key: value for key, value in settings.items() if value is not LEFT_OUT})
    generator = torch.Generator().manual_seed(11)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter_name, parameter in module.named_parameters():
        if "sinks" in parameter_name or parameter_name.endswith("bias"):
            parameter.data.normal_(0, 0.5, generator=generator)
        elif parameter.dim() >= 2:
            parameter.data.normal_(0, 0.15, generator=generator)
    module.save_pretrained(path)
    write_tokenizer(path)
    return path


def load_tiny(name: str, folder: Path, **changes: object) -> LoadedModel:
    """`tiny_model`, loaded; digests are remembered beside it."""
    return load_model(tiny_model(name, folder, **changes), cache_dir=kernel_cache(folder))


def kernel_cache(folder: Path) -> Path:
    """A cache folder below `folder` whose compiled kernels are those of all tests: compiling takes seconds."""
    cache = folder / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    kernels = cache / "kernels"
    if not kernels.exists():
        shared = Path(tempfile.gettempdir()) / f"stemcache-test-kernels-{os.getuid()}"
        shared.mkdir(mode=0o700, exist_ok=True)
        kernels.symlink_to(shared)
    return cache


def write_tokenizer(path: Path) -> None:
    """A byte-level tokenizer without merges: <pad> <s> </s> <unk>, 256 bytes, then fillers up to the vocabulary."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = special + alphabet
    tokens += [f"<filler_{index}>" for index in range(len(tokens), VOCAB_SIZE)]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "chat_template": _CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
