"""Least recently used first; of one request the tail. The reference: what every other policy is measured against.

With an order per tenant it has the property on which guarantees rest: a larger cache holds all that a smaller one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from cache_store.policy import WORTHLESS, ClassId, Outcome, Part, Use, UsedBlock

_LIVE = ClassId(0)
_ENDED = ClassId(1)
"""What its session has no use for any more."""


class Lru:
    """Keeps no statistics."""

    def unknown_use(self, now_s: float) -> Use:
        """See `EvictionPolicy.unknown_use`."""
        return Use(now_s, _LIVE)

    def uses(
        self,
        outcome: Outcome,
        blocks: Sequence[UsedBlock],
        num_prompt_blocks: int,  # noqa: ARG002 - protocol
        now_s: float,
    ) -> Sequence[Part]:
        """See `EvictionPolicy.uses`. Of a session that ends only what others share is kept."""
        num_tokens = outcome.prompt_tokens + outcome.output_tokens
        expires_s = now_s + outcome.ttl_s
        live = Use(now_s, _LIVE, num_tokens, session=outcome.session, expires_s=expires_s)
        if not outcome.session_end:
            return (Part(live, len(blocks)),)
        num_shared = sum(1 for _ in takewhile(_is_shared, blocks))
        ended = Use(now_s, _ENDED, num_tokens, session=outcome.session, expires_s=expires_s)
        return Part(live, num_shared), Part(ended, len(blocks))

    def value(self, class_id: ClassId, age_s: float) -> float:
        """See `EvictionPolicy.value`."""
        return -age_s if class_id == _LIVE else WORTHLESS


def _is_shared(block: UsedBlock) -> bool:
    return block.shared
