"""Which models and prompts the proof is about.

Prompts share a beginning and part from it at every offset inside a block, so that reuse ends everywhere it can. Lengths
run from one to four windows: the sliding window where the model has one, the prefill chunk otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoTokenizer

from tests.support.tiny_models import VOCAB_SIZE, WINDOW, tiny_model

BLOCK_SIZE = 16
NUM_TOKENS = 100
TINY_MODELS = ("llama", "qwen3", "mistral", "gemma3_text", "gpt_oss", "deepseek_v2", "deepseek_v3")
SMOLLM2 = "smollm2"
SMOLLM2_CHUNK = 48
_SHARED_TEXT = (
    "You are a careful assistant in the reading room of a large public library. Visitors ask you about history, "
    "nature, machines, music, food and far countries, and you answer each of them in plain words, with examples, "
    "numbers and names where they help, and without ever repeating a sentence that you have said before."
)
# One per boundary, chosen so that greedy answers are rich in different tokens.
_QUESTIONS = (
    "Describe a thunderstorm over the desert.",
    "Write a story about two friends and a broken bridge.",
    "Write a short scene between a detective and a piano teacher.",
    "Describe an abandoned castle at night.",
    "Describe the morning routine of a baker in Paris.",
    "Describe a thunderstorm over the desert.",
    "Write a story about two friends and a broken bridge.",
    "Describe the morning routine of a baker in Paris.",
    "Write a short scene between a detective and a piano teacher.",
    "Write the opening of a novel about a clockmaker.",
    "Describe what a diver sees near a coral reef.",
    "Write a story about two friends and a broken bridge.",
    "Write the opening of a novel about a clockmaker.",
    "Write a short story about a sailor who finds a strange map.",
    "Write a story about two friends and a broken bridge.",
    "Describe a thunderstorm over the desert.",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One model and its prompts."""

    name: str
    folder: Path
    chunk: int
    """Most new tokens of a step: long prompts are prefilled in several."""
    shared: tuple[int, ...]
    """What every prompt begins with, up to its boundary."""
    prompts: tuple[tuple[int, ...], ...]
    boundaries: tuple[int, ...]
    """Tokens that each prompt has in common with `shared`."""
    min_distinct: int
    """Distinct tokens that each output must have."""


def tiny_case(name: str, folder: Path) -> Case:
    """Random weights and random prompts."""
    generator = torch.Generator().manual_seed(5)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(4, VOCAB_SIZE, (count,), generator=generator).tolist())

    shared = draw(4 * WINDOW)
    boundaries = tuple(BLOCK_SIZE + offset for offset in range(BLOCK_SIZE))
    lengths = tuple(max(boundary + 1, WINDOW * (1 + index % 4)) for index, boundary in enumerate(boundaries))
    prompts = tuple(
        _part_ways(shared, cut, draw(length - cut)) for cut, length in zip(boundaries, lengths, strict=True)
    )
    return Case(name, tiny_model(name, folder), WINDOW, shared, prompts, boundaries, min_distinct=1)


def smollm2_case(folder: Path) -> Case:
    """Real chats that begin alike."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    shared = encode(f"<|im_start|>system\n{_SHARED_TEXT} {_SHARED_TEXT} {_SHARED_TEXT}")
    boundaries, prompts = [], []
    for offset, text in enumerate(_QUESTIONS):
        cut = BLOCK_SIZE * (1 + 3 * (offset % 4)) + offset
        question = f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        boundaries.append(cut)
        prompts.append((*shared[:cut], *encode(question)))
    return Case(SMOLLM2, folder, SMOLLM2_CHUNK, shared, tuple(prompts), tuple(boundaries), min_distinct=50)


def _part_ways(shared: tuple[int, ...], cut: int, tail: tuple[int, ...]) -> tuple[int, ...]:
    """`shared` up to `cut`, then `tail`, whose first token is made to differ."""
    first = tail[0] if tail[0] != shared[cut] else 4 + (tail[0] - 3) % (VOCAB_SIZE - 4)
    return (*shared[:cut], first, *tail[1:])
