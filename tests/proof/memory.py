"""Bytes of the live tensors against the formulas.

2 × layers × kv_heads × head_dim × length × element size; of latents layers × (latent + rotary width) × length × that.
"""

from __future__ import annotations

from tests.proof.cases import BLOCK_SIZE, NUM_TOKENS, Case
from worker.torch_runner.contiguous import ContiguousRunner
from worker.torch_runner.fastest import fastest_attention
from worker.torch_runner.loader import LoadedModel
from worker.torch_runner.paged import PagedRunner


def formula_bytes(model: LoadedModel, length: int) -> int:
    """Keys and values of `length` tokens, from the model's own configuration."""
    config = model.module.config
    if getattr(config, "kv_lora_rank", None):
        width = config.kv_lora_rank + config.qk_rope_head_dim
        return int(config.num_hidden_layers * width * length * model.torch_dtype.itemsize)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    element_bytes = model.torch_dtype.itemsize
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * length * element_bytes


def check_memory(case: Case, model: LoadedModel) -> tuple[list[str], list[str]]:
    """Lines to print, and problems."""
    lengths = [len(prompt) + NUM_TOKENS for prompt in case.prompts]
    rounded = [-(-length // BLOCK_SIZE) * BLOCK_SIZE for length in lengths]
    paged = PagedRunner(model, sum(rounded) // BLOCK_SIZE, fastest_attention(model), BLOCK_SIZE)
    contiguous = ContiguousRunner(model, len(lengths), max(rounded), BLOCK_SIZE)
    rows = (
        ("paged", paged.pools.size_bytes, formula_bytes(model, sum(rounded))),
        ("contiguous", contiguous.size_bytes, formula_bytes(model, max(rounded) * len(lengths))),
    )
    lines = [f"{name}: {size:,} bytes of tensors, formula {formula:,}" for name, size, formula in rows]
    lines.append(
        f"live tokens {sum(lengths):,} in blocks of {BLOCK_SIZE}: {sum(rounded) - sum(lengths):,} tokens of waste, "
        f"{max(r - n for r, n in zip(rounded, lengths, strict=True))} at most in one sequence"
    )
    return lines, [f"{name}: {size} bytes, formula {formula}" for name, size, formula in rows if size != formula]
