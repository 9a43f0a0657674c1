"""How requests ended, for tests of pools and policies."""

from __future__ import annotations

import math

from cache_store.policy import Outcome


def make_outcome(
    prompt_tokens: int = 100,
    output_tokens: int = 10,
    cached_tokens: int = 0,
    stop: str = "length",
    session: bytes = b"",
    session_end: bool = False,
    ttl_s: float = math.inf,
) -> Outcome:
    """An ordinary end."""
    return Outcome(prompt_tokens, output_tokens, cached_tokens, stop, session, session_end, ttl_s)
