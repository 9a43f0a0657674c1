"""Blocks that workers have evicted lately, by digest: so that a miss can be told from what was never there.

A bounded memory for explanations; nothing depends on it. Owned by one event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cache_store.clock import Clock
from cache_store.digest import DIGEST_BYTES
from cache_store.domain import DomainTag

MAX_DEPARTURES = 100_000
"""Beyond it the oldest are forgotten: about 20 MB."""


class Departures:
    """When blocks left."""

    def __init__(self, clock: Clock, max_departures: int = MAX_DEPARTURES) -> None:
        self._clock = clock
        self._max_departures = max_departures
        self._left_s: OrderedDict[tuple[DomainTag, bytes], float] = OrderedDict()

    def note(self, domain_tag: DomainTag, digests: Iterable[bytes]) -> None:
        """A worker has evicted blocks."""
        now_s = self._clock.monotonic_s()
        for digest in digests:
            self._left_s[domain_tag, digest] = now_s
            self._left_s.move_to_end((domain_tag, digest))
        while len(self._left_s) > self._max_departures:
            self._left_s.popitem(last=False)

    def age_s(self, domain_tag: DomainTag, digest: bytes) -> float | None:
        """How long ago the block was evicted last; None where that is not known."""
        left_s = self._left_s.get((domain_tag, digest))
        return None if left_s is None else self._clock.monotonic_s() - left_s

    def leading(self, domain_tag: DomainTag, chain: bytes, first: int) -> int:
        """How many blocks of a chain of packed digests, from the `first` on, are known to have been evicted."""
        at = first * DIGEST_BYTES
        while at < len(chain) and (domain_tag, chain[at : at + DIGEST_BYTES]) in self._left_s:
            at += DIGEST_BYTES
        return at // DIGEST_BYTES - first
