"""Whether it is faster to load blocks from a lower tier or to compute them again, by measured speeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cache_store.tier_kind import TierKind

RETRY_EVERY = 32
"""So many times loading is declined before it is tried again: what was slow once may be fast now."""


class Source(Protocol):
    """A block of a lower tier."""

    @property
    def tier(self) -> TierKind: ...


class SwapCost:
    """Speeds of one engine."""

    def __init__(self, prefill_tokens_per_s: Callable[[], float], load_block_s: Callable[[TierKind], float]) -> None:
        """Both give 0 before the first measurement: loading is then taken to be the faster."""
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._load_block_s = load_block_s
        self._num_declined = 0

    def num_worthwhile(self, sources: Sequence[Source], block_size: int, num_queued: int) -> int:
        """Leading `sources` that are there sooner by loading than by computing, behind `num_queued` other blocks.

        `sources` follow each other in a prompt; those of one tier are in line behind the same queue.
        """
        rate = self._prefill_tokens_per_s()
        if not sources or rate <= 0:
            return len(sources)
        load_s = num_queued * self._load_block_s(sources[0].tier)
        best, most_gained_s = 0, 0.0
        for number, source in enumerate(sources, start=1):
            load_s += self._load_block_s(source.tier)
            gained_s = number * block_size / rate - load_s
            if gained_s > most_gained_s:
                best, most_gained_s = number, gained_s
        if best == 0:
            self._num_declined += 1
            if self._num_declined % RETRY_EVERY == 0:
                return len(sources)
        return best
