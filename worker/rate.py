"""The measured speed of prefill: an exponential moving average over tokens, not over steps."""

from __future__ import annotations

import math

MEMORY_TOKENS = 4_096
"""A measurement weighs 1/e after that many more tokens."""


class RateMeter:
    """Tokens per second. Large steps weigh more: a step that prefills one token says little about a long prompt."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        """0 before the first measurement."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0

    def add(self, num_tokens: float, seconds: float) -> None:
        """`num_tokens` took `seconds`."""
        if num_tokens <= 0 or seconds <= 0:
            return
        kept = math.exp(-num_tokens / MEMORY_TOKENS)
        self._tokens = self._tokens * kept + num_tokens
        self._seconds = self._seconds * kept + seconds
