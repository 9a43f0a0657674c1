"""What transformers itself says: its own generate, and its own logits along the generated tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.proof.cases import NUM_TOKENS


class Reference:
    """The plain model of a folder with its own attention and its own cache; nothing of ours is in it."""

    def __init__(self, folder: Path, attention: str) -> None:
        self.module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
        ).eval()

    @torch.inference_mode()
    def generate(self, prompt: tuple[int, ...]) -> list[int]:
        """NUM_TOKENS greedy tokens."""
        output = self.module.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
            repetition_penalty=1.0,
        )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    @torch.inference_mode()
    def logits(self, prompt: tuple[int, ...], tokens: list[int]) -> Tensor:
        """[len(tokens), vocabulary]: from which each of `tokens` is drawn, in one forward without cache."""
        ids = torch.tensor([[*prompt, *tokens[:-1]]])
        return self.module(ids, use_cache=False, logits_to_keep=len(tokens)).logits[0].float()
