"""Least recently used first; of one request the tail. The reference: what every other policy is measured against.

With an order per tenant it has the property on which guarantees rest: a larger cache holds all that a smaller one does.
"""

from __future__ import annotations

from cache_store.policy import WORTHLESS, ClassId, Outcome, Use, Uses

_LIVE = ClassId(0)
_ENDED = ClassId(1)
"""What its session has no use for any more."""


class Lru:
    """Keeps no statistics."""

    def uses(self, outcome: Outcome | None, previous: Use | None, now_s: float) -> Uses:  # noqa: ARG002 - protocol
        """See `EvictionPolicy.uses`."""
        if outcome is None:
            use = Use(now_s, _LIVE)
            return Uses(use, use)
        num_tokens = outcome.prompt_tokens + outcome.output_tokens
        expires_s = now_s + outcome.ttl_s
        shared = Use(now_s, _LIVE, num_tokens, session=outcome.session, expires_s=expires_s)
        if not outcome.session_end:
            return Uses(shared, shared)
        return Uses(Use(now_s, _ENDED, num_tokens, session=outcome.session, expires_s=expires_s), shared)

    def reused(self, use: Use, num_blocks: int, now_s: float) -> None:
        """See `EvictionPolicy.reused`."""

    def evicted(self, use: Use, num_blocks: int, now_s: float) -> None:
        """See `EvictionPolicy.evicted`."""

    def value(self, class_id: ClassId, age_s: float) -> float:
        """See `EvictionPolicy.value`."""
        return -age_s if class_id == _LIVE else WORTHLESS
