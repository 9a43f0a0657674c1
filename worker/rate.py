"""The measured speed of prefill: an exponential moving average over tokens, not over steps. And how much there was."""

from __future__ import annotations

import math

from cache_store.clock import Clock

MEMORY_TOKENS = 4_096
"""A measurement weighs 1/e after that many more tokens."""

RECENT_S = 60.0
"""After so long, a token that was computed counts 1/e as recent."""


class RateMeter:
    """Tokens per second. Large steps weigh more: a step that prefills one token says little about a long prompt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = 0.0
        self._seconds = 0.0
        self._recent_tokens, self._recent_at_s = 0.0, clock.monotonic_s()

    @property
    def tokens_per_s(self) -> float:
        """0 before the first measurement."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0

    @property
    def recent_tokens(self) -> int:
        """Computed lately, of which old ones count less: about what the cache took in."""
        return round(self._recent_now(self._clock.monotonic_s()))

    def add(self, num_tokens: float, seconds: float) -> None:
        """`num_tokens` took `seconds`."""
        if num_tokens <= 0 or seconds <= 0:
            return
        now_s = self._clock.monotonic_s()
        self._recent_tokens, self._recent_at_s = self._recent_now(now_s) + num_tokens, now_s
        kept = math.exp(-num_tokens / MEMORY_TOKENS)
        self._tokens = self._tokens * kept + num_tokens
        self._seconds = self._seconds * kept + seconds

    def _recent_now(self, now_s: float) -> float:
        return self._recent_tokens * math.exp((self._recent_at_s - now_s) / RECENT_S)
