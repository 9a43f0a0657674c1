"""What transformers itself answers, for comparison: plain `generate` through the model's own eager attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig

from worker.torch_runner.hook import HOOK_NAME
from worker.torch_runner.loader import LoadedModel


@dataclass(frozen=True, slots=True)
class Reference:
    """Greedy tokens and the logits [tokens, vocabulary] that they were chosen from."""

    tokens: list[int]
    logits: Tensor


@torch.inference_mode()
def generate(model: LoadedModel, prompt: Sequence[int], num_tokens: int) -> Reference:
    """Exactly `num_tokens` greedy tokens; the end-of-sequence token is not treated differently from others."""
    module = model.module
    module.generation_config.eos_token_id = None  # else it fills in where another configuration tells none
    module.set_attn_implementation("eager")
    try:
        output = module.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            generation_config=GenerationConfig(
                do_sample=False,
                max_new_tokens=num_tokens,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
    finally:
        module.set_attn_implementation(HOOK_NAME)
    return Reference(output.sequences[0, len(prompt) :].tolist(), torch.cat(output.logits))
