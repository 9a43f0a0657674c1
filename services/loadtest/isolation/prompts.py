"""Prompts that nobody has sent before: token ids drawn at random. Owns the generator of one test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

_FIRST_TOKEN = 16
"""Below are the special tokens of usual vocabularies."""


class FreshPrompts:
    """Draws prompts of a vocabulary. Two of them share more than a few of their first tokens in no test."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        """Raises ValueError for a vocabulary in which prompts would begin alike by chance."""
        if vocab_size < 10 * _FIRST_TOKEN:
            raise ValueError(f"a vocabulary of {vocab_size} tokens is too small for prompts that do not begin alike")
        self._rng = np.random.default_rng(seed)
        self._vocab_size = vocab_size

    def draw(self, num_tokens: int) -> tuple[int, ...]:
        """A prompt."""
        return tuple(self._rng.integers(_FIRST_TOKEN, self._vocab_size, num_tokens).tolist())

    def one_of(self, choices: Sequence[T]) -> T:
        """Any of them, each as likely."""
        return choices[int(self._rng.integers(len(choices)))]
